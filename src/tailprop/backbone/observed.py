"""Means of what layers predict from their input, gathered over the images of an evaluation.

Shapes: B batch, K orders in the mix, C channels.
"""

from torch import Tensor

__all__ = ["Mean", "Observed"]


class Mean:
    """The mean over all samples of tensors (B, K, ..., C), averaged over space: (K, C)."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0

    def add(self, values: Tensor) -> None:
        summed = values.detach().sum(0)
        summed = summed.flatten(1, -2).mean(1) if summed.ndim > 2 else summed
        self.total = summed if self.total is None else self.total + summed
        self.count += len(values)

    def mean(self) -> Tensor | None:
        return None if self.total is None else self.total / self.count


class Observed:
    """Means of the weights and orders that a layer predicts; those that do not depend on the input are left out."""

    def __init__(self) -> None:
        self.weights, self.orders = Mean(), Mean()

    def add(self, weights: Tensor | None, orders: Tensor | tuple[float, ...]) -> None:
        if weights is not None and weights.ndim > 2:
            self.weights.add(weights)
        if isinstance(orders, Tensor) and orders.ndim > 2:
            self.orders.add(orders)
