"""recipes, info, completion, --version and --dry-run."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import tailprop
import tailprop_cli
from tailprop.engine.recipes import recipe_names
from tests.helpers.runs import assert_refused, write_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("describe")
    recipe = write_recipe(folder / "small.yaml")
    assert tailprop_cli.main(["train", str(recipe), "--run.out", str(folder / "run")]) == 0
    return folder / "run"


def listing(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files in a folder with size and time."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def said(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert tailprop_cli.main(args) == 0
    return capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "-V"):
        assert said([option], capsys).startswith(f"tailprop {tailprop.__version__} (Python ")
    assert f"torch {torch.__version__.partition('+')[0]}" in said(["--version"], capsys)


def test_every_recipe_is_listed_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["recipes"], capsys)
    rows = [line.split(maxsplit=1) for line in out.splitlines() if line.startswith("  ")]
    assert set(recipe_names()) <= {name for name, _ in rows}
    assert {"reach", "finetune"} <= {name for name, _ in rows}  # studies
    assert "no comment" not in out


def test_a_recipe_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["recipes", "train400_gray_x2"], capsys)
    assert "image restoration" in out
    assert "  tailprop train train400_gray_x2 --data.train TRAIN400" in out
    assert "degradation: downscale" in out
    mine = tmp_path / "mine.yaml"
    mine.write_text("task: classify\n")
    assert "image classification" in said(["recipes", str(mine)], capsys)
    assert said(["info", "train400_gray_x2"], capsys) == out
    assert_refused(["recipes", "digitz"], "no recipe 'digitz'; did you mean digits?", capsys)


def test_info_of_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["info", str(run)], capsys)
    assert "a run of image classification (classify)" in out
    assert "tailprop_pico (depths=[1, 1] dims=[8, 16]) with 0.01 M parameters" in out
    assert "digits; images: 1198 train, 599 validation" in out
    assert "2 of 2 epochs, 22 steps" in out
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = max((row for row in rows if row["kind"] == "epoch"), key=lambda row: row["top1"])
    assert f"top-1, %: {best['top1']:.2f} after epoch {best['epoch']:g}" in out
    assert "model.safetensors (" in out
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run / "config.yaml", bare)
    assert "no epoch of 2 yet" in said(["info", str(bare)], capsys)


def test_info_of_weights(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model.safetensors", "last.pt"):
        out = said(["info", str(run / name)], capsys)
        assert "image classification" in out
        assert "tailprop_pico" in out
        assert "10: 0, 1, 2" in out
    torch.save({"a.weight": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16)}, tmp_path / "foreign.pt")
    out = said(["info", str(tmp_path / "foreign.pt")], capsys)
    assert "0.00 M in 2 tensors (float32, bfloat16)" in out
    assert "not in a run folder" in out


def test_info_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["info", "tailprop_nano"], capsys)
    assert "4.6 M with 1000 classes" in out
    shipped = said(["info", "denoise"], capsys)
    assert "a shipped model" in shipped
    assert "image restoration" in shipped


def test_info_refuses_what_it_does_not_know(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-100])
    (tmp_path / "text.txt").write_text("text")
    for what, message in (
        ("tailprop_picco", "did you mean tailprop_pico?"),
        (str(tmp_path), "is not a run folder"),
        (str(tmp_path / "text.txt"), "none of the files that are described"),
        (str(tmp_path / "damaged.safetensors"), "corrupt"),
    ):
        assert_refused(["info", what], message, capsys)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_have_no_errors(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = said(["completion", shell], capsys)
    assert "--run.time-budget" in script
    assert "_tyro_tailprop" in script
    if shell == "zsh":
        assert script.startswith("#compdef tailprop\n")
        assert '"$((CURRENT - 1))"' in script
        return
    path = tmp_path / "completion.bash"
    path.write_text(script)
    ask = f"""
source {path}
words() {{ COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); _tailprop_words tailprop "${{!#}}"
echo "${{COMPREPLY[*]}}"; }}
words tailprop rest
words tailprop train finetune_
words tailprop train digits --run.pat
words tailprop train digits --run.device ""
"""
    found = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == ["restorers", "finetune_coco finetune_folder", "--run.patience", "auto cpu cuda mps"]


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path / "small.yaml", model={"freeze": ["stem"]}, run={"time_budget": "1h"})
    before = listing(tmp_path)
    out = said(["train", str(recipe), "--dry-run"], capsys)
    assert listing(tmp_path) == before
    assert "images: 1198 train, 599 validation" in out
    assert "time_budget: 1h" in out
    assert "of which" in out
    assert "2 epochs of 11 steps, 22 in all, 100 images in each" in out
    assert "s a step" in out
    assert "GB, the peak of this process" in out
    assert out.splitlines()[-1] == "nothing was trained or written"


def test_dry_run_says_what_is_in_the_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = run.with_name("small.yaml")
    before = listing(run)
    assert "holds a run; resume it" in said(["train", "--dry-run", str(recipe), "--run.out", str(run)], capsys)
    assert listing(run) == before
    assert_refused(["train", "digits", "--dry-run", "--optim.epoch", "3"], "unknown option --optim.epoch", capsys)
