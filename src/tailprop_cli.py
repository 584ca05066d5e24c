"""The `tailprop` command. It stands outside the package so that asking for help does not import PyTorch."""

import contextlib
import difflib
import json
import os
import select
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# name: (module, dataclass of its options, what it does). The module's `run` takes the options. A module whose options depend on
# its first argument, a recipe or a checkpoint, has a function `parse` instead of the dataclass.
COMMANDS = {
    "models": ("tailprop.commands.models", "Models", "list the models with parameters and multiply-adds"),
    "train": ("tailprop.commands.train", None, "train a model by a recipe, on one machine or many"),
    "eval": ("tailprop.commands.eval", None, "measure a checkpoint on any data: top-1, AP, mean IoU or PSNR, by its task"),
    "predict": (
        "tailprop.commands.predict",
        None,
        "what a checkpoint makes of images: classes, boxes, labels, restored images",
    ),
    "robustness": ("tailprop.studies.robustness", "Robustness", "ImageNet-Sketch, ImageNet-A and common corruptions"),
    "scenes": ("tailprop.commands.scenes", "Scenes", "write generated scenes of shapes as COCO, ADE20K or parquet"),
    "bench": ("tailprop.studies.bench", None, "measure speed beside ConvNeXt, Swin and vHeat; bench TASK: whole networks"),
    "loader": ("tailprop.studies.loader", "LoaderBench", "measure whether the loader keeps up with training"),
    "demo": ("tailprop.studies.demo", "Demo", "train a small TailProp on embedded digits and draw the operator"),
    "scales": ("tailprop.studies.scales", "ScaleStudy", "compare initial values of the propagation scales"),
    "restorers": ("tailprop.studies.restorers", "RestorerStudy", "compare restoration networks in equal time"),
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
    """Run a command, or say in one line what a user can fix."""
    try:
        return _answer(args)
    except BrokenPipeError as error:
        return 1 if _is_closed_pipe() else _refuse(str(error))
    except (ValueError, OSError) as error:  # what a user can fix; anything else is our fault and keeps its traceback
        return _refuse(" ".join(str(error).split()))
    except ModuleNotFoundError as error:
        from tailprop.utils.extras import missing_extra

        if (advice := missing_extra(error)) is None:
            raise
        return _refuse(advice)
    except (RuntimeError, MemoryError) as error:
        from tailprop.utils.errors import dead_loader, missing_memory

        if (how := dead_loader(error)) is not None:
            return _refuse(
                f"a loader process {how}; give it more memory (fewer --data.workers, --data.cache-gb 0, a larger /dev/shm), or "
                "find out whether a file of the data changed or became unreadable"
            )
        if (missing := missing_memory(error)) is None:
            raise
        return _refuse(
            f"not enough memory ({missing}); take a smaller batch (in training --optim.grad-accum-steps makes up for it), "
            "smaller images, or --run.grad-checkpointing"
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
    if name == "train" and (not args or args[0] in ("-h", "--help")):
        return _list_recipes() if args else _list_recipes() or 2
    if name == "models" and not args:
        return _list_models()
    module_name, options_name, what = COMMANDS[name]
    module = import_module(module_name)
    from tailprop.runtime.signals import Interrupted

    try:
        options = module.parse(args) if options_name is None else _parse(module, options_name, args, name, what)
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


def _parse(module: Any, options_name: str, args: list[str], name: str, what: str) -> Any:
    from tailprop.engine.options import parse_options

    return parse_options(getattr(module, options_name), args, f"tailprop {name}", what)


def _package() -> Path:
    """The folder of the package, without importing it: that would import PyTorch."""
    spec = find_spec("tailprop")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _list_recipes() -> int:
    folders = (Path("recipes"), _package().parents[1] / "recipes", _package() / "recipes")  # yours, a checkout's, the wheel's
    names = sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})
    print("usage: tailprop train RECIPE [--section.setting value ...]\n\nRECIPE is a YAML file, a run folder or one of:")
    print("\n".join(f"  {name}" for name in names))
    print("\ntailprop train RECIPE --help lists every setting with its value.")
    return 0


def _list_models() -> int:
    """Parameters and multiply-adds at 224 px as counted before; other sizes are counted anew."""
    rows = json.loads((_package() / "backbone" / "costs.json").read_text())
    header = ("model", "mixer", "depths", "dims", "parameters", "GMACs at 224x224")
    cells = [header] + [
        (
            name,
            row["mixer"],
            " ".join(map(str, row["depths"])),
            " ".join(map(str, row["dims"])),
            f"{row['parameters'] / 1e6:.1f} M",
            f"{row['macs'] / 1e9:.2f}",
        )
        for name, row in rows.items()
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print("\ntailprop models --height 800 --width 1280 counts at another size")
    return 0


def _help() -> str:
    lines = [f"  {name:<10} {what}" for name, (_, _, what) in COMMANDS.items()]
    more = "tailprop COMMAND --help explains each; eval and predict, with a checkpoint before --help, what its task takes."
    return "\n".join(["usage: tailprop COMMAND [options]", "", *lines, "", more])


def _write_out() -> int:
    """Write out what was printed. A closed pipe, as `head` leaves, is no error."""
    try:
        if sys.stdout is not None:  # nor is there anything to write to after >&-
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python, at its end, would try again and complain
        return 0 if isinstance(error, BrokenPipeError) else _refuse(f"cannot write what is printed ({error.strerror})")
    return 0


def _is_closed_pipe() -> bool:
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
    with contextlib.suppress(OSError):  # the pipe is closed
        print(f"tailprop: {message}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
