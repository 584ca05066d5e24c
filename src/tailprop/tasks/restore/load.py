"""A trained restoration network, from its run folder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import build
from tailprop.engine.run_settings import read_settings, weights_file
from tailprop.runtime.precision import autocast
from tailprop.tasks.restore.data import RestoreDataConfig
from tailprop.tasks.restore.inference import restore_tiled, restore_whole
from tailprop.tasks.restore.task import RestorerConfig, build_restorer

__all__ = ["Restorer", "load_restorer"]


@dataclass(frozen=True)
class Restorer:
    """A network in evaluation mode, and the damage it was trained to undo."""

    model: nn.Module
    name: str
    in_chans: int
    data: RestoreDataConfig
    paper: str = ""  # what the paper says of it, and on which set

    def restore(
        self,
        damaged: Tensor,
        tile_px: int | None = None,
        overlap_px: int = 32,
        precision: str = "fp32",
        tick: Callable[[float], object] = lambda _share: None,
    ) -> Tensor:  # (B, in_chans, H, W) -> the same
        """The restored picture, whole or in tiles; `tick` is told the share that is done with each."""
        with autocast(damaged.device, precision):
            if tile_px is None or tile_px >= max(damaged.shape[-2:]):
                restored = restore_whole(self.model, damaged)
                tick(1.0)
            else:
                restored = restore_tiled(self.model, damaged, tile_px, overlap_px, tick)
        if not bool(torch.isfinite(restored).all()):
            raise ValueError(
                f"the answer of {self.name} is not finite; use --precision fp32, and if it is, its weights are damaged"
            )
        return restored


def load_restorer(where: str) -> Restorer:
    """Load a restoration network from a run folder, or from exported weights."""
    weights = weights_file(where)
    settings = read_settings(where)
    config = build(RestorerConfig, {**settings["model"], "init": None}, "model.")
    model = build_restorer(config, report=False)
    try:
        model.load_state_dict(read_state_dict(weights))
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {config.name}: {str(error).splitlines()[1].strip()}") from None
    data = build(RestoreDataConfig, settings["data"], "data.")
    model.to(memory_format=torch.channels_last)  # as in training: another layout rounds differently
    number = settings.get("paper_psnr", {}).get(config.name)
    paper = "" if number is None else f"the paper, on {settings['paper_set']}: {number} dB"
    return Restorer(model.eval(), config.name, config.in_chans, data, paper)
