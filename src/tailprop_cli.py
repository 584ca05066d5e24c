"""The `tailprop` command. It is a module outside the package so that --help does not import PyTorch."""

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

# name: (module, dataclass of its options, description). The module's `run` takes the options. The dataclass is of the same
# module, or of one that imports no PyTorch ("module:dataclass"), so that --help and errors take no seconds. A module whose
# options depend on its first argument (a recipe or a checkpoint) has a function `parse` instead.
COMMANDS = {
    "models": ("tailprop.commands.models", "Models", "list the models with parameters and multiply-adds, and the trained ones"),
    "recipes": ("tailprop.commands.recipes", "Recipes", "list the recipes, or explain one"),
    "info": ("tailprop.commands.info", "Info", "describe a run, weights, an exported file, a recipe or a model"),
    "train": ("tailprop.commands.train", None, "train a model from a recipe, on one machine or many"),
    "eval": (
        "tailprop.commands.eval",
        None,
        "evaluate a checkpoint on any dataset: top-1, AP, mean IoU or PSNR, depending on its task",
    ),
    "predict": (
        "tailprop.commands.predict",
        None,
        "run a checkpoint on images: classes, boxes, label maps or restored images",
    ),
    "export": (
        "tailprop.commands.export",
        "Export",
        "export a checkpoint to ONNX, PyTorch or OpenVINO, checked at three sizes",
    ),
    "push": ("tailprop.commands.push", "Push", "upload a run to the Hugging Face Hub, with a model card"),
    "robustness": (
        "tailprop.studies.robustness",
        "tailprop.studies.robustness_options:Robustness",
        "evaluate a classifier on ImageNet-Sketch, -A, -R, -V2, -C and common corruptions",
    ),
    "scenes": ("tailprop.commands.scenes", "Scenes", "write generated scenes of shapes as COCO, ADE20K or parquet"),
    "convert": ("tailprop.commands.convert", "Convert", "convert YOLO text labels or Pascal VOC to COCO json"),
    "bench": (
        "tailprop.studies.bench.command",
        None,
        "measure speed against ConvNeXt, Swin and vHeat; bench TASK measures whole networks",
    ),
    "loader": ("tailprop.studies.loader", "LoaderBench", "measure whether the data loader keeps up with training"),
    "demo": ("tailprop.studies.demo", "Demo", "train a small TailProp on digits, draw what it does, and restore a photograph"),
    "scales": ("tailprop.studies.scales", "ScaleStudy", "compare initial values of the propagation scales"),
    "ablate": (
        "tailprop.studies.ablate.command",
        "tailprop.studies.ablate.options:Ablate",
        "train variants of a recipe from several seeds, matched, and compare them",
    ),
    "figure": (
        "tailprop.studies.figures.command",
        "tailprop.studies.figures.options:DrawFigure",
        "draw the paper's figures from any checkpoint: receptive fields, gates, responses, complexity",
    ),
    "restorers": ("tailprop.studies.restorers", "RestorerStudy", "compare restoration networks at equal training time"),
    "app": ("tailprop.app.command", "tailprop.app.options:App", "open a local web page: operator, models, restoration, runs"),
    "shipped": (
        "tailprop.studies.shipped.table",
        "tailprop.studies.shipped.options:ShippedTable",
        "measure the shipped restorers beside BM3D and published numbers",
    ),
    "completion": ("tailprop.commands.completion", "Completion", "print a script that completes commands in bash or zsh"),
    "video": ("tailprop.studies.video", "Video", "train a small video classifier: the operator over time, height and width"),
}


def main(args: list[str] | None = None) -> int:
    # Idle CPU threads spin for milliseconds before they sleep, on cores that loader processes could use (`tailprop loader`
    # measures the cost). The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    args = sys.argv[1:] if args is None else args
    if args[:1] in (["predict"], ["eval"], ["app"]):
        # oneDNN keeps 1024 compiled layers, one for each size of an image, so memory rose over hundreds of images of different
        # sizes. Training has few sizes, but more layers.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    try:
        code = _run_guarded(args)
    except SystemExit as stop:  # raised by --help
        raise SystemExit(_flush_stdout() or stop.code) from None
    return _flush_stdout() or code


def _run_guarded(args: list[str]) -> int:
    """Run a command; errors that a user can fix are printed in one line."""
    try:
        return _dispatch(args)
    except BrokenPipeError as error:
        return 1 if _is_closed_pipe() else _print_error(str(error))
    except (ValueError, OSError) as error:  # the user can fix these; anything else is a bug and keeps its traceback
        return _print_error(" ".join(str(error).split()))
    except ModuleNotFoundError as error:
        from tailprop.utils.extras import missing_extra

        if (advice := missing_extra(error)) is None:
            raise
        return _print_error(advice)
    except (RuntimeError, MemoryError) as error:
        from tailprop.utils.errors import dead_loader, missing_memory

        if (how := dead_loader(error)) is not None:
            return _print_error(
                f"a loader process {how}; give it more memory (fewer --data.workers, --data.cache-gb 0, a larger /dev/shm), or "
                "check whether a file of the dataset changed or became unreadable"
            )
        if (missing := missing_memory(error)) is None:
            raise
        return _print_error(
            f"out of memory ({missing}); use a smaller batch (in training, --optim.grad-accum-steps keeps the global batch), "
            "smaller images, or --run.grad-checkpointing"
        )
    except KeyboardInterrupt:
        return 130


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_help())
        return 0
    if args[0] in ("-V", "--version"):
        return _print_version()
    name, *rest = args
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"commands are {', '.join(COMMANDS)}"
        return _print_error(f"no command {name!a}; {hint}")
    return _run(name, rest)


