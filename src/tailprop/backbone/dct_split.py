"""Transforms of one axis by an even/odd split that is repeated: a few products with small matrices in place of a large one.

Shapes: R everything before the axis, N length of the axis, C channels; M pieces of h = N/M positions.

A cosine is even around its peaks and odd around its zeros. So half of the products of a DCT-II are done once too often: the
sums x_i + x_(N-1-i) have the even frequencies and the differences the odd ones. A split into M pieces does this at every border
between them. Piece p is read forwards if p is even and backwards if it is odd, with xi = i + 1/2 inside of a piece and P_p = 2
ceil(p/2), so that position i of piece p lies at P_p h +- xi. For a frequency m = Mq + a or Mq - a,

    cos(pi m (P_p h +- xi) / N) = cos(pi a P_p / M) cos(pi m xi / N) -+ sin(pi a P_p / M) sin(pi m xi / N),

with the sign of the last term turned for Mq - a. The sums over p do not depend on q: they are an (M, M) matrix for every i, the
`fold`. After it the frequencies of every a need 2h sums only: a `block` of (2h, 2h), or (h, h) for a = 0 and a = M/2, where all
sines are zero. M = 2 is the split into even and odd. That is M + 2h products for every value in place of N, all of them in
large matrix products, and the coefficients stay in the order in which the blocks give them. Fold and blocks are orthogonal
matrices, so the inverse, and the backward pass of either, are their transposes.

A step turns an axis into frequencies and moves it to the front, (R, N, C) -> (N, R, C), since the pieces have to be gathered in
any case; then every product is one of large matrices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .dct_fft import dct_fft, idct_fft

__all__ = ["FFT", "PRODUCT", "Axis", "axis_of", "frequency_order", "multiply_adds", "splits_of"]

FFT = 0  # pieces of an axis that is transformed by FFT
PRODUCT = 1  # of one that is transformed by the whole matrix


@dataclass(frozen=True)
class Axis:
    """How an axis is transformed, with the constants in one dtype on one device. Without pieces it is an FFT."""

    order: Tensor | None  # (N,): the position of every row before the fold; None if they are in order
    back: Tensor | None  # (N,): the row of every position
    fold: Tensor | None  # (M, M)
    blocks: tuple[Tensor, ...]  # each (groups, s, s), for consecutive rows

    def forward(self, x: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Coefficients of x, (R, N, C), into `out`, (N, R, C), whose rows may be strided; scratch is (2, N, R, C)."""
        if not self.blocks:
            out.copy_(dct_fft(x, 1).transpose(0, 1))
        elif self.order is None or self.fold is None:
            # A batch of products whose results have the rows of `out` in place: no transposed copy.
            torch.bmm(self.blocks[0].expand(len(x), -1, -1), x, out=out.transpose(0, 1))
        else:
            torch.index_select(x.transpose(0, 1), 0, self.order, out=scratch[0])
            rows = _folded(self.fold, scratch[0].flatten(1), scratch[1].flatten(1))
            self._multiply(self.blocks, rows, out.flatten(1))

    def inverse(self, x: Tensor, out: Tensor, scratch: Tensor) -> None:
        """The map of coefficients x, (N, R, C), whose rows may be strided, into `out`, (R, N, C)."""
        if not self.blocks:
            out.copy_(idct_fft(x, 0).transpose(0, 1))
        elif self.back is None or self.fold is None:
            torch.bmm(self.blocks[0].mT.expand(len(out), -1, -1), x.transpose(0, 1), out=out)
        else:
            self._multiply([block.mT for block in self.blocks], x.flatten(1), scratch[0].flatten(1))
            rows = _folded(self.fold.mT, scratch[0].flatten(1), scratch[1].flatten(1))
            torch.index_select(rows.view_as(scratch[0]), 0, self.back, out=out.transpose(0, 1))

    @staticmethod
    def _multiply(blocks: Sequence[Tensor], x: Tensor, out: Tensor) -> None:
        """Blocks with their rows of x, (N, R*C), into those of out."""
        first = 0
        for block in blocks:
            until = first + block.shape[0] * block.shape[1]
            if len(block) == 1:
                torch.mm(block[0], x[first:until], out=out[first:until])
            else:
                shape = block.shape[:2]
                torch.bmm(block, x[first:until].unflatten(0, shape), out=out[first:until].unflatten(0, shape))
            first = until


def axis_of(n: int, pieces: int, like: Tensor) -> Axis:
    return _cached_axis(n, pieces, like.dtype, like.device)


