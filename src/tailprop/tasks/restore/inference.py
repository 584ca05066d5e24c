"""Restore images as a whole or in tiles, and evaluate PSNR, SSIM and PSNR-B in SwinIR's protocol.

Shapes: B batch, C channels, H, W; float32 with white at 1; s the scale of super-resolution, else 1.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tailprop.data.broken import Broken
from tailprop.data.loader import to_device
from tailprop.data.raster import Pixels
from tailprop.runtime.distributed import all_gather
from tailprop.tasks.restore.data import Pair
from tailprop.tasks.restore.metrics import Protocol, Restored, Score, Scores, measure, to_bytes
from tailprop.tasks.restore.tiles import check_tiles, tiles

__all__ = ["evaluate_restorer", "in_colour", "restore_tiled", "restore_whole"]

WHOLE = Protocol()


@torch.inference_mode()
def restore_whole(model: nn.Module, degraded: Tensor) -> Tensor:
    """Restore images as a whole, (B, C, H, W) -> (B, C, sH, sW)."""
    return model(degraded).float()


def in_colour(restore: Callable[[Tensor], Tensor], degraded: Tensor, in_chans: int) -> Tensor:
    """Restore an image, and a gray one by a colour network: as three equal channels, whose results are averaged."""
    if degraded.shape[1] == in_chans:
        return restore(degraded)
    return restore(degraded.expand(-1, in_chans, -1, -1)).mean(1, keepdim=True)


@torch.inference_mode()
def restore_tiled(
    model: nn.Module,
    degraded: Tensor,
    tile_px: int,
    overlap_px: int,
    tick: Callable[[float], object] = lambda _share: None,
    scale: int = 1,
) -> Tensor:
    """Restore images in overlapping tiles that are blended across the overlap, (B, C, H, W) -> (B, C, sH, sW).

    A tile does not see distant pixels, so a network with a global receptive field loses some quality; docs/restoration.md
    reports how much. `tick` is called after each tile with its share of the work.
    """
    check_tiles(tile_px, overlap_px)
    h, w = degraded.shape[-2:]
    grid = int(getattr(model, "grid_px", 1))
    down, across = tiles(h, tile_px, overlap_px, grid), tiles(w, tile_px, overlap_px, grid)
    total = degraded.new_zeros(*degraded.shape[:2], scale * h, scale * w, dtype=torch.float32)
    weights = torch.zeros(scale * h, scale * w, device=degraded.device)
    for rows, columns in ((rows, columns) for rows in down for columns in across):
        restored = model(degraded[..., rows, columns]).float()
        rows, columns = (slice(scale * part.start, scale * part.stop) for part in (rows, columns))
        vertical, horizontal = (
            _ramp(part, scale * length, scale * overlap_px, degraded) for part, length in ((rows, h), (columns, w))
        )
        fade = vertical[:, None] * horizontal  # (h, w) of the tile
        total[..., rows, columns] += fade * restored
        weights[rows, columns] += fade
        tick(1 / (len(down) * len(across)))
    return total / weights


def _ramp(part: slice, length: int, overlap: int, like: Tensor) -> Tensor:
    """Blending weights along a side of a tile: they rise over the overlap, except at the border of the image."""
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
    on_restored: Callable[[Restored], object] = lambda _restored: None,
    record: Callable[[Sequence[Broken]], object] = lambda _broken: None,
    on_values: Callable[[Tensor, Tensor], object] = lambda _restored, _clean: None,
    protocol: Protocol = WHOLE,
) -> Scores:
    """The scores of every image over all processes.

    Args:
        restore: Restores a degraded image, (1, C, H, W) -> (1, C, sH, sW).
        pairs: This process's share of the images.
        on_restored: Called with each restored image.
        record: Called with each image that cannot be read; it may raise.
        on_values: Called with each restored image and the clean one, (C, sH, sW), neither clipped nor rounded.
        protocol: The part of the images that is compared.
    """
    rows: list[Score] = []
    broken: list[Broken] = []
    for pair in pairs:
        if isinstance(pair, Broken):
            broken.append(pair)
            record([pair])
            continue
        restored = restore(to_device(pair.degraded[None], device))[0].cpu()
        on_values(restored, pair.clean)
        degraded, clean = to_bytes(pair.degraded if pair.enlarged is None else pair.enlarged), to_bytes(pair.clean)
        row = _score(pair, degraded, to_bytes(restored), clean, protocol)
        rows.append(row)
        on_restored(Restored(pair.name, degraded, to_bytes(restored), clean, row.degraded_psnr, row.psnr))
    all_rows = sorted((row for share in all_gather(rows) for row in share), key=lambda row: row.name)
    all_broken = tuple(b for share in all_gather(broken) for b in share)
    if not all_rows:
        first = f"; the first of {len(all_broken)} broken images: {all_broken[0]}" if all_broken else ""
        raise ValueError(f"no image could be restored{first}")
    return Scores(tuple(all_rows), all_broken)


def _score(pair: Pair, degraded: Pixels, restored: Pixels, clean: Pixels, protocol: Protocol) -> Score:
    degraded, restored, clean = (protocol.part(image) for image in (degraded, restored, clean))
    try:
        after, before = measure(restored, clean), measure(degraded, clean)
    except ValueError as error:
        raise ValueError(f"{pair.name}: {error}") from None
    return Score(pair.name, *after, before[0] if pair.enlarged is not None else _exact_psnr(pair), *before[1:])


def _exact_psnr(pair: Pair) -> float:
    """PSNR of the network's input, whose noise is neither rounded nor clipped."""
    mean_square = float((pair.degraded.double() - pair.clean.double()).square().mean())
    return float("inf") if mean_square == 0 else -10 * float(np.log10(mean_square))
