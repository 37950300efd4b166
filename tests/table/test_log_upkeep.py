"""Checkpoints, clean-up, compaction and manifests on demand, and checkpoints that writers leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalakedb.exceptions import InvalidArgumentError, UnsupportedFeatureError, UnsupportedOperationError
from deltalakedb.mirror.manifests import write_manifests
from deltalakedb.protocol.paths import TablePaths
from support.lake import ids, ids_of, root_of
from support.twins import Twins, sales

if TYPE_CHECKING:
    from conftest import TableUri

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"])


def log_of(uri: str) -> Path:
    return root_of(DeltaTable(uri)) / "_delta_log"


def checkpoints(log: Path) -> list[int]:
    return sorted(int(p.name[:20]) for p in log.glob("*.checkpoint.parquet"))


def test_a_checkpoint_of_the_open_version(table_uri: TableUri) -> None:
    uri = table_uri("t")
    for number in range(4):
        write_deltalake(uri, ids(number), mode="append")
    DeltaTable(uri).create_checkpoint()
    log = log_of(uri)
    assert checkpoints(log) == [3]
    older = DeltaTable(uri, version=1)
    older.create_checkpoint()
    assert checkpoints(log) == [1, 3]
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 3, "the hint never goes back"
    for version in range(4):
        (log / f"{version:020}.json").rename(log.parent / f"{version}.aside")
    assert ids_of(deltalake.DeltaTable(str(log.parent))) == [0, 1, 2, 3]
    assert ids_of(deltalake.DeltaTable(str(log.parent), version=1)) == [0, 1]


def test_waiting_commits_are_published_first(table_uri: TableUri, catalog_uri: str) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.pause("t")
        write_deltalake(uri, ids(1), mode="append")
        with pytest.raises(InvalidArgumentError, match="not published"):
            DeltaTable(uri).create_checkpoint()
        catalog.mirror.resume("t")
    DeltaTable(uri).create_checkpoint()
    assert checkpoints(log_of(uri)) == [1]


@SQLITE
def test_old_commits_go_once_a_checkpoint_covers_them(table_uri: TableUri) -> None:
    uri = table_uri("t")
    kept = {"delta.logRetentionDuration": "interval 0 days"}
    for number in range(4):
        write_deltalake(uri, ids(number), mode="append", configuration=kept)
    table, log = DeltaTable(uri), log_of(uri)
    table.cleanup_metadata()
    assert (log / f"{0:020}.json").exists(), "without a checkpoint nothing goes"
    table.create_checkpoint()
    table.cleanup_metadata()
    assert sorted(p.name for p in log.glob("*.json")) == [f"{3:020}.json"]
    assert ids_of(deltalake.DeltaTable(str(log.parent))) == [0, 1, 2, 3]
    assert len(table.history()) == 4, "the catalog forgets nothing by it"
    assert ids_of(DeltaTable(uri, version=0)) == [0]
    # the same, as a hook
    write_deltalake(
        uri,
        ids(4),
        mode="append",
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=True),
    )
    assert ids_of(deltalake.DeltaTable(str(log.parent))) == [0, 1, 2, 3, 4]


@SQLITE
def test_commits_are_compacted_as_stock_does(twins: Twins) -> None:
    for number in range(4):
        twins.write(sales(number), mode="append")
    twins.both(lambda t: t.compact_logs(1, 3))
    name = f"{1:020}.{3:020}.compacted.json"
    assert (log_of(twins.uri) / name).exists()
    assert (Path(twins.plain) / "_delta_log" / name).exists()
    for start, end in ((3, 3), (3, 1), (0, 9)):
        twins.both_fail(lambda t, s=start, e=end: t.compact_logs(s, e))


def test_manifests_list_the_files_of_each_partition(twins: Twins) -> None:
    twins.write(sales(*range(10)), partition_by=["place"])
    twins.both(lambda t: t.generate())
    ours, theirs = (
        {p.relative_to(root) for p in Path(root).rglob("manifest")}
        for root in (root_of(DeltaTable(twins.uri)), twins.plain)
    )
    assert ours == theirs
    root = root_of(DeltaTable(twins.uri))
    listed = [
        line
        for p in (root / "_symlink_format_manifest").rglob("manifest")
        for line in p.read_text().splitlines()
    ]
    assert sorted(listed) == sorted(DeltaTable(twins.uri).file_uris())
    assert all(Path(line).is_file() for line in listed)
    DeltaTable(twins.uri).delete("place = 'x'")
    DeltaTable(twins.uri).generate()
    assert not (root / "_symlink_format_manifest" / "place=x" / "manifest").exists()
    with pytest.raises(UnsupportedFeatureError, match="deletion vector"):
        write_manifests(TablePaths(str(root), table="t"), [("a.parquet", "u123")])


def test_the_log_is_not_tidied_inside_a_transaction(table_uri: TableUri, catalog_uri: str) -> None:
    write_deltalake(table_uri("t"), ids(1))
    with Catalog(catalog_uri) as catalog, catalog.transaction() as tx:
        table = tx.table("t")
        for work in (
            table.create_checkpoint,
            table.cleanup_metadata,
            table.generate,
            lambda: table.compact_logs(0, 1),
        ):
            with pytest.raises(UnsupportedOperationError, match="after the transaction"):
                work()


@SQLITE
def test_every_operation_minds_its_hooks(table_uri: TableUri) -> None:
    uri = table_uri("t")
    none = PostCommitHookProperties(create_checkpoint=False)
    for number in range(3):
        write_deltalake(uri, ids(number), mode="append", configuration={"delta.checkpointInterval": "3"})
    table, log = DeltaTable(uri), log_of(uri)
    table.delete("id = 0", post_commithook_properties=none)
    table.alter.set_table_name("a", post_commithook_properties=none)
    table.optimize.compact(post_commithook_properties=none)
    assert (table.version(), checkpoints(log)) == (5, [])
    table.restore(1)
    assert checkpoints(log) == [6]
    for number in range(2):
        table.alter.set_table_name(str(number))
    table.restore(2, post_commithook_properties=none)
    assert (table.version(), checkpoints(log)) == (9, [6])
    for number in range(3):
        table.alter.set_table_name(f"again {number}")
    assert checkpoints(log) == [6, 12]
