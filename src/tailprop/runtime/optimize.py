"""`optimize`: what is fastest for inference on this device, chosen by measuring and checked against the model itself."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import torch
from timm.utils.model import reparameterize_model
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tailprop.runtime.onednn import has_onednn_products, use_onednn_products
from tailprop.utils.errors import first_line
from tailprop.utils.validation import check_at_least, check_choice

__all__ = ["OptimizeReport", "OptimizedModel", "Trial", "optimize"]

EAGER: Final = "eager"
BY_ONEDNN: Final = ", products by oneDNN"
WORTH: Final = 1.03  # a candidate that is less than this much faster is not worth a difference to the model
TOLERANCES: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the output, relative to its root mean square


@dataclass(frozen=True)
class Trial:
    """A candidate: its time for the example, and how far its output is from the model's."""

    name: str
    seconds: float | None = None  # of the best round; None = it was not measured
    error: float | None = None  # root mean square of the difference, relative to that of the output
    refused: str = ""  # why it is not a candidate


@dataclass(frozen=True)
class OptimizeReport:
    """What `optimize` measured and chose."""

    chosen: str
    trials: tuple[Trial, ...]  # the model as it was given comes first
    tolerance: float | None  # as given; None = 1e-4 for FP32, 2e-2 for BF16
    threads: int

    @property
    def speedup(self) -> float:
        """Time of the model as it was given over that of the chosen candidate."""
        seconds = {trial.name: trial.seconds for trial in self.trials}
        eager, chosen = seconds[EAGER], seconds[self.chosen]
        assert eager is not None
        assert chosen is not None
        return eager / chosen

    def __str__(self) -> str:
        return "\n".join([f"{self.chosen}, {self.speedup:.2f} times eager:", *(_line(trial) for trial in self.trials)])


def _line(trial: Trial) -> str:
    seconds = "not measured" if trial.seconds is None else f"{1e3 * trial.seconds:.1f} ms"
    error = "" if trial.error is None else f", error {trial.error:.1g}"
    return f"  {trial.name}: {seconds}{error}{f', {trial.refused}' if trial.refused else ''}"


