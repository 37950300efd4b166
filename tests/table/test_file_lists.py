"""File lists in memory: read once, moved on by what is new, and bounded."""

from __future__ import annotations

import gc
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.metastore import files
from deltalakedb.settings import Config, use_config
from deltalakedb.table import sources
from deltalakedb.table.handle import require_handle
from deltalakedb.table.sources import FileLists, SqlSource, _Key, cache_of
from support.feeds import remove_all
from support.processes import Child
from table.test_statement_counts import statements

if TYPE_CHECKING:
    from conftest import TableUri


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "p": [f"p{i % 3}" for i in ids]})


def whole(table: Any) -> list[str]:
    """The list as memory has it, and checked against the database."""
    source = require_handle(table).source
    assert isinstance(source, SqlSource)
    fresh = files.scan_files(source.database, source.opened, files.ADD_COLUMNS).to_pylist()
    kept = source.scan(files.ADD_COLUMNS).to_pylist()
    assert sorted(map(str, kept)) == sorted(map(str, fresh))
    assert sorted(str(a) for a in source.adds()) == sorted(str(files.add_from_row(r)) for r in fresh)
    assert table.count() == sum(n for n in source.scan(("num_records",)).column(0).to_pylist())
    return sorted(row["path"] for row in kept)


def test_a_list_moves_on_through_every_kind_of_commit(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, rows(0, 1, 2), partition_by=["p"])
    table = DeltaTable(uri)
    seen = [whole(table)]
    for number, change in enumerate(
        (
            lambda: write_deltalake(uri, rows(3, 4), mode="append"),
            lambda: DeltaTable(uri).delete("id = 1"),
            lambda: DeltaTable(uri).update(updates={"id": "id + 10"}, predicate="p = 'p0'"),
            lambda: write_deltalake(uri, rows(7), mode="overwrite"),
            lambda: remove_all(uri),
            lambda: [write_deltalake(uri, rows(n), mode="append") for n in range(3)],
        )
    ):
        change()
        table.update_incremental()
        seen.append(whole(table))
        assert seen[-1] != seen[-2], number
    for version, wanted in ((0, seen[0]), (1, seen[1])):
        table.load_as_version(version)
        assert whole(table) == wanted


def test_what_is_known_is_not_read_again(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, rows(1))
    table = DeltaTable(uri)
    assert statements(table.update_incremental) == ["snapshots.head"]
    assert statements(table.file_uris) == ["built"]
    assert statements(table.file_uris) == []
    assert statements(lambda: DeltaTable(uri).file_uris()) == ["snapshots.open"]
    write_deltalake(uri, rows(2), mode="append")
    assert statements(table.update_incremental) == ["snapshots.head"]
    assert table.version() == 1
    assert statements(table.file_uris) == ["commits.one", "files.last at", "built", "files.removed between"]
    assert len(table.file_uris()) == 2
    write_deltalake(uri, rows(3).append_column("new", pa.array([1])), mode="append", schema_mode="merge")
    assert statements(table.update_incremental) == ["snapshots.head", "snapshots.open"]
    assert "new" in [f.name for f in table.schema().fields]


def test_a_table_of_the_same_name_is_another_table(catalog_uri: str, tmp_path: Any) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", rows(1), location=tmp_path / "one")
        table = catalog.table("t")
        assert len(table.file_uris()) == 1
        catalog.drop_table("t")
        catalog.write("t", pa.table({"other": [1, 2]}), location=tmp_path / "two")
        table.update_incremental()
        assert table.schema().fields[0].name == "other"
        assert str(tmp_path / "two") in table.file_uris()[0]


