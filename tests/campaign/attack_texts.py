"""Attacks by settings, command lines, checkpoints and names: what a person or another program wrote."""

import json
import os
import pickle
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.campaign.mutate import HOSTILE, mutate_bytes, mutate_value
from tests.campaign.outcomes import Verdict, judge_exit, wrong
from tests.campaign.processes import attempt, run
from tests.campaign.subjects import Subject

__all__ = ["hostile_checkpoints", "hostile_names", "mutate_commands", "mutate_recipes"]

TRIES = 40  # of a round
RUNS = 2  # commands of a round that are run to their end
MEMORY = 8 << 30  # bytes of address space for them
NAME = "a\x1b[2J\u202eb"  # clears the screen, and reverses what follows


def mutate_recipes(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Mutated recipes and config.yaml of runs, parsed and checked as by the command."""
    from tailprop.commands.train import parse

    sources = [subject.home / f"{subject.task}.yaml", subject.whole / "config.yaml"]
    tries: list[tuple[str, Callable[[], object]]] = []
    names = []
    for number in range(TRIES):
        text = rng.choice(sources).read_text()
        path = work / f"{number}.yaml"
        if rng.random() < 0.4:
            path.write_bytes(mutate_bytes(text.encode(), rng))
        else:
            path.write_text(yaml.safe_dump(mutate_value(yaml.safe_load(text), rng), allow_unicode=rng.random() < 0.5))
        tries.append((path.read_text(errors="replace")[:300], lambda path=path: _parse_and_dump(parse, path)))
        names.append("")
    yield from attempt(tries, names)


def _parse_and_dump(parse: Callable[[list[str]], Any], path: Path) -> None:
    from tailprop.engine.settings import absolute_paths, comparable, config_hash, portable, to_dict

    config = parse([str(path)])
    yaml.safe_dump(to_dict(absolute_paths(config)))
    config_hash(comparable(config))
    json.dumps(portable(config))
    assert config.run.out != Path(), "the run would be in the working directory"


def mutate_commands(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Options with hostile values, and options that do not exist, for train, eval and predict."""
    from tailprop.commands import eval as evaluate
    from tailprop.commands import predict, train
    from tailprop.engine.options import option_names
    from tailprop.tasks import find_spec

    spec = find_spec(subject.task)
    kinds = {"train": spec.config_type(), "eval": spec.part(spec.evaluate), "predict": spec.part(spec.predict)}
    heads = {
        "train": [f"{subject.task}.yaml"],
        "eval": [str(subject.whole)],
        "predict": [str(subject.whole), str(subject.image)],
    }
    parsers = {"train": train.parse, "eval": evaluate.parse, "predict": predict.parse}
    tries: list[tuple[str, Callable[[], object]]] = []
    for _ in range(TRIES):
        command = rng.choice(list(kinds))
        args = list(heads[command])
        for _ in range(rng.choice((1, 1, 2, 3))):
            args += [rng.choice(list(option_names(kinds[command]))), *_values(rng)]
        if rng.random() < 0.1:
            args[rng.randrange(len(args))] = _text(rng.choice(HOSTILE))
        tries.append((f"{command} {args}"[:400], lambda command=command, args=args: _parse(parsers[command], args, subject)))
    yield from attempt(tries)
    command = rng.choice(("eval", "predict"))
    options = [name for name in option_names(kinds[command]) if not name.endswith("out")]
    for number in range(RUNS):  # these are not only parsed
        out, values = work / str(number), _values(rng)
        args = subject.evaluate(subject.whole, out) if command == "eval" else subject.predict(subject.whole, subject.image, out)
        args += [rng.choice(options), *(value for value in values if "/" not in value)]
        done = run(args, subject.home, limits={resource.RLIMIT_AS: MEMORY})
        yield judge_exit(done.code, done.err, True, f"{args}"[:400])


def _values(rng: Random) -> list[str]:
    return [_text(rng.choice(HOSTILE)) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 5)))]


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value) if isinstance(value, list | dict) else str(value))[:3000]


def _parse(parse: Callable[[list[str]], Any], args: list[str], subject: Subject) -> None:
    os.chdir(subject.home)
    chosen = parse(args)
    options = getattr(chosen, "options", chosen)
    options.check()