class OptimizedModel(nn.Module):
    """A model for inference, in the form that `optimize` chose. Attributes of the model are passed on.

    Attributes:
        model: The changed copy of the model, or the model itself if nothing was faster.
        report: The measurements.
    """

    report: OptimizeReport

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None, channels_last: bool = False) -> None:
        super().__init__()
        self.model, self.dtype, self.channels_last = model, dtype, channels_last
        self.compiled: Callable[..., Any] | None = None
        self.compiled_shapes: list[torch.Size] = []
        self.training = False

    def forward(self, *inputs: Any) -> Any:
        with torch.no_grad():
            given = tree_map(self._convert, inputs)
            outputs = self._select(given)(*given)
            return outputs if self.dtype is None else tree_map(self._restore, outputs)

    def _select(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiled model for the shapes of the example only: compiling for others would take minutes without a word."""
        return self.compiled if self.compiled is not None and _shapes(inputs) == self.compiled_shapes else self.model

    def compile_for(self, example: Sequence[Any]) -> None:
        """Compile with frozen weights for the shapes of an example."""
        compiled = torch.compile(self.model, options={"freezing": True})
        given = tree_map(self._convert, tuple(example))
        with torch.no_grad():
            compiled(*given)
        self.compiled, self.compiled_shapes = compiled, _shapes(given)

    def _convert(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if self.dtype is not None and x.is_floating_point():
            x = x.to(self.dtype)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.ndim == 4 else x

    def _restore(self, y: Any) -> Any:
        return y.float() if isinstance(y, Tensor) and y.dtype == self.dtype else y

    def train(self, mode: bool = True) -> "OptimizedModel":
        if mode:
            raise ValueError("an optimized model is for inference only; train the model it was made from")
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":
                raise
            return getattr(self.model, name)


def _shapes(inputs: Any) -> list[torch.Size]:
    return [x.shape for x in tree_leaves(inputs) if isinstance(x, Tensor)]


def optimize(
    model: nn.Module,
    example: Tensor | Sequence[Any],
    *,
    precision: Literal["auto", "fp32"] = "auto",
    compile: bool | None = None,  # noqa: A002 - torch's word
    tolerance: float | None = None,
    rounds: int = 8,
) -> OptimizedModel:
    """The fastest form of a model for inference on the device of the example.

    Candidates are measured on the example in interleaved rounds, and compared by their best round: channels-last memory,
    products by oneDNN, BF16, merged branches where a timm model has them, and frozen and compiled. One whose output is not that
    of the model within the tolerance is refused, and so is one that fails. Where nothing is faster, the model stays as it is.

    Args:
        model: Tensors in, tensors out, also in lists, tuples and dicts: a timm model, `features_only` or not, or a network of
            ours. It is not changed; the optimized one is a copy in evaluation mode.
        example: An input, or a sequence of inputs, of the batch size and image size that will be used. Other sizes work, but
            were not measured.
        precision: auto = also BF16; fp32 = only what keeps the precision.
        compile: Also compile the fastest candidate, for the shapes of the example; on a CPU this takes minutes. None = on a
            GPU.
        tolerance: Largest root mean square of the difference, relative to that of the output; None = 1e-4 in FP32, 2e-2 in
            BF16.
        rounds: Rounds after a warm-up round.

    Returns:
        A module that is called as the model is. Its `report` says what was measured and chosen.
    """
    check_choice("precision", precision, ("auto", "fp32"))
    check_at_least("rounds", rounds, 1)
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    device = _device_of(model, inputs)
    search = _Search(OptimizedModel(copy.deepcopy(model).eval()), inputs, tolerance, device)
    for name, candidate in _candidates(model, device, precision):
        search.add(name, candidate)
    search.measure(rounds)
    if compile if compile is not None else device.type == "cuda":
        search.add_compiled()
        search.measure(rounds)
    return search.choose()


def _device_of(model: nn.Module, inputs: Sequence[Any]) -> torch.device:
    tensors = [x for x in tree_leaves(list(inputs)) if isinstance(x, Tensor)]
    if not tensors:
        raise ValueError("the example has no tensor; give an input of the model")
    device = next((p.device for p in model.parameters()), tensors[0].device)
    if any(x.device != device for x in tensors):
        raise ValueError(f"the model is on {device}, the example on {tensors[0].device}; move one of them")
    return device


Form = Callable[[], OptimizedModel]


def _candidates(model: nn.Module, device: torch.device, precision: str) -> list[tuple[str, Form]]:
    """Names of the candidates, and functions that create them."""

    def fresh() -> nn.Module:
        return reparameterize_model(copy.deepcopy(model).eval())  # a copy, with branches, norms and activations merged

    def in_channels_last() -> nn.Module:
        return fresh().to(memory_format=torch.channels_last)

    def with_onednn(dtype: torch.dtype | None = None) -> OptimizedModel:
        changed = in_channels_last() if dtype is None else in_channels_last().to(dtype)
        if use_onednn_products(changed) == 0:
            raise ValueError("there is no product to replace")
        return OptimizedModel(changed, dtype, channels_last=True)

    def in_bf16() -> OptimizedModel:
        return OptimizedModel(in_channels_last().bfloat16(), torch.bfloat16, channels_last=True)

    found: list[tuple[str, Form]] = [("channels-last", lambda: OptimizedModel(in_channels_last(), channels_last=True))]
    if device.type == "cpu" and has_onednn_products():
        found.append((f"channels-last{BY_ONEDNN}", with_onednn))
    if precision == "auto" and _has_bf16(device):
        found.append(("channels-last, BF16", in_bf16))
        if device.type == "cpu" and has_onednn_products():
            found.append((f"channels-last, BF16{BY_ONEDNN}", partial(with_onednn, torch.bfloat16)))
    return found


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class _Search:
    """The candidates of a model, with their measurements."""

    def __init__(self, eager: OptimizedModel, inputs: Sequence[Any], tolerance: float | None, device: torch.device) -> None:
        self.inputs, self.tolerance, self.device = inputs, tolerance, device
        self.expected = eager(*inputs)
        self.forms = {EAGER: eager}
        self.trials = {EAGER: Trial(EAGER, error=0.0)}

    def add(self, name: str, create: Form) -> None:
        """Create a candidate and check its output; it is kept if that is the model's."""
        try:
            form = create()
            error = relative_error(form(*self.inputs), self.expected)
        except Exception as failure:  # of any kind: a candidate that fails is one less
            self.trials[name] = Trial(name, refused=f"failed: {first_line(failure)}")
            return
        limit = TOLERANCES[form.dtype or torch.float32] if self.tolerance is None else self.tolerance
        is_close = error <= limit  # False for NaN
        self.trials[name] = Trial(name, error=error, refused="" if is_close else f"above the tolerance {limit:g}")
        if is_close:
            self.forms[name] = form

    def add_compiled(self) -> None:
        """Compile the fastest candidate, without oneDNN's operator, which the compiler calls itself."""
        name = self.fastest()
        base = name.removesuffix(BY_ONEDNN)
        form = self.forms.get(base, self.forms[EAGER])

        def create() -> OptimizedModel:
            compiled = OptimizedModel(form.model, form.dtype, form.channels_last)
            compiled.compile_for(self.inputs)
            return compiled

        self.add(f"{base}, compiled", create)

    def measure(self, rounds: int) -> None:
        """The best of interleaved rounds, so that the load of the machine meets all candidates alike."""
        best = dict.fromkeys(self.forms, float("inf"))
        for index in range(rounds + 1):
            for name, form in self.forms.items():
                began = time.perf_counter()
                form(*self.inputs)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                if index > 0:
                    best[name] = min(best[name], time.perf_counter() - began)
        self.trials |= {name: replace(self.trials[name], seconds=seconds) for name, seconds in best.items()}

    def fastest(self) -> str:
        return min(self.forms, key=lambda name: self.trials[name].seconds or float("inf"))

    def choose(self) -> OptimizedModel:
        name = self.fastest()
        seconds, eager = self.trials[name].seconds, self.trials[EAGER].seconds
        if seconds is None or eager is None or eager / seconds < WORTH:
            name = EAGER
        chosen = self.forms[name]
        chosen.report = OptimizeReport(name, tuple(self.trials.values()), self.tolerance, torch.get_num_threads())
        return chosen


def relative_error(found: Any, expected: Any) -> float:
    """The root mean square of the difference of outputs over that of the expected ones; the largest, if there are several."""
    ours, theirs = ([y for y in tree_leaves(out) if isinstance(y, Tensor)] for out in (found, expected))
    if [y.shape for y in ours] != [y.shape for y in theirs]:
        return float("nan")
    return max((_relative(a.double(), b.double()) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _relative(found: Tensor, expected: Tensor) -> float:
    scale = expected.square().mean().sqrt().item()
    difference = (found - expected).square().mean().sqrt().item()
    return difference / scale if scale > 0 else difference
