"""The wheel in an environment with only the dependencies of `pip install tailprop`, and with each extra alone."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tailprop.engine.shipped import SHIPPED_FOLDER
from tailprop.utils.extras import EXTRAS
from tests.helpers import ROOT

SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])


@cache
def installed_with(name: str, extra: str = "") -> frozenset[str]:
    """The distributions that pip installs with a package, including itself."""
    found: dict[tuple[str, str], None] = {}
    waiting = [(name, extra)]
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found[key] = None
        try:
            needed: Distribution = distribution(key[0])
        except PackageNotFoundError:  # for another platform
            continue
        for text in needed.requires or []:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": key[1]}):
                waiting += [(wanted.name.lower(), part) for part in ("", *wanted.extras)]
    return frozenset(normalised(name) for name, _ in found)


def normalised(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def test_minimal_install_adds_nothing_beyond_torch_and_timm() -> None:
    assert installed_with("tailprop") - installed_with("torch") - installed_with("timm") == {"tailprop"}
    assert len(installed_with("tailprop", "all")) > len(installed_with("tailprop")) + 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(out.glob("*.whl"))


def environment(folder: Path, wheel: Path, allowed: frozenset[str]) -> Path:
    """The interpreter of a new environment with the wheel and links to the allowed distributions of this one."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in allowed - {"tailprop"}:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:  # for another platform
            continue
        for entry in {path.parts[0] for path in files} - {"..", "__pycache__"}:
            if not (site / entry).exists():
                (site / entry).symlink_to(SITE_PACKAGES / entry)
    return folder / "bin" / "python"


def run(python: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run([python, *args], capture_output=True, text=True, cwd=cwd, env=clean, check=False, timeout=300)


BACKBONE = """
import sys, tailprop, timm, torch
assert "site-packages" in tailprop.__file__, tailprop.__file__
for name in ("tyro", "rich", "matplotlib", "sklearn", "datasets"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is not blocked")
model = timm.create_model("tailprop_tiny", num_classes=3)
model(torch.randn(2, 3, 64, 64)).sum().backward()
assert all(p.grad is not None for p in model.parameters())
pyramid = timm.create_model("tailprop_tiny", features_only=True)
assert len(pyramid(torch.randn(1, 3, 64, 64))) == 4
try:
    tailprop.load("runs/none")
except ModuleNotFoundError as error:
    print(error)
"""


def test_bare_wheel_has_the_backbone_and_names_the_missing_extra(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheel, installed_with("tailprop"))
    done = run(python, "-c", BACKBONE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is not installed; pip install 'tailprop[train]' adds it" in done.stdout
    listed = run(python, "-m", "tailprop_cli", "models", cwd=tmp_path)
    assert "tailprop_tiny" in listed.stdout, listed.stderr
    assert "imagenet1k_tiny" in run(python, "-m", "tailprop_cli", "train", "--help", cwd=tmp_path).stdout  # recipes are shipped
    refused = run(python, "-m", "tailprop_cli", "train", "digits", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "pip install 'tailprop[train]' adds it" in refused.stderr


def test_page_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    files = [path for path in (ROOT / "src" / "tailprop" / "app" / "static").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= shipped


def test_wheel_has_the_shipped_models(wheel: Path) -> None:
    wanted = {f"tailprop/models/{path.relative_to(SHIPPED_FOLDER)}": path for path in SHIPPED_FOLDER.glob("*/*")}
    assert any(name.endswith("/model.safetensors") for name in wanted)
    with zipfile.ZipFile(wheel) as archive:
        for name, path in wanted.items():
            assert archive.read(name) == path.read_bytes(), name


IMPORTS = """
from tailprop.tasks import find_spec
for name in {tasks!r}:
    spec = find_spec(name)
    for part in (spec.config, spec.task, spec.load, spec.evaluate, spec.predict):
        spec.part(part)
    if spec.bench:
        spec.part(spec.bench)
import tailprop.commands.train, tailprop.studies.demo, tailprop.engine.launch
import numpy, tailprop
from tailprop.studies.demo_photo import draw_restored_photo
if {tasks!r} == ["classify"]:  # the demo restores a photograph with the packages of training alone
    assert draw_restored_photo()[1] > 26
if {tasks!r} == ["restore"]:
    assert tailprop.load("denoise").predict(numpy.zeros((16, 16, 3), numpy.uint8)).shape == (16, 16, 3)
"""


@pytest.mark.parametrize(
    ("extra", "tasks"),
    [
        ("train", ["classify"]),
        ("detect", ["detect"]),
        ("segment", ["segment"]),
        ("restore", ["restore"]),
        ("app", ["classify", "restore"]),
    ],
)
def test_extra_is_sufficient_for_its_task(extra: str, tasks: list[str], wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheel, installed_with("tailprop", extra))
    more = (
        "import tailprop.app.command, tailprop.app.inside, tailprop.app.propagation, tailprop.app.restoring, tailprop.app.runs"
    )
    done = run(python, "-c", IMPORTS.format(tasks=tasks) + (more if extra == "app" else ""), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_suggested_extra_installs_the_missing_package() -> None:
    owners = packages_distributions()
    for module, extra in EXTRAS.items():
        assert {normalised(name) for name in owners[module]} & installed_with("tailprop", extra), module
