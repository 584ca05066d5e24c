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
    """The tests of a changed file: its own test module, else all tests of its folder; a changed test runs itself."""
    if path.parts[0] == "tests":
        return [path] if path.name.startswith("test_") else []
    if path.parts[:2] != ("src", "tailprop"):
        return [Path("tests/docs")] if path.suffix in (".md", ".yaml") else []
    folder = Path("tests", *path.parts[2:-1])
    own = folder / f"test_{path.stem}.py"
    if (ROOT / own).is_file():
        return [own]
    return [test.relative_to(ROOT) for test in sorted((ROOT / folder).glob("test_*.py"))]


def main() -> None:
    beside = [test for path in changed_files() for test in tests_beside(path) if (ROOT / test).exists()]
    print(*dict.fromkeys([*SMOKE, *map(str, beside)]))


if __name__ == "__main__":
    main()