def _run(name: str, args: list[str]) -> int:
    if name == "train" and (not args or args[0] in ("-h", "--help")):
        return _list_recipes() if args else _list_recipes() or 2
    if name == "models" and not args:
        return _list_models()
    module_name, kind, what = COMMANDS[name]
    from tailprop.runtime.signals import Interrupted

    try:
        options = import_module(module_name).parse(args) if kind is None else _parse(module_name, kind, args, name, what)
    except ValueError:
        if os.environ.get("RANK", "0") != "0":  # every process of torchrun fails in the same way; rank 0 prints the message
            return 2
        raise
    try:
        return import_module(module_name).run(options) or 0
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":  # every process of torchrun stops; rank 0 prints the message
            with contextlib.suppress(OSError):  # Ctrl-C also ends a `tee` that reads our output
                print(f"tailprop: {_escaped(str(stop))}", file=sys.stderr, flush=True)
        return stop.exit_code


def _parse(module_name: str, kind: str, args: list[str], name: str, what: str) -> Any:
    from tailprop.engine.options import find_options, parse_options

    return parse_options(find_options(module_name, kind), args, f"tailprop {name}", what)


def _package() -> Path:
    """The folder of the package, found without importing it, since that would import PyTorch."""
    spec = find_spec("tailprop")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _print_version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    from tailprop import __version__

    found = {}
    for package in ("torch", "timm"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    others = ", ".join(f"{package} {number}" for package, number in found.items())
    print(f"tailprop {__version__} (Python {sys.version.split()[0]}, {others})")
    return 0


def _list_recipes() -> int:
    folders = (
        Path("recipes"),
        _package().parents[1] / "recipes",
        _package() / "recipes",
    )  # the user's, of a checkout, of the wheel
    names = sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})
    print("usage: tailprop train RECIPE [--section.setting value ...]\n\nRECIPE is a YAML file, a run folder or one of:")
    print("\n".join(f"  {name}" for name in names))
    print("\ntailprop train RECIPE --help lists every setting with its value.")
    return 0


def _list_models() -> int:
    """Parameters and multiply-adds at 224 px from the stored table; other sizes are computed on demand."""
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
    _print_columns(cells)
    print("\ntailprop models --height 800 --width 1280 computes them for another image size")
    _list_shipped()
    return 0


def _list_shipped() -> None:
    """The trained models that come with the package."""
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted((_package() / "models").glob("*/model.json"))}
    rows = [(name, row["task"], f"{row['bytes'] / 1e6:.1f} MB", row["what"], row["metric"]) for name, row in found.items()]
    if rows:
        print("\nTrained models in the package, for `tailprop predict NAME IMAGES` and tailprop.load(NAME):\n")
        _print_columns([("name", "task", "size", "what it does", "measured"), *rows])


def _print_columns(cells: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _help() -> str:
    lines = [f"  {name:<10} {what}" for name, (_, _, what) in COMMANDS.items()]
    more = (
        "tailprop COMMAND --help lists its options; for eval and predict, name a checkpoint before --help.\n"
        "tailprop --version prints the version."
    )
    return "\n".join(["usage: tailprop COMMAND [options]", "", *lines, "", more])


def _flush_stdout() -> int:
    """Flush standard output. A closed pipe, as left by `head`, is not an error."""
    try:
        if sys.stdout is not None:  # None after >&-
            sys.stdout.flush()
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # otherwise Python would flush again at exit and complain
        return 0 if isinstance(error, BrokenPipeError) else _print_error(f"cannot write to standard output ({error.strerror})")
    return 0


def _is_closed_pipe() -> bool:
    """Whether the broken pipe is standard output: its buffer cannot be flushed, or its reader is gone."""
    try:
        sys.stdout.flush()
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, AttributeError):  # stdout is not a file, or the system has no poll
        return False


def _print_error(message: str) -> int:
    with contextlib.suppress(OSError):  # the pipe is closed
        print(f"tailprop: {_escaped(message)}", file=sys.stderr, flush=True)
    return 2


def _escaped(message: str) -> str:
    """A message whose text from outside cannot control a terminal. Before the package is imported there is none."""
    text = sys.modules.get("tailprop.utils.text")
    return message if text is None else text.printable(message)


if __name__ == "__main__":
    sys.exit(main())
