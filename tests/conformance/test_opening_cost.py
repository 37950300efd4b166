"""What opening and planning cost, counted in statements: the length of a history must not matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.delta_log.names import commit_path
from deltalakedb.metastore import registry
from deltalakedb.metastore.commits import digest
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import Counts
from deltalakedb.metastore.ratify import Ratification, set_head, write_commits
from support.lake import ids, ids_of
from support.statements import count_statements

if TYPE_CHECKING:
    from conftest import TableUri

#: commits of a long history on each engine, the next one not at a checkpoint; fewer where inserts are slower
LENGTHS = {"sqlite": 50_007, "duckdb": 20_007, "postgres": 20_007}


@pytest.fixture
def long_table(table_uri: TableUri, engine_name: str) -> str:
    """A table with a history of tens of thousands of commits that changed nothing."""
    uri = table_uri("t")
    write_deltalake(uri, ids(1), partition_by=["part"])
    write_deltalake(uri, ids(2, part="b"), mode="append")
    database = Database.open(parse_address(uri))
    head = Catalog(parse_address(uri).catalog).describe("t")
    length = LENGTHS[engine_name]
    with database.write() as session:
        commits = [
            Ratification(
                version=version,
                timestamp=head.head.timestamp + version,
                actions=(),
                data=b"{}\n",
                txn_uuid="synthetic",
                ordinal=version,
                published=True,
            )
            for version in range(2, length)
        ]
        write_commits(session, head.table_id, commits)
        counts = Counts(head.head.num_files, head.head.size_bytes, head.head.num_records)
        locked = registry.lock(session, [head.table_id])[head.table_id]
        moved = replace(locked.table, head=counts.head(length - 1, commits[-1].timestamp, 0))
        set_head(session, replace(locked, table=moved, digest=digest(commits[-1].data or b"")))
    # the writer of the next version looks whether the one before is in the log
    (Path(head.location) / commit_path(length - 1)).write_bytes(commits[-1].data or b"")
    return uri


def test_opening_costs_one_statement_however_long_the_history(long_table: str, engine_name: str) -> None:
    newest = LENGTHS[engine_name] - 1
    with count_statements() as opening:
        table = DeltaTable(long_table)
    assert opening.statements == ["snapshots.open"]
    assert table.version() == newest
    with count_statements() as facts:
        assert len(table.schema().fields) == 2
        assert table.metadata().partition_columns == ["part"]
        assert table.protocol().min_reader_version == 1
    assert facts.statements == []
    with count_statements() as planning:
        assert len(table.file_uris(file_pruning_predicate="part = 'b' AND id > 1")) == 1
    assert len(planning) <= 3, planning.statements
    with count_statements() as recent:
        assert [h["version"] for h in table.history(2)] == [newest, newest - 1]
    assert len(recent) == 1
    with count_statements() as travelling:
        old = DeltaTable(long_table, version=newest // 2)
    assert len(travelling) == 1
    assert ids_of(old) == [1, 2]


def test_a_fresh_process_checks_the_schema_once(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    Database.open(parse_address(uri)).close()
    with count_statements() as first:
        DeltaTable(uri)
    assert first.statements[-1] == "snapshots.open"
    assert len(first) <= 3, first.statements
    with count_statements() as second:
        DeltaTable(uri)
    assert len(second) == 1


def test_an_append_costs_the_same_however_many_versions_there_are(
    long_table: str, table_uri: TableUri
) -> None:
    write_deltalake(table_uri("short"), ids(1), partition_by=["part"])
    with count_statements() as short:
        write_deltalake(table_uri("short"), ids(2), mode="append")
    with count_statements() as long:
        write_deltalake(long_table, ids(3), mode="append")
    assert len(long) <= len(short) + 1, (short.statements, long.statements)
    assert len(short) <= 40, short.statements
