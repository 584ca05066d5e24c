"""The Run page, and the numbers behind it."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from tailprop.app.library import Entry, Library
from tailprop.app.runs import Logs, artifact, compare_settings, describe, flat, listing, state_of, trained_for
from tailprop.utils.parsing import seal_row
from tests.app.conftest import Watched


@pytest.fixture
def copied(app_runs: Path, tmp_path: Path) -> Entry:
    """A run that a test may change."""
    shutil.copytree(app_runs / "fast", tmp_path / "run")
    return Library((), tmp_path).entries()[-1]


def test_run_is_described(app_runs: Path) -> None:
    library = Library((), app_runs)
    rows = {row["name"]: row for row in listing(library)}
    assert rows["fast"] | {"id": ""} == {
        "id": "", "name": "fast", "task": "classify", "shipped": False, "run": True, "weights": True, "state": "finished"
    }  # fmt: skip
    about = describe(library.find(rows["fast"]["id"]))
    assert about["metric"] == "top1"
    assert about["settings"]["optim.lr"] == "0.002"
    assert about["problem"] == ""
    assert about["manifest"]["parameters"].isdecimal()
    assert "learning.png" in about["pictures"]
    assert trained_for(library.find(rows["sub/restorer"]["id"]))["degradation"] == "noise"
    found = compare_settings([library.find(rows[name]["id"]) for name in ("fast", "slow")])
    assert found == [{"name": "optim.lr", "values": ["0.002", "0.0001"]}]


def test_log_is_sent_once_and_again_after_a_rewind(copied: Entry) -> None:
    logs, path = Logs(), copied.path / "metrics.jsonl"
    first = logs.since(copied, 0)
    assert first["total"] == len(first["rows"]) == len(path.read_text().splitlines())
    assert logs.since(copied, first["total"])["rows"] == []
    with path.open("a") as file:
        file.write(seal_row({"kind": "step", "step": 999, "loss": float("nan"), "lr": 1.0}) + "\n")
        file.write('{"kind": "st')  # a line that is being written
    news = logs.since(copied, first["total"])
    assert news["rows"] == [{"kind": "step", "step": 999, "lr": 1.0}]  # JSON has no NaN
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert logs.since(copied, first["total"])["begin"] == 0
    path.write_text("garbage\n")
    with pytest.raises(ValueError, match="is corrupt: 1 line cannot be read"):
        logs.since(copied, 0)
    assert path.read_text() == "garbage\n"  # nothing is written


def test_state_of_a_run(copied: Entry) -> None:
    assert state_of(copied) == "finished"
    (copied.path / "history.csv").unlink()
    (copied.path / "metrics.jsonl").touch()
    assert state_of(copied) == "training"
    import os

    os.utime(copied.path / "metrics.jsonl", (1, 1))
    assert state_of(copied) == "stopped"
    (copied.path / "metrics.jsonl").unlink()
    assert state_of(copied) == "not started"


def test_corrupt_manifest_is_said_and_left_alone(copied: Entry) -> None:
    path = copied.path / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"parameters": 1}))
    assert "does not match its checksum" in describe(copied)["problem"]
    path.write_text("{")
    assert "cannot be read" in describe(copied)["problem"]
    assert path.read_text() == "{"
    path.unlink()
    assert describe(copied)["problem"] == "this run has no manifest"
    (copied.path.parent / "other.json").write_text('{"secret": 1}')
    path.symlink_to(copied.path.parent / "other.json")
    about = describe(copied)
    assert (about["manifest"], "is a link out of the run folder" in about["problem"]) == ({}, True)


def test_only_pictures_of_the_task_are_shown(copied: Entry, tmp_path: Path) -> None:
    assert artifact(copied, "learning.png").startswith(b"\x89PNG")
    for name in ("config.yaml", "../run/learning.png", "/etc/passwd", "model.safetensors", ""):
        with pytest.raises(ValueError, match="no such picture"):
            artifact(copied, name)
    secret = tmp_path / "secret.png"
    Image.new("L", (4, 4)).save(secret)
    (copied.path / "learning.png").unlink()
    (copied.path / "learning.png").symlink_to(secret)
    with pytest.raises(ValueError, match="a link out of the run folder"):
        artifact(copied, "learning.png")
    (copied.path / "learning.png").unlink()
    (copied.path / "learning.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    with pytest.raises(ValueError, match="cannot be read: not an image"):
        artifact(copied, "learning.png")


def test_nested_values_become_names_with_texts() -> None:
    assert flat({"a": {"b": [1, 2], "c": None}, "d": [{"e": 1}]}) == {"a.b": "1, 2", "a.c": "", "d.1.e": "1"}


def test_page_follows_a_run_and_compares(watched: Watched, app_runs: Path) -> None:
    name = "<b>live</b> & \u202eevil"
    folder = app_runs / name
    shutil.copytree(app_runs / "slow", folder)
    try:
        (folder / "history.csv").unlink()
        page = watched.open("#run", "#page-run[data-drawn]")  # the newest run, the restorer, is chosen
        page.get_by_label("<b>live</b> & \\u202eevil").check()  # the mark would reverse the rest of the line
        watched.until("() => Number(document.querySelector('#page-run').dataset.drawn) > 1")
        assert page.locator("#run-list b").count() == 0  # a name is text
        rows = int(page.evaluate("Number(document.querySelector('#page-run').dataset.rows)"))
        curve = "() => document.querySelector('#chart-loss').innerHTML.length"
        drawn = page.evaluate(curve)
        with (folder / "metrics.jsonl").open("a") as file:
            for step in range(200, 260):
                row = {"kind": "step", "step": step, "epoch": 1, "loss": 0.5, "lr": 1e-3, "time": time.time()}
                file.write(seal_row(row) + "\n")
        watched.until("n => Number(document.querySelector('#page-run').dataset.rows) === n + 60", rows)
        assert page.evaluate(curve) > drawn
        page.get_by_text("1 training; the curves are live").wait_for()
        for one in ("fast", "slow"):
            page.locator("#run-list label", has_text=one).locator("input").set_checked(True)
        page.locator("#run-differences-table").get_by_text("optim.lr").wait_for()
        watched.until("() => document.querySelectorAll('#run-tiles .tile').length === 4")
        page.get_by_text("Manifest").click()
        page.locator("#run-manifest").get_by_text("parameters", exact=True).wait_for()
        watched.until("() => [...document.querySelectorAll('#run-pictures img')].some(i => i.complete && i.naturalWidth > 100)")
    finally:
        shutil.rmtree(folder)


def test_damaged_folders_hide_no_others(copied: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("link", "loop", "pipe", "folder", "bytes", "nested", "bomb", "unreadable"):
        (tmp_path / name).mkdir()
    (tmp_path / "link" / "config.yaml").symlink_to("nowhere")
    (tmp_path / "loop" / "config.yaml").symlink_to("config.yaml")
    os.mkfifo(tmp_path / "pipe" / "config.yaml")
    (tmp_path / "folder" / "config.yaml").mkdir()
    (tmp_path / "bytes" / "config.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nested" / "config.yaml").write_text("[" * 5000)
    (tmp_path / "bomb" / "config.yaml").write_text("a: &a [1, 1]\nb: &b [*a, *a, *b]\n")
    (tmp_path / "unreadable" / "config.yaml").write_text("x")
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:  # permissions do not stop root
        if path.parent.name == "unreadable":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert [row["name"] for row in listing(Library((), tmp_path)) if not row["shipped"]] == [copied.name]


def test_corrupt_shipped_weights_hide_no_others(copied: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped"
    for name in ("a", "b"):
        (shipped / name).mkdir(parents=True)
        shutil.copy(copied.path / "model.safetensors", shipped / name)
    (shipped / "a" / "model.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr("tailprop.app.library.SHIPPED", shipped)
    assert [row["name"] for row in listing(Library((), tmp_path / "none")) if row["shipped"]] == ["b"]