class _Execute:
    """Pickled, it would write a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def hostile_checkpoints(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Checkpoints with code, with wrong contents, with wrong metadata: loaded, or refused; nothing in them is executed."""
    marker = work / "executed"
    tries: list[tuple[str, Callable[[], object]]] = []
    names = []
    for number in range(TRIES // 2):
        path = work / f"{number}.{rng.choice(('pt', 'safetensors'))}"
        (_hostile_pickle if path.suffix == ".pt" else _hostile_weights)(path, subject, rng, marker)
        tries.append((f"{subject.task} {path.name}", lambda path=path: _load_and_predict(path, subject)))
        names.append("")
    yield from attempt(tries, names)
    if marker.exists():
        yield wrong("code in a checkpoint was executed")


def _load_and_predict(path: Path, subject: Subject) -> None:
    import tailprop

    tailprop.load(path).predict(subject.image)


def _hostile_pickle(path: Path, subject: Subject, rng: Random, marker: Path) -> None:
    payload = torch.load(subject.whole / "best.pt", weights_only=True)
    payload.pop("rng")
    kind = rng.randrange(4)
    if kind == 0:
        path.write_bytes(pickle.dumps(_Execute(marker)))
    elif kind == 1:
        key = rng.choice(list(payload))
        torch.save(payload | {key: _Execute(marker)}, path)
    elif kind == 2:
        key = rng.choice(list(payload))
        torch.save(payload | {key: rng.choice(HOSTILE)}, path)
    else:
        path.write_bytes(mutate_bytes((subject.whole / "best.pt").read_bytes(), rng))


def _hostile_weights(path: Path, subject: Subject, rng: Random, _marker: Path) -> None:
    weights = load_file(subject.whole / "model.safetensors")
    metadata = _metadata(subject.whole / "model.safetensors")
    kind = rng.randrange(4)
    if kind == 0:
        path.write_bytes(mutate_bytes((subject.whole / "model.safetensors").read_bytes(), rng))
        return
    metadata.pop("sha256", None)
    if kind == 1:
        metadata[rng.choice(list(metadata))] = _text(rng.choice(HOSTILE)).replace("\x00", "0")
    elif kind == 2 and "settings" in metadata:
        metadata["settings"] = json.dumps(mutate_value(json.loads(metadata["settings"]), rng))
    else:
        name = rng.choice(list(weights))
        weights[name] = rng.choice((torch.zeros(0), torch.zeros(()), torch.ones(3, 5), torch.full((2,), float("nan"))))
    save_file(weights, path, metadata)


def _metadata(path: Path) -> dict[str, str]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]


def hostile_names(subject: Subject, rng: Random, work: Path) -> Iterator[Verdict]:
    """Names that control a terminal, as class, category, file and folder: nothing of them reaches the terminal as it is."""
    folder = work / NAME
    shutil.copytree(subject.whole, folder)
    weights, metadata = load_file(folder / "model.safetensors"), _metadata(folder / "model.safetensors")
    metadata.pop("sha256")
    if "classes" in metadata:
        names = metadata["classes"].split("\n")
        metadata["classes"] = "\n".join(f"{name}{NAME}" for name in names)
    save_file(weights, folder / "model.safetensors", metadata)
    images = work / f"images{NAME}"
    images.mkdir()
    shutil.copy(subject.image, images / f"{NAME}{subject.image.suffix}")
    (images / f"{NAME}.png").write_bytes(b"no image")
    extra = [[], ["--format", "csv"], ["--format", "json"]] if subject.task == "classify" else [[]]
    for number, options in enumerate(extra):
        out = work / f"{number}{NAME}"
        args = ["predict", str(folder), str(images), *options, "--device", "cpu", "--threads", "1"]
        done = run(args if subject.task == "classify" else [*args, "--out", str(out)], subject.home)
        yield _judge_output(done.code, done.out, done.err, f"predict {options}")
    for args in _other_commands(subject, folder, rng):
        done = run(args, subject.home)
        yield _judge_output(done.code, done.out, done.err, str(args[:4]))


def _other_commands(subject: Subject, folder: Path, rng: Random) -> list[list[str]]:
    recipe = folder.parent / "hostile.yaml"
    recipe.write_text(yaml.safe_dump({"task": subject.task, rng.choice(("model", "data", NAME)): {NAME: NAME, "name": NAME}}))
    return [
        ["eval", str(folder), "--out", str(folder / "e.json")],
        ["eval", str(folder.parent / NAME / NAME)],
        ["train", str(recipe)],
        ["train", f"{subject.task}.yaml", f"--{NAME}", NAME],
        ["train", f"{subject.task}.yaml", "--model.args", f"{NAME}={NAME}"],
        ["train", f"{subject.task}.yaml", "--model.init", str(folder / NAME)],
        [NAME],
    ]


def _judge_output(code: int, out: str, err: str, what: str) -> Verdict:
    if any(mark in out + err for mark in ("\x1b[2J", "\u202e")):
        return wrong(f"{what}: a name reached the terminal: {(out + err)[-300:]!r}")
    return judge_exit(code, err, True, what)
