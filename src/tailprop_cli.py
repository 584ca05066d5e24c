"""The `tailprop` command. It stands outside the package so that asking for help does not import PyTorch."""

import difflib
import sys
from importlib import import_module

# name: (module, dataclass of its options, what it does). The module's `run` takes the options.
COMMANDS = {
    "models": ("tailprop.commands.models", "Models", "list the models with parameters and multiply-adds"),
    "train": ("tailprop.commands.train", "Train", "train a model by a recipe, on one machine or many"),
    "eval": ("tailprop.commands.eval", "Eval", "measure a checkpoint: top-1 and top-5 on any data"),
    "robustness": ("tailprop.commands.robustness", "Robustness", "ImageNet-Sketch, ImageNet-A and common corruptions"),
    "predict": ("tailprop.commands.predict", "Predict", "say what is in pictures: a table, CSV or JSON"),
    "bench": ("tailprop.studies.bench", "Bench", "measure speed beside ConvNeXt, Swin and vHeat"),
    "loader": ("tailprop.studies.loader", "LoaderBench", "measure whether the loader keeps up with training"),
    "demo": ("tailprop.studies.demo", "Demo", "train a small TailProp on embedded digits and draw the operator"),
    "scales": ("tailprop.studies.scales", "ScaleStudy", "compare starting values of the propagation scales"),
}


def main(args: list[str] | None = None) -> int:
    args = sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help"):
        print(_help())
        return 0
    name, *rest = args
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"commands are {', '.join(COMMANDS)}"
        return _refuse(f"no command {name!r}; {hint}")
    return _call(name, rest)


def _call(name: str, args: list[str]) -> int:
    import tyro

    module_name, options_name, what = COMMANDS[name]
    module = import_module(module_name)
    try:
        if hasattr(module, "parse"):  # its options depend on its first argument
            return module.run(module.parse(args)) or 0
        return module.run(tyro.cli(getattr(module, options_name), args=args, prog=f"tailprop {name}", description=what)) or 0
    except (ValueError, OSError) as error:  # what a user can mend; anything else is our fault and keeps its traceback
        return _refuse(" ".join(str(error).split()))
    except KeyboardInterrupt:
        return 130


def _help() -> str:
    lines = [f"  {name:<10} {what}" for name, (_, _, what) in COMMANDS.items()]
    return "\n".join(["usage: tailprop COMMAND [options]", "", *lines, "", "tailprop COMMAND --help explains each."])


def _refuse(message: str) -> int:
    print(f"tailprop: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
