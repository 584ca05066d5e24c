"""`tailprop models`: list the registered models."""

from dataclasses import dataclass
from typing import Any

from tailprop.backbone.cost import count_macs, count_parameters, create_on_meta
from tailprop.backbone.model import MIN_SIZE_PX
from tailprop.backbone.registry import MODELS
from tailprop.utils.terminal import Console, Table
from tailprop.utils.validation import check_at_least


@dataclass(frozen=True)
class Models:
    """List the registered models."""

    height: int = 224
    """Image height for the multiply-adds."""
    width: int = 224
    """Image width for the multiply-adds."""

    def check(self) -> None:
        check_at_least("height", self.height, MIN_SIZE_PX)
        check_at_least("width", self.width, MIN_SIZE_PX)


def count_all(height: int = 224, width: int = 224) -> dict[str, dict[str, Any]]:
    """Sizes and costs of all models; `backbone/costs.json` stores them for 224 px, so that listing needs no PyTorch."""
    rows = {}
    for name, settings in MODELS.items():
        model = create_on_meta(name)
        cost = dict(parameters=count_parameters(model), macs=count_macs(model, height, width))
        rows[name] = {key: settings[key] for key in ("mixer", "depths", "dims")} | cost
    return rows


def run(options: Models) -> None:
    options.check()
    table = Table("model", "mixer", "depths", "dims", "parameters", f"GMACs at {options.height}x{options.width}")
    for name, row in count_all(options.height, options.width).items():
        sizes = (" ".join(map(str, row[key])) for key in ("depths", "dims"))
        table.add_row(name, row["mixer"], *sizes, f"{row['parameters'] / 1e6:.1f} M", f"{row['macs'] / 1e9:.2f}")
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)  # in a pipe nothing is truncated
