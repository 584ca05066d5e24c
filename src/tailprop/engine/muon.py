"""Muon (Jordan et al. 2024): orthogonal updates for matrices, AdamW for all other parameters.

The momentum of a weight matrix is replaced by the nearest matrix whose singular values are all about one, so rare gradient
directions are learned as fast as common ones. PyTorch's and timm's versions are not used: they compute in BF16, which many CPUs
only emulate, and process one matrix at a time.
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "is_matrix", "orthogonalise"]

_QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values come out between about 0.7 and 1.2
_ITERATIONS = 5
_SMALLEST_SIDE = 16  # an orthogonal update of a smaller matrix has few directions to equalize


class Muon(torch.optim.AdamW):
    """AdamW whose groups with `matrices=True` get orthogonal updates, with the usual root mean square of AdamW's."""

    def __init__(self, groups: Any, momentum: float = 0.95, **adamw: Any) -> None:
        for group in groups:
            group.setdefault("matrices", False)
        self.momentum = momentum
        super().__init__(groups, **adamw)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        everything = self.param_groups
        self.param_groups = [group for group in everything if not group["matrices"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = everything
        overflowed = getattr(self, "found_inf", None)  # set by the loss scaler; AdamW checks it, too
        if overflowed is None or float(overflowed) == 0:
            for group in everything:
                if group["matrices"]:
                    self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        same_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                update = _as_wide(self._nesterov(parameter).flatten(1))
                same_shape[tuple(update.shape)].append((parameter, update))
        for pairs in same_shape.values():
            steps = orthogonalise(torch.stack([update for _, update in pairs]))
            for (parameter, _), step in zip(pairs, steps, strict=True):
                rows, columns = parameter.flatten(1).shape
                step = step if rows <= columns else step.mT
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(step.reshape(parameter.shape), alpha=-0.2 * math.sqrt(max(rows, columns)) * group["lr"])

    def _nesterov(self, parameter: Tensor) -> Tensor:
        """Update the momentum; returns the Nesterov gradient."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW expects one when a checkpoint is loaded
        state["momentum"].lerp_(parameter.grad, 1 - self.momentum)
        return parameter.grad.lerp(state["momentum"], self.momentum)


def orthogonalise(matrices: Tensor) -> Tensor:  # (N, rows, columns), rows <= columns -> the same
    """Approximately the nearest matrix with orthonormal rows: five Newton-Schulz steps x <- (a + b G + c G^2) x, G = x x^T.

    All factors are polynomials in the first G, so the iteration runs on the (rows, rows) matrix G alone, and the long side is
    read twice instead of ten times. Squaring loses precision, so it runs in float32 for every gradient dtype.
    """
    a, b, c = _QUINTIC
    x = matrices.float()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    gram = x @ x.mT
    product: Tensor | None = None
    for left in reversed(range(_ITERATIONS)):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        if left:
            gram = factor @ gram @ factor
    assert product is not None
    return (product @ x).to(matrices.dtype)


def _as_wide(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT


def is_matrix(parameter: nn.Parameter) -> bool:
    """Whether a parameter is the weight of a linear layer or a dense convolution, not of a depth-wise convolution or a norm."""
    if parameter.ndim not in (2, 4) or parameter.shape[1] == 1:
        return False
    return min(parameter.flatten(1).shape) >= _SMALLEST_SIDE
