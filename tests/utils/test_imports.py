"""Calls after the import of another package."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tailprop.utils.imports import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is not imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "late_package", raising=False)
    path = tmp_path / "late_package.py"
    path.write_text("value = 1\n")
    return path


@pytest.mark.usefixtures("package")
def test_call_follows_the_import() -> None:
    values = []
    after_import("late_package", lambda: values.append(sys.modules["late_package"].value))
    assert importlib.util.find_spec("late_package") is not None  # asking whether it is installed does not import it
    assert not values
    importlib.import_module("late_package")
    importlib.import_module("late_package")
    assert values == [1]


@pytest.mark.usefixtures("package")
def test_imported_package_is_followed_at_once() -> None:
    importlib.import_module("late_package")
    values: list[int] = []
    after_import("late_package", lambda: values.append(2))
    assert values == [2]


def test_failed_import_can_be_repeated(package: Path) -> None:
    package.write_text("raise OSError('half-installed')\n")
    values: list[int] = []
    after_import("late_package", lambda: values.append(3))
    with pytest.raises(OSError, match="half-installed"):
        importlib.import_module("late_package")
    assert not values
    package.write_text("value = 10\n")
    importlib.invalidate_caches()
    importlib.import_module("late_package")
    assert values == [3]


@pytest.mark.usefixtures("package")
def test_missing_package_stays_missing() -> None:
    after_import("no_such_package", lambda: pytest.fail("called"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package")


def test_models_are_registered_whatever_is_imported_first() -> None:
    code = (
        "import tailprop.backbone.mixers, tailprop, timm; assert timm.is_model('tailprop_tiny'); "
        "assert {name for name in tailprop.__all__ if hasattr(tailprop, name)} == set(tailprop.__all__) <= set(dir(tailprop))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