def test_a_restored_or_recreated_database_never_shows_an_older_list(tmp_path: Path) -> None:
    path, aside = tmp_path / "meta.db", tmp_path / "aside.db"
    uri = f"deltasql://sqlite/{path}?table=t&location={tmp_path}/t"

    def times() -> list[Any]:
        with closing(sqlite3.connect(path)) as db:
            return db.execute("SELECT version, timestamp FROM dl_commits ORDER BY version").fetchall()

    def pretend(made: list[Any], created: int) -> None:
        """Even a clock that was set back must not make two lists look alike."""
        with closing(sqlite3.connect(path)) as db, db:
            for version, moment in made:
                db.execute("UPDATE dl_commits SET timestamp = ? WHERE version = ?", (moment, version))
            db.execute("UPDATE dl_heads SET head_timestamp = ?", (made[-1][1],))
            db.execute("UPDATE dl_tables SET created_at = ?", (created,))

    def published(table: Any) -> list[str]:
        return sorted(deltalake.DeltaTable(table.table_uri).file_uris())

    write_deltalake(uri, rows(1))
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(aside)) as copy:
        db.backup(copy)
    write_deltalake(uri, rows(2), mode="append")
    table: Any = DeltaTable(uri)
    created, known, before = require_handle(table).row.created_at, sorted(table.file_uris()), times()

    for left in tmp_path.glob("meta.db*"):
        left.unlink()
    aside.rename(path)
    (tmp_path / "t" / "_delta_log" / f"{1:020}.json").unlink()
    write_deltalake(uri, rows(3), mode="append")
    pretend(before, created)
    again = DeltaTable(uri)
    assert sorted(again.file_uris()) == published(again) != known
    table.update_incremental()
    assert sorted(table.file_uris()) == published(again)

    for left in tmp_path.glob("meta.db*"):
        left.unlink()
    other = f"deltasql://sqlite/{path}?table=t&location={tmp_path}/new"
    for number in (4, 5):
        write_deltalake(other, rows(number), mode="append")
    pretend(before, created)
    table.update_incremental()
    assert sorted(table.file_uris()) == published(DeltaTable(other)) != known
    assert table.table_uri.endswith("/new/")


def test_the_bound_holds_and_the_oldest_go_first() -> None:
    one = pa.table({"path": ["x" * 1_000]})
    kept = FileLists(4 * sources.memory_size(one))
    which = (1, 0, "id", 0)
    keys = [_Key(which, ("path",), version, version) for version in range(10)]
    for key in keys[:4]:
        kept.put(key, one)
    assert kept.newest(keys[0]) == (keys[0], one)
    kept.put(keys[4], one)
    assert keys[1] not in kept._lists, "the least recently used"
    assert kept.newest(keys[0]) == (keys[0], one)
    assert kept._size <= 4 * sources.memory_size(one)
    assert kept.newest(_Key(which, ("path",), 4, 5)) == (keys[3], one), "another version 4"
    assert kept.newest(_Key(which, ("size",), 4, 4)) is None
    kept.put(keys[9], pa.table({"path": ["x" * 12_000]}))
    assert keys[9] not in kept._lists, "one list must not push all others out"


def test_nothing_is_kept_where_the_setting_says_so(tmp_path: Any) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    with use_config(Config(cache={"snapshot_bytes": 0})):
        write_deltalake(uri, rows(1))
        table: Any = DeltaTable(uri)
        for _ in range(2):
            assert statements(table.file_uris) == ["built"]
        assert cache_of(require_handle(table).database).lists._size == 0


def test_a_long_list_of_actions_comes_in_pages(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    write_deltalake(uri, rows(0, 1, 2), partition_by=["p"])
    table: Any = DeltaTable(uri)
    short = sorted(str(a) for a in require_handle(table).source.adds())
    monkeypatch.setattr("deltalakedb.table.sources.STREAMED_FROM", 2)
    other: Any = DeltaTable(uri)
    assert sorted(str(a) for a in require_handle(other).source.adds()) == short


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_of_lists(uri: str, appends: int) -> tuple[int, int, float]:
    """The files of a short list, the bytes that are counted for it and those that it takes.

    To be run in a process of its own: one that has run other tests takes memory that was freed before.
    """
    write_deltalake(uri, rows(1))
    for number in range(appends):
        write_deltalake(uri, rows(number), mode="append")
    source = require_handle(DeltaTable(uri)).source
    assert isinstance(source, SqlSource)
    columns = sources.with_order(files.ADD_COLUMNS)

    def read(times: int) -> list[pa.Table]:
        found = (files.scan_files(source.database, source.opened, columns) for _ in range(times))
        return [sources.newest_first(one) for one in found]

    kept = read(100)
    gc.collect()
    before = resident_bytes()
    kept += (more := read(1500))
    gc.collect()
    used = (resident_bytes() - before) / len(more)
    return kept[-1].num_rows, sources.memory_size(kept[-1]), used


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux reports a process's pages so")
@pytest.mark.parametrize("engine_name", ["sqlite", "duckdb"])
@pytest.mark.parametrize("appends", [0, 9])
def test_the_memory_of_short_lists_is_counted_as_it_is(
    table_uri: TableUri, tmp_path: Path, appends: int
) -> None:
    found, counted, used = Child(memory_of_lists, table_uri("t"), appends, folder=tmp_path).result()
    assert found == appends + 1
    assert 0.5 < counted / used < 3, f"counted {counted}, used {used:.0f}"
