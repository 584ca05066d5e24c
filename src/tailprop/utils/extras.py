"""Optional packages and the extra of `pip install` that provides each."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

__all__ = ["EXTRAS", "check_tracker", "explain_missing_extras", "missing_extra"]

# package: the extra that installs it
EXTRAS: Final = {
    **dict.fromkeys(("matplotlib", "rich", "skimage", "sklearn", "tensorboard", "tyro"), "train"),
    **dict.fromkeys(("datasets", "pyarrow"), "hf"),
    **dict.fromkeys(("faster_coco_eval", "pycocotools"), "detect"),
    "segmentation_models_pytorch": "segment",
    **dict.fromkeys(("imagecodecs", "tifffile"), "restore"),
    **dict.fromkeys(("starlette", "uvicorn"), "app"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    "openvino": "openvino",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to install, in a sentence; None if no extra provides the module."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"{package} is not installed; pip install 'tailprop[{EXTRAS[package]}]' adds it"


@contextmanager
def explain_missing_extras() -> Iterator[None]:
    """Name the extra in the error message where an optional package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (advice := missing_extra(error)) is None:
            raise
        raise ModuleNotFoundError(advice, name=error.name) from None


def check_tracker(name: str) -> None:
    """Raise if the package of a tracker is not installed; no extra brings one."""
    if find_spec(name) is None:
        raise ValueError(f"run.track {name} needs a package that is not installed: pip install {name}")
