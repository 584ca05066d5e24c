"""Options of the commands for detectors.

Nothing here imports PyTorch before the options are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tailprop.tasks.common.options import EvalOptions, PredictOptions
from tailprop.tasks.detect.config import DetectorConfig
from tailprop.utils.validation import check_at_least, check_between, check_output_file

__all__ = ["SWIN", "BenchDetect", "DetectDataChoice", "DetectEval", "DetectPredict"]


@dataclass(frozen=True)
class DetectDataChoice:
    """A dataset to evaluate on instead of the run's; settings that are not given stay as in the run."""

    root: Path | None = None
    """Root folder of the dataset."""
    val_images: str | None = None
    """Folder of the images."""
    val_json: str | None = None
    """Annotations of these images."""
    on_broken: Literal["skip", "stop"] | None = None
    """For a corrupt image or annotation: skip and count it, or stop."""
    workers: int | None = None
    """Loader processes."""


@dataclass(frozen=True)
class DetectEval(EvalOptions):
    """Evaluate a detector."""

    split: Literal["validation", "train"] = "validation"
    """Split to evaluate."""
    data: DetectDataChoice = field(default_factory=DetectDataChoice)
    short_px: int | None = None
    """Shorter side of the images; none = as in the run."""
    long_px: int | None = None
    """Maximum longer side; none = in the run's proportion to short_px."""
    results: Path | None = None
    """File for the detections, in COCO's results format."""

    def check(self) -> None:
        super().check()
        check_output_file("--results", self.results)
        if self.split == "train" and (self.data.val_images or self.data.val_json):
            raise ValueError("--data.val-images and --data.val-json belong to the validation split; leave out --split train")


@dataclass(frozen=True)
class DetectPredict(PredictOptions):
    """Detect objects in images."""

    out: Path = Path("detections")
    """Folder for the drawn images and detections.json (images, annotations with scores, categories, as in COCO)."""
    score: float = 0.5
    """Minimum score of an object that is drawn and written."""
    short_px: int | None = None
    """Shorter side the images are resized to; none = as in the run."""

    def check(self) -> None:
        check_between("score", self.score, 0, 1)
        super().check()


SWIN: Final = "swin_tiny_patch4_window7_224"


@dataclass(frozen=True)
class BenchDetect:
    """Cost of Mask R-CNN for one image, measured in interleaved rounds."""

    models: tuple[str, ...] = ("tailprop_tiny", "convnext_tiny", SWIN, "vheat_tiny")
    """timm names of backbones; the others are compared with the first."""
    height: int = 800
    """Height of the image."""
    width: int = 1280
    """Width of the image."""
    rounds: int = 5
    """Timed rounds, after one warm-up round; 0 = only count multiply-adds, without running the models."""
    memory: bool = True
    """Also measure peak memory, in a separate process for each model."""
    classes: int = 80
    """Number of object classes."""
    threads: int = 2
    """CPU threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device to run on."""
    detector: DetectorConfig = field(default_factory=lambda: DetectorConfig(score=0.0))
    out: Path | None = None
    """CSV to write."""

    def check(self) -> None:
        from tailprop.tasks.common.bench import check_bench

        for name, least in (("height", 32), ("width", 32), ("rounds", 0), ("classes", 1), ("threads", 1)):
            check_at_least(name, getattr(self, name), least)
        self.detector.check()
        check_bench(self.models, self.device)
