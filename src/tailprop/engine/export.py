"""Exporting networks: capture a graph for any size, write it, and check it against PyTorch before the file appears.

Batch, height and width stay free. A graph can be wrong at other sizes than the one it was captured at, because a number was
computed from a size and kept, so it is checked at three, one of them odd.
"""

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor, nn

from tailprop.engine.exported import KEY, Description, OnnxModel
from tailprop.engine.onnx_file import seal_onnx
from tailprop.utils.errors import first_line, missing_memory
from tailprop.utils.files import make_folder, write_atomically
from tailprop.utils.text import printable

__all__ = ["Exportable", "OnnxNetwork", "check_outputs", "export_onnx", "export_openvino", "export_torch", "save_checked"]

INPUT: Final = "images"
TOLERANCE: Final = 1e-4  # largest difference, for outputs above 1 relative to the largest
BF16_TOLERANCE: Final = 1e-1  # of a BF16 graph from the BF16 network: sums in another order differ in 8 bits
_OPSET: Final = 18


@dataclass(frozen=True)
class Exportable:
    """A network to export, as a task describes it."""

    network: nn.Module  # in evaluation mode: images (B, C, H, W) to a tensor or a tuple of tensors
    about: Description
    sizes: tuple[tuple[int, int], ...]  # heights and widths that the file is checked at; it is captured at the first
    note: str = ""  # what is left out, and why
    calibration: Callable[[int], Iterator[Tensor]] | None = None  # inputs from training images, for INT8
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None  # the metrics of a network in place of this one

    def example(self, index: int = 0) -> Tensor:
        """Random input of the index-th size, in batches of 2, 1, 3, ...: uniform from black to white, normalised."""
        about, (height, width) = self.about.input, self.sizes[index]
        generator = torch.Generator().manual_seed(index)
        batch = (2, 1, 3)[index % 3]
        unit = torch.rand(batch, about.channels, height, width, generator=generator)
        mean, std = (torch.tensor(values)[:, None, None] for values in (about.mean, about.std))
        return (unit - mean) / std


class OnnxNetwork(nn.Module):
    """An exported network as a module, so that a task can evaluate it in place of its own."""

    def __init__(self, model: OnnxModel) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> Any:
        outputs = [torch.from_numpy(y) for y in self.model(x.detach().cpu().float().numpy())]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def capture(item: Exportable) -> torch.export.ExportedProgram:
    """The graph of a network for any batch, height and width."""
    free = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    with _quiet(), _explained(item, "torch.export"):
        return torch.export.export(item.network, (item.example(),), dynamic_shapes=(free,))


def export_onnx(item: Exportable, out: Path) -> float:
    """Write an ONNX file; returns the largest difference from PyTorch."""
    with _quiet(), _explained(item, "the ONNX exporter"):
        program = torch.onnx.export(
            item.network,
            (item.example(),),
            dynamo=True,
            dynamic_shapes=({0: "batch", 2: "height", 3: "width"},),
            input_names=[INPUT],
            output_names=list(item.about.outputs),
            opset_version=_OPSET,
            verbose=False,
        )
    assert program is not None

    def write(path: Path) -> None:
        program.model.metadata_props[KEY] = item.about.to_json()
        program.save(path, external_data=False)

    return save_checked(out, "model.onnx", write, lambda path: check_outputs(item, OnnxNetwork(OnnxModel(path)), out))


def export_torch(item: Exportable, out: Path, bf16: bool = False) -> float:
    """Write a PyTorch program (torch.export's .pt2); returns the largest difference from the network."""
    program = capture(item)

    def write(path: Path) -> None:
        with _quiet():
            torch.export.save(program, path, extra_files={KEY: item.about.to_json()})

    def check(path: Path) -> float:
        with _quiet():
            loaded = torch.export.load(path).module()
        return check_outputs(item, loaded, out, BF16_TOLERANCE if bf16 else TOLERANCE)

    return save_checked(out, "model.pt2", write, check)


