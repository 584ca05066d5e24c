"""The sizes of the models, and their entry points in timm's registry. Importing this module registers them."""

from collections.abc import Callable
from typing import Any, Final

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from .lite import TailPropLite
from .model import TailProp
from .weights import checkpoint_filter_fn

__all__ = ["FAMILIES", "MODELS", "SIZES"]

_WIDE = dict(dims=(96, 192, 384, 768))
_POST_NORM = dict(depths=(2, 2, 18, 2), post_norm=True, layer_scale=1e-5)

# Table C.1 of the paper, and two smaller sizes that the paper does not have.
SIZES: Final[dict[str, dict[str, Any]]] = {
    "pico": dict(depths=(2, 2, 4, 2), dims=(32, 64, 128, 256)),
    "nano": dict(depths=(2, 2, 4, 2), dims=(40, 80, 160, 320)),
    "tiny": dict(depths=(2, 2, 6, 2), **_WIDE, drop_path_rate=0.1),
    "small": dict(**_POST_NORM, **_WIDE, drop_path_rate=0.3),
    "base": dict(**_POST_NORM, dims=(128, 256, 512, 1024), drop_path_rate=0.5),
}
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "tailprop": dict(mixer="tailprop", sizes=tuple(SIZES)),
    "tailprop_ms": dict(mixer="multiscale", sizes=tuple(SIZES)),
    "vheat": dict(mixer="heat", sizes=("tiny", "small", "base")),
    "waveformer": dict(mixer="wave", sizes=("tiny", "small", "base")),
}


# For CPUs (`lite`), not of the paper.
LITE: Final[dict[str, dict[str, Any]]] = {
    "tailprop_lite": dict(mixer="tailprop", depths=(2, 2, 8, 3), dims=(48, 96, 192, 384), mlp_ratio=2.0),
}


def _cfg(name: str) -> dict[str, Any]:
    return dict(
        num_classes=1000,
        input_size=(3, 224, 224),
        pool_size=(7, 7),
        crop_pct=0.875,  # resize 256, crop 224
        interpolation="bicubic",
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv="stem.conv1.conv" if name in LITE else "stem.conv1",
        classifier="head.fc",
        license="apache-2.0",
    )


def _entry_point(name: str, model: type[TailProp], **settings: Any) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return build_model_with_cfg(
            model,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=dict(out_indices=(0, 1, 2, 3), feature_cls="getter"),
            **(settings | kwargs),
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{name}: {settings}"
    return create


PAPER_BODY: Final = {
    f"{family}_{size}": SIZES[size] | dict(mixer=spec["mixer"]) for family, spec in FAMILIES.items() for size in spec["sizes"]
}
MODELS: Final = PAPER_BODY | LITE
default_cfgs = generate_default_cfgs({name: _cfg(name) for name in MODELS})
for _name, _settings in MODELS.items():
    globals()[_name] = register_model(_entry_point(_name, TailPropLite if _name in LITE else TailProp, **_settings))
