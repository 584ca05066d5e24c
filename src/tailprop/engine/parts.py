"""The parts of a network, as freezing and learning rates see them: a backbone and its head.

A classifier's head is its last layer. Of a detector or a segmenter, which have a `body`, it is everything after that. Other
networks name the layers of their head in a method `head_layers`, or `output_layers` if Muon leaves those to AdamW.
"""

from collections.abc import Iterator, Sequence

from torch import nn

from tailprop.utils.text import did_you_mean, listed

__all__ = ["BACKBONE", "body_of", "freeze", "head_parameters"]

BACKBONE = "backbone"


def body_of(model: nn.Module) -> nn.Module | None:
    """The backbone in a detector or a segmenter; None for other networks."""
    body = getattr(model, "body", None)
    return body if isinstance(body, nn.Module) and not hasattr(model, "get_classifier") else None


def head_parameters(model: nn.Module) -> set[int]:
    """The parameters of the head, by id."""
    if (body := body_of(model)) is not None:
        return {id(p) for p in model.parameters()} - {id(p) for p in body.parameters()}
    named = next((name for name in ("head_layers", "output_layers") if hasattr(model, name)), None)
    if named is not None:
        layers: Sequence[nn.Module] = getattr(model, named)()
    else:
        found = model.get_classifier() if hasattr(model, "get_classifier") else ()  # type: ignore[operator]
        layers = [layer for layer in (found if isinstance(found, tuple | list) else [found]) if isinstance(layer, nn.Module)]
    return {id(p) for layer in layers for p in layer.parameters()}


def freeze(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Exclude modules from training; returns them, because they have to stay in evaluation mode."""
    frozen: list[nn.Module] = []
    for name in names:
        if name == BACKBONE:
            head = head_parameters(model)
            frozen += _beside(model, head)
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.requires_grad and id(parameter) in head)
        else:
            frozen.append(_find(model, name))
            frozen[-1].requires_grad_(False)
    if names and not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"model.freeze {' '.join(names)} leaves nothing to train; freeze fewer modules")
    return frozen


def _beside(module: nn.Module, head: set[int]) -> Iterator[nn.Module]:
    """The largest modules that have parameters, but none of the head."""
    for child in module.children():
        own = {id(p) for p in child.parameters()}
        if own and not own & head:
            yield child
        elif own:
            yield from _beside(child, head)


def _find(model: nn.Module, name: str) -> nn.Module:
    """A module by its name in the backbone, or else in the whole network."""
    for part in (body_of(model), model):
        found = None if part is None else dict(part.named_modules()).get(name)
        if found is not None and any(True for _ in found.parameters()):
            return found
    known = [BACKBONE, *_names(body_of(model) or model)]
    every = [*known, *(other for other, m in model.named_modules() if other and any(True for _ in m.parameters()))]
    hint = did_you_mean(name, every, otherwise=f"the largest are {listed(known, 12)}")
    raise ValueError(f"model.freeze: there is no module {name!r} with parameters; {hint}")


def _names(model: nn.Module) -> list[str]:
    """Modules with parameters, one or two levels deep."""
    return [name for name, m in model.named_modules() if name and name.count(".") < 2 and any(True for _ in m.parameters())]
