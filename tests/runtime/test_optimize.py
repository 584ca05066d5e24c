"""`tailprop.optimize`: the same outputs, faster or as they were, and a report that says so."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import tailprop
from tailprop.runtime import optimize as module
from tailprop.runtime.onednn import OneDNNConv1x1, OneDNNLinear, has_onednn_products, use_onednn_products
from tailprop.runtime.optimize import EAGER, OptimizedModel, relative_error
from tailprop.tasks.restore.model import create_restorer

needs_onednn = pytest.mark.skipif(not has_onednn_products(), reason="this build of PyTorch has no such operator")
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def pico(**kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("tailprop_pico", num_classes=10, **kwargs)


@needs_onednn
def test_onednn_layers_compute_the_same() -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        linear, conv = nn.Linear(48, 80, bias=bias), nn.Conv2d(48, 80, 1, bias=bias)
        x, image = torch.randn(2, 7, 48), torch.randn(2, 48, 9, 5)
        with torch.no_grad():
            torch.testing.assert_close(OneDNNLinear(linear)(x), linear(x))
            torch.testing.assert_close(OneDNNConv1x1(conv)(image), conv(image))
            torch.testing.assert_close(OneDNNLinear(linear)(x.transpose(0, 1)), linear(x.transpose(0, 1)))


def test_only_plain_products_are_replaced() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    others = [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, stride=2), nn.Conv2d(4, 4, 1, padding=1), nn.Conv2d(4, 4, 1, groups=2)]
    kept = [hooked, Scaled(4, 4), nn.Linear(4, 4).double(), *others]
    model = nn.Sequential(*kept, nn.Sequential(nn.Linear(4, 4)), nn.Conv2d(4, 4, 1))
    assert use_onednn_products(model) == 2
    assert list(model.children())[: len(kept)] == kept
    assert isinstance(model[-2][0], OneDNNLinear)
    assert isinstance(model[-1], OneDNNConv1x1)


def test_backbone_keeps_its_outputs_and_says_what_was_done() -> None:
    model = pico().train()
    state = copy.deepcopy(model.state_dict())
    fast = tailprop.optimize(model, IMAGES, rounds=1)
    assert model.training
    assert all(torch.equal(before, now) for before, now in zip(state.values(), model.state_dict().values(), strict=True))
    model.eval()
    report = fast.report
    limit = 1e-4 if fast.dtype is None else 2e-2
    for size in (64, 96):  # other sizes than the example's, too
        x = torch.randn(1, 3, size, size)
        y = fast(x)
        assert y.dtype == torch.float32
        assert relative_error(y, model(x)) < limit
    assert fast.num_classes == 10
    names = [trial.name for trial in report.trials]
    assert names[:2] == [EAGER, "channels-last"]
    assert report.chosen in names
    assert report.speedup >= 1
    assert report.chosen in str(report)
    assert "error" in str(report)
    with pytest.raises(ValueError, match="inference only"):
        fast.train()


def test_fp32_leaves_the_precision_alone() -> None:
    fast = tailprop.optimize(pico(), IMAGES, precision="fp32", rounds=1)
    assert not any("BF16" in trial.name for trial in fast.report.trials)
    assert max(trial.error or 0 for trial in fast.report.trials) < 1e-5


def test_lists_of_features_and_other_networks() -> None:
    pyramid = pico(features_only=True).eval()
    found = tailprop.optimize(pyramid, IMAGES, rounds=1)(IMAGES)
    assert [y.shape for y in found] == [y.shape for y in pyramid(IMAGES)]
    assert relative_error(found, pyramid(IMAGES)) < 2e-2
    restorer = create_restorer("tailprop_ir_light", dim=12, depths=(1,)).eval()
    gray = IMAGES[:, :1, :32, :32]
    assert relative_error(tailprop.optimize(restorer, gray, rounds=1)(gray), restorer(gray)) < 2e-2


def test_branches_are_merged() -> None:
    torch.manual_seed(0)
    model = timm.create_model("repvit_m0_9", num_classes=10).eval()
    fast = tailprop.optimize(model, IMAGES, precision="fp32", rounds=1)
    assert all(trial.error is not None and trial.error < 1e-4 for trial in fast.report.trials)
    assert relative_error(fast(IMAGES), model(IMAGES)) < 1e-4


class Fragile(nn.Module):
    """Fails in channels-last memory, and is not what it was in BF16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise RuntimeError("only contiguous maps")
        return self.linear(x)


def test_candidates_that_fail_or_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4, 4, 8)
    report = tailprop.optimize(Fragile(), x, rounds=1).report
    assert report.chosen == EAGER
    assert report.speedup == 1
    assert all("only contiguous maps" in trial.refused for trial in report.trials[1:])
    monkeypatch.setattr(module, "_candidates", lambda *_: [("wrong", lambda: OptimizedModel(nn.Identity()))])
    fast = tailprop.optimize(nn.Linear(8, 8), x, rounds=1)
    assert "above the tolerance" in fast.report.trials[1].refused
    assert isinstance(fast.model, nn.Linear)


def test_slower_candidate_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x) if x is None else self.model(x) * 0.5 + self.model(x) * 0.5

    model = nn.Linear(256, 256)
    monkeypatch.setattr(module, "_candidates", lambda *_: [("twice", lambda: OptimizedModel(Twice(model)))])
    assert tailprop.optimize(model, torch.randn(256, 256), rounds=3).report.chosen == EAGER


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="precision"):
        tailprop.optimize(nn.Linear(2, 2), torch.randn(1, 2), precision="int8")
    with pytest.raises(ValueError, match="the example has no tensor"):
        tailprop.optimize(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="move one of them"):
        tailprop.optimize(nn.Linear(2, 2), torch.randn(1, 2, device="meta"))


def test_compiled_form_is_for_the_shapes_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []

    def compile_model(model: nn.Module, options: dict[str, bool]) -> Any:
        assert options == {"freezing": True}

        def call(x: Tensor) -> Tensor:
            calls.append(x.shape)
            return model(x)

        return call

    monkeypatch.setattr(torch, "compile", compile_model)
    x = torch.randn(4, 8)
    fast = tailprop.optimize(nn.Linear(8, 4), x, precision="fp32", compile=True, rounds=1)
    assert any(trial.name.endswith(", compiled") and trial.error == 0 for trial in fast.report.trials)
    form = OptimizedModel(nn.Linear(8, 4))
    form.compile_for([x])
    calls.clear()
    assert form(x).shape == (4, 4)
    assert form(x[:2]).shape == (2, 4)
    assert calls == [x.shape]
