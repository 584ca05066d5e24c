"""`tailprop info PATH`: describe a run folder, weights, an exported file, a recipe or a model."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import tyro

from tailprop.commands.recipes import explain_recipe
from tailprop.engine.exported import describe_exported
from tailprop.engine.recipes import find_recipe, recipe_names
from tailprop.engine.run_settings import WEIGHTS, find_settings, read_config
from tailprop.engine.shipped import locate, shipped_names
from tailprop.tasks import DEFAULT_TASK, TASKS, find_spec
from tailprop.utils.durations import duration_text
from tailprop.utils.parsing import parse_json, read_bytes, read_text, sealed_row
from tailprop.utils.text import did_you_mean, excerpt, listed, say

__all__ = ["Info", "run"]

Facts = dict[str, str]
_CHECKPOINTS: Final = (".pt", ".pth", ".bin", ".safetensors")
_COSTS: Final = Path(__file__).parents[1] / "backbone" / "costs.json"


@dataclass(frozen=True)
class Info:
    """Describe a run folder, weights, an exported file, a recipe or a model."""

    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """A path, or the name of a recipe or a model."""


def run(options: Info) -> None:
    path = Path(options.what)
    if path.is_dir():
        _print(options.what, _describe_run(path))
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        explain_recipe(path)
    elif path.is_file():
        _print(options.what, _describe_file(path))
    elif options.what in shipped_names():  # before a recipe of that name, which `tailprop recipes` explains
        shipped = locate(options.what)
        card = shipped / "README.md"
        _print(options.what, _describe_weights(shipped / WEIGHTS[0]) | {"what": "a shipped model", "card": str(card)})
    elif (facts := _describe_model(options.what)) is not None:
        _print(options.what, facts)
    elif options.what in recipe_names():
        explain_recipe(find_recipe(options.what))
    else:
        known = [*recipe_names(), *shipped_names(), *json.loads(read_text(_COSTS))]
        hint = did_you_mean(options.what, known, otherwise="`tailprop recipes` and `tailprop models` list what there is")
        raise ValueError(f"{options.what} is neither a path, nor a recipe, nor a model; {hint}")


def _print(title: str, facts: Facts) -> None:
    say(title)
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"  {name:<{width}}  {value}")


# A run folder


def _describe_run(folder: Path) -> Facts:
    config = read_config(folder)  # raises if it is not one
    spec = find_spec(str(config.get("task", DEFAULT_TASK)))
    manifest = _read_json(folder / "manifest.json")
    rows = _epochs(folder / "metrics.jsonl")
    facts = {"what": f"a run of {spec.title} ({spec.name})", **_network(config, manifest), **_data(config, manifest)}
    facts |= _progress(config, rows, spec.metric, spec.metrics[spec.metric])
    if init := config["model"].get("init"):
        facts["started from"] = str(init)
    if isinstance(teacher := manifest.get("teacher"), dict):
        facts["teacher"] = f"{teacher.get('model')} ({teacher.get('from')}), weights {teacher.get('weights_hash')}"
    facts |= _provenance(manifest)
    present = [name for name in (*WEIGHTS, "history.csv") if (folder / name).is_file()]
    facts["files"] = ", ".join(f"{name} ({_size(folder / name)})" for name in present) or "none but its settings"
    return facts


def _network(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> Facts:
    model = config["model"]
    given = " ".join(f"{name}={value}" for name, value in (model.get("args") or {}).items())
    parts = [str(model.get("name")), f"({given})" if given else ""]
    if isinstance(parameters := manifest.get("parameters"), int):
        parts.append(f"with {parameters / 1e6:.2f} M parameters")
    if isinstance(macs := manifest.get("macs"), int):
        parts.append(f"and {macs / 1e9:.2f} GMACs")
    return {"network": " ".join(filter(None, parts))}


def _data(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> Facts:
    data = config["data"]
    where = next((data[name] for name in ("root", "train", "problem", "source") if data.get(name)), "")
    counts = manifest.get("examples")
    images = ", ".join(f"{count} {split}" for split, count in counts.items()) if isinstance(counts, dict) else ""
    text = " ".join(map(str, where)) if isinstance(where, list) else str(where)
    return {"data": f"{text}; images: {images}" if images else text}


def _progress(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], metric: str, label: str) -> Facts:
    epochs = config["optim"].get("epochs", "?")
    if not rows:
        return {"trained": f"no epoch of {epochs} yet"}
    last = rows[-1]
    facts = {"trained": f"{last['epoch']:g} of {epochs} epochs, {last['step']} steps"}
    if isinstance(minutes := last.get("minutes"), int | float):
        facts["trained"] += f", {duration_text(60 * minutes)}"
    if measured := [row for row in rows if isinstance(row.get(metric), int | float)]:
        best = max(measured, key=lambda row: float(row[metric]))
        facts["best"] = f"{label}: {best[metric]:.2f} after epoch {best['epoch']:g}"
    return facts


def _provenance(manifest: Mapping[str, Any]) -> Facts:
    facts: Facts = {}
    if isinstance(command := manifest.get("command"), list):
        facts["command"] = "tailprop " + " ".join(map(str, command))
    if isinstance(versions := manifest.get("versions"), dict):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    for name in ("commit", "hardware"):
        if manifest.get(name):
            facts[name] = str(manifest[name])
    if isinstance(resumed := manifest.get("continued"), list):
        facts["resumed"] = ", ".join(f"from step {entry.get('from_step')}" for entry in resumed if isinstance(entry, dict))
    return facts


def _epochs(path: Path) -> list[dict[str, Any]]:
    """The rows of finished epochs in metrics.jsonl, without any that cannot be read."""
    rows = []
    for line in read_bytes(path).splitlines() if path.is_file() else ():
        try:
            row = sealed_row(line, path)
            if row["kind"] == "epoch":
                float(row["epoch"]), int(row["step"])
                rows.append(row)
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def _read_json(path: Path) -> dict[str, Any]:
    """A manifest; empty if there is none, or it cannot be read."""
    try:
        found = parse_json(read_bytes(path), path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# A file


def _describe_file(path: Path) -> Facts:
    if path.suffix == ".onnx":
        about = describe_exported(path)
        return {"what": "an exported network (ONNX)"} | {name: _brief(value) for name, value in about.items() if value}
    if path.suffix not in _CHECKPOINTS:
        raise ValueError(f"{path} is none of the files that are described: {', '.join(_CHECKPOINTS)}, .onnx, .yaml")
    return _describe_weights(path)


def _describe_weights(path: Path) -> Facts:
    from tailprop.engine.checkpoint import read_state_dict
    from tailprop.engine.run_settings import read_metadata

    state = read_state_dict(path)  # raises if it is damaged
    metadata, settings = read_metadata(path), find_settings(path)
    kinds = Counter(str(value.dtype).removeprefix("torch.") for value in state.values())
    facts = {"what": "weights" if path.suffix == ".safetensors" else "a checkpoint"}
    if settings is not None and settings.get("task", DEFAULT_TASK) in TASKS:
        facts["task"] = find_spec(str(settings.get("task", DEFAULT_TASK))).title
        facts |= _network(settings, {})
    elif "architecture" in metadata:
        facts["network"] = metadata["architecture"]
    facts["numbers"] = f"{sum(v.numel() for v in state.values()) / 1e6:.2f} M in {len(state)} tensors ({', '.join(kinds)})"
    facts["names"] = listed(list(state), 4)
    if classes := metadata.get("classes"):
        names = classes.split("\n")
        facts["classes"] = f"{len(names)}: {listed(names, 6)}"
    facts["size"] = _size(path)
    facts["run"] = str(path.parent) if (path.parent / "config.yaml").is_file() else "not in a run folder"
    return facts


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_brief(item)}" for name, item in value.items())
    return listed([str(item) for item in value], 6) if isinstance(value, list | tuple) else excerpt(value, 120).strip("'")


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


# A model


def _describe_model(name: str) -> Facts | None:
    row = json.loads(read_text(_COSTS)).get(name)
    if row is None:
        return None
    sizes = (" ".join(map(str, row[key])) for key in ("depths", "dims"))
    return {
        "what": "a backbone of this package, registered with timm",
        "mixer": row["mixer"],
        "layers of each stage": next(sizes),
        "channels of each stage": next(sizes),
        "parameters": f"{row['parameters'] / 1e6:.1f} M with 1000 classes",
        "multiply-adds": f"{row['macs'] / 1e9:.2f} G at 224x224",
        "use": f'timm.create_model("{name}") after import tailprop, or --model.name {name}',
    }
