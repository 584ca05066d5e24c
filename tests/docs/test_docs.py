"""The code of the documentation runs, and its commands, options, settings, recipes, files and links exist."""

import csv
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import tailprop_cli
from tailprop.commands import train
from tailprop.engine.options import find_options, option_names, parse_options
from tailprop.engine.recipes import find_recipe, read_recipe, recipe_names
from tailprop.engine.settings import aliases
from tailprop.studies.bench import BENCHES
from tailprop.studies.bench import command as bench
from tailprop.tasks import TASKS, find_spec
from tests.helpers import ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
README, CONTRIBUTING, CHANGELOG = ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"
RESULTS = ROOT / "results" / "README.md"
PAGES = [README, CONTRIBUTING, ROOT / "SECURITY.md", RESULTS, *DOCS]  # without the changelog, which has old names
RUN = [CONTRIBUTING, *DOCS]  # the README has its own test
SECTIONS = ("model", "data", "augment", "optim", "run", "detector", "segmenter", "inference", "distill")
OF_TORCHRUN = {"--nproc-per-node", "--max-restarts"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))


# Python blocks


def run_blocks(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page in order and return their namespace."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
    return names


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("page", [page for page in RUN if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    names = run_blocks(page)
    if page == CONTRIBUTING:
        names["run"](names["Receptive"](out=tmp_path / "receptive.png"))
        assert (tmp_path / "receptive.png").stat().st_size > 1000


# Commands


def commands(texts: list[str]) -> Iterator[list[str]]:
    """The arguments of every `tailprop` in some lines of shell."""
    for line in "\n".join(texts).replace("\\\n", " ").splitlines():
        if "tailprop" not in line:
            continue
        words = shlex.split(line, comments=True)
        for place, word in enumerate(words):
            if word == "tailprop" and (place == 0 or words[place - 1] == "-m" or "=" in words[place - 1]):
                args = words[place + 1 :]
                yield args[: args.index("|")] if "|" in args else args


def is_placeholder(word: str) -> bool:
    return word.partition("/")[0].isupper()


def tasks_of(checkpoint: str) -> list[str]:
    """The task of a run folder by the recipe in its name; any task if unknown."""
    name = Path(checkpoint).name
    return [read_recipe(find_recipe(name))["task"]] if name in recipe_names() else list(TASKS)


def parse_train(args: list[str]) -> None:
    if not args or is_placeholder(args[0]) or args[0].endswith(".yaml"):
        return
    if args[0].startswith("runs/"):  # its config.yaml would provide the other settings
        tasks = tasks_of(args[0])
        known = {name for task in tasks for name in option_names(find_spec(task).config_type())}
        assert {arg for arg in args if arg.startswith("--")} <= known, args
    elif "--help" in args:
        assert args[0] in recipe_names(), args
    else:
        train.parse(args)


def parse_for_task(part: str, args: list[str]) -> None:
    problems = []
    for task in tasks_of(args[0]):
        spec = find_spec(task)
        try:
            parse_options(spec.part(getattr(spec, part)), args, "tailprop")
            return
        except ValueError as problem:
            problems.append(problem)
    raise problems[0]


def parse(args: list[str]) -> None:
    """Parse a command as the program does, without running it."""
    name, rest = args[0], args[1:]
    assert name in tailprop_cli.COMMANDS, f"no command {name}"
    if name == "train":
        parse_train(rest)
    elif "--help" in rest:
        return
    elif name in ("eval", "predict"):
        parse_for_task({"eval": "evaluate", "predict": "predict"}[name], rest)
    elif name == "bench":
        bench.parse(rest)
    else:
        module, options, _ = tailprop_cli.COMMANDS[name]
        parse_options(find_options(module, str(options)), rest, "tailprop")


@each_page
def test_commands_of_shell_blocks_parse(page: Path) -> None:
    for args in commands(blocks(page, "sh")):
        parse(args)


def test_commands_of_results_parse() -> None:
    found = [args for args in commands(inline_code(RESULTS)) if len(args) > 2]
    assert len(found) > 10
    for args in found:
        parse(args)


@each_page
def test_commands_in_the_text_exist(page: Path) -> None:
    for args in commands([code for code in inline_code(page) if code.startswith(("tailprop ", "torchrun ", "python -m"))]):
        if args and not is_placeholder(args[0]) and args[0] not in ("--help", "--version"):
            assert args[0] in tailprop_cli.COMMANDS, args
            if args[0] == "train" and len(args) > 1:
                assert is_placeholder(args[1]) or args[1].endswith(".yaml") or args[1] in recipe_names(), args


def test_every_command_is_described() -> None:
    described = {args[0] for args in commands(inline_code(ROOT / "docs" / "command-line.md")) if args}
    assert set(tailprop_cli.COMMANDS) <= described


# Options and settings


@cache
def settings() -> frozenset[str]:
    """Dotted names of the settings of every task, including old names."""
    kinds = [find_spec(task).config_type() for task in TASKS]
    now = {name.removeprefix("--").replace("-", "_") for kind in kinds for name in option_names(kind)}
    before = {old for kind in kinds for old, _ in aliases(kind)}
    return frozenset(now | before | {"optim.matrix_lr"})


@cache
def options() -> frozenset[str]:
    """Every option of every command."""
    specs = [find_spec(task) for task in TASKS]
    kinds = [spec.part(part) for spec in specs for part in (spec.config, spec.evaluate, spec.predict, spec.bench) if part]
    kinds += [find_options(module, kind) for module, kind, _ in tailprop_cli.COMMANDS.values() if kind]
    kinds += [find_options(module, kind) for module, kind, _ in BENCHES.values()]
    return frozenset(name for kind in kinds for name in option_names(kind)) | OF_TORCHRUN | {"--help", "--version", "--dry-run"}


@each_page
def test_options_in_the_text_exist(page: Path) -> None:
    for code in inline_code(page):
        for option in re.findall(r"(?<![\w-])--[a-z][\w.-]*", code):
            assert option in options(), f"{page.name}: {option} in {code!r}"


@each_page
def test_settings_in_the_text_exist(page: Path) -> None:
    for code in inline_code(page):
        for name in re.findall(rf"(?<![\w./-])(?:{'|'.join(SECTIONS)})\.[a-z]\w*(?![\w.(])", code):
            assert name in settings() or name in ("model.safetensors", "data.yaml"), f"{page.name}: {name}"


# Recipes


def test_recipe_tables_are_complete() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(\.\./recipes/(\w+)\.yaml\)", (ROOT / "docs" / "recipes.md").read_text(), re.MULTILINE)
    assert all(name == file for name, file in rows)
    assert sorted(name for name, _ in rows) == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def test_paper_results_match_the_recipes() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text().split("## Small recipes")[0]
    for name, printed in re.findall(r"^\| \[`(\w+)`\].*\| ([^|]+) \|$", page, re.MULTILINE):
        recipe = read_recipe(find_recipe(name))
        (paper,) = (values for key, values in recipe.items() if key.startswith("paper_") and isinstance(values, dict))
        wanted = paper[recipe["model"]["name"]]
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", printed)]
        assert numbers == (wanted if isinstance(wanted, list) else [wanted]), name


def test_recipes_name_commands_and_settings_that_exist() -> None:
    for path in (ROOT / "recipes").glob("*.yaml"):
        comment = [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#  ")]
        for args in commands(comment):
            parse(args)
        kind = find_spec(read_recipe(path)["task"]).config_type()
        renamed = {old for old, _ in aliases(kind)} | {"optim.matrix_lr"}
        used = {f"{a}.{b}" for a, part in read_recipe(path).items() if isinstance(part, dict) for b in part}
        assert not used & renamed, path.name


# Files and links


@each_page
def test_links_resolve(page: Path) -> None:
    check_links(page)


def test_links_of_the_changelog_resolve() -> None:
    check_links(CHANGELOG)


def check_links(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_files_in_the_text_exist(page: Path) -> None:
    """Paths of modules and of files relative to the root of the repository, except those of examples."""
    for code in inline_code(page):
        is_module = re.fullmatch(r"[\w/]+/\w+\.py", code)
        is_file = re.fullmatch(r"(src|tests|docs|recipes|results)/[\w./-]*", code)
        if (is_module or is_file) and not any(word in code for word in ("NAME", "depth", "receptive")):
            assert any((ROOT / root / code).exists() for root in ("", "src", "src/tailprop")), f"{page.name}: {code}"


def test_every_page_is_on_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["strict"] is True
    shown = set(re.findall(r"[\w/-]+\.md", str(site["nav"])))
    assert shown == {page.name for page in DOCS} | {
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "results/README.md",
    }


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in [name for block in blocks(page, "sh") for name in re.findall(r"^make (\w+)", block, re.MULTILINE)]:
            assert f"\n{target}:" in makefile, f"{page.name}: make {target}"


# Results


def test_every_result_exists_and_is_described() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", RESULTS.read_text(), flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} | {"README.md", "draw.py"}
    assert named == {path.name for path in (ROOT / "results").iterdir() if path.is_file()}


def test_every_table_has_a_figure() -> None:
    tables = {path.stem for path in (ROOT / "results").glob("*.csv")}
    figures = {path.stem for path in (ROOT / "results").glob("*.png")}
    assert tables - figures == {"restoration_large", "campaign", "verify", "int8"}  # single rows, and counts
    assert figures <= tables


def test_pictures_of_the_figures_are_small_and_have_their_numbers() -> None:
    pictures = [path for path in (ROOT / "docs" / "figures").iterdir() if path.suffix in (".png", ".jpg", ".gif")]
    assert len(pictures) >= 12
    for path in pictures:
        assert path.stat().st_size < 300_000, path.name
        assert path.with_suffix(".csv").exists(), path.name


def test_accuracies_of_the_figures_are_those_of_the_runs() -> None:
    runs: dict[str, list[float]] = {}
    with (ROOT / "docs" / "figures" / "networks.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            runs.setdefault(row["mixer"], []).append(float(row["top1"]))
    text = (ROOT / "docs" / "figures.md").read_text()
    stated = re.findall(r"^\| `(\w+)`, .* \| (\d) \| ([\d.]+)", text, flags=re.MULTILINE)
    assert stated == [(mixer, str(len(top1)), f"{sum(top1) / len(top1):.1f}") for mixer, top1 in runs.items()]


# Parts that pages have to have


@pytest.mark.parametrize("task", TASKS)
def test_prediction_in_python_is_shown_for_every_task(task: str) -> None:
    runs = re.findall(r'tailprop\.load\("runs/(\w+)"\)\n\w+ = \w+\.predict\(', README.read_text())
    assert task in [read_recipe(find_recipe(run))["task"] for run in runs]


def test_blocks_are_closed() -> None:
    for page in [*PAGES, CHANGELOG]:
        assert len(re.findall(r"^ *```", page.read_text(), flags=re.MULTILINE)) % 2 == 0, page.name
