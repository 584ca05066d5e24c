"""Where the windows of an image are. Nothing here imports PyTorch."""

__all__ = ["windows"]


def windows(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """Start and end (exclusive) of the windows along a side; the last window is moved back to end at the border."""
    count = max(0, -(-(length - window) // stride)) + 1
    ends = [min(length, k * stride + window) for k in range(count)]
    return [(max(0, end - window), end) for end in ends]
