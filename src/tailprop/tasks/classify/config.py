"""Settings of classification.

Nothing here imports PyTorch before the settings are checked: --help and wrong options need none.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tailprop.engine.config import TaskConfig
from tailprop.engine.settings import setting
from tailprop.tasks.common.config import LoaderConfig
from tailprop.utils.validation import check_at_least, check_between, check_choice

__all__ = ["AugmentConfig", "ClassifyConfig", "DataConfig", "DistillConfig"]

_SMALL_CROP = 0.8  # crop_pct below which a note is printed


@dataclass(frozen=True)
class DataConfig(LoaderConfig):
    """The dataset."""

    source: Literal["folder", "parquet", "timm", "digits"] = "folder"
    """folder: one folder for each class; parquet: a Hugging Face snapshot; timm: a dataset by name; digits: scikit-learn's."""
    root: Path | None = setting(None, local=True)
    """Root folder of the dataset."""
    name: str = ""
    """timm's dataset name for source timm, for example torch/cifar10."""
    download: bool = setting(False, local=True)
    """Let timm download the dataset."""
    unpack: bool = setting(False, local=True)
    """Unpack parquet shards into a cache once instead of reading them in place. Useful if they are compressed and the loader is
    the bottleneck; takes their size on disk."""
    cache_dir: Path | None = setting(None, local=True, aliases=("cache",))
    """Folder for unpacked parquet shards; none = the cache of the datasets library."""
    num_classes: int | None = None
    """Number of classes of the model; none = that of the dataset."""
    size_px: int = 224
    """Image size in evaluation."""
    train_px: tuple[int, ...] = ()
    """Image sizes in training, from the first epochs to the last; none = size_px. Starting with small ones saves time."""
    crop_pct: float = 0.875
    """Side of the center crop in evaluation as a fraction of the resized shorter side; 1 = no crop."""
    resize_px: int | None = None
    """Shorter side before the center crop; none = size_px / crop_pct."""
    held_out: float = 0.2
    """Fraction held out for validation if a folder has no validation split."""
    cache_gb: float = setting(1.0, local=True, aliases=("keep_gb",))
    """Cache decoded images if all of them fit into this many GB, divided among the loader processes; 0 = no cache."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Convert an old resize_px to crop_pct, so that the proportion is kept at another size; none meant no crop."""
        if "resize_px" in values and "crop_pct" not in values:
            resize, size = values.pop("resize_px"), values.get("size_px", DataConfig.size_px)
            if isinstance(resize, int | None) and isinstance(size, int):
                return values | {"crop_pct": size / resize if resize else 1.0}
            values["resize_px"] = resize  # of a wrong type, which raises an error with its name
        return values

    @property
    def eval_resize_px(self) -> int:
        """Shorter side before the center crop of evaluation."""
        return self.resize_px or round(self.size_px / self.crop_pct)

    def at_size(self, size_px: int | None) -> "DataConfig":
        """The same settings for another image size, with the same crop_pct."""
        if size_px is None:
            return self
        return replace(self, size_px=size_px, resize_px=None, crop_pct=self.size_px / self.eval_resize_px)

    def check(self) -> None:
        super().check()
        check_at_least("data.size_px", self.size_px, 32)
        check_at_least("data.cache_gb", self.cache_gb, 0)
        for side in self.train_px:
            check_at_least("data.train_px", side, 32)
        if self.num_classes is not None:
            check_at_least("data.num_classes", self.num_classes, 1)
        check_between("data.held_out", self.held_out, 0, 1)
        if not 0 < self.crop_pct <= 1:
            raise ValueError(f"data.crop_pct must be in (0, 1], got {self.crop_pct}; it is data.size_px / data.resize_px")
        if self.resize_px is not None:
            check_at_least("data.resize_px", self.resize_px, self.size_px)
        self._check_source()

    def _check_source(self) -> None:
        if self.source == "timm" and not self.name:
            raise ValueError("source timm needs --data.name, for example torch/cifar10")
        if self.source == "timm" and self.root is None and not self.name.startswith("hfds/"):
            raise ValueError(f"timm's {self.name} needs --data.root, the folder of the dataset or of the download")
        if self.root is None and self.source in ("folder", "parquet"):
            raise ValueError(f"source {self.source} needs --data.root, the folder of the dataset")

    def warn_of_small_crop(self) -> None:
        """Print a note if evaluation crops a small part of each image, which is rarely intended."""
        from tailprop.runtime.distributed import print_main

        if self.size_px / self.eval_resize_px < _SMALL_CROP:
            print_main(
                f"evaluation crops the central {self.size_px} of {self.eval_resize_px} px; for a larger crop, lower "
                "--data.resize-px or raise --data.crop-pct"
            )


_INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest", "box", "random")
_POLICIES = ("rand", "original", "v0", "augmix", "3a")


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation in training."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random crop as a fraction of the image."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Aspect ratio of the random crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    color_jitter: float = 0.4
    """Strength of the jitter of brightness, contrast and saturation, unless auto_augment is used; 0 = off."""
    auto_augment: str | None = "rand-m9-mstd0.5-inc1"
    """RandAugment, AutoAugment or AugMix policy as a timm string; none = off."""
    erase: float = 0.25
    """Probability of random erasing."""
    interpolation: str = "bicubic"
    """Interpolation of the random crop."""
    mixup: float = 0.8
    """Mixup's alpha; 0 = off."""
    cutmix: float = 1.0
    """CutMix's alpha; 0 = off."""
    mix_prob: float = 1.0
    """Probability of applying mixup or CutMix to a batch."""
    smoothing: float = 0.1
    """Label smoothing."""

    def check(self) -> None:
        for name in ("flip", "erase", "mix_prob", "smoothing"):
            check_between(f"augment.{name}", getattr(self, name), 0, 1)
        for name in ("color_jitter", "mixup", "cutmix"):
            check_at_least(f"augment.{name}", getattr(self, name), 0)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"augment.scale must be two increasing values in (0, 1], got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"augment.ratio must be two increasing positive values, got {self.ratio}")
        check_choice("augment.interpolation", self.interpolation, _INTERPOLATIONS)
        if self.auto_augment is not None and not self.auto_augment.startswith(_POLICIES):
            raise ValueError(
                f"augment.auto_augment must be a timm policy such as rand-m9-mstd0.5-inc1; got {self.auto_augment!r}"
            )


@dataclass(frozen=True)
class DistillConfig:
    """Distillation: training also imitates another network, the teacher."""

    teacher: str | None = setting(None, local=True)
    """A run folder or a file of its weights, or timm:NAME for a pretrained timm model; none = no distillation."""
    kind: Literal["logits", "features"] = setting("logits", late=True)
    """logits: the teacher's probabilities of the same classes; features: which images of a batch the teacher finds similar, by
    the features before its classifier, whatever its classes are."""
    weight: float = setting(0.5, late=True)
    """Share of distillation in the loss; the rest is that of the labels."""
    temperature: float = setting(2.0, late=True)
    """Softmax temperature of both networks, for logits; higher values stress the teacher's small probabilities."""
    size_px: int | None = setting(None, late=True)
    """Images are resized to this side for the teacher; none = the size it was trained for."""

    def check(self) -> None:
        check_between("distill.weight", self.weight, 0, 1)
        if not self.temperature > 0:
            raise ValueError(f"distill.temperature must be positive, got {self.temperature}")
        if self.size_px is not None:
            check_at_least("distill.size_px", self.size_px, 32)


@dataclass(frozen=True)
class ClassifyConfig(TaskConfig):
    """Train a classifier."""

    task: Literal["classify"] = "classify"
    """Name of the task."""
    paper_top1: Annotated[dict[str, float], tyro.conf.Suppress] = setting(factory=dict)
    """The paper's result for the model of this recipe, printed next to ours."""
    data: DataConfig = setting(factory=DataConfig)
    augment: AugmentConfig = setting(factory=AugmentConfig)
    distill: DistillConfig = setting(factory=DistillConfig, late=True)

    def check(self) -> None:
        super().check()
        self.data.check()
        self.augment.check()
        self.distill.check()
        if self.distill.teacher is not None and self.distill.kind == "features" and self.run.compile:
            raise ValueError("distill.kind features reads the network while it runs; leave out --run.compile")
        if (self.augment.mixup > 0 or self.augment.cutmix > 0) and self.optim.batch_size % 2:
            raise ValueError(f"mixup and CutMix need an even --optim.batch-size, got {self.optim.batch_size}")
        if self.augment.auto_augment is not None and self.model.in_chans == 4:
            raise ValueError(
                "RandAugment does not support alpha channels; with model.in_chans 4 set --augment.auto-augment None"
            )
        # These import PyTorch, so they come last: what is wrong above is said at once.
        from tailprop.tasks.classify.model import image_mode
        from tailprop.tasks.common.models import check_model

        check_model(self.model.name)
        image_mode(self.model.in_chans, self.model.name)
