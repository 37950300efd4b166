"""Blind appends that a server ratifies by one statement: the same rows, the same refusals, never twice."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.commit import committer
from deltalakedb.exceptions import CatalogError, CommitUnknownError, ConflictError, TableFrozenError
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.engines.postgres import DIALECT, PostgresEngine
from deltalakedb.metastore.files import appends
from support.lake import files_below, ids_of, root_of
from support.statements import count_statements

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

ROWS = pa.table({"id": [1, 2], "name": ["a", None], "day": ["x", "y"]})
#: what differs from one append to the next
_OWN = {"path", "modification_time", "timestamp", "head_timestamp", "recorded_at", "txn_uuid"}
_OWN |= {"sha256", "head_sha256", "info", "bytes", "published_at", "table_name", "audit_id"}
_OWN |= {"table_id", "file_id"}
#: what the newest commit wrote; delta-rs, which made the tables, does not always spell statistics alike
_TABLES = {
    "dl_heads": "table_id = ?",
    "dl_commits": "table_id = ? AND version = 2",
    "dl_outbox": "table_id = ?",
    "dl_files": "(file_id >> 40) = ?",
    "dl_file_stats": "(file_id >> 40) = ? AND file_id IN (SELECT file_id FROM dl_files WHERE add_version=2)",
    "dl_file_details": "(file_id >> 40) = ?",
    "dl_audit": "table_id = ? AND version = 2",
}
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 ORDER BY 1"
#: only a server is asked by one statement
pytestmark = pytest.mark.parametrize("engine_name", ["postgres"])


@pytest.fixture
def names(table_uri: TableUri) -> list[str]:
    """Two tables that this process has appended to by the long way."""
    made = [table_uri("a"), table_uri("b")]
    for uri in made:
        write_deltalake(uri, ROWS, partition_by=["day"])
        write_deltalake(uri, ROWS, mode="append")
    return made


def rows_of(database: Database, name: str) -> dict[str, list[tuple[Any, ...]]]:
    """What the catalog has of a table, but for what is every commit's own."""
    found = {}
    with database.read() as session:
        row = session.row("SELECT table_id FROM dl_tables WHERE name = ?", (name,))
        assert row is not None
        for table, where in _TABLES.items():
            # the commitInfo tells how long it took, in more digits or fewer
            own = _OWN | {"size_bytes"} if table == "dl_commits" else _OWN
            columns = [c for (c,) in session.rows(_COLUMNS, (table,)) if c not in own]
            sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY {', '.join(columns)}"
            found[table] = session.rows(sql, row)
    return found


