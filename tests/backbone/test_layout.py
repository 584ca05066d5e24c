"""No layout copies in the stages: what PyTorch copies there, by its profiler."""

import pytest
import timm
import torch
from torch.profiler import ProfilerActivity, profile

import tailprop  # noqa: F401 - registers the models

COPIES = {"aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy"}


def copies_of_maps(step: object, least: int) -> list[str]:
    """Copies of at least so many values, but for the bias that a linear layer writes into its output before it multiplies."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    found = []
    for event in profiler.events() or ():
        shape = event.input_shapes[0] if event.input_shapes else []
        parent = "" if event.cpu_parent is None else event.cpu_parent.name
        if shape[-2:] == [3, 3]:  # the weight of a convolution
            continue
        if event.name in COPIES and torch.Size(shape).numel() >= least and parent != "aten::addmm":
            found.append(f"{event.name} {shape} in {parent}")
    return found


@pytest.mark.parametrize("mixer", ["tailprop", "multiscale"])
@pytest.mark.parametrize("training", [False, True])
def test_the_stages_copy_no_map(mixer: str, training: bool) -> None:
    """At the sizes of Tiny: maps of 56, 28, 14 and 7 positions, in narrow layers."""
    dims = (32, 64, 128, 256)
    model = timm.create_model("tailprop_tiny", mixer=mixer, dims=dims, depths=(1, 1, 1, 1), num_classes=4).train(training)
    x = model.stem(torch.randn(1, 3, 224, 224)).detach().requires_grad_(training)

    def step() -> None:
        with torch.set_grad_enabled(training):
            y = model.stages(x)
        if training:
            y.sum().backward(torch.ones(()))

    step()  # fills the caches of constants
    smallest_map = 7 * 7 * dims[-1]
    assert not copies_of_maps(step, smallest_map)
    assert copies_of_maps(lambda: x.transpose(1, 2).contiguous(), smallest_map)  # the profile does see a copy
