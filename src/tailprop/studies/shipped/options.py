"""Options of `tailprop shipped`; nothing here imports PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tailprop.utils.validation import check_at_least, check_output_file

__all__ = ["ShippedTable"]


@dataclass(frozen=True)
class ShippedTable:
    """Measure the shipped restorers beside BM3D and published numbers."""

    set12: Path | None = None
    """Folder of Set12; none = leave it out."""
    colour: Path | None = None
    """Folder with the photographs of BSDS500 in colour, of which those held out are used; none = leave them out."""
    scikit_image: bool = True
    """Also measure on photographs of scikit-image that were held out."""
    methods: tuple[Literal["shipped", "bm3d"], ...] = ("shipped",)
    """shipped: the models; bm3d: the package of that name, which takes minutes (pip install bm3d)."""
    sigmas: tuple[int, ...] = (15, 25, 50)
    """Noise levels."""
    qualities: tuple[int, ...] = (10, 20, 30, 40)
    """JPEG qualities."""
    out: Path = Path("results/shipped.csv")
    """CSV file; finished rows in it are kept. The figure is saved beside it as PNG."""

    def check(self) -> None:
        check_output_file("--out", self.out)
        for sigma in self.sigmas:
            check_at_least("sigmas", sigma, 1)
        for quality in self.qualities:
            check_at_least("qualities", quality, 1)
        for name, folder in (("--set12", self.set12), ("--colour", self.colour)):
            if folder is not None and not folder.is_dir():
                raise ValueError(f"{name}: {folder} is not a folder")
