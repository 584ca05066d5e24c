"""The model card of a run: what it is, what it was trained on, how well it does, how it was made, and its limits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tailprop.engine.run_folder import RunFolder
from tailprop.engine.settings import portable
from tailprop.engine.task import TaskSpec
from tailprop.utils.text import printable

__all__ = ["model_card"]

_PIPELINES: Final = {  # of the Hub, by words of a task's title
    "classification": "image-classification",
    "detection": "object-detection",
    "segmentation": "image-segmentation",
    "restoration": "image-to-image",
}
_MOST_NAMES: Final = 30


def model_card(
    spec: TaskSpec, checkpoint: Path, found: Any, settings: dict[str, Any], repo: str, licence: str, has_timm: bool
) -> str:
    """The README.md of a repository on the Hub.

    Args:
        spec: The task.
        checkpoint: A run folder or weights in it; without a manifest the card says less.
        found: The loaded network, a Predictor.
        settings: Settings of the run.
        repo: USER/NAME.
        licence: As the Hub names it.
        has_timm: Whether there is a config.json for timm.
    """
    folder = RunFolder(checkpoint if checkpoint.is_dir() else checkpoint.parent, spec.artifacts)
    manifest = folder.read_manifest()
    pipeline = next((tag for word, tag in _PIPELINES.items() if word in spec.title), None)
    head: dict[str, Any] = {"license": licence, "library_name": "timm" if has_timm else "tailprop"}
    head |= {"pipeline_tag": pipeline} if pipeline else {}
    head["tags"] = [spec.name, "tailprop", *(["timm"] if has_timm else [])]
    name = found.settings.model.name
    is_whole = has_timm and hasattr(found.model, "pretrained_cfg")  # timm made it
    parts = [
        f"# {repo.partition('/')[2]}",
        f"A network for {spec.title}: `{_code(name)}` of TailProp, trained with `tailprop train`.",
        "## Use\n\n" + _usage(repo, is_whole, has_timm),
        "## Results\n\n" + _results(spec, folder),
        "## Training data\n\n" + _data(manifest, settings, found),
        "## How it was made\n\n" + _provenance(manifest, found),
        "## Limits\n\n" + _limits(is_whole, licence),
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n\n".join(parts) + "\n"


def _code(value: Any) -> str:
    """Text from a file within a line of code."""
    return printable(str(value)).replace("`", "'")


def _usage(repo: str, is_whole: bool, has_timm: bool) -> str:
    """How to load it."""
    ours = f"import tailprop\n\npath = huggingface_hub.hf_hub_download({repo!r}, 'model.safetensors')\n"
    lines = ["import huggingface_hub", *ours.splitlines(), "prediction = tailprop.load(path).predict('photo.jpg')"]
    if has_timm:
        backbone = "" if is_whole else ", features_only=True"
        lines += [
            "",
            f"# in timm{'' if is_whole else ', the backbone'}",
            "import timm",
            f"model = timm.create_model('hf-hub:{repo}', pretrained=True{backbone})",
        ]
    return "```python\n" + "\n".join(lines) + "\n```"


def _results(spec: TaskSpec, folder: RunFolder) -> str:
    """The metrics of the best epoch, as logged."""
    try:
        rows = [row for row in folder.read_log() if row.get("kind") == "epoch" and spec.metric in row]
    except ValueError:  # the log is corrupt
        rows = []
    if not rows:
        return "The run has no log of its metrics."
    best = max(rows, key=lambda row: row[spec.metric])
    table = [
        f"| {label} | {best[name]:.4g} |" for name, label in spec.metrics.items() if isinstance(best.get(name), int | float)
    ]
    head = f"On the validation data of the run, after epoch {best.get('epoch')}, the best by {spec.metrics[spec.metric]}:"
    return "\n".join([head, "", "| metric | value |", "|---|---|", *table])


def _data(manifest: Mapping[str, Any], settings: Mapping[str, Any], found: Any) -> str:
    """Dataset, numbers of images, classes."""
    data = settings.get("data", {})
    root = data.get("root") or data.get("train") or data.get("name") or data.get("source")
    roots = root if isinstance(root, list) else [root]
    lines = [f"- data: {', '.join(f'`{_code(Path(str(r)).name)}`' for r in roots if r)}"]  # no folders of a machine
    for split, count in dict(manifest.get("examples") or {}).items():
        digest = dict(manifest.get("split_hash") or {}).get(split, "")
        lines.append(f"- {_code(split)}: {_code(count)} images (hash of the split `{_code(digest)}`)")
    if found.names:
        shown = ", ".join(f"`{_code(name)}`" for name in found.names[:_MOST_NAMES])
        more = len(found.names) - _MOST_NAMES
        lines.append(f"- {len(found.names)} classes: {shown}{f' and {more} more' if more > 0 else ''}")
    return "\n".join(lines)


def _provenance(manifest: Mapping[str, Any], found: Any) -> str:
    """Command, versions, hardware, cost, settings."""
    command = manifest.get("command")
    words = [Path(str(word)).name if str(word).startswith("/") else str(word) for word in command or []]
    lines = [f"- command: `{_code('tailprop ' + ' '.join(words))}`"] if words else []
    for key in ("commit", "torch", "timm", "python", "hardware", "parameters", "macs", "config_hash"):
        if key in manifest:
            lines.append(f"- {key}: {_code(manifest[key])}")
    settings = yaml.safe_dump(portable(found.settings), sort_keys=False, allow_unicode=True)
    block = "".join(c if c == "\n" else printable(c) for c in settings).replace("```", "'''")
    return "\n".join(lines or ["The run has no manifest."]) + f"\n\nSettings:\n\n```yaml\n{block}```"


def _limits(is_whole: bool, licence: str) -> str:
    lines = [
        "- It was measured on the validation data above alone. Images of other kinds may give worse results without a warning.",
        "- It knows what its training data show, with their errors and biases.",
        f"- Licence of these weights: {licence}. The training data may have terms of their own.",
    ]
    if not is_whole:
        lines.append("- The files give the whole network to `tailprop.load`; timm loads a backbone at most.")
    return "\n".join(lines)
