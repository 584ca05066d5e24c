"""What the README shows is run."""

import re

import pytest
import torch

import tailprop_cli
from tailprop.backbone.cost import count_macs, count_parameters, create_on_meta
from tailprop.backbone.registry import MODELS
from tailprop.engine.config import ModelConfig
from tailprop.tasks.detect.bench import PAPER_GMACS
from tailprop.tasks.detect.model import DetectorConfig, create_detector, detector_macs
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()


def test_python_blocks_run_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


def test_cost_table_is_counted() -> None:
    rows = re.findall(r"\| `(tailprop_\w+)` \| ([\d.]+) M \| ([\d.]+) \|", README)
    assert {name for name, _, _ in rows} == {name for name in MODELS if name.startswith("tailprop")}
    for name, params, gmacs in rows:
        model = create_on_meta(name)
        assert float(params) == pytest.approx(count_parameters(model) / 1e6, abs=0.05)
        assert float(gmacs) == pytest.approx(count_macs(model) / 1e9, abs=0.005)


def test_detectors_cost_table_is_counted() -> None:
    section = README.split("## Detection")[1].split("## ")[0]
    rows = re.findall(r"\| `(tailprop_\w+)` \| ([\d.]+) \| (\d+) \|", section)
    assert len(rows) == 3
    for name, gmacs, paper in rows:
        with torch.device("meta"):
            detector, _ = create_detector(ModelConfig(name=name), 80, 800, 1333, DetectorConfig())
        assert float(gmacs) == pytest.approx(detector_macs(detector) / 1e9, abs=0.05)
        assert int(paper) == PAPER_GMACS[name]


def test_commands_and_files_exist() -> None:
    root = ROOT
    for command in re.findall(r"`tailprop (\w+)", README):
        assert command in tailprop_cli.COMMANDS
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (root / target).exists(), target
    makefile = (root / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
