"""Numbers in sentences."""

__all__ = ["counted"]


def counted(count: int, noun: str) -> str:
    """1 picture, 2 pictures, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"
