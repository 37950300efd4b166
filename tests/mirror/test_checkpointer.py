"""Checkpoints from SQL: when they are due, what they hold, and that stock deltalake reads from them alone."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog, CommitProperties, Transaction
from deltalakedb.commit.committer import commit
from deltalakedb.commit.txn_log import SqlTxnLogWriter
from deltalakedb.exceptions import (
    CatalogBusyError,
    InvalidArgumentError,
    LogGapError,
    ProtocolError,
    TableFrozenError,
)
from deltalakedb.mirror.checkpointer import checkpoint_lease
from deltalakedb.protocol.actions import Protocol
from deltalakedb.settings import Config
from support.lake import every_type, ids, ids_of
from support.mirrors import append, append_outside, commit_file, logged, outside_ids

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.metastore.database import Database


KINDS = ("classic", "v2")
V2 = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=("timestampNtz", "v2Checkpoint"),
    writer_features=("timestampNtz", "v2Checkpoint"),
)


def create_v2(catalog: Catalog, name: str, root: Path, data: pa.Table, partition_by: list[str]) -> None:
    """A table with V2 checkpoints, which stock cannot create: its first version is written by hand."""
    catalog.create_table(f"{name}_model", data.schema, location=f"{root}_model", partition_by=partition_by)
    model = catalog.log(f"{name}_model")
    metadata = replace(model.snapshot().metadata, configuration={"delta.checkpointPolicy": "v2"})
    writer = SqlTxnLogWriter(model.database, name, str(root), partial(commit, model.database))
    writer.commit(0, [V2, metadata])
    catalog.mirror.publish(name)


def scanned_ids(root: Path) -> list[int]:
    """The rows by stock's own scan, which knows more features than its way through pyarrow."""
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root)).execute("SELECT id FROM t")
    numbers: list[int] = pa.table(found.read_all())["id"].to_pylist()
    return sorted(numbers)


def hint(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "_delta_log" / "_last_checkpoint").read_text())
    return found


def parts(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "_delta_log").iterdir() if ".checkpoint." in p.name)


def forget_before(root: Path, version: int) -> None:
    """What any engine's clean-up may do below a checkpoint."""
    for number in logged(root):
        if number < version:
            commit_file(root, number).unlink()


def test_a_checkpoint_on_demand_is_enough_for_stock_readers(catalog: Catalog, root: Path) -> None:
    append(catalog, 1, 2)
    catalog.table("t").delete("id = 1")
    written = catalog.mirror.checkpoint("t")
    assert (written.version, written.kind, written.num_add_files) == (3, "classic", 2)
    assert parts(root) == [f"{3:020}.checkpoint.parquet"]
    assert hint(root)["version"] == 3
    assert catalog.mirror.status()[0].checkpoint_version == 3
    append(catalog, 5)
    forget_before(root, 3)
    assert outside_ids(root) == [0, 2, 5]
    assert outside_ids(root, version=3) == [0, 2], "travel to the checkpoint itself"
    assert outside_ids(root, version=4) == [0, 2, 5]
    for version, rows in enumerate([[0], [0, 1], [0, 1, 2], [0, 2], [0, 2, 5]]):
        assert ids_of(catalog.table("t", version=version)) == rows, "SQL keeps what the log forgot"
    assert catalog.mirror.verify("t").ok


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_the_same(catalog: Catalog, tmp_path: Path, kind: Any) -> None:
    root = tmp_path / "typed"
    data, partitions = every_type(), ["part", "day"]
    if kind == "v2":
        create_v2(catalog, "typed", root, data, partitions)
    else:
        catalog.create_table("typed", data.schema, location=root, partition_by=partitions)
    for number in range(3):
        catalog.write("typed", every_type(6 * number), mode="append")
    catalog.table("typed").delete("id = 3")
    wanted = sorted(deltalake.DeltaTable(root).file_uris())
    written = catalog.mirror.checkpoint("typed", kind=kind)
    # what fits into one part is one file
    assert (written.kind, written.version) == (kind, 4)
    forget_before(root, 4)
    stock = deltalake.DeltaTable(root)
    assert stock.version() == 4
    assert sorted(stock.file_uris()) == wanted
    assert scanned_ids(root) == ids_of(catalog.table("typed")) == [n for n in range(18) if n != 3]
    assert catalog.mirror.verify("typed").ok


