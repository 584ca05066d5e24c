"""The `tailprop` command. It stands outside the package so that asking for help does not import PyTorch."""

import contextlib
import difflib
import os
import select
import sys
from importlib import import_module

# name: (module, dataclass of its options, what it does). The module's `run` takes the options.
COMMANDS = {
    "models": ("tailprop.commands.models", "Models", "list the models with parameters and multiply-adds"),
    "train": ("tailprop.commands.train", "Train", "train a model by a recipe, on one machine or many"),
    "eval": (
        "tailprop.tasks.classify.evaluate",
        "Eval",
        "measure a checkpoint on any data: top-1, AP, mean IoU or PSNR, by its task",
    ),
    "robustness": ("tailprop.studies.robustness", "Robustness", "ImageNet-Sketch, ImageNet-A and common corruptions"),
    "predict": ("tailprop.tasks.classify.predict", "Predict", "what a checkpoint makes of pictures: classes, boxes, labels"),
    "scenes": ("tailprop.commands.scenes", "Scenes", "write generated scenes of shapes as COCO, ADE20K or parquet"),
    "bench": ("tailprop.studies.bench", "Bench", "measure speed beside ConvNeXt, Swin and vHeat"),
    "loader": ("tailprop.studies.loader", "LoaderBench", "measure whether the loader keeps up with training"),
    "demo": ("tailprop.studies.demo", "Demo", "train a small TailProp on embedded digits and draw the operator"),
    "scales": ("tailprop.studies.scales", "ScaleStudy", "compare starting values of the propagation scales"),
    "restorers": ("tailprop.studies.restorers", "RestorerStudy", "compare restoration networks in equal time"),
}
# (name, task): the same for checkpoints of other tasks than classification, and for a task named after `bench`.
TASK_COMMANDS: dict[tuple[str, str], tuple[str, str]] = {
    ("eval", "detect"): ("tailprop.tasks.detect.evaluate", "EvalDetect"),
    ("predict", "detect"): ("tailprop.tasks.detect.predict", "PredictDetect"),
    ("bench", "detect"): ("tailprop.tasks.detect.bench", "BenchDetect"),
    ("eval", "segment"): ("tailprop.tasks.segment.evaluate", "EvalSegment"),
    ("predict", "segment"): ("tailprop.tasks.segment.predict", "PredictSegment"),
    ("bench", "segment"): ("tailprop.tasks.segment.bench", "BenchSegment"),
    ("eval", "restore"): ("tailprop.tasks.restore.evaluate", "EvalRestore"),
    ("bench", "restore"): ("tailprop.tasks.restore.bench", "BenchRestore"),
    ("predict", "restore"): ("tailprop.tasks.restore.predict", "PredictRestore"),
}


def main(args: list[str] | None = None) -> int:
    # Waiting CPU threads spin for milliseconds before they sleep, on cores that loader processes could use (`tailprop loader`
    # shows what that costs). It is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        code = _guard(sys.argv[1:] if args is None else args)
    except SystemExit as stop:  # of help
        raise SystemExit(_write_out() or stop.code) from None
    return _write_out() or code


def _guard(args: list[str]) -> int:
    """Answer, or say in a line what a user can mend."""
    try:
        return _answer(args)
    except BrokenPipeError as error:
        return 1 if _has_lost_its_reader() else _refuse(str(error))
    except (ValueError, OSError) as error:  # what a user can mend; anything else is our fault and keeps its traceback
        return _refuse(" ".join(str(error).split()))
    except (RuntimeError, MemoryError) as error:
        from tailprop.utils.errors import loader_died, memory_missing

        if (how := loader_died(error)) is not None:
            return _refuse(
                f"a loader process {how}; give it more memory (fewer --data.workers, --data.keep-gb 0, a larger /dev/shm), or "
                "find out whether a file of the data changed or became unreadable"
            )
        if (missing := memory_missing(error)) is None:
            raise
        return _refuse(
            f"not enough memory ({missing}); take a smaller batch (in training --optim.accumulate makes up for it), smaller "
            "pictures, or --run.grad-checkpointing"
        )
    except KeyboardInterrupt:
        return 130


def _answer(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_help())
        return 0
    name, *rest = args
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"commands are {', '.join(COMMANDS)}"
        return _refuse(f"no command {name!r}; {hint}")
    return _run(name, rest)


def _run(name: str, args: list[str]) -> int:
    from tailprop.engine.options import parse_options
    from tailprop.runtime.signals import Interrupted

    module_name, options_name, what = COMMANDS[name]
    command = f"tailprop {name}"
    if (task := _task(name, args)) is not None:
        module_name, options_name = TASK_COMMANDS[name, task]
        if name == "bench":
            command, args = f"{command} {task}", args[1:]
    module = import_module(module_name)
    try:
        if hasattr(module, "parse"):  # its options depend on its first argument
            options = module.parse(args)
        else:
            options = parse_options(getattr(module, options_name), args, command, what)
    except ValueError:
        if os.environ.get("RANK", "0") != "0":  # all of torchrun's processes are told the same, and one says what is wrong
            return 2
        raise
    try:
        return module.run(options) or 0
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":  # torchrun's processes all stop, and one says so
            with contextlib.suppress(OSError):  # Ctrl-C ends a `tee` behind us, too
                print(f"tailprop: {stop}", file=sys.stderr, flush=True)
        return stop.exit_code


def _task(name: str, args: list[str]) -> str | None:
    """The task a command is about, if it has a module of its own for it."""
    if name == "bench":
        named = args[0] if args else ""
    elif any(command == name for command, _ in TASK_COMMANDS):
        from tailprop.engine.run_settings import task_of

        named = next((task for task in map(task_of, args) if task is not None), "")
    else:
        return None
    return named if (name, named) in TASK_COMMANDS else None


def _help() -> str:
    lines = [f"  {name:<10} {what}" for name, (_, _, what) in COMMANDS.items()]
    more = "tailprop COMMAND --help explains each; eval and predict, with a checkpoint before --help, what its task takes."
    return "\n".join(["usage: tailprop COMMAND [options]", "", *lines, "", more])


def _write_out() -> int:
    """Write out what was printed. A reader who has left, as `head` does, is no mistake."""
    try:
        if sys.stdout is not None:  # nor is there anything to write to after >&-
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python, at its end, would try again and complain
        return 0 if isinstance(error, BrokenPipeError) else _refuse(f"cannot write what is printed ({error.strerror})")
    return 0


def _has_lost_its_reader() -> bool:
    """Whether it is standard output that broke: what could not be written is still waiting, or nobody is at the other end."""
    try:
        sys.stdout.flush()
        listener = select.poll()
        listener.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in listener.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, AttributeError):  # no file, or no poll on this system
        return False


def _refuse(message: str) -> int:
    with contextlib.suppress(OSError):  # nobody listens any more
        print(f"tailprop: {message}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
