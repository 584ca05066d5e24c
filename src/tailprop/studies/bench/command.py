"""`tailprop bench [NAME]`: a benchmark of this folder, or that of a task, which measures whole networks."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tailprop.engine.options import find_options, parse_options
from tailprop.studies.bench import BENCHES, DEFAULT_BENCH
from tailprop.tasks import TASKS, find_spec

__all__ = ["Benchmark", "parse", "run"]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: the name of its module, and its options."""

    module: str
    options: Any


def parse(args: list[str]) -> Benchmark:
    """The benchmark that the first argument names, else that of backbones, and its options."""
    if args and args[0] in TASKS:
        return _parse_task(args[0], args[1:])
    name, rest = (args[0], args[1:]) if args and args[0] in BENCHES else (DEFAULT_BENCH, args)
    module, reference, _ = BENCHES[name]
    kind = find_options(module, reference)
    prog = "tailprop bench" if name == DEFAULT_BENCH else f"tailprop bench {name}"
    return Benchmark(module, parse_options(kind, rest, prog, _description(kind)))


def _parse_task(name: str, args: list[str]) -> Benchmark:
    spec = find_spec(name)
    if spec.bench is None:
        raise ValueError(f"there is no benchmark for {spec.title}; omit {name!r} to measure backbones")
    module = f"{spec.package}.{spec.bench.partition(':')[0]}"
    return Benchmark(module, parse_options(spec.options(spec.bench), args, f"tailprop bench {name}"))


def _description(kind: type) -> str:
    others = [f"tailprop bench {name}: {what}" for name, (_, _, what) in BENCHES.items()]
    tasks = ", ".join(name for name in TASKS if find_spec(name).bench is not None)
    return f"{(kind.__doc__ or '').strip()}\n\n{'; '.join(others)}; tailprop bench TASK: whole networks ({tasks})."


def run(chosen: Benchmark) -> None:
    import_module(chosen.module).run(chosen.options)
