"""Checks of options before long work."""

from pathlib import Path

import pytest

from tailprop.utils.validation import check_output_file, check_output_folder


def test_links_that_lead_nowhere_are_no_outputs(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("link", "loop"):
        message = rf"--out: .*{name} is a link to .*, which does not exist; remove the link"
        with pytest.raises(ValueError, match=message):
            check_output_file("--out", tmp_path / name)
        for below in ("", "a", "a/b"):
            with pytest.raises(ValueError, match=message):
                check_output_folder("--out", tmp_path / name / below)
    (tmp_path / "folder").mkdir()
    (tmp_path / "disk").symlink_to("folder")
    check_output_file("--out", tmp_path / "disk" / "a.json")
    check_output_folder("--out", tmp_path / "disk" / "a")


def test_results_do_not_replace_weights(tmp_path: Path) -> None:
    for name in ("a.pt", "a.safetensors", "a.yaml", "a.jsonl"):
        check_output_file("--out", tmp_path / name)
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match=rf"--out: .*{name} would be replaced"):
            check_output_file("--out", tmp_path / name)


def test_results_do_not_replace_files_of_a_run_under_any_name(tmp_path: Path) -> None:
    for name in ("manifest.json", "config.json", "history.csv", "coco_results.json", "coco_results.json.sha256", "launch.txt"):
        (tmp_path / name).touch()
    check_output_file("--out", tmp_path / "manifest.json")  # of something else
    (tmp_path / "config.yaml").touch()
    (tmp_path / "eval.json").touch()
    check_output_file("--out", tmp_path / "eval.json")
    for number, name in enumerate(
        ("manifest.json", "config.json", "history.csv", "coco_results.json", "coco_results.json.sha256")
    ):
        (tmp_path / f"{number}.json").symlink_to(name)
        for path in (tmp_path / name, tmp_path / f"{number}.json"):
            with pytest.raises(ValueError, match=r"would be replaced; results do not replace"):
                check_output_file("--out", path)
