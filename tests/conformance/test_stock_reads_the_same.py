"""What we write, stock deltalake reads identically from the published log, at every version."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb import DeltaTable, open_log, write_deltalake
from deltalakedb.delta_log import FileTxnLogReader
from support.lake import every_type, hidden_log, root_of

if TYPE_CHECKING:
    from conftest import TableUri

#: predicates in both spellings; each keeps some rows of some files
FILTERS: list[Any] = [
    [("part", "=", "x")],
    [("part", "!=", "x")],
    [("part", "in", ["x", "y", "é%=:"])],
    [("part", "not in", ["x", "y"])],
    [[("part", "=", "a/b")], [("part", "=", "x y")]],
    [("day", "=", date(2024, 1, 1)), ("part", "=", "x")],
    [("id", ">", 8)],
    [("id", ">=", 3), ("id", "<", 9)],
    [("money", ">", Decimal("0.07"))],
    "part = 'x'",
    "part IS NULL",
    "part IN ('a/b', 'y') AND id < 9",
    "id > 13 OR id = 0",
    "date >= DATE '2020-01-09'",
    "NOT (id BETWEEN 3 AND 9)",
    "text LIKE 't%'",
]


def build(uri: str, partition_by: list[str] | None) -> None:
    """Six versions: create, append, overwrite, append, a wider schema, an empty append."""
    write_deltalake(uri, every_type(), partition_by=partition_by)
    write_deltalake(uri, every_type(6), mode="append")
    write_deltalake(uri, every_type(3, 4), mode="overwrite")
    write_deltalake(uri, every_type(7, 9), mode="append")
    wider = every_type(20, 2).append_column("new", pa.array([1, None], pa.int64()))
    write_deltalake(uri, wider, mode="append", schema_mode="merge")
    write_deltalake(uri, wider.slice(0, 0), mode="append")


def by_path(actions: Any) -> pa.Table:
    return pa.table(actions).sort_by("path")


def as_set(partitions: list[dict[str, str]]) -> set[frozenset[tuple[str, str]]]:
    found = {frozenset(partition.items()) for partition in partitions}
    assert len(found) == len(partitions)
    return found


def rows(table: deltalake.DeltaTable) -> pa.Table:
    return table.to_pyarrow_table().sort_by("id")


@pytest.mark.parametrize("partition_by", [None, ["part"], ["part", "day"]], ids=["flat", "one", "two"])
def test_stock_reads_every_version_as_we_do(table_uri: TableUri, partition_by: list[str] | None) -> None:
    uri = table_uri("t")
    build(uri, partition_by)
    ours = DeltaTable(uri)
    stock = deltalake.DeltaTable(ours.table_uri)
    assert ours.version() == stock.version() == 5
    for version in range(6):
        ours.load_as_version(version)
        stock.load_as_version(version)
        assert rows(ours).equals(rows(stock))
        assert ours.schema() == stock.schema()
        assert ours.protocol() == stock.protocol()
        for fact in ("id", "name", "description", "partition_columns", "created_time", "configuration"):
            assert getattr(ours.metadata(), fact) == getattr(stock.metadata(), fact)
        assert sorted(ours.file_uris()) == sorted(stock.file_uris())
        assert as_set(ours.partitions()) == as_set(stock.partitions())
        for flatten in (True, False):
            mine, theirs = by_path(ours.get_add_actions(flatten)), by_path(stock.get_add_actions(flatten))
            assert mine.schema.names == theirs.schema.names
            assert mine.to_pydict() == theirs.to_pydict()
    newest = deltalake.DeltaTable(ours.table_uri)
    told = [(h["version"], h["operation"], h["timestamp"]) for h in DeltaTable(uri).history()]
    assert told == [(h["version"], h["operation"], h["timestamp"]) for h in newest.history()]


@pytest.mark.parametrize("partition_by", [None, ["part", "day"]], ids=["flat", "partitioned"])
def test_filters_keep_every_row_that_stock_finds(table_uri: TableUri, partition_by: list[str] | None) -> None:
    uri = table_uri("t")
    build(uri, partition_by)
    ours = DeltaTable(uri)
    stock = deltalake.DeltaTable(ours.table_uri)
    all_files = set(ours.file_uris())
    with hidden_log(root_of(ours)):
        mine = [(set(ours.file_uris(file_pruning_predicate=f)), ours.partitions(f)) for f in FILTERS]
    for where, (files, partitions) in zip(FILTERS, mine, strict=True):
        assert files <= all_files, where
        try:
            theirs = set(stock.file_uris(file_pruning_predicate=where))
        except Exception:  # stock does not read every spelling that we do
            theirs = set()
        if isinstance(where, str):
            wanted = pa.RecordBatchReader.from_stream(stock.scan(predicate=where)).read_all()
            found = pa.RecordBatchReader.from_stream(ours.scan(predicate=where)).read_all()
        else:
            wanted = stock.to_pyarrow_table(filters=where)
            found = ours.to_pyarrow_table(filters=where)
        assert sorted(found["id"].to_pylist()) == sorted(wanted["id"].to_pylist()), where
        holders = {uri for uri in all_files if set(_ids_in(uri)) & set(wanted["id"].to_pylist())}
        assert holders <= files, where
        if partition_by is None or "id" not in str(where):
            assert theirs <= files or not holders, where
        assert {str(p) for p in partitions} <= {str(p) for p in ours.partitions()}, where


def _ids_in(uri: str) -> list[int]:
    found: list[int] = pq.ParquetFile(uri).read(columns=["id"])["id"].to_pylist()
    return found


def test_partition_filters_leave_out_what_cannot_match(table_uri: TableUri) -> None:
    uri = table_uri("t")
    build(uri, ["part"])
    table = DeltaTable(uri)
    chosen = table.file_uris([("part", "=", "x")])
    assert 0 < len(chosen) < len(table.file_uris())
    assert table.partitions([("part", "=", "x")]) == [{"part": "x"}]
    few = table.file_uris(file_pruning_predicate="id > 1000")
    assert few == []
    assert table.to_pyarrow_dataset(file_pruning_predicate="part = 'x'").count_rows() == len(
        table.to_pyarrow_table(filters=[("part", "=", "x")])
    )


def test_published_bytes_are_the_ratified_bytes(table_uri: TableUri) -> None:
    uri = table_uri("t")
    build(uri, ["part"])
    root = root_of(DeltaTable(uri))
    sql, files = open_log(uri), FileTxnLogReader(root)
    assert list(sql.versions()) == list(files.versions()) == list(range(6))
    names = sorted(p.name for p in (root / "_delta_log").glob("*.json"))
    assert names == [f"{version:020}.json" for version in range(6)]
    times = []
    for version, name in enumerate(names):
        published = (root / "_delta_log" / name).read_bytes()
        assert hashlib.sha256(published).digest() == hashlib.sha256(sql.commit_bytes(version)).digest()
        times.append(sql.snapshot(version).timestamp)
        assert (root / "_delta_log" / name).stat().st_mtime_ns // 1_000_000 == times[-1]
        assert files.snapshot(version) == sql.snapshot(version)
        assert {f.key for f in files.files(version)} == {f.key for f in sql.files(version)}
        assert {f.key: f for f in files.files(version)} == {f.key: f for f in sql.files(version)}
        assert {r.key: r for r in files.tombstones(version)} == {r.key: r for r in sql.tombstones(version)}
    assert times == sorted(set(times))
    # a log knows less of a commit than the catalog
    ours, theirs = ([c.to_dict() for c in log.history()] for log in (sql, files))
    known = [{k: v for k, v in c.items() if v is not None} for c in theirs]
    assert all(c.keys() == {"version", "committed_at", "operation", "info"} for c in known)
    assert [{k: c[k] for k in log} for c, log in zip(ours, known, strict=True)] == known


def test_stock_travels_to_the_same_versions_by_time(table_uri: TableUri) -> None:
    uri = table_uri("t")
    build(uri, None)
    ours = DeltaTable(uri)
    stock = deltalake.DeltaTable(ours.table_uri)
    for entry in ours.history():
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=entry["timestamp"])
        ours.load_as_version(moment)
        stock.load_as_version(moment)
        assert ours.version() == stock.version() == entry["version"]


def test_nothing_needs_the_log_once_it_is_in_sql(table_uri: TableUri) -> None:
    uri = table_uri("t")
    build(uri, ["part"])
    table = DeltaTable(uri)
    wanted = [rows(DeltaTable(uri, version=v)) for v in range(6)]
    with hidden_log(root_of(table)):
        for version in range(6):
            again = DeltaTable(uri, version=version)
            assert rows(again).equals(wanted[version])
            assert again.to_pyarrow_dataset().count_rows() == len(wanted[version])
            assert pa.table(again.get_add_actions()).num_rows == len(again.file_uris())
            assert again.history(1)[0]["version"] == version
        assert [c.version for c in open_log(uri).history()] == [5, 4, 3, 2, 1, 0]
