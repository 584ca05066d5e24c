"""timm's own model tests, run on every name we register.

They come with timm's source distribution, not its wheel; `make test` unpacks that of the installed version into .cache/timm.
"""

import importlib.util
import inspect
import re
import sys
import warnings
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest

from tailprop.backbone.registry import MODELS
from tests.helpers import ROOT

TIMM = ROOT / ".cache" / "timm"

# timm's test, and the arguments it wants beside the model's name
CONTRACT: dict[str, dict[str, Any]] = {
    "test_model_forward": dict(batch_size=1),
    "test_model_backward": dict(batch_size=2),
    "test_model_default_cfgs": dict(batch_size=1, cfg_device="meta"),
    "test_model_forward_features": dict(batch_size=1),
    "test_model_forward_intermediates_features": dict(batch_size=1),
    "test_model_forward_intermediates": dict(batch_size=1),
    "test_model_forward_fx": dict(batch_size=1),
    "test_model_backward_fx": dict(batch_size=2),
    "test_model_init_weights_after_to_empty": dict(kwargs={}),
    "test_model_features_output_stride": dict(output_stride=8),
}
NOT_OURS = {
    "test_model_features_space2depth_reduction",  # models of another family
    "test_model_inference",  # pretrained weights from a hub
    "test_model_load_pretrained",
    "test_model_features_pretrained",
    "test_model_default_cfgs_non_std",  # models without a spatial output
    "test_model_forward_torchscript",  # TorchScript is deprecated in torch
    "test_model_forward_fx_torchscript",
    "test_model_forward_torchscript_with_features_fx",
}


def load_timm_tests() -> ModuleType:
    path = TIMM / "tests" / "test_models.py"
    if not path.is_file():
        raise FileNotFoundError(f"timm's tests are not at {path}; `make test` puts them there")
    found = re.search(r"__version__ = '(.*)'", (TIMM / "timm" / "version.py").read_text())
    assert found is not None
    assert found[1] == version("timm"), f"{TIMM} holds the tests of timm {found[1]}; remove it and run `make test`"
    spec = importlib.util.spec_from_file_location("timm_test_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about marks that timm's configuration declares
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def timm_tests() -> ModuleType:
    return load_timm_tests()


# torchvision's tracer warns about every network with stochastic depth
@pytest.mark.filterwarnings("ignore:NOTE. The nodes obtained by tracing the model")
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("test", CONTRACT)
def test_timm(timm_tests: ModuleType, test: str, model_name: str) -> None:
    getattr(timm_tests, test)(model_name, **CONTRACT[test])


def test_no_timm_test_is_missing(timm_tests: ModuleType) -> None:
    names = {name for name, f in inspect.getmembers(timm_tests, inspect.isfunction) if name.startswith("test_model_")}
    assert names == set(CONTRACT) | NOT_OURS
