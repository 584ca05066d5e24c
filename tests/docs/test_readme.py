"""The code of the README runs, and its tables are current."""

import re

import pytest
import torch

import tailprop_cli
from tailprop.backbone.cost import count_macs, count_parameters, create_on_meta
from tailprop.backbone.registry import LITE, SIZES
from tailprop.engine.config import ModelConfig
from tailprop.tasks.detect.bench import PAPER_GMACS
from tailprop.tasks.detect.config import DetectorConfig
from tailprop.tasks.detect.model import create_detector, detector_macs
from tests.docs.test_docs import blocks, run_blocks
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.usefixtures("workplace")
def test_python_blocks_run_in_order() -> None:
    assert len(blocks(ROOT / "README.md", "python")) >= 4
    run_blocks(ROOT / "README.md")


def test_length() -> None:
    prose = re.sub(r"```.*?```|^\|.*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) < 550


def test_cost_table_is_current() -> None:
    rows = re.findall(r"\| `(tailprop_\w+)` \| ([\d.]+) M \| ([\d.]+) \|", README)
    assert {name for name, _, _ in rows} == {*(f"tailprop_{size}" for size in SIZES), *LITE}
    for name, params, gmacs in rows:
        model = create_on_meta(name)
        assert float(params) == pytest.approx(count_parameters(model) / 1e6, abs=0.05)
        assert float(gmacs) == pytest.approx(count_macs(model) / 1e9, abs=0.005)


def test_detector_cost_table_is_current() -> None:
    section = (ROOT / "docs" / "detection.md").read_text().split("## Cost")[1].split("\n## ")[0]
    rows = re.findall(r"\| `(tailprop_\w+)` \| ([\d.]+) \| (\d+) \|", section)
    assert len(rows) == 3
    for name, gmacs, paper in rows:
        with torch.device("meta"):
            detector, _ = create_detector(ModelConfig(name=name), 80, 800, 1333, DetectorConfig())
        assert float(gmacs) == pytest.approx(detector_macs(detector) / 1e9, abs=0.05)
        assert int(paper) == PAPER_GMACS[name]


def test_commands_and_files_exist() -> None:
    for command in re.findall(r"`tailprop (\w+)", README):
        assert command in tailprop_cli.COMMANDS
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
