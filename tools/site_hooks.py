"""Hooks of the documentation site: files of the clone and error messages become pages."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: files of the clone, and the pages that they become
PAGES = {name: f"about/{name.lower()}" for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")}
PAGES["README.md"] = "index.md"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=(?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the clone."""
    for name, page in PAGES.items():
        if page not in files.src_uris:
            text = _relinked((ROOT / name).read_text("utf-8"), PurePosixPath(name), page)
            files.append(File.generated(config, page, content=text))
    messages = runpy.run_path(str(ROOT / "tools" / "error_messages.py"))["page"]()
    files.append(File.generated(config, "reference/messages.md", content=messages))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links out of the documentation's folder to the pages that stand for those files."""
    uri = page.file.src_uri
    made = uri in PAGES.values() and uri != "index.md"
    return markdown if made else _relinked(markdown, PurePosixPath("docs", uri), uri)


def _relinked(text: str, source: PurePosixPath, page: str) -> str:
    def target(found: re.Match[str]) -> str:
        path = os.path.normpath(source.parent / found[1])
        wanted = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        return found[1] if wanted is None else os.path.relpath(wanted, str(PurePosixPath(page).parent))

    return _LINK.sub(target, text)
