"""A published table whose folder is gone: nothing is written, nothing is created, and the error says so."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import StorageMissingError, TableFolderMissingError
from deltalakedb.protocol.actions import encode_commit
from deltalakedb.service.ratifier import Ratifier
from deltalakedb.settings import Config
from deltalakedb.storage.store import open_store
from support.actions import add, info
from support.lake import ids, ids_of
from support.mirrors import append, commit_file, same_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.stores import StoreServers


def _merge(table: DeltaTable) -> Any:
    merger = table.merge(ids(1), "t.id = s.id", source_alias="s", target_alias="t")
    return merger.when_not_matched_insert_all().execute()


def _transaction(catalog: Catalog, work: Callable[[Any], object]) -> None:
    with catalog.transaction() as tx:
        work(tx)


WRITES: dict[str, Callable[[Catalog, DeltaTable], object]] = {
    "append": lambda c, _: c.write("t", ids(1), mode="append"),
    "append by handle": lambda _, t: write_deltalake(t, ids(1), mode="append"),
    "overwrite": lambda c, _: c.write("t", ids(1), mode="overwrite"),
    "overwrite by predicate": lambda c, _: c.write("t", ids(0), mode="overwrite", predicate="id = 0"),
    "create or replace": lambda c, t: DeltaTable.create(c.table_uri("t"), t.schema(), mode="overwrite"),
    "stock's writer": lambda _, t: deltalake.write_deltalake(t, ids(1), mode="append"),
    "delete": lambda _, t: t.delete(),
    "update": lambda _, t: t.update({"id": "7"}),
    "merge": lambda _, t: _merge(t),
    "alter": lambda _, t: t.alter.set_table_properties({"delta.appendOnly": "true"}),
    "optimize": lambda _, t: t.optimize.compact(),
    "restore": lambda _, t: t.restore(0),
    "vacuum": lambda _, t: t.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "fsck": lambda _, t: t.repair(),
    "fsck, dry run": lambda _, t: t.repair(dry_run=True),
    "manifests": lambda _, t: t.generate(),
    "checkpoint by handle": lambda _, t: t.create_checkpoint(),
    "clean by handle": lambda _, t: t.cleanup_metadata(),
    "compact by handle": lambda _, t: t.compact_logs(0, 1),
    "checkpoint": lambda c, _: c.mirror.checkpoint("t"),
    "clean": lambda c, _: c.mirror.clean("t"),
    "compact": lambda c, _: c.mirror.compact_log("t", 0, 1),
    "mirror repair": lambda c, _: c.mirror.repair("t"),
    "mirror repair, dry run": lambda c, _: c.mirror.repair("t", dry_run=True),
    "recover": lambda c, _: c.mirror.recover("t"),
    "fence": lambda c, _: c.mirror.fence("t"),
    "resolve": lambda c, _: c.mirror.resolve("t"),
    "transaction": lambda c, _: _transaction(c, lambda tx: tx.write("t", ids(1))),
    "delete in a transaction": lambda c, _: _transaction(c, lambda tx: tx.table("t").delete()),
}


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_nothing_is_written_to_a_table_whose_folder_is_gone(catalog: Catalog, root: Path, place: str) -> None:
    append(catalog, 8)
    table, aside = catalog.table("t"), root.with_name("aside")
    root.rename(aside)
    if place == "empty":
        root.mkdir()  # the mount point of a share that is not mounted
    for name, write in WRITES.items():
        with pytest.raises(TableFolderMissingError, match="the table's folder is missing") as failed:
            write(catalog, table)
        assert isinstance(failed.value, StorageMissingError | FileNotFoundError), name
        assert "mount" in (failed.value.suggestion or ""), name
        assert [p.name for p in root.iterdir()] == [] if place == "empty" else not root.exists(), name
    assert catalog.describe("t").head.version == 1
    if place == "empty":
        root.rmdir()
    aside.rename(root)
    append(catalog, 9)
    same_everywhere(catalog, root)
    assert ids_of(catalog.table("t")) == [0, 8, 9]


def test_a_log_is_written_into_no_stray_folder_whatever_lies_there(catalog: Catalog, root: Path) -> None:
    root.rename(root.with_name("aside"))
    root.mkdir()
    (root / "stray.parquet").write_bytes(b"of a writer that knows no catalog")
    for write in (WRITES["append"], WRITES["mirror repair"], WRITES["fsck"]):
        with pytest.raises(TableFolderMissingError):
            write(catalog, catalog.table("t"))
    assert [p.name for p in root.iterdir()] == ["stray.parquet"]


def test_what_waits_stays_in_the_catalog_while_the_folder_is_gone(
    catalog: Catalog, silent: Catalog, root: Path
) -> None:
    silent.write("t", ids(1), mode="append")
    aside = root.with_name("aside")
    root.rename(aside)
    assert catalog.mirror.publish("t").failed == ("t",)
    assert catalog.mirror.run().backing_off == ("t",)
    assert "folder is missing" in (catalog.mirror.status("t")[0].error or "")
    assert not root.exists()
    aside.rename(root)
    assert catalog.mirror.publish("t").published == 1
    same_everywhere(catalog, root)


def test_a_due_checkpoint_of_a_missing_folder_waits(catalog_uri: str, catalog: Catalog, root: Path) -> None:
    catalog.table("t").alter.set_table_properties({"delta.checkpointInterval": "2"})
    quiet = Catalog(catalog_uri, config=Config(publish={"checkpoints": False}))
    quiet.write("t", ids(1), mode="append")
    root.rename(root.with_name("aside"))
    assert catalog.mirror.run().no_checkpoint == ("t",)
    assert not root.exists()


def test_a_table_that_has_published_nothing_needs_no_folder(silent: Catalog, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    silent.write("new", ids(0), location=folder)
    shutil.rmtree(folder)
    silent.write("new", ids(1), mode="append")
    assert silent.describe("new").published_version == -1
    with silent.transaction() as tx:
        tx.write("newer", ids(0), location=tmp_path / "newer")
        tx.write("newer", ids(1))
    assert ids_of(silent.table("newer")) == [0, 1]


def test_a_lost_log_is_rebuilt_in_a_missing_folder_only_on_request(catalog: Catalog, root: Path) -> None:
    append(catalog, 1)
    shutil.rmtree(root)
    with pytest.raises(TableFolderMissingError):
        catalog.mirror.rebuild("t", root)
    assert not root.exists()
    assert catalog.mirror.repair("t", dry_run=True, create_folder=True).rewritten == (0, 1)
    assert not root.exists()
    assert catalog.mirror.repair("t", create_folder=True).rewritten == (0, 1)
    assert catalog.mirror.verify("t").ok


def test_a_commit_of_another_engine_is_held_back_while_the_log_is_gone(catalog: Catalog, root: Path) -> None:
    service, aside = Ratifier(catalog._database), root.with_name("aside")
    root.rename(aside)
    root.mkdir()
    (root / "a.parquet").write_bytes(b"Spark writes its data before it commits")
    data = encode_commit([info("WRITE"), add("a.parquet")])
    answer = service.commit(commit_file(root, 1).as_uri(), data)
    assert answer.word == "later"
    assert "folder is missing" in answer.text
    assert (catalog.describe("t").head.version, [p.name for p in root.iterdir()]) == (0, ["a.parquet"])


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_nothing_is_written_to_a_bucket_whose_log_is_gone(
    catalog: Catalog, store_servers: StoreServers
) -> None:
    bucket = store_servers.bucket("s3")
    location, options = f"{bucket.url}/t", bucket.options()
    uri = catalog.table_uri("t")
    write_deltalake(f"{uri}&location={location}", ids(0), storage_options=options)
    write_deltalake(uri, ids(1), mode="append", storage_options=options)
    store = open_store(location, options)
    saved = {m.path: store.get(m.path) for m in store.list("_delta_log")}
    store.delete_all(saved)
    before = [m.path for m in store.list(recursive=True)]
    table = DeltaTable(uri, storage_options=options)
    for write in (
        lambda: write_deltalake(uri, ids(2), mode="append", storage_options=options),
        lambda: write_deltalake(uri, ids(2), mode="overwrite", storage_options=options),
        table.delete,
        table.repair,
        table.create_checkpoint,
    ):
        with pytest.raises(TableFolderMissingError, match="log is missing") as failed:
            write()
        assert "mirror repair" in (failed.value.suggestion or "")
        assert [m.path for m in store.list(recursive=True)] == before
    for path, data in saved.items():
        store.put(path, data)
    write_deltalake(uri, ids(2), mode="append", storage_options=options)
    assert ids_of(DeltaTable(uri, storage_options=options)) == [0, 1, 2]
