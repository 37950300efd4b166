"""A database that somebody holds: others give up after their deadline, and go on once it is free."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogAccessError, CatalogBusyError
from deltalakedb.settings import Config
from support.invariants import check_table
from support.lake import files_below, ids, ids_of
from support.processes import Child, event

if TYPE_CHECKING:
    from pathlib import Path

IMPATIENT = Config(
    sqlite={"busy_timeout_s": 0.3},
    duckdb={"wait_s": 0.3, "idle_release_s": 0.0},
    postgres={"lock_timeout_s": 0.3},
)


def append(uri: str, number: int) -> None:
    Catalog(uri).write("t", ids(number), mode="append")


@pytest.fixture
def prepared(catalog_uri: str, tmp_path: Path) -> str:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t")
    return catalog_uri


def check(uri: str, *numbers: int) -> None:
    with Catalog(uri) as catalog:
        found = check_table(catalog, "t", published=True)
    assert (found.ids, found.versions) == (list(numbers), len(numbers))


@pytest.mark.parametrize("point", ["commit.locked", "commit.before_commit"])
def test_a_writer_paused_in_its_transaction_is_waited_for_and_not_for_ever(
    engine_name: str, prepared: str, tmp_path: Path, point: str
) -> None:
    paused = Child(append, prepared, 2, folder=tmp_path, points=f"{point}=stop")
    paused.pause()
    before = files_below(tmp_path / "t")
    with Catalog(prepared, config=IMPATIENT) if engine_name != "duckdb" else _closed() as catalog:
        with pytest.raises(CatalogBusyError) as caught:
            (catalog or Catalog(prepared, config=IMPATIENT)).write("t", ids(3), mode="append")
        assert caught.value.transient
        if engine_name == "duckdb":
            assert str(paused.pid) in caught.value.message
        if engine_name == "sqlite":
            assert "0.3 s" in caught.value.message
        assert files_below(tmp_path / "t") == before, "the failed append left its file"
        if catalog is not None:
            assert ids_of(catalog.table("t")) == [1], "readers never wait"
    paused.resume()
    paused.result()
    append(prepared, 3)
    check(prepared, 1, 2, 3)


def _closed() -> Any:
    """DuckDB lets nobody in, not even to look."""
    from contextlib import nullcontext

    return nullcontext(None)


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
@pytest.mark.parametrize("point", ["data.after", "commit.before_begin", "commit.after", "publish.before_put"])
def test_a_writer_that_is_slow_outside_of_the_lock_is_in_nobodys_way(
    prepared: str, tmp_path: Path, point: str
) -> None:
    """Data files are written before the lock is taken, log files after it is given back."""
    stands = point in ("commit.after", "publish.before_put")
    paused = Child(append, prepared, 2, folder=tmp_path, points=f"{point}=stop@1")
    paused.pause()
    with Catalog(prepared, config=IMPATIENT) as catalog:
        catalog.write("t", ids(3), mode="append")
        found = check_table(catalog, "t", published=True)  # the slow one's commit was published first
        assert (found.ids, found.versions) == (([1, 2, 3], 3) if stands else ([1, 3], 2))
    paused.resume()
    paused.result()
    check(prepared, 1, 2, 3)


def test_the_turn_of_a_killed_writer_goes_to_the_next(prepared: str, tmp_path: Path) -> None:
    paused = Child(append, prepared, 2, folder=tmp_path, points="commit.before_commit=stop")
    paused.pause()
    waiting = Child(append, prepared, 3, folder=tmp_path)
    paused.kill()
    waiting.result()
    check(prepared, 1, 3)


def test_one_who_waits_longer_than_the_holder_holds_proceeds(prepared: str, tmp_path: Path) -> None:
    paused = Child(append, prepared, 2, folder=tmp_path, points="commit.before_commit=stop")
    paused.pause()
    waiting = [Child(append, prepared, number, folder=tmp_path) for number in (3, 4)]
    paused.resume()
    for process in (paused, *waiting):
        process.result()
    with Catalog(prepared) as catalog:
        assert check_table(catalog, "t", published=True).ids == [1, 2, 3, 4]


def hold_sqlite(path: str, held: Any, release: Any) -> None:
    """Somebody who knows nothing of turns."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO dl_settings VALUES ('foreign', '1')")
    held.set()
    release.wait(60)
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_foreign_transaction_on_the_sqlite_file_ends_in_a_typed_error(
    prepared: str, tmp_path: Path
) -> None:
    held, release = event(), event()
    foreign = Child(hold_sqlite, str(tmp_path / "catalog.db"), held, release, folder=tmp_path)
    assert held.wait(60)
    before = files_below(tmp_path / "t")
    impatient = f"{prepared}?busy_timeout=0.3"
    with Catalog(impatient) as catalog:
        with pytest.raises(CatalogBusyError, match=r"0\.3 s"):
            catalog.write("t", ids(2), mode="append")
        assert files_below(tmp_path / "t") == before
        assert ids_of(catalog.table("t")) == [1]
        release.set()
        foreign.result()
        catalog.write("t", ids(2), mode="append")
    check(prepared, 1, 2)


@pytest.mark.parametrize("engine_name", ["duckdb"])
def test_a_file_that_the_process_has_open_with_other_settings_is_a_typed_error(
    prepared: str, tmp_path: Path
) -> None:
    import duckdb

    path = str(tmp_path / "catalog.duckdb")
    with Catalog(prepared, config=IMPATIENT) as catalog:
        with duckdb.connect(path), pytest.raises(CatalogAccessError) as caught:
            catalog.write("t", ids(2), mode="append")
        assert "is open in this process" in caught.value.message
        same = {
            "enable_external_access": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        assert repr(same) in str(caught.value)
        with duckdb.connect(path, config=dict(same)) as own:
            catalog.write("t", ids(2), mode="append")
            assert own.execute("SELECT version FROM dl_v_tables").fetchall() == [(1,)]
    check(prepared, 1, 2)
