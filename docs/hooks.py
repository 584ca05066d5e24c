"""Files outside of docs/ on the site. Links are written for the repository; the site has docs/ as its top folder."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "results/README.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and every other file of the repository that a page links to."""
    sources = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    linked = {path for source in sources for path in _links(ROOT / source) if not path.startswith("docs/")}
    for path in sorted(linked.union(PAGES)):
        place = "results/commands/index.html" if path == "results/README.md" else None  # docs/results.md is at results/
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=place))
    return files


def _links(source: Path) -> list[str]:
    """What a page links to, from the root of the repository."""
    targets = [(source.parent / link).resolve() for link in LINK.findall(source.read_text(encoding="utf-8"))]
    return [target.relative_to(ROOT).as_posix() for target in targets if target.is_file()]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    path = page.file.src_uri
    if path == "results/README.md":
        return markdown.replace("](../docs/", "](../")
    return markdown.replace("](docs/", "](") if path in PAGES else markdown.replace("](../", "](")
