"""The import rule: a module may import downwards only, and never a sibling.

    app -> commands | studies -> classify | detect | segment | restore -> tasks.common -> engine | data -> runtime | backbone
        -> utils

`backbone` imports nothing but torch, timm and the standard library, so that it can be used on its own. Triton, which comes with
torch on Linux, is imported by one file.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailprop.tasks import TASKS
from tests.helpers import ROOT

SOURCE = ROOT / "src"
TASK_FOLDERS = sorted({path.parent.name for path in (SOURCE / "tailprop" / "tasks").glob("*/__init__.py")} - {"common"})
# Layers from the top down; names in one row are siblings.
LAYERS = [
    ("tailprop",),  # the package itself, which lists the public names
    ("tailprop.app",),
    ("tailprop.commands", "tailprop.studies"),
    ("tailprop.tasks",),  # the registry
    tuple(f"tailprop.tasks.{task}" for task in TASK_FOLDERS),
    ("tailprop.tasks.common",),
    ("tailprop.engine", "tailprop.data"),
    ("tailprop.runtime", "tailprop.backbone"),
    ("tailprop.utils",),
]
DEPTH = {folder: depth for depth, row in enumerate(LAYERS) for folder in row}
MAIN = {"tailprop_cli", "tailprop.__main__"}  # above everything
BACKBONE_NEEDS = {*sys.stdlib_module_names, "torch", "timm", "tailprop"}
TRITON_FILE = "tailprop.backbone.tail_kernels"


def folder_of(module: str) -> str:
    """The innermost layer folder of a module."""
    return max((folder for folder in DEPTH if module == folder or module.startswith(f"{folder}.")), key=len)


def imports_of(module: str, source: str) -> Iterator[str]:
    """Modules that a source imports, at any level, with relative imports resolved."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            found = [f"{origin}.{alias.name}" for alias in node.names if is_module(f"{origin}.{alias.name}")]
            yield from found
            if len(found) < len(node.names):
                yield origin


def is_module(name: str) -> bool:
    path = SOURCE / Path(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def violations(module: str, source: str) -> list[str]:
    folder = folder_of(module)
    found = []
    for name in imports_of(module, source):
        allowed = BACKBONE_NEEDS | ({"triton"} if module == TRITON_FILE else set())
        if folder == "tailprop.backbone" and name.split(".")[0] not in allowed:
            found.append(f"{module} imports {name}: backbone may import only torch and timm")
        if name.split(".")[0] != "tailprop":
            continue
        if name == "tailprop":
            if DEPTH[folder] > 2:  # the app, commands and studies use the public names, too
                found.append(f"{module} imports the package itself, which imports everything")
            continue
        other = folder_of(name)
        if folder == "tailprop.backbone" and other != folder:
            found.append(f"{module} imports {name}: backbone must not import other folders")
        elif other != folder and DEPTH[other] <= DEPTH[folder]:
            found.append(f"{module} imports {name}, which is {'beside' if DEPTH[other] == DEPTH[folder] else 'above'} it")
    return found


def modules() -> dict[str, str]:
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in (SOURCE / "tailprop").rglob("*.py")}
    return {name.removesuffix(".__init__"): path.read_text() for name, path in paths.items()}


def test_every_module_imports_downwards() -> None:
    everything = [line for name, source in modules().items() if name not in MAIN for line in violations(name, source)]
    assert not everything, "\n".join(everything)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tailprop.engine.trainer", "from tailprop.tasks.classify.task import Classification"),  # a lower layer, a task
        ("tailprop.engine.trainer", "import tailprop.tasks.classify.task"),
        ("tailprop.engine.trainer", "def f():\n    from tailprop.data.loader import to_device"),  # a sibling
        ("tailprop.tasks.detect.task", "from tailprop.tasks.classify.data import DataConfig"),
        ("tailprop.tasks.detect.task", "from tailprop.tasks import find_spec"),
        ("tailprop.studies.demo", "from tailprop.commands.train import run"),
        ("tailprop.studies.demo", "from tailprop.app.store import decode"),
        ("tailprop.commands.predict", "from tailprop.app.store import decode"),
        ("tailprop.engine.trainer", "from tailprop import load"),  # the package itself, which imports everything
        ("tailprop.backbone.model", "import tailprop"),
        ("tailprop.engine.trainer", "from .. import tasks"),
        ("tailprop.engine.trainer", "from .. import data"),
        ("tailprop.engine.trainer", "from ..tasks.classify import task"),
        ("tailprop.backbone.model", "import numpy as np"),
        ("tailprop.backbone.model", "from safetensors.torch import load_file"),
        ("tailprop.backbone.tail_triton", "def f():\n    import triton"),
        ("tailprop.backbone.model", "from tailprop.utils.validation import check_choice"),
        ("tailprop.backbone.model", "from ..utils.validation import check_choice"),
        ("tailprop.utils.text", "from tailprop.runtime.distributed import World"),
    ],
)
def test_import_violation_is_detected(module: str, source: str) -> None:
    assert violations(module, source)


def test_allowed_imports_pass() -> None:
    allowed = "import math\nimport torch\nfrom timm.layers import DropPath\nfrom .dct import dct2"
    assert not violations("tailprop.backbone.model", allowed)
    assert not violations("tailprop.tasks.detect.task", "from tailprop.tasks.common.task import BaseTask\nimport numpy")


def test_every_task_folder_is_registered() -> None:
    assert sorted(TASKS) == TASK_FOLDERS


def test_utils_need_no_torch() -> None:
    for name, source in modules().items():
        if name.startswith("tailprop.utils"):
            assert "torch" not in {imported.split(".")[0] for imported in imports_of(name, source)}, name


def test_folders_stay_small() -> None:
    top = list((SOURCE / "tailprop").glob("*.py"))
    assert len(top) <= 3, top
    sources = [*(SOURCE).rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    long = {str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > 400}
    assert not long, long


@pytest.mark.parametrize("folder", ["engine", "data", "runtime", "utils", "commands"])
def test_task_names_appear_only_in_their_folder(folder: str) -> None:
    """The engine and the commands use tasks through their spec: no class, metric or file name of a task occurs in them."""
    words = {"top1", "miou", "box_ap", "psnr", "Classification", "Detection", "Segmentation", "Restoration"}
    words |= {"confusion.png", "predictions.jpg", "restored.png", "coco_results.json"}
    for path in (SOURCE / "tailprop" / folder).rglob("*.py"):
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        assert not words & (names | {s for s in strings if isinstance(s, str)}), path