def test_a_v2_checkpoint_needs_the_tables_feature(catalog: Catalog, root: Path) -> None:
    with pytest.raises(ProtocolError, match="v2Checkpoint"):
        catalog.mirror.checkpoint("t", kind="v2")
    assert parts(root) == []


def test_the_table_decides_the_kind_by_its_policy(catalog: Catalog, tmp_path: Path) -> None:
    create_v2(catalog, "v", tmp_path / "v", ids(0), [])
    assert catalog.mirror.checkpoint("v").kind == "v2"


@pytest.mark.parametrize("by", ["publish", "run"])
def test_a_checkpoint_is_due_after_the_tables_interval(
    catalog: Catalog, silent: Catalog, tmp_path: Path, by: str
) -> None:
    root = tmp_path / "i"
    config = {"delta.checkpointInterval": "3"}
    catalog.create_table("i", ids(0).schema, location=root, configuration=config)

    def reconcile() -> int:
        return (catalog.mirror.run() if by == "run" else catalog.mirror.publish("i")).checkpoints

    append(silent, 1, 2, name="i")
    assert reconcile() == 0
    append(silent, 3, name="i")
    assert reconcile() == 1
    assert hint(root)["version"] == 3
    assert reconcile() == 0, "the next one is not due yet"
    append(silent, 4, 5, 6, 7, name="i")
    assert reconcile() == 1
    assert hint(root)["version"] == 7
    forget_before(root, 7)
    assert outside_ids(root) == [1, 2, 3, 4, 5, 6, 7]


