"""`tailprop models`: what there is to choose from."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import tailprop.backbone.model as backbone
from tailprop.backbone.cost import count_macs, count_parameters, create_on_meta
from tailprop.utils.validation import check_at_least


@dataclass(frozen=True)
class Models:
    """List the registered models."""

    height: int = 224
    """Image height for the multiply-adds."""
    width: int = 224
    """Image width for the multiply-adds."""

    def check(self) -> None:
        check_at_least("height", self.height, backbone.MIN_SIZE_PX)
        check_at_least("width", self.width, backbone.MIN_SIZE_PX)


def run(options: Models) -> None:
    options.check()
    table = Table("model", "mixer", "depths", "dims", "parameters", f"GMACs at {options.height}x{options.width}")
    for name, settings in backbone.MODELS.items():
        model = create_on_meta(name)
        table.add_row(
            name,
            settings["mixer"],
            " ".join(map(str, settings["depths"])),
            " ".join(map(str, settings["dims"])),
            f"{count_parameters(model) / 1e6:.1f} M",
            f"{count_macs(model, options.height, options.width) / 1e9:.2f}",
        )
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)  # in a pipe nothing is cut off
