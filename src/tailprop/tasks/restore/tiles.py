"""Where the tiles of a large image are. Nothing here imports PyTorch."""

import math

from tailprop.utils.validation import check_at_least

__all__ = ["check_tiles", "shared_px", "tiles"]

_JPEG_BLOCK = 8  # pixels


def check_tiles(tile_px: int | None, overlap_px: int | None) -> None:
    if tile_px is not None:
        check_at_least("tile_px", tile_px, 16)
    if overlap_px is not None:
        check_at_least("overlap_px", overlap_px, 0)
    if tile_px is not None and overlap_px is not None and overlap_px > tile_px // 2:
        raise ValueError(f"overlap_px may be at most half of tile_px, {tile_px // 2}; got {overlap_px}")


def shared_px(tile_px: int | None, overlap_px: int | None, default: int) -> int:
    """The overlap of neighbouring tiles: as given, or the default, limited to a quarter of a tile."""
    if overlap_px is not None:
        return overlap_px
    return default if tile_px is None else min(default, tile_px // 4)


def tiles(length: int, tile: int, overlap: int, grid: int) -> list[slice]:
    """Tiles along an axis, evenly spaced, that overlap by at least `overlap`.

    They begin at multiples of `grid`, so that the network's patches and windows and JPEG's blocks are the same as in the whole
    image. This can make them a little longer.
    """
    grid = math.lcm(_JPEG_BLOCK, grid)
    if length <= tile:
        return [slice(0, length)]
    count = max(2, -(-(length - overlap) // (tile - overlap)))
    begins = [i * (length - tile) // (count - 1) // grid * grid for i in range(count)]
    return [slice(begin, min(begin + tile + grid, length)) for begin in begins[:-1]] + [slice(begins[-1], length)]
