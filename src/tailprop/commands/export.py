"""`tailprop export CHECKPOINT`: write a trained network as ONNX, as a PyTorch program or for OpenVINO."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tailprop.engine.options import Checkpoint
from tailprop.engine.run_settings import find_task_name
from tailprop.tasks import DEFAULT_TASK, find_spec
from tailprop.utils.text import say
from tailprop.utils.validation import check_at_least, check_output_file

if TYPE_CHECKING:
    from tailprop.engine.export import Exportable

__all__ = ["Export", "run"]

_SUFFIXES: Final = {"onnx": ".onnx", "torch": ".pt2", "openvino": ".xml"}


@dataclass(frozen=True)
class Export:
    """Export a trained network for other programs; it is checked against PyTorch at three sizes before the file appears."""

    checkpoint: Checkpoint
    """A run folder, a weights file, or the name of a pretrained timm model."""
    to: Literal["onnx", "torch", "openvino"] = "onnx"
    """onnx: for ONNX Runtime and `tailprop predict`; torch: a program of torch.export; openvino: .xml and .bin."""
    out: Path | None = None
    """File to write; none = model.onnx, model.pt2 or model.xml in the run folder."""
    features: bool = False
    """Export the feature maps of the backbone instead of the whole network."""
    int8: bool = False
    """Quantise to 8 bits with calibration images from the training data, and print metric and speed before and after (ONNX)."""
    bf16: bool = False
    """Compute in BF16, and print metric and speed before and after (a PyTorch program)."""
    calibration_images: int = 64
    """Number of calibration images for INT8."""
    metric: bool = True
    """For INT8 and BF16: measure the metric on the run's validation data, before and after."""
    overwrite: bool = False
    """Overwrite the file if it exists."""
    threads: int = 0
    """CPU threads; 0 = PyTorch's default."""

    def check(self) -> None:
        check_at_least("threads", self.threads, 0)
        check_at_least("calibration_images", self.calibration_images, 1)
        if self.int8 and self.to != "onnx":
            raise ValueError("--int8 quantises ONNX files; use --to onnx")
        if self.bf16 and self.to != "torch":
            raise ValueError("--bf16 needs --to torch: onnxruntime has no BF16 on CPUs, and OpenVINO chooses it by itself")
        check_output_file("--out", self.out)
        if self.out is not None and self.out.suffix.lower() != _SUFFIXES[self.to]:
            raise ValueError(f"--out {self.out} must end in {_SUFFIXES[self.to]} for --to {self.to}")
        if self.target.exists() and not self.overwrite:
            raise ValueError(f"{self.target} exists; replace it (--overwrite) or name another file (--out)")

    @property
    def target(self) -> Path:
        if self.out is not None:
            return self.out
        path, suffix = Path(self.checkpoint), _SUFFIXES[self.to]
        if path.is_dir():
            return path / f"model{suffix}"
        return path.with_suffix(suffix) if path.is_file() else Path(f"{path.name}{suffix}")


def run(options: Export) -> None:
    options.check()
    spec = find_spec(find_task_name(options.checkpoint, DEFAULT_TASK) or DEFAULT_TASK)
    if spec.export is None:
        raise ValueError(f"networks for {spec.title} cannot be exported")
    from tailprop.runtime.distributed import process_group
    from tailprop.utils.extras import explain_missing_extras

    with process_group("cpu", options.threads) as world, explain_missing_extras():
        if world.is_main:
            item = spec.part(spec.export)(options.checkpoint, "features" if options.features else "network", world)
            if (options.int8 or options.bf16) and item.evaluate is None:
                raise ValueError("--int8 and --bf16 compare a metric, which feature maps do not have")
            _export(options, item, spec.metrics[spec.metric], spec.metric)


def _export(options: Export, item: "Exportable", label: str, metric: str) -> None:
    from tailprop.engine import export
    from tailprop.engine.reduced import export_bf16, export_int8

    about, target = item.about, options.target
    if item.note:
        say(f"{about.architecture}: {item.note}")
    measured = {metric: label} if options.metric else {}
    if options.int8:
        error, lines = export_int8(item, target, options.calibration_images, measured)
    elif options.bf16:
        error, lines = export_bf16(item, target, measured)
    else:
        write: dict[str, Any] = {"onnx": export.export_onnx, "torch": export.export_torch, "openvino": export.export_openvino}
        error, lines = write[options.to](item, target), []
    for line in lines:
        say(line)
    sizes = ", ".join(f"{w}x{h}" for h, w in item.sizes)
    say(f"{target}: {about.architecture}, {about.part}, {target.stat().st_size / 1e6:.1f} MB")
    say(f"largest difference from PyTorch at {sizes} px: {error:.1g}{' (before quantisation)' if options.int8 else ''}")
