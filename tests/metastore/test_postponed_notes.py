"""On DuckDB the record of what was published waits for the next session; losing it does no harm."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import duckdb
import pytest

from deltalakedb import Catalog
from deltalakedb.metastore.engines import duckdb as engine
from deltalakedb.settings import Config
from support.lake import ids
from support.mirrors import append, logged
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "catalog.duckdb"


def address(file: Path) -> str:
    return f"deltasql://duckdb/{file}"


def begin(catalog: Catalog, root: Path) -> engine.DuckdbEngine:
    """Create the table; return the engine, whose notes a look at the table would record."""
    catalog.write("t", ids(0), location=root)
    found = catalog.log("t").database.engine
    assert isinstance(found, engine.DuckdbEngine)
    return found


def append_and_die(file: Path, root: Path) -> None:
    catalog = Catalog(address(file))
    catalog.write("t", ids(0), location=root)
    append(catalog, 1, 2)
    os.kill(os.getpid(), signal.SIGKILL)


def recorded(file: Path) -> tuple[int, int]:
    """The newest version that is recorded as published, and how many commits are not."""
    with duckdb.connect(str(file), read_only=True) as connection:
        found = connection.execute(
            "SELECT (SELECT max(published_version) FROM dl_mirror), "
            "(SELECT count(*) FROM dl_outbox WHERE state <> 'published')"
        ).fetchone()
    assert found is not None
    return found


def test_appends_leave_notes_and_other_sessions_see_them_recorded(file: Path, tmp_path: Path) -> None:
    with Catalog(address(file), config=Config(duckdb={"idle_release_s": 60})) as catalog:
        used = begin(catalog, tmp_path / "t")
        append(catalog, 1, 2, 3)
        assert logged(tmp_path / "t") == [0, 1, 2, 3]
        (note,) = used.postponed().values()
        assert note.newest == 3
        assert catalog.mirror.status("t")[0].versions_behind == 0
        assert not used.postponed()


def test_closing_the_file_records_the_notes(file: Path, tmp_path: Path) -> None:
    with Catalog(address(file), config=Config(duckdb={"idle_release_s": 60})) as catalog:
        used = begin(catalog, tmp_path / "t")
        append(catalog, 1)
        assert used.postponed()
    assert recorded(file) == (1, 0)


def test_notes_do_not_outlive_the_time_of_an_idle_file(file: Path, tmp_path: Path) -> None:
    with Catalog(address(file), config=Config(duckdb={"idle_release_s": 0.05})) as catalog:
        used = begin(catalog, tmp_path / "t")
        for number in range(1, 40):
            append(catalog, number)
            if not used.postponed():
                return
    pytest.fail("nothing was recorded while the file was in use")


def test_a_killed_writer_loses_only_the_notes(file: Path, tmp_path: Path) -> None:
    root = tmp_path / "t"
    Child(append_and_die, file, root, folder=tmp_path).died()
    published, waiting = recorded(file)
    assert published < 2
    assert waiting
    assert logged(root) == [0, 1, 2]
    with Catalog(address(file)) as catalog:
        append(catalog, 3)
        assert catalog.mirror.status("t")[0].versions_behind == 0
    assert recorded(file) == (3, 0)
    assert logged(root) == [0, 1, 2, 3]


def test_only_commits_of_small_statements_keep_their_cursor(file: Path, tmp_path: Path) -> None:
    with Catalog(address(file), config=Config(duckdb={"idle_release_s": 60})) as catalog:
        kept = begin(catalog, tmp_path / "t")
        append(catalog, 1)
        assert kept._kept is not None
        with catalog.transaction() as tx:
            tx.execute("CREATE TEMP TABLE mine (id INTEGER)")
            tx.write("t", ids(2), mode="append")
        assert kept._kept is None, "its temporary table and its optimizer would be the next commit's"
        append(catalog, 3)
        assert kept._kept is not None