def test_one_statement_writes_the_same_rows_as_the_long_way(
    names: list[str], catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = names
    with count_statements() as counted:
        write_deltalake(one, ROWS, mode="append")
    assert counted.statements == ["appends.ratify", "outbox.publish ranges"]
    monkeypatch.setattr(PostgresEngine, "dialect", replace(DIALECT, fast_append=False))
    with count_statements() as counted:
        write_deltalake(other, ROWS, mode="append")
    assert "appends.ratify" not in counted.statements
    database = Database.open(parse_address(catalog_uri))
    assert rows_of(database, "a") == rows_of(database, "b")


def test_bytes_digest_and_log_file_are_the_same(names: list[str], catalog_uri: str) -> None:
    write_deltalake(names[0], ROWS, mode="append")
    write_deltalake(names[0], ROWS, mode="append")
    database = Database.open(parse_address(catalog_uri))
    with database.read() as session:
        rows = session.rows(
            "SELECT c.version, c.timestamp, c.sha256, c.size_bytes, c.info, b.bytes FROM dl_commits c"
            " JOIN dl_commit_bytes b USING (table_id, version) JOIN dl_tables t USING (table_id)"
            " WHERE t.name = 'a' AND c.version > 1 ORDER BY 1"
        )
        head = session.row(
            "SELECT head_sha256, head_timestamp FROM dl_heads h JOIN dl_tables USING (table_id)"
            " WHERE name = 'a'"
        )
    root = root_of(DeltaTable(names[0]))
    assert [r[0] for r in rows] == [2, 3]
    for version, timestamp, sha256, size, info, data in rows:
        assert (root / f"_delta_log/{version:020d}.json").read_bytes() == data
        assert (sha256, size) == (hashlib.sha256(data).hexdigest(), len(data))
        assert data.startswith(b'{"commitInfo":' + info.encode() + b"}\n")
        assert f'"timestamp":{timestamp},' in info
    assert rows[0][1] < rows[1][1]
    assert head == (rows[1][2], rows[1][1])


def test_of_two_tables_none_is_written_where_one_has_changed(names: list[str], catalog_uri: str) -> None:
    catalog = Catalog(catalog_uri)
    one, other = (DeltaTable(uri) for uri in names)
    before = [len(files_below(root_of(t))) for t in (one, other)]
    with count_statements() as counted, catalog.transaction() as tx:
        tx.write("a", ROWS)
        tx.write("b", ROWS)
    assert counted.statements.count("appends.ratify") == 1
    assert {n: c.version for n, c in tx.commits.items()} == {"a": 2, "b": 2}
    late = catalog.transaction()
    late.__enter__()
    late.write("a", ROWS)
    late.write("b", ROWS)
    DeltaTable(names[1]).alter.set_table_properties({"delta.logRetentionDuration": "interval 2 days"})
    with pytest.raises(ConflictError):
        late.commit()
    assert [DeltaTable(uri).version() for uri in names] == [2, 3]
    assert len(ids_of(DeltaTable(names[0]))) == 6
    # each table got two files, a log file and a manifest by the first transaction; the second left nothing
    assert len(files_below(root_of(one))) == before[0] + 4
    assert len(files_below(root_of(other))) == before[1] + 5


def test_a_statement_that_comes_late_cannot_happen_again(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = appends.ratify_appends

    def lost(*args: Any) -> Any:
        asked.append(args)
        raise CommitUnknownError("the connection broke")

    monkeypatch.setattr("deltalakedb.commit.fast_append.ratify_appends", lost)
    write_deltalake(names[0], ROWS, mode="append")  # found not to have happened, and done by the long way
    assert DeltaTable(names[0]).version() == 2
    with pytest.raises(CatalogError):  # it was on its way all the time
        real(*asked[0])
    assert DeltaTable(names[0]).version() == 2
    assert len(ids_of(DeltaTable(names[0]))) == 6


def test_one_that_happened_although_its_answer_was_lost_is_found(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = appends.ratify_appends

    def lost(*args: Any) -> Any:
        real(*args)
        raise CommitUnknownError("the connection broke")

    monkeypatch.setattr("deltalakedb.commit.fast_append.ratify_appends", lost)
    monkeypatch.setattr(committer, "_FIRST_DELAY_S", 0)
    write_deltalake(names[0], ROWS, mode="append")
    table = DeltaTable(names[0])
    assert (table.version(), len(ids_of(table))) == (2, 6)


def test_a_commit_that_others_put_into_the_log_is_noticed(names: list[str]) -> None:
    log = root_of(DeltaTable(names[0])) / "_delta_log"
    (log / f"{2:020d}.json").write_bytes((log / f"{1:020d}.json").read_bytes())
    with pytest.raises(TableFrozenError):
        write_deltalake(names[0], ROWS, mode="append")
    assert DeltaTable(names[0]).version() == 1


def test_versions_that_other_processes_made_are_no_strangers(names: list[str]) -> None:
    code = "import sys, pyarrow as pa; from deltalakedb import write_deltalake\n"
    code += "for _ in range(3): write_deltalake(sys.argv[1], pa.table(eval(sys.argv[2])), mode='append')"
    subprocess.run([sys.executable, "-c", code, names[0], repr(ROWS.to_pydict())], check=True, timeout=120)
    with count_statements() as counted:
        write_deltalake(names[0], ROWS, mode="append")
    assert "appends.ratify" in counted.statements
    assert "snapshots.lock" not in counted.statements
    assert DeltaTable(names[0]).version() == 5


def test_rows_that_nobody_counted_and_values_that_are_null_find_their_columns(
    table_uri: TableUri, tmp_path: Path
) -> None:
    uri = table_uri("wide")
    empty = {"id": pa.array([None], pa.int64()), "p": pa.array([None], pa.string())}
    write_deltalake(uri, pa.table(empty), partition_by=["p"], name=str(tmp_path))
    for _ in range(2):
        write_deltalake(uri, pa.table(empty), mode="append")
    write_deltalake(uri, pa.table({"id": [7, 8], "p": ["ü", None]}), mode="append")
    table = DeltaTable(uri)
    assert table.version() == 3
    assert table.to_pyarrow_table(filters=[("p", "=", "ü")])["id"].to_pylist() == [7]
    assert table.to_pyarrow_table(filters=[("id", ">=", 8)])["id"].to_pylist() == [8]
