"""Restoring whole images, and measuring how well: PSNR, SSIM and PSNR-B in SwinIR's protocol.

Shapes: B batch, C channels, H, W; float32 with white at 1.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tailprop.data.broken import Broken
from tailprop.data.loader import to_device
from tailprop.runtime.distributed import all_gather
from tailprop.tasks.restore.data import Pair
from tailprop.tasks.restore.metrics import Restored, Score, Scores, measure, to_bytes
from tailprop.utils.validation import check_at_least

__all__ = ["check_tiles", "evaluate_restorer", "restore_tiled", "restore_whole", "shared_px"]

_JPEG_BLOCK = 8  # pixels


@torch.inference_mode()
def restore_whole(model: nn.Module, degraded: Tensor) -> Tensor:
    """The restored image, (B, C, H, W) -> the same, in one piece."""
    return model(degraded).float()


def check_tiles(tile_px: int | None, overlap_px: int | None) -> None:
    if tile_px is not None:
        check_at_least("tile_px", tile_px, 16)
    if overlap_px is not None:
        check_at_least("overlap_px", overlap_px, 0)
    if tile_px is not None and overlap_px is not None and overlap_px > tile_px // 2:
        raise ValueError(f"tiles of {tile_px} px may share at most half of it, got an overlap_px of {overlap_px}")


def shared_px(tile_px: int | None, overlap_px: int | None, usual: int) -> int:
    """What neighbouring tiles share: as given, or the usual, or a quarter of tiles too small for that."""
    if overlap_px is not None:
        return overlap_px
    return usual if tile_px is None else min(usual, tile_px // 4)


@torch.inference_mode()
def restore_tiled(
    model: nn.Module,
    degraded: Tensor,
    tile_px: int,
    overlap_px: int,
    tick: Callable[[float], object] = lambda _share: None,
) -> Tensor:
    """The restored image, (B, C, H, W) -> the same, in overlapping tiles: each fades into the next across their overlap.

    What is far from a tile cannot help it, so a network that looks at the whole image loses a little; how much stands in
    docs/restoration.md. `tick` is told the share that each tile is.
    """
    check_tiles(tile_px, overlap_px)
    h, w = degraded.shape[-2:]
    grid = math.lcm(_JPEG_BLOCK, int(getattr(model, "grid_px", 1)))
    down, across = _places(h, tile_px, overlap_px, grid), _places(w, tile_px, overlap_px, grid)
    total = torch.zeros_like(degraded, dtype=torch.float32)
    weights = torch.zeros(h, w, device=degraded.device)
    for rows, columns in ((rows, columns) for rows in down for columns in across):
        fade = _ramp(rows, h, overlap_px, degraded)[:, None] * _ramp(columns, w, overlap_px, degraded)  # (h, w) of the tile
        total[..., rows, columns] += fade * model(degraded[..., rows, columns]).float()
        weights[rows, columns] += fade
        tick(1 / (len(down) * len(across)))
    return total / weights


def _places(length: int, tile: int, overlap: int, grid: int) -> list[slice]:
    """Tiles along an axis: evenly spread, overlapping by at least so much.

    They begin at multiples of `grid`, where the network's own patches and windows and JPEG's blocks begin: half a patch
    further it sees other patches. They may be a little longer for it.
    """
    if length <= tile:
        return [slice(0, length)]
    count = max(2, -(-(length - overlap) // (tile - overlap)))
    begins = [i * (length - tile) // (count - 1) // grid * grid for i in range(count)]
    return [slice(begin, min(begin + tile + grid, length)) for begin in begins[:-1]] + [slice(begins[-1], length)]


def _ramp(part: slice, length: int, overlap: int, like: Tensor) -> Tensor:
    """Weights along a side of a tile: rising over the overlap, except where the image ends."""
    size = part.stop - part.start
    rise = torch.arange(1, size + 1, device=like.device, dtype=torch.float32) / (overlap + 1)
    ones = torch.ones_like(rise)
    begin = ones if part.start == 0 else rise.clamp(max=1)
    end = ones if part.stop == length else rise.clamp(max=1).flip(0)
    return begin * end


def evaluate_restorer(
    restore: Callable[[Tensor], Tensor],
    pairs: Iterable[Pair | Broken],
    device: torch.device,
    see: Callable[[Restored], object] = lambda _restored: None,
    record: Callable[[Sequence[Broken]], object] = lambda _broken: None,
) -> Scores:
    """The scores of every image over all processes.

    Args:
        restore: Makes of a degraded image, (1, C, H, W), a restored one.
        pairs: This process's share of the images.
        see: Is shown each image, to draw it or to count.
        record: Is told of an image that cannot be read; it may raise.
    """
    rows: list[Score] = []
    broken: list[Broken] = []
    for pair in pairs:
        if isinstance(pair, Broken):
            broken.append(pair)
            record([pair])
            continue
        restored = restore(to_device(pair.degraded[None], device))[0].cpu()
        degraded, clean = to_bytes(pair.degraded), to_bytes(pair.clean)
        shown = Restored(pair.name, degraded, to_bytes(restored), clean, _exact_psnr(pair))
        rows.append(_score(shown))
        see(shown)
    everything = sorted((row for share in all_gather(rows) for row in share), key=lambda row: row.name)
    unread = tuple(b for share in all_gather(broken) for b in share)
    if not everything:
        first = f"; the first of {len(unread)} broken: {unread[0]}" if unread else ""
        raise ValueError(f"no image could be restored{first}")
    return Scores(tuple(everything), unread)


def _score(shown: Restored) -> Score:
    try:
        after, before = measure(shown.restored, shown.clean), measure(shown.degraded, shown.clean)
    except ValueError as error:
        raise ValueError(f"{shown.name}: {error}") from None
    return Score(shown.name, *after, shown.degraded_psnr, *before[1:])


def _exact_psnr(pair: Pair) -> float:
    """Of what goes in: noise is never rounded nor clipped."""
    mean_square = float((pair.degraded.double() - pair.clean.double()).square().mean())
    return float("inf") if mean_square == 0 else -10 * float(np.log10(mean_square))
