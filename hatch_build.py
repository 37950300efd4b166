"""The wheel's project URLs, and its README with links that work outside of the clone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: files of the clone that are pages of the documentation
_PAGES = {
    name: f"about/{name.lower().removesuffix('.md')}/"
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
}


def absolute(text: str, site: str) -> str:
    """Markdown whose links into the clone lead to the published documentation."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        page = _PAGES.get(target) or re.sub(r"(^|/)index\.md$|\.md$", r"\1", target.removeprefix("docs/"))
        if target.endswith(".md") and page and not page.endswith("/"):
            page += "/"
        return f"]({site}/{page}{anchor})"

    return re.sub(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, text)


class Hook(MetadataHookInterface):
    """Fills in what `pyproject.toml` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Make the URLs and the README from the address of the documentation."""
        site = os.environ.get("DELTALAKEDB_SITE", self.config["site"]).rstrip("/")
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, site)}
        metadata["urls"] = {
            "Homepage": f"{site}/",
            "Documentation": f"{site}/start/tutorial/",
            "Changelog": f"{site}/about/changelog/",
            "Contributing": f"{site}/about/contributing/",
        }
