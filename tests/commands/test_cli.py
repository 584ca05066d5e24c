"""The command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tailprop_cli


def test_help_lists_every_command_without_importing_torch() -> None:
    code = "import sys, tailprop_cli; tailprop_cli.main(['--help']); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name}" in out for name in tailprop_cli.COMMANDS)
    assert out.endswith("False\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["modles"], "no command 'modles'; did you mean 'models'?"),
        (["xyz"], "no command 'xyz'; commands are models"),
        (["models", "--height", "16"], "height must be at least 32, got 16"),
        (["bench", "--threads", "0"], "threads must be at least 1"),
        (["bench", "--models"], "give at least one"),
        (["demo", "--epochs", "0"], "optim.epochs must be at least 1"),
        (["demo", "--batch-size", "5000"], "larger than the 1198 training examples"),
        (["demo", "--model", "nonsense"], "timm has no model 'nonsense'"),
        (["scales", "--data", "nowhere", "--only", "bogus"], "unknown trial 'bogus'"),
        (["bench", "--models", "tailprop_huge"], "timm has no model 'tailprop_huge'"),
        (["bench", "--vheat-code", "nowhere.py", "--models", "tailprop_pico"], "no Python file nowhere.py"),
        (["bench", "--rounds", "0"], "rounds must be at least 1"),
        (["scales", "--data", "nowhere"], "no folder nowhere"),
        (["bench", "--batch-sise", "2"], "unknown option --batch-sise; did you mean --batch-size?"),
        (["train", "digits", "--optim.leaning-rate", "1"], "unknown option --optim.leaning-rate; did you mean --optim."),
        (["train", "digits", "--run.overwite"], "unknown option --run.overwite; did you mean --run.overwrite?"),
        (
            ["bench", "--models", "tailprop_pico", "--batch-size", str(10**8)],
            "out of memory (tried to allocate 60211200000000 bytes)",
        ),
        (["bench", "detect", "--qqqq"], "unknown option --qqqq; see tailprop bench detect --help"),
        (["models", "--qqqq"], "unknown option --qqqq; see tailprop models --help"),
    ],
)
def test_user_errors_are_one_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(args) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len([line for line in err.splitlines() if not line[:1].isdigit()]) == 1  # "1 of 2: .." of a benchmark is none


def test_gpu_out_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8.00 GiB")

    monkeypatch.setattr(tailprop_cli, "_run", fail)
    assert tailprop_cli.main(["models"]) == 2
    assert "out of memory (tried to allocate 2.50 GiB); use a smaller batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "unbuffered"),
    [(["--help"], ""), (["--help"], "1"), (["models"], ""), (["models"], "1"), (["train", "digits", "--help"], "")],
)
def test_closed_pipe_is_not_an_error(args: list[str], unbuffered: str) -> None:
    command, env = [sys.executable, "-m", "tailprop", *args], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)  # 1 if it was not done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(("unbuffered", "args"), [("", []), ("1", []), ("", ["models", "--help"])])
def test_full_disk_on_stdout_is_reported(unbuffered: str, args: list[str]) -> None:
    command, env = [sys.executable, "-m", "tailprop", *args], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert process.returncode == 2
    assert process.stderr.startswith("tailprop: ")
    assert "No space left on device" in process.stderr
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("DataLoader worker (pid(s) 12, 13) exited unexpectedly", "a loader process exited unexpectedly; give it"),
        ("DataLoader worker (pid 12) is killed by signal: Bus error. It", "a loader process is killed by signal: Bus error; "),
    ],
)
def test_dead_loader_process_is_reported(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError(words)

    monkeypatch.setattr(tailprop_cli, "_run", fail)
    assert tailprop_cli.main(["train", "digits"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--optim.lr", "abc"], "--optim.lr: could not convert string to float: 'abc'"),
        (["--run.precision", "fp8"], "invalid choice 'fp8' for argument '--run.precision'"),
        (["--optim.epochs"], "Missing value for argument '--optim.epochs'"),
    ],
)
def test_invalid_value_is_one_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["train", "digits", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.endswith("; see tailprop train digits --help\n")
    assert err.count("\n") == 1


def test_error_with_closed_stderr_still_exits_with_2() -> None:
    with subprocess.Popen([sys.executable, "-m", "tailprop", "nonsense"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
    assert process.returncode == 2


def test_broken_pipe_other_than_stdout_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise BrokenPipeError(32, "Broken pipe", "socket")

    monkeypatch.setattr(tailprop_cli, "_run", fail)
    assert tailprop_cli.main(["models"]) == 2
    assert capsys.readouterr().err == "tailprop: [Errno 32] Broken pipe: 'socket'\n"


@pytest.mark.parametrize("name", tailprop_cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = tailprop_cli.main([name, "--help"])
    except SystemExit as stop:  # of tyro
        code = stop.code
    assert code == 0
    assert f"usage: tailprop {name}" in capsys.readouterr().out


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert tailprop_cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert "28.7 M" in out
    assert "4.56" in out


def test_bench_writes_csv(tmp_path: Path) -> None:
    out = tmp_path / "bench.csv"
    args = [
        "--models",
        "tailprop_pico",
        "--size-px",
        "32",
        "--batch-size",
        "1",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--out",
        str(out),
    ]
    assert tailprop_cli.main(["bench", *args]) == 0
    header, infer, train = out.read_text().splitlines()
    assert "hardware" in header
    assert "torch" in header
    assert infer.startswith("infer,tailprop_pico,")
    assert train.startswith("train,tailprop_pico,")


@pytest.mark.parametrize(("command", "expected"), [("predict", "128"), ("eval", "128"), ("train", None)])
def test_cache_of_compiled_layers_is_bounded_where_sizes_vary(
    command: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """oneDNN reads it when it computes for the first time; 1024 layers of images of all sizes took hundreds of megabytes."""
    monkeypatch.setattr("os.environ", {**os.environ})
    os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    assert tailprop_cli.main([command, "--nowhere"]) == 2
    assert capsys.readouterr().err
    assert os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == expected


def test_hostile_text_in_an_error_message_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["a\x1b[2J\u202e"], ["train", "a\x1b[2J\u202e"], ["predict", "digits", "a\x1b[2J\u202e"]):
        assert tailprop_cli.main(args) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "\\x1b[2J\\u202e" in error
    assert tailprop_cli._print_error("a\x1b[2J\u202eb") == 2  # whatever raised it
    assert capsys.readouterr().err == "tailprop: a\\x1b[2J\\u202eb\n"
