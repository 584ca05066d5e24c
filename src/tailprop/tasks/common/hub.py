"""timm's model hub: config.json beside exported weights, and initial weights from timm and the Hugging Face Hub.

Only safetensors are read from the Hub. timm would read a pickle where there is none, without executing code in it, but with
a decoder that is not made for hostile files; here it is refused.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import get_pretrained_cfg
from torch import Tensor, nn

from tailprop.backbone.registry import MODELS
from tailprop.engine.checkpoint import read_state_dict
from tailprop.engine.config import ModelConfig
from tailprop.engine.run_settings import find_weights
from tailprop.tasks.common.models import check_model, model_arguments
from tailprop.utils.errors import first_line
from tailprop.utils.parsing import parse_json, read_bytes
from tailprop.utils.text import listed, printable, say

__all__ = ["HUB", "TIMM", "backbone_config", "download", "initial_state", "read_hub_config", "timm_config"]

TIMM: Final = "timm:"
HUB: Final = "hf-hub:"
WEIGHTS: Final = "model.safetensors"
_PICKLES: Final = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".tar")
# Entries of timm's configurations that belong to other weights or another machine.
_LOCAL: Final = (
    *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "state_dict", "tag", "notes", "origin_url", "label_offset"),
    *("license", "description", "label_names", "label_descriptions", "min_input_size", "architecture"),
)
_TIMEOUT: Final = 10.0  # seconds


def timm_config(
    model: ModelConfig,
    size_px: int,
    resize_px: int,
    interpolation: str,
    statistics: tuple[Sequence[float], Sequence[float]],
    names: Sequence[str],
) -> dict[str, Any]:
    """The config.json from which timm, and transformers with it, create a network and its preprocessing.

    Args:
        model: Settings of the network.
        size_px: Image size.
        resize_px: Shorter side before the central crop.
        interpolation: Of the resize.
        statistics: Mean and standard deviation.
        names: Class names; none = it has no classifier.
    """
    known = get_pretrained_cfg(model.name)
    cfg = {} if known is None else {k: v for k, v in known.to_dict().items() if k not in _LOCAL and not k.startswith("test_")}
    mean, std = statistics
    cfg |= {
        "input_size": [model.in_chans, size_px, size_px],
        "crop_pct": crop_pct(size_px, resize_px),
        "crop_mode": "center",
        "interpolation": interpolation,
        "mean": list(mean),
        "std": list(std),
        "num_classes": len(names),
        "custom_load": False,
        "pool_size": None,
    }
    arguments = {name: value for name, value in model_arguments(model).items() if name not in ("drop_path_rate", "pretrained")}
    if model.in_chans != 3:
        arguments["in_chans"] = model.in_chans
    found = {"architecture": model.name, "num_classes": len(names), "model_args": arguments, "pretrained_cfg": cfg}
    return found | ({"label_names": list(names)} if names else {})


def backbone_config(model: ModelConfig) -> dict[str, Any] | None:
    """The config.json of the backbone in the weights of a detector or a segmenter: `features_only=True` loads it.

    Only for backbones of this package, which find their weights in those of a larger network.
    """
    if model.name not in MODELS:
        return None
    settings = timm_config(model, 224, 224, "bilinear", (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD), ())
    settings["pretrained_cfg"]["crop_pct"] = 1.0
    return settings


def crop_pct(size_px: int, resize_px: int) -> float:
    """The share from which timm computes the same shorter side: it divides the size by it and rounds down."""
    exact = size_px / resize_px
    return exact if math.floor(size_px / exact) == resize_px else size_px / (resize_px + 0.5)


def read_hub_config(folder: Path) -> dict[str, Any]:
    """The config.json in a folder; empty if there is none."""
    path = folder / "config.json"
    found = parse_json(read_bytes(path), path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def initial_state(config: ModelConfig) -> tuple[dict[str, Tensor], str | None]:
    """The weights that `model.init` names, and the architecture they belong to, where it is known.

    A path is a run folder or a file of weights. timm:NAME are timm's pretrained weights, and hf-hub:USER/NAME those of a
    repository of the Hugging Face Hub.
    """
    assert config.init is not None
    if config.init.startswith(TIMM):
        return _timm_state(config.init.removeprefix(TIMM), config.in_chans)
    if config.init.startswith(HUB):
        weights = download(config.init.removeprefix(HUB))
        return read_state_dict(weights), read_hub_config(weights.parent).get("architecture")
    return read_state_dict(find_weights(config.init)), None


def _timm_state(name: str, in_chans: int) -> tuple[dict[str, Tensor], str]:
    """timm's pretrained weights, with the names of timm's current modules."""
    check_model(name)
    cfg = get_pretrained_cfg(name)
    if cfg is None or not (cfg.hf_hub_id or cfg.url):
        raise ValueError(f"timm has no pretrained weights for {name}; `timm.list_pretrained()` lists those that it has")
    file = cfg.hf_hub_filename or WEIGHTS
    if not cfg.hf_hub_id or cfg.custom_load or not (cfg.hf_hub_filename is None or file.endswith(".safetensors")):
        raise ValueError(f"the pretrained weights of {name} are no safetensors, and pickles are not loaded; choose another tag")
    weights = download(cfg.hf_hub_id, file)
    overlay = {"file": str(weights), "hf_hub_id": None, "custom_load": False}
    make: Callable[[], nn.Module] = lambda: timm.create_model(  # noqa: E731
        name, pretrained=True, pretrained_cfg_overlay=overlay, in_chans=in_chans
    )
    return make().state_dict(), name.partition(".")[0]


def download(repo: str, file: str = WEIGHTS) -> Path:
    """A safetensors file of a repository on the Hub, USER/NAME or USER/NAME@REVISION, with its config.json beside it.

    Without a network the copy in the cache is used, if there is one.
    """
    from huggingface_hub import HfApi, hf_hub_download

    name, _, revision = repo.partition("@")
    how: dict[str, Any] = {"revision": revision or None}
    with explained(name):
        try:
            found = HfApi().model_info(name, timeout=_TIMEOUT, **how)
        except Exception as error:
            if not is_offline(error):
                raise
            return _cached(name, file, how, error)
        files = [item.rfilename for item in found.siblings or []]
        if file not in files:
            pickles = [f for f in files if f.endswith(_PICKLES)]
            others = f"{listed(pickles)}: pickles are not loaded" if pickles else listed(files) or "nothing"
            raise ValueError(f"{HUB}{name} has no {file}; it has {others}")
        if "config.json" in files:
            hf_hub_download(name, "config.json", etag_timeout=_TIMEOUT, **how)
        return Path(hf_hub_download(name, file, etag_timeout=_TIMEOUT, **how))


def _cached(name: str, file: str, how: dict[str, Any], error: Exception) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        path = Path(hf_hub_download(name, file, local_files_only=True, **how))
    except Exception:  # it is not in the cache
        raise ValueError(
            f"cannot reach the Hugging Face Hub for {name} ({printable(first_line(error))}); check the network, or give a file"
        ) from None
    say(f"the Hugging Face Hub cannot be reached: using the copy of {name} in the cache", error=True)
    return path


def is_offline(error: Exception) -> bool:
    """Whether there is no network, or none is wanted (HF_HUB_OFFLINE)."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"NetworkError", "TransportError", "TimeoutException", "ConnectionError", "OfflineModeIsEnabled"})


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What the Hub says in several lines, in one."""
    try:
        yield
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except Exception as error:  # a class for every answer of the Hub
        kind = type(error).__name__
        if kind in ("RepositoryNotFoundError", "GatedRepoError"):
            raise ValueError(
                f"the Hugging Face Hub has no {name}, or it is private; check the name, or log in (hf auth login)"
            ) from None
        if kind == "RevisionNotFoundError":
            raise ValueError(f"{name} has no such revision on the Hugging Face Hub") from None
        if is_offline(error):
            raise ValueError(f"cannot reach the Hugging Face Hub for {name} ({printable(first_line(error))})") from None
        if isinstance(error, OSError) or kind.endswith(("HTTPError", "HfHubHTTPError", "HTTPStatusError")):
            raise ValueError(f"the Hugging Face Hub refused {name}: {printable(first_line(error))}") from None
        raise
