"""Print the tests that `make quick` runs: a smoke set, and the tests of files changed since the last commit."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMOKE = (
    "tests/test_layers.py",
    "tests/backbone/test_operator.py",
    "tests/backbone/test_mixers.py",
    "tests/engine/test_config.py",
    "tests/tasks/test_contract.py",
)


def changed_files() -> list[Path]:
    """Files that differ from the last commit, new ones included."""
    commands = (["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"])
    found = [subprocess.run(c, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines() for c in commands]
    return [Path(name) for names in found for name in names]


def tests_beside(path: Path) -> list[Path]:
    """The tests of a file: the one beside a module and those that import it; a changed test is its own."""
    if path.parts[0] == "tests":
        return [path] if path.name.startswith("test_") else []
    if path.name == "tailprop_cli.py":
        return [Path("tests/commands")]
    if path.name == "pyproject.toml":
        return [Path("tests/test_install.py")]
    if path.parts[:2] != ("src", "tailprop"):
        return [Path("tests/docs")] if path.suffix in (".md", ".yaml") else []
    module = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
    beside = Path("tests", *path.parts[2:-1], f"test_{path.stem}.py")
    importing = [test for test in sorted((ROOT / "tests").rglob("test_*.py")) if f"{module} import" in test.read_text()]
    return [beside, *(test.relative_to(ROOT) for test in importing)]


def main() -> None:
    beside = [test for path in changed_files() for test in tests_beside(path) if (ROOT / test).exists()]
    print(*dict.fromkeys([*SMOKE, *map(str, beside)]))


if __name__ == "__main__":
    main()