def test_a_pass_writes_due_checkpoints_of_tables_that_their_writers_published(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    root = tmp_path / "i"
    config = {"delta.checkpointInterval": "2"}
    catalog.create_table("i", ids(0).schema, location=root, configuration=config)
    append(Catalog(catalog_uri, config=Config(publish={"checkpoints": False})), 1, 2, name="i")
    assert catalog.mirror.status("i")[0].versions_behind == 0
    assert catalog.mirror.run().checkpoints == 1
    assert hint(root)["version"] == 2
    assert catalog.mirror.run().checkpoints == 0


def test_a_checkpoint_covers_published_versions_only(
    catalog: Catalog, silent: Catalog, root: Path, tmp_path: Path
) -> None:
    append(catalog, 1)
    append(silent, 2)
    assert catalog.mirror.checkpoint("t").version == 1
    silent.write("u", ids(1), location=tmp_path / "u")
    with pytest.raises(InvalidArgumentError, match="nothing of the table is published"):
        catalog.mirror.checkpoint("u")


def test_a_frozen_table_gets_no_checkpoint(catalog: Catalog, root: Path) -> None:
    append_outside(root, 7)
    with pytest.raises(TableFrozenError):
        append(catalog, 1)
    with pytest.raises(TableFrozenError, match="frozen"):
        catalog.mirror.checkpoint("t")
    assert parts(root) == []


def test_the_same_checkpoint_twice_is_written_once(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    first = catalog.mirror.checkpoint("t")
    inode = (root / "_delta_log" / parts(root)[0]).stat().st_ino
    second = catalog.mirror.checkpoint("t")
    assert (first.created, second.created) == (True, False)
    assert (root / "_delta_log" / parts(root)[0]).stat().st_ino == inode
    assert outside_ids(root) == [0, 1]


@pytest.mark.parametrize(
    ("properties", "as_json", "as_struct"),
    [
        ({}, True, False),
        ({"delta.checkpoint.writeStatsAsStruct": "true"}, True, True),
        (
            {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpoint.writeStatsAsJson": "false"},
            False,
            True,
        ),
    ],
)
def test_statistics_are_json_or_structs_as_the_table_says(
    catalog: Catalog, tmp_path: Path, properties: dict[str, str], as_json: bool, as_struct: bool
) -> None:
    root = tmp_path / "s"
    catalog.create_table("s", ids(0).schema, location=root, configuration=properties)
    append(catalog, 1, 2, name="s")
    catalog.mirror.checkpoint("s")
    adds = pq.read_table(root / "_delta_log" / parts(root)[0])["add"].combine_chunks()
    live = [a for a in adds.to_pylist() if a is not None]
    assert [a.get("stats") is not None for a in live] == [as_json] * 2
    assert [a.get("stats_parsed") is not None for a in live] == [as_struct] * 2
    if as_struct:
        assert sorted(a["stats_parsed"]["minValues"]["id"] for a in live) == [1, 2]
    forget_before(root, 2)
    assert outside_ids(root) == [1, 2]
    assert deltalake.DeltaTable(root).to_pyarrow_table(filters=[("id", "=", 2)]).num_rows == 1


def test_tombstones_stay_for_as_long_as_the_table_retains_them(catalog: Catalog, tmp_path: Path) -> None:
    removed = {}
    for name, retention in (("long", "interval 1 week"), ("none", "interval 0 seconds")):
        config = {"delta.deletedFileRetentionDuration": retention}
        catalog.create_table(name, ids(0).schema, location=tmp_path / name, configuration=config)
        append(catalog, 1, 2, name=name)
        catalog.table(name).delete("id = 1")
        catalog.mirror.checkpoint(name)
        root = tmp_path / name
        rows = pq.read_table(root / "_delta_log" / parts(root)[0])["remove"].to_pylist()
        removed[name] = [r["path"] for r in rows if r is not None]
        assert outside_ids(root) == [2]
    assert len(removed["long"]) == 1
    assert removed["none"] == []


def test_application_versions_survive_in_a_checkpoint(catalog: Catalog, root: Path) -> None:
    once = CommitProperties(app_transactions=[Transaction("loader", 7)])
    catalog.write("t", ids(1), mode="append", commit_properties=once)
    catalog.mirror.checkpoint("t")
    append(catalog, 2)
    forget_before(root, 1)
    assert deltalake.DeltaTable(root).transaction_version("loader") == 7


def test_a_stock_writer_goes_on_from_a_checkpoint_and_we_take_it_over(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    catalog.mirror.checkpoint("t")
    forget_before(root, 1)
    append_outside(root, 2)
    assert catalog.mirror.recover("t").versions == (2,)
    append(catalog, 3)
    assert outside_ids(root) == ids_of(catalog.table("t")) == [0, 1, 2, 3]


# Table properties that decide what a checkpoint holds, in any case, as Spark reads them.


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize(
    ("value", "kept"), [("False", False), ("FALSE", False), ("true", True), ("True", True)]
)
def test_switches_of_checkpoints_are_read_in_any_case(
    value: str, kept: bool, tmp_path: Path, catalog_uri: str
) -> None:
    switch = {"delta.checkpoint.writeStatsAsJson": value, "delta.checkpoint.writeStatsAsStruct": "True"}
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t", configuration=switch)
        catalog.table("t").create_checkpoint()
    (checkpoint,) = (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")
    kind = pq.read_schema(checkpoint).field("add").type
    adds = [add for add in pq.read_table(checkpoint)["add"].to_pylist() if add is not None]
    assert any(add.get("stats") for add in adds) == kept
    assert kind.get_field_index("stats_parsed") >= 0


# Compaction of the log beside its clean-up.


def test_a_compaction_waits_for_a_clean_up(catalog: Catalog, database: Database, root: Path) -> None:
    append(catalog, 1, 2)
    with (
        checkpoint_lease(database, catalog.describe("t")),
        pytest.raises(CatalogBusyError, match="the clean-up of t"),
    ):
        catalog.mirror.compact_log("t", 0, 2)
    assert catalog.mirror.compact_log("t", 0, 2) is not None


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_compaction_of_versions_that_were_cleaned_up_names_those_that_are_left(
    catalog: Catalog, root: Path
) -> None:
    append(catalog, 1, 2, 3)
    catalog.mirror.checkpoint("t")
    commit_file(root, 0).unlink()
    commit_file(root, 1).unlink()
    with pytest.raises(LogGapError, match="no longer has all commits from version 0 to 3") as failed:
        catalog.mirror.compact_log("t", 0, 3)
    assert failed.value.suggestion == "compact versions 2 to 3"
    with pytest.raises(LogGapError, match="cleaned up"):
        catalog.table("t").compact_logs(0, 1)
    assert catalog.mirror.compact_log("t", 2, 3) is not None
