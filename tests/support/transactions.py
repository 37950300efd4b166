"""Questions about a catalog whose tables a transaction changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.lake import files_below, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog


class Stop(Exception):  # noqa: N818
    """What a user's code raises in the middle of a transaction."""


def contents(lake: Catalog) -> dict[str, list[int]]:
    """All rows of all tables."""
    return {t.name: ids_of(lake.table(t.name)) for t in lake.tables()}


def versions(lake: Catalog) -> dict[str, int]:
    """The newest version of every table."""
    return {t.name: t.head.version for t in lake.tables()}


def everything(tmp_path: Path) -> set[str]:
    """Every file of every table."""
    return files_below(tmp_path / "lake") if (tmp_path / "lake").exists() else set()
