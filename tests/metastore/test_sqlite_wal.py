"""A new SQLite catalog is switched to WAL, whoever else does the same at that moment."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogBusyError
from deltalakedb.metastore.engines import sqlite
from deltalakedb.settings import Config

if TYPE_CHECKING:
    from pathlib import Path


def rival(path: Path) -> sqlite3.Connection:
    """Another process on its way to WAL: it holds the lock that the switch needs."""
    found = sqlite3.connect(path, isolation_level=None)
    found.execute("CREATE TABLE theirs (x)")
    found.execute("BEGIN IMMEDIATE")
    return found


def test_a_refused_switch_to_wal_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.db"
    pauses: list[float] = []
    with closing(rival(path)) as other:

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            other.execute("ROLLBACK")

        monkeypatch.setattr(sqlite.time, "sleep", pause)
        assert Catalog(f"deltasql://sqlite/{path}", create=True).tables() == []
    assert len(pauses) == 1, "SQLite itself refuses at once"
    with closing(sqlite3.connect(path)) as seen:
        assert seen.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_switch_that_is_refused_for_too_long_is_a_busy_catalog(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    config = Config(sqlite={"busy_timeout_s": 0.05})
    with closing(rival(path)), pytest.raises(CatalogBusyError, match=r"waited up to 0\.05 s"):
        Catalog(f"deltasql://sqlite/{path}", create=True, config=config)