def splits_of(n: int) -> list[int]:
    """The numbers of pieces that an axis can be split into: divisors that leave two positions or more, and 2 at any length."""
    return [m for m in range(2, n // 2 + 1) if n % m == 0 or m == 2]


def multiply_adds(n: int, pieces: int) -> int:
    """Multiply-adds for each value along an axis."""
    if pieces == PRODUCT:
        return n
    return 2 + -(-n // 2) if pieces == 2 else pieces + 2 * n // pieces


def frequency_order(n: int, pieces: int) -> Tensor | None:
    """The frequency of every coefficient, (N,); None if they are in order."""
    return None if pieces in (FFT, PRODUCT) else _cached_order(n, pieces)


def _folded(fold: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """The fold over the pieces of rows, (N, R*C); a middle row, which no piece has, is copied."""
    pieces = len(fold)
    count = len(rows) // pieces * pieces
    torch.mm(fold, rows[:count].view(pieces, -1), out=out[:count].view(pieces, -1))
    if count < len(rows):
        out[count:] = rows[count:]
    return out


@lru_cache(256)
def _cached_axis(n: int, pieces: int, dtype: torch.dtype, device: torch.device) -> Axis:
    with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be used in a later training step
        if pieces == FFT:
            return Axis(None, None, None, ())
        blocks = tuple(
            torch.stack([_block(n, pieces, m) for m in group]).to(device, dtype) for group in _frequency_groups(n, pieces)
        )
        if pieces == PRODUCT:
            return Axis(None, None, None, blocks)
        order = _zigzag(n, pieces)
        return Axis(order.to(device), torch.argsort(order).to(device), _fold(pieces).to(device, dtype), blocks)


@lru_cache(256)
def _cached_order(n: int, pieces: int) -> Tensor:
    groups = _frequency_groups(n, pieces)
    with torch.inference_mode(False):
        return torch.tensor([m for group in groups for frequencies in group for m in frequencies], device="cpu")


def _frequency_groups(n: int, pieces: int) -> list[list[list[int]]]:
    """Frequencies of every block, in groups of blocks of one size: a = 0 and a = M/2 first, then those of all other a."""
    if pieces == 2:  # the odd frequencies first: with the position in the middle there is one more even frequency
        odd, even = list(range(1, n, 2)), list(range(0, n, 2))
        return [[odd, even]] if n % 2 == 0 else [[odd], [even]]
    single = [list(range(a, n, pieces)) for a in ([0, pieces // 2] if pieces % 2 == 0 else [0])]
    pairs = [[*range(a, n, pieces), *range(pieces - a, n + 1, pieces)] for a in range(1, (pieces + 1) // 2)]
    return [single, pairs] if pairs else [single]


def _zigzag(n: int, pieces: int) -> Tensor:
    """Positions piece by piece, every other piece backwards, then the middle that a split of an odd length leaves."""
    h = n // pieces
    gap = n - pieces * h  # 1 if there is a middle, between the two pieces
    forwards = [range(p * h, p * h + h) for p in range(pieces)]
    backwards = [range(p * h + h - 1 + gap, p * h - 1 + gap, -1) for p in range(pieces)]
    order = [i for p in range(pieces) for i in (backwards if p % 2 else forwards)[p]]
    return torch.tensor(order + [h] * gap, device="cpu")


def _fold(pieces: int) -> Tensor:
    """Orthogonal sums over the pieces, (M, M): a row for a = 0 and a = M/2, then for every other a a cosine and a sine."""
    p = torch.arange(pieces, dtype=torch.float64, device="cpu")
    turn = 2 * torch.ceil(p / 2) * math.pi / pieces  # pi P_p / M
    sign = 1 - 2 * (p % 2)
    alone = [0, pieces // 2] if pieces % 2 == 0 else [0]
    rows = [torch.cos(a * turn) / math.sqrt(pieces) for a in (alone if pieces != 2 else [1, 0])]
    for a in range(1, (pieces + 1) // 2):
        angle = a * turn
        rows += [math.sqrt(2 / pieces) * torch.cos(angle), math.sqrt(2 / pieces) * sign * torch.sin(angle)]
    return torch.stack(rows)


def _block(n: int, pieces: int, frequencies: list[int]) -> Tensor:
    """The part of a DCT-II after the fold: a row for each frequency, columns for cosine and sine sums."""
    h = n // pieces
    m = torch.tensor(frequencies, dtype=torch.float64, device="cpu")[:, None]
    norm = torch.sqrt((2 - (m == 0).double()) / n)
    phase = torch.remainder(m * (2 * torch.arange(h, dtype=torch.float64, device="cpu") + 1), 4 * n)
    angle = phase * (math.pi / 2) / n  # pi m xi / N, exact at any size
    if len(frequencies) == h:
        return norm * math.sqrt(pieces) * torch.cos(angle)
    if len(frequencies) == h + 1:  # the even frequencies of an odd length: the middle is in no piece
        middle = torch.cos(math.pi * m / 2)
        return norm * torch.cat([math.sqrt(2) * torch.cos(angle), middle], dim=1)
    is_below = (torch.arange(2 * h, device="cpu") >= h)[:, None].double()  # Mq - a; the first half is Mq + a
    sine = (2 * is_below - 1) * torch.sin(angle)
    return norm * math.sqrt(pieces / 2) * torch.cat([torch.cos(angle), sine], dim=1)
