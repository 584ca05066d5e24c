"""What needs no PyTorch starts without it: help texts, and errors in options. Importing it takes seconds."""

import json
import subprocess
import sys

from tailprop.tasks import TASKS

HEAVY = ("torch", "timm", "torchvision", "matplotlib", "sklearn")
RECIPES = ("digits", "shapes_maskrcnn", "shapes_upernet", "dfwb_gray_s15", "reach_key")
WORK = ("--help", "--version", "models", "recipes", "digits", "tailprop_pico", "bash", "zsh")  # last words without an error
COMMANDS = (
    [
        ["--help"],
        ["--version"],
        ["models"],
        ["recipes"],
        ["recipes", "digits"],
        ["info", "tailprop_pico"],
        ["info", "digits"],
        ["train", "--help"],
        ["nonsense"],
        ["train", "nonsense"],
    ]
    + [["train", recipe, "--help"] for recipe in RECIPES]
    + [["train", recipe, "--optim.bach", "3"] for recipe in RECIPES]
    + [
        [command, "--help"]
        for command in ("eval", "predict", "ablate", "figure", "bench", "scenes", "convert", "robustness", "app")
    ]
    + [["recipes", "digitz"], ["info", "digitz"], ["completion", "bash"], ["completion", "zsh"], ["completion", "tcsh"]]
    + [["train", "digits", "--dry-run", "--optim.bach", "3"]]
    + [["bench", task, "--qqqq"] for task in TASKS]
    + [["eval", "--precision", "fp4"], ["predict", "--qqqq"], ["bench", "--qqqq"]]
    + [["convert", "--qqqq"], ["robustness", "--qqqq"], ["app", "--host", "0.0.0.0"], ["app", "nothing"]]
)

RUN = """
import contextlib, io, json, sys
import tailprop_cli
results = []
for args in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = tailprop_cli.main(args)
        except SystemExit as stop:
            code = stop.code
    imported = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
    results.append([code or 0, out.getvalue(), err.getvalue(), imported])
json.dump(results, sys.stdout)
"""


def test_help_and_errors_need_no_torch() -> None:
    args = [sys.executable, "-c", RUN, json.dumps(COMMANDS), json.dumps(HEAVY)]
    results = json.loads(subprocess.run(args, capture_output=True, text=True, check=True).stdout)
    for command, (code, out, err, imported) in zip(COMMANDS, results, strict=True):
        assert not imported, (command, imported)
        if code == 0:
            assert command[-1] in WORK, command
            assert (code, err) == (0, ""), command
            assert out, command
        else:
            assert code == 2, command
            assert err.startswith("tailprop: "), command
            assert err.count("\n") == 1, command
