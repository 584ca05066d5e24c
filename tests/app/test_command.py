"""`tailprop app` in a terminal: its address, its end, and what it refuses."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import pytest

import tailprop_cli
from tailprop.app import command
from tailprop.app.options import App

ADDRESS = "TailProp is at http://127.0.0.1:"


def begin(folder: Path, *args: str) -> tuple[subprocess.Popen[str], int]:
    """Start it, and wait for its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tailprop", "app", *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(ADDRESS), line + (process.stderr.read() if process.stderr else "")
    return process, int(line.removeprefix(ADDRESS).split()[0])


def test_it_answers_before_pytorch_is_imported_and_ends_with_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process, port = begin(tmp_path, "--no-browser")
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/api/samples")
        assert len(json.loads(connection.getresponse().read())) == 6
        connection.close()
        listening = Path(f"/proc/{process.pid}/net/tcp")
        if listening.exists():  # on 127.0.0.1 and nowhere else
            rows = [line.split() for line in listening.read_text().splitlines()[1:]]
            assert {row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"} == {f"0100007F:{port:04X}"}
        assert tailprop_cli.main(["app", "--port", str(port)]) == 2
        wanted = f"tailprop: port {port} is in use; choose another with --port, or let one be found with --port 0\n"
        assert capsys.readouterr().err == wanted
    finally:
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip(), err) == (0, "closed", "")
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--host", "0.0.0.0"], "--host"),
        (["--port", "70000"], "--port must be between 0 and 65535"),
        (["--images", "nothing"], "no folder nothing"),
        (["--runs", "nothing"], "no folder nothing"),
        (["nothing"], "no run folder or weights file at nothing"),
    ],
)
def test_wrong_options_end_in_one_line(
    args: Sequence[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tailprop_cli.main(["app", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_no_browser_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return len(opened) > 1

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", open_page)
    command.open_browser("http://127.0.0.1:1")
    assert capsys.readouterr().err == "no browser could be opened; open http://127.0.0.1:1 in one yourself\n"
    command.open_browser("http://127.0.0.1:1")
    assert capsys.readouterr().err == ""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    command.open_browser("http://127.0.0.1:1")
    assert len(opened) == 2  # without a screen a browser in the terminal would start
    assert "no browser could be opened" in capsys.readouterr().err


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith(("tailprop.app.command", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert tailprop_cli.main(["app"]) == 2
    assert capsys.readouterr().err == "tailprop: uvicorn is not installed; pip install 'tailprop[app]' adds it\n"


def test_port_is_bound_to_this_machine() -> None:
    with command.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.family == socket.AF_INET
    assert App().port == 0
