"""Restore and repair: file sets of two versions from SQL, checked against the disk, and equal to stock's."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import (
    Catalog,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    TableFeatures,
    Transaction,
    import_table,
    write_deltalake,
)
from deltalakedb.exceptions import (
    ConflictError,
    InvalidArgumentError,
    StorageMissingError,
)
from support.lake import files_below, ids, ids_of
from support.twins import Twins, rows_of, sales

if TYPE_CHECKING:
    from conftest import TableUri

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"])


def changed(twins: Twins) -> None:
    """Five versions: two appends, a delete, a new column, an overwrite."""
    twins.write(sales(*range(5)), partition_by=["place"])
    twins.write(sales(*range(5, 10)), mode="append")
    for table in twins.open():
        table.delete("id < 3 OR id = 7")
        table.alter.add_columns([deltalake.Field("note", "string")])
    twins.write(sales(*range(20, 23)), mode="overwrite", schema_mode="overwrite")


def test_versions_come_back(twins: Twins) -> None:
    changed(twins)
    twins.both(lambda t: t.restore(1))
    twins.both(lambda t: t.restore(4))
    twins.both(lambda t: t.restore(5))
    twins.both(lambda t: t.restore(2, commit_properties=CommitProperties(custom_metadata={"why": "oops"})))
    ours, stock = twins.open()
    assert ours.history(1)[0]["why"] == "oops"
    assert ours.schema() == stock.schema()
    assert ours.history(1)[0]["operationParameters"] == {"version": "2"}
    # and go on as if nothing had been
    twins.write(sales(50, 51), mode="append")
    twins.both(lambda t: t.delete("id = 50"))


def test_a_time_stands_for_the_version_of_then(table_uri: TableUri) -> None:
    uri = table_uri("t")
    for number in range(3):
        write_deltalake(uri, ids(number), mode="append")
    table = DeltaTable(uri)
    times = {h["version"]: h["timestamp"] / 1000 for h in table.history()}
    assert table.restore(datetime.fromtimestamp(times[1], UTC)) == {
        "numRemovedFile": 1,
        "numRestoredFile": 0,
    }
    assert ids_of(table) == [0, 1]
    assert set(table.history(1)[0]["operationParameters"]) == {"datetime"}
    table.restore(datetime.fromtimestamp(times[0], UTC).isoformat())
    assert ids_of(DeltaTable(uri)) == [0]
    with pytest.raises(ValueError):  # as stock does
        table.restore("yesterday")


@SQLITE
def test_what_stock_refuses_to_restore_is_refused_alike(twins: Twins) -> None:
    changed(twins)
    for target in (4, 99, -1, None, "no time"):
        twins.both_fail(lambda t, target=target: t.restore(target))
    for target in (4, 99):
        with pytest.raises(InvalidArgumentError, match="must be less than the table's, 4"):
            DeltaTable(twins.uri).restore(target)


@SQLITE
def test_files_that_are_gone_stop_a_restore_unless_told_otherwise(twins: Twins) -> None:
    changed(twins)
    for table in twins.open():
        table.load_as_version(1)
        for uri in table.file_uris(file_pruning_predicate="place = 'x'"):
            Path(uri).unlink()
    with pytest.raises(StorageMissingError, match="place=x"):
        DeltaTable(twins.uri).restore(1)
    with pytest.raises(deltalake.exceptions.DeltaError):
        deltalake.DeltaTable(twins.plain).restore(1)
    ours, stock = twins.open()
    mine, theirs = (t.restore(1, ignore_missing_files=True) for t in (ours, stock))
    assert mine == theirs
    assert mine["numRestoredFile"] > 2
    # what cannot be read is then repaired away
    twins.both(lambda t: len(t.repair()["files_removed"]))
    assert ours.repair(dry_run=True) == {"dry_run": True, "files_removed": []}


@SQLITE
def test_the_protocol_goes_back_only_where_that_is_allowed(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    table = DeltaTable(uri)
    first = table.protocol()
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    raised = table.protocol()
    assert raised.min_writer_version == 7
    table.restore(0)
    assert table.protocol() == raised
    table.restore(0, protocol_downgrade_allowed=True)
    assert table.protocol() == first
    table.restore(1)
    assert set(table.protocol().writer_features or ()) >= {"deletionVectors"}
    write_deltalake(uri, ids(2), mode="append")
    assert len(rows_of(deltalake.DeltaTable(table.table_uri))) == len(rows_of(DeltaTable(uri))) == 2


def test_a_restore_and_a_concurrent_append_do_not_mix(table_uri: TableUri, catalog_uri: str) -> None:
    uri = table_uri("t")
    for number in range(3):
        write_deltalake(uri, ids(number), mode="append")
    stale = DeltaTable(uri)
    stale.load_as_version(2)
    write_deltalake(uri, ids(3), mode="append")
    with pytest.raises(ConflictError):
        stale.restore(0)
    assert ids_of(DeltaTable(uri)) == [0, 1, 2, 3]
    with Catalog(catalog_uri) as catalog:
        assert catalog.mirror.verify("t").ok


@SQLITE
def test_a_version_that_only_the_log_knows_is_restored(table_uri: TableUri, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    for number in range(4):
        deltalake.write_deltalake(str(root), ids(number), mode="append")
    deltalake.DeltaTable(str(root)).create_checkpoint()
    begun = 1_700_000_000
    for number in range(4):
        os.utime(root / "_delta_log" / f"{number:020}.json", (begun + 60 * number,) * 2)
    import_table(str(root), table_uri("t"), history="checkpoint")
    table = DeltaTable(table_uri("t"))
    for when, version in ((-1, 0), (0, 0), (61, 1), (179, 2), (200, 3)):
        table.load_as_version(datetime.fromtimestamp(begun + when, UTC))
        assert (table.version(), ids_of(table)) == (version, list(range(version + 1)))
    table.load_as_version("2200-01-01t00:00:00z")
    assert table.version() == 3
    table.update_incremental()
    assert table.restore(1) == {"numRemovedFile": 2, "numRestoredFile": 0}
    assert ids_of(DeltaTable(table_uri("t"))) == ids_of(deltalake.DeltaTable(str(root))) == [0, 1]


def test_lost_files_are_taken_out(twins: Twins) -> None:
    for start in (0, 10):
        twins.write(sales(*range(start, start + 10)), mode="append", partition_by=["place"])
    twins.both(lambda t: t.repair())
    for table in twins.open():
        for uri in table.file_uris(file_pruning_predicate="place IN ('x', 'y')"):
            Path(uri).unlink()
    mine, theirs = (t.repair(dry_run=True) for t in twins.open())
    assert len(mine["files_removed"]) == len(theirs["files_removed"]) == 4
    assert {type(v) for v in mine.values()} == {type(v) for v in theirs.values()}
    assert DeltaTable(twins.uri).version() == 1
    properties = CommitProperties(custom_metadata={"ticket": 7}, app_transactions=[Transaction("app", 1)])
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    for table in twins.open():
        done: dict[str, Any] = table.repair(commit_properties=properties, post_commithook_properties=hooks)
        assert done["dry_run"] is False
        assert sorted(p.split("/")[0] for p in done["files_removed"]) == ["place=x"] * 2 + ["place=y"] * 2
    twins.check()
    ours = DeltaTable(twins.uri)
    assert ours.history(1)[0]["ticket"] == 7
    assert ours.transaction_version("app") == 1
    assert len(json.loads(ours.history(1)[0]["operationMetrics"]["files_removed"])) == 4
    # an append meanwhile stands in nobody's way
    lost = Path(ours.file_uris()[0])
    lost.unlink()
    stale = DeltaTable(twins.uri)
    stale.load_as_version(2)
    write_deltalake(twins.uri, sales(77), mode="append")
    assert len(stale.repair()["files_removed"]) == 1
    assert 77 in ids_of(DeltaTable(twins.uri))


@SQLITE
def test_custom_metadata_is_checked_as_stock_checks_it(twins: Twins) -> None:
    changed(twins)
    for metadata in (
        {"timestamp": 1},
        {"operation": "X"},
        {"engineInfo": "me"},
        {"operationParameters": 1},
        {"readVersion": -1},
        {"userName": 1},
        {"isolationLevel": "Whatever"},
        {"isBlindAppend": "yes"},
        {"number": float("nan")},
        {"object": object()},
        {1: "x"},
        [("a", 1)],
    ):
        properties = CommitProperties(custom_metadata=metadata)  # type: ignore[arg-type]
        twins.both_fail(lambda t, p=properties: t.restore(1, commit_properties=p))
    given = {"operationParameters": {"version": "mine", "more": {"a": 1}}, "userMetadata": "note"}
    twins.both(lambda t: t.restore(1, commit_properties=CommitProperties(custom_metadata=given)))
    ours, stock = (t.history(1)[0] for t in twins.open())
    assert ours["operationParameters"] == stock["operationParameters"] == {"version": "1", "more": '{"a":1}'}
    assert ours["userMetadata"] == "note"
    assert files_below(twins.plain)