def export_openvino(item: Exportable, out: Path) -> float:
    """Write OpenVINO's .xml, and .bin beside it, by way of ONNX; returns the largest difference from PyTorch."""
    import openvino

    with TemporaryDirectory() as folder:
        graph = Path(folder, "model.onnx")
        export_onnx(item, graph)
        converted = Path(folder, "converted", out.name)
        with _explained(item, "OpenVINO"):
            model = openvino.convert_model(graph)
            model.set_rt_info(item.about.to_json(), [KEY])
            openvino.save_model(model, converted, compress_to_fp16=False)
            compiled = openvino.Core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

        def run(x: Tensor) -> Any:
            found = compiled(x.numpy())
            return tuple(torch.from_numpy(found[i].copy()) for i in range(len(compiled.outputs)))

        error = check_outputs(item, run, out)
        make_folder(out.parent)
        for suffix in (".bin", ".xml"):  # the graph last: it needs the weights beside it
            _copy(converted.with_suffix(suffix), out.with_suffix(suffix))
    return error


def save_checked(out: Path, name: str, write: Callable[[Path], object], check: Callable[[Path], float]) -> float:
    """Write a file elsewhere, check it, then move it to `out`: it only appears if the check passes."""
    make_folder(out.parent)
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        write(path)
        if path.suffix == ".onnx":
            seal_onnx(path)
        error = check(path)
        _copy(path, out)
    return error


def _copy(source: Path, out: Path) -> None:
    write_atomically(out, lambda part: shutil.copyfile(source, part))


@torch.inference_mode()
def check_outputs(item: Exportable, run: Callable[[Tensor], Any], out: Path, tolerance: float = TOLERANCE) -> float:
    """The largest difference of outputs from those of the network at all sizes; raises if it is too large."""
    worst = 0.0
    for index, (height, width) in enumerate(item.sizes):
        x = item.example(index)
        expected, found = (_as_tuple(f(x)) for f in (item.network, run))
        if [y.shape for y in expected] != [y.shape for y in found]:
            raise ValueError(f"{out} was not written: at {width}x{height} px the exported network has outputs of another shape")
        for ours, theirs in zip(expected, found, strict=True):
            difference = (ours.float() - theirs.float()).abs().max().item() / max(1.0, ours.float().abs().max().item())
            if not difference <= tolerance:
                raise ValueError(
                    f"{out} was not written: at {width}x{height} px the exported network differs by {difference:.2g} from "
                    f"PyTorch, more than {tolerance:g}"
                )
            worst = max(worst, difference)
    return worst


def _as_tuple(outputs: Any) -> Sequence[Tensor]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


@contextlib.contextmanager
def _explained(item: Exportable, what: str) -> Iterator[None]:
    """Thousands of lines of an exporter in one."""
    try:
        yield
    except Exception as error:  # of many kinds: the exporter, its passes, the guards of sizes
        if missing_memory(error) is not None or isinstance(error, ModuleNotFoundError):
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:  # the exporter wraps the reason several times
            cause = cause.__cause__
        name = item.about.architecture
        raise ValueError(f"{name} cannot be exported: {what} failed ({_reason(cause)})") from None


def _reason(error: BaseException) -> str:
    """What an exporter says is wrong; OpenVINO says where in its source first."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith(("Exception from", "Check '"))]
    return printable(lines[0] if lines else first_line(error))[:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' progress on standard output, their warnings and their log."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class InBF16(nn.Module):
    """A network that computes in BF16, with FP32 images and outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.bfloat16()

    def forward(self, x: Tensor) -> Any:
        found = self.network(x.bfloat16())
        return found.float() if isinstance(found, Tensor) else tuple(y.float() for y in found)


def in_bf16(item: Exportable) -> Exportable:
    """The same in BF16."""
    return replace(item, network=InBF16(item.network).eval(), about=replace(item.about, precision="bf16"))
