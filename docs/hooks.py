"""Files outside of docs/ on the site. Links are written for a reader of the repository; the site has the same files elsewhere."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "results/README.md")
README = re.compile(r"\]\(\.\./README\.md(?:#[^)]*)?\)")
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and whatever of the repository a page links to."""
    for page in PAGES:
        files.append(_file(page, config))
    sources = [(Path("docs") / file.src_uri) for file in files if file.src_uri.endswith(".md") and file.src_uri not in PAGES]
    for source in (*sources, *map(Path, PAGES)):
        for link in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            target = (ROOT / source.parent / link.partition("#")[0]).resolve()
            path = target.relative_to(ROOT).as_posix()
            if target.is_file() and not path.startswith("docs/") and path != "README.md" and files.get_file_from_path(path) is None:
                files.append(_file(path, config))
    return files


def _file(path: str, config: Any) -> File:
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, where docs/ is the top folder and index.md stands for the README."""
    path = page.file.src_uri
    if path == "results/README.md":
        return markdown.replace("](../docs/", "](../").replace("](../README.md)", "](../index.md)")
    if path in PAGES:
        return markdown.replace("](docs/", "](").replace("](README.md)", "](index.md)")
    return markdown.replace("](../README.md)", "](index.md)").replace("](../", "](")
