"""The study file: what it resolves to, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import tailprop_cli
from tailprop.backbone.mixers import MIXERS
from tailprop.engine.recipes import RECIPE_FOLDERS
from tailprop.engine.settings import to_dict
from tailprop.studies.ablate.study import find_study, plan_runs, read_study
from tests.helpers.runs import assert_refused, write_recipe


def write_study(folder: Path, **values: Any) -> Path:
    recipe = write_recipe(folder / "small.yaml")
    path = folder / "study.yaml"
    content = {"recipes": [str(recipe)], "variants": {"paper": {"model.args.mixer": "tailprop"}, "none": {}}, "seeds": [3, 5]}
    path.write_text(yaml.safe_dump(content | values, sort_keys=False))
    return path


def test_every_recipe_variant_and_seed_is_a_run(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, set={"optim.lr": 0.5, "data": {"size_px": 48}}))
    runs = plan_runs(study, tmp_path / "out")
    assert [run.name for run in runs] == ["small paper seed3", "small paper seed5", "small none seed3", "small none seed5"]
    assert [run.config.run.seed for run in runs] == [3, 5, 3, 5]
    assert len({run.folder for run in runs}) == len({run.hash for run in runs}) == 4
    for run in runs:
        assert run.config.optim.lr == 0.5
        assert to_dict(run.config)["data"]["size_px"] == 48
        assert run.config.run.matched_init
    assert runs[0].config.model.args["mixer"] == "tailprop"
    assert runs[0].config.model.args["depths"] == runs[2].config.model.args["depths"]  # of the recipe
    assert "mixer" not in runs[2].config.model.args


def test_recipes_and_seeds_of_the_command_line_replace_those_of_the_study(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path), recipes=["digits"], seeds=[7])
    assert [run.name for run in plan_runs(study, tmp_path)] == ["digits paper seed7", "digits none seed7"]


def test_hash_depends_on_what_changes_the_result(tmp_path: Path) -> None:
    def hashes(**values: Any) -> list[str]:
        return [run.hash for run in plan_runs(read_study(write_study(tmp_path, **values)), tmp_path / "out")]

    before = hashes()
    assert hashes(set={"run.log_every": 3, "run.threads": 2, "data.workers": 1}) == before
    for name, value in {"optim.lr": 0.1, "optim.batch_size": 4, "data.size_px": 40, "data.root": "elsewhere"}.items():
        assert not set(hashes(set={name: value})) & set(before), name


@pytest.mark.parametrize("path", sorted({path for folder in RECIPE_FOLDERS for path in (folder / "studies").glob("*.yaml")}))
def test_shipped_studies_resolve(path: Path) -> None:
    assert find_study(path.stem).name == path.name
    study = read_study(path, recipes=() if read_recipes(path) else ("digits",))
    runs = plan_runs(study, Path("out"))
    assert len(runs) == len({run.folder for run in runs}) >= len(study.variants)
    assert {run.config.model.args.get("mixer") for run in runs} <= {*MIXERS, "window", None}


def read_recipes(path: Path) -> list[str]:
    return yaml.safe_load(path.read_text()).get("recipes", [])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"variants": {}}, "variants must be a mapping of names to settings, with at least one name"),
    ({"variants": {"a/b": {}}}, "'a/b' cannot be the name of a variant"),
    ({"variants": {"a": {"run.seed": 1}}}, "variant a must not have run.seed: give seeds"),
    ({"variants": {"a": {"optim.lrr": 1}}}, "lrr"),
    ({"variants": {"a": {"model.args.mixer": "tailpop"}}}, "tailprop"),
    ({"seeds": [1, 1]}, "seeds must be a list of different numbers"),
    ({"seeds": []}, "seeds must be a list of different numbers"),
    ({"recipes": []}, "names no recipes; give one with --recipe"),
    ({"recipes": ["digitss"]}, "digits"),
    ({"recipes": ["digits", "digits"]}, "two recipes have the same name"),
    ({"variant": {}}, "unknown key variant"),
    ({"set": [1]}, "set must be a mapping of settings"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_mistakes_are_refused(values: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path, **values)
    assert_refused(["ablate", str(study), "--out", str(tmp_path / "out")], message, capsys)
    assert not (tmp_path / "out").exists()


def test_chosen_variants_are_planned_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ablate", str(write_study(tmp_path)), "--out", str(tmp_path / "out"), "--dry-run", "--variants"]
    assert tailprop_cli.main([*command, "paper"]) == 0
    said = capsys.readouterr().out
    assert "2 runs, 0 done, 2 to do" in said
    assert "none" not in said
    assert_refused([*command, "papr"], "the study has no variant 'papr'; did you mean paper?", capsys)


def test_unknown_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["ablate", "mixer", "--out", str(tmp_path)], "mixers", capsys)
    assert_refused(["ablate", "no.yaml", "--out", str(tmp_path)], "no study file no.yaml", capsys)


def test_dry_run_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert tailprop_cli.main(["ablate", str(write_study(tmp_path)), "--out", str(out), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "4 runs, 0 done, 4 to do" in printed
    assert "minutes of training" in printed
    assert not out.exists()
