"""Vacuum: the files that stock would delete, and never one that somebody still needs."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import Catalog, CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalakedb.exceptions import (
    ArgumentTypeError,
    DeltaError,
    InvalidArgumentError,
    TableFrozenError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.metastore import registry
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.dv import dv_path
from deltalakedb.settings import Config, use_config
from deltalakedb.table import write_locks
from deltalakedb.table.handle import require_handle
from deltalakedb.table.write_locks import WORK_FOLDER, operation_folders, work_name, write_lock
from support.feeds import FEED, changed_table, commit_actions, hide_log, put_vector, remove_all
from support.lake import root_of
from support.vectors import encode_file

if TYPE_CHECKING:
    from conftest import TableUri

NOW = {"retention_hours": 0, "enforce_retention_duration": False}
WEEK = 7 * 86_400


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The address of a new table on SQLite, where engines do not matter."""
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"


def older(*paths: Path, seconds: float = 2 * WEEK) -> None:
    for path in paths:
        stat = path.stat()
        os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def publish(uri: str) -> None:
    with Catalog(uri.partition("?")[0]) as catalog:
        catalog.mirror.publish("t")


def below(root: str | Path) -> set[str]:
    return {
        str(p.relative_to(root))
        for p in Path(root).rglob("*")
        if p.is_file() and "_delta_log" not in p.parts and "_hidden_log" not in p.parts
    }


def stray(root: str | Path, *names: str) -> list[Path]:
    made = []
    for name in names:
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        made.append(path)
    return made


def test_the_same_files_go_as_from_a_plain_table(table_uri: TableUri, tmp_path: Path) -> None:
    twins: list[Any] = [
        changed_table(deltalake, str(tmp_path / "plain")),
        changed_table(deltalakedb, table_uri("t")),
    ]
    roots = [tmp_path / "plain", root_of(twins[1])]
    hide_log(twins[1])
    before = [len(below(r)) for r in roots]
    assert before[0] == before[1]
    for wanted in ({}, {"full": True}, {"keep_versions": [1]}, {"keep_versions": [0, 5], "full": True}):
        theirs, mine = (t.vacuum(**NOW, **wanted) for t in twins)
        assert len(mine) == len(set(mine)) == len(theirs), wanted
        assert {Path(p).parent for p in mine} == {Path(p).parent for p in theirs}, wanted
    theirs, mine = (t.vacuum(**NOW, dry_run=False, keep_versions=[2]) for t in twins)
    assert len(mine) == len(theirs) > 0
    assert [len(below(r)) for r in roots] == [before[0] - len(theirs)] * 2
    assert below(roots[1]).isdisjoint(mine)
    for table in twins:
        assert table.to_pyarrow_table().num_rows == 1
        table.load_as_version(2)
        assert table.to_pyarrow_table().num_rows == 3
        table.load_as_version(0)
        with pytest.raises(FileNotFoundError):
            table.to_pyarrow_table()


def test_two_commits_tell_of_a_vacuum(uri: str, tmp_path: Path) -> None:
    told = CommitProperties(custom_metadata={"userName": "Ada"}, app_transactions=[Transaction("app", 7)])
    histories = []
    for module, where in ((deltalake, str(tmp_path / "plain")), (deltalakedb, uri)):
        for number in range(3):
            module.write_deltalake(where, pa.table({"id": [number]}), mode="overwrite")
        table = module.DeltaTable(where)
        table.vacuum(**NOW, dry_run=False, commit_properties=told)
        assert table.transaction_version("app") == 7
        histories.append(module.DeltaTable(where).history(2))
    for theirs, mine in zip(*histories, strict=True):
        for key in ("operation", "operationParameters", "userName", "version"):
            assert mine[key] == theirs[key]
        assert set(mine["operationMetrics"]) == set(theirs["operationMetrics"])
    assert histories[1][0]["operationMetrics"] == histories[0][0]["operationMetrics"]
    assert histories[1][1]["operationMetrics"]["numFilesToDelete"] == 2
    assert histories[1][1]["operationMetrics"]["sizeOfDataToDelete"] > 0


def test_a_vacuum_without_work_commits_nothing(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    table = DeltaTable(uri)
    assert table.vacuum(**NOW, dry_run=False, full=True) == []
    write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite")
    assert len(table.vacuum(**NOW, dry_run=False)) == 1
    version = table.version()
    assert table.vacuum(**NOW, dry_run=False) == []
    assert table.version() == version
    assert len(table.vacuum()) == 0, "nothing is older than a week"


def test_the_retention_is_that_of_the_table(uri: str) -> None:
    day = {"delta.deletedFileRetentionDuration": "interval 1 days"}
    write_deltalake(uri, pa.table({"id": [1]}), configuration=day)
    table = DeltaTable(uri)
    assert table.vacuum(24) == []
    with pytest.raises(DeltaError, match="greater than 24 hours, got 23 hours"):
        table.vacuum(23)
    with pytest.raises(ValueError, match="positive"):
        table.vacuum(-1)
    with pytest.raises(ArgumentTypeError):
        table.vacuum(1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError):
        table.vacuum(24, keep_versions=5)  # type: ignore[arg-type]
    with pytest.raises(VersionMissingError):
        table.vacuum(24, keep_versions=[9])


def test_lite_needs_no_listing_and_full_finds_what_nobody_knows(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1], "_p": ["a"]}), partition_by=["_p"], configuration=FEED)
    write_deltalake(uri, pa.table({"id": [2], "_p": ["a"]}), mode="overwrite")
    table = DeltaTable(uri)
    root = root_of(table)
    gone = {p for p in below(root) if str(root / p) not in table.file_uris()}
    found = stray(root, "stray.parquet", "_p=a/stray.parquet", "deep/er/x", "_change_data/old.parquet")
    kept = stray(
        root,
        "_hidden.parquet",
        ".hidden",
        "_hidden/x.parquet",
        "deep/_hidden/x",
        "deep/.x",
        "other/_delta_log/0.json",
        "other/x.parquet",
        "deep/_change_data/x",
    )
    young = stray(root, "young.parquet")
    older(*found, *kept)
    (root / "link").symlink_to(root.parent, target_is_directory=True)
    (root.parent / "outside.parquet").write_text("x")
    older(root.parent / "outside.parquet")
    assert set(table.vacuum(**NOW)) == gone
    wanted = {str(p.relative_to(root)) for p in found}
    assert set(table.vacuum(full=True)) == wanted
    assert set(table.vacuum(1, enforce_retention_duration=False, full=True)) == wanted
    deleted = table.vacuum(full=True, dry_run=False)
    assert set(deleted) == wanted
    assert all(p.exists() for p in (*kept, *young, root.parent / "outside.parquet"))
    assert not any(p.exists() for p in found)
    assert (root / "_delta_log").is_dir()
    assert table.to_pyarrow_table()["id"].to_pylist() == [2]
    assert DeltaTable(uri, version=0).to_pyarrow_table()["id"].to_pylist() == [1]


def test_an_old_handle_vacuums_the_newest_version(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    old = DeltaTable(uri, version=0)
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    older(*(Path(p) for p in DeltaTable(uri).file_uris()))
    assert old.vacuum(**NOW, full=True, dry_run=False) == []
    assert sorted(DeltaTable(uri).to_pyarrow_table()["id"].to_pylist()) == [1, 2]


def test_unpublished_versions_keep_their_files(uri: str) -> None:
    with use_config(Config(publish={"mode": "off"})):
        write_deltalake(uri, pa.table({"id": [1]}))
        write_deltalake(uri, pa.table({"id": [2]}), mode="append")
        table = DeltaTable(uri)
        assert not (root_of(table) / "_delta_log").exists()
        older(*(Path(p) for p in table.file_uris()))
        assert table.vacuum(**NOW, full=True, dry_run=False) == []
        assert table.count() == 2


def test_what_readers_of_a_log_that_waits_see_stays(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    table = DeltaTable(uri)
    with Catalog(uri.partition("?")[0]) as catalog:
        catalog.mirror.pause("t")
        write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite")
        write_deltalake(uri, pa.table({"id": [3]}), mode="overwrite")
        gone = table.vacuum(**NOW, full=True, dry_run=False)
        assert len(gone) == 1, "the file of the version in between"
        stock = deltalake.DeltaTable(str(root_of(table)))
        assert stock.to_pyarrow_table()["id"].to_pylist() == [1]
        catalog.mirror.resume("t")
        catalog.mirror.publish("t")
    assert len(DeltaTable(uri).vacuum(**NOW, full=True, dry_run=False)) == 1
    assert DeltaTable(uri).to_pyarrow_table()["id"].to_pylist() == [3]


def test_files_of_an_open_transaction_stay(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    with Catalog(uri.partition("?")[0]) as catalog:
        root = Path(catalog.describe("t").location)
        with catalog.transaction() as tx:
            tx.write("t", pa.table({"id": [2]}))
            tx.table("t").update(updates={"id": "id + 10"}, predicate="id = 1")
            assert len(below(root)) == 3
            assert catalog.table("t").vacuum(**NOW, full=True, dry_run=False) == []
            with pytest.raises(UnsupportedOperationError, match="transaction"):
                tx.table("t").vacuum()
        assert sorted(catalog.table("t").to_pyarrow_table()["id"].to_pylist()) == [2, 11]
        assert not (root / WORK_FOLDER).exists()
        with catalog.transaction() as tx:
            tx.write("t", pa.table({"id": [3]}))
            tx.rollback()
        assert not (root / WORK_FOLDER).exists()
        assert len(catalog.table("t").vacuum(**NOW, full=True)) == 1


def test_work_folders_tell_who_is_alive(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    root = str(root_of(DeltaTable(uri)))
    (orphan,) = stray(root, "orphan.parquet")
    older(orphan, seconds=1)
    with write_lock(root), write_lock(root):
        assert not (Path(root) / WORK_FOLDER).exists(), "the lock on the root is sign enough"
        assert DeltaTable(uri).vacuum(**NOW, full=True) == []
    with monkeypatch.context() as without, write_lock(root):
        without.setattr(write_locks, "_hold", lambda _: None)  # as on file systems without locks
        with write_lock(root):
            (folder,) = operation_folders(root)
            assert folder.alive
            assert DeltaTable(uri).vacuum(**NOW, full=True) == []
    stamp, machine, _, token = work_name().split("-")
    dead = Path(root) / WORK_FOLDER / f"{stamp}-{machine}-4194399-{token}"
    dead.mkdir(parents=True)
    assert [f.alive for f in operation_folders(root)] == [False]
    assert DeltaTable(uri).vacuum(**NOW, full=True) == ["orphan.parquet"]
    far = dead.rename(dead.with_name(f"{stamp}-{'0' * 12}-1-{token}"))
    assert [f.alive for f in operation_folders(root)] == [True], "of another machine nothing is known"
    older(far)
    long_ago = far.rename(far.with_name(f"{int(stamp) - 9 * 86_400_000:013d}-{'0' * 12}-1-{token}"))
    older(long_ago)
    assert [f.alive for f in operation_folders(root)] == [False]


def test_change_data_stays_while_its_version_is_retained(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1, 2]}), configuration=FEED)
    table = DeltaTable(uri)
    table.update(updates={"id": "9"}, predicate="id = 2")
    root = root_of(table)
    changes = root / "_change_data"
    older(*changes.rglob("*.parquet"))
    assert table.vacuum(full=True, dry_run=False) == [], "the file is old, its version is not"
    assert len(list(changes.rglob("*.parquet"))) == 1
    assert table.vacuum(**NOW, full=True, keep_versions=[0, 1]) == []
    assert len(table.vacuum(**NOW, full=True, dry_run=False)) == 2
    assert table.to_pyarrow_table()["id"].to_pylist() == [1, 9]


def test_deletion_vectors_stay_while_a_version_needs_them(uri: str, tmp_path: Path) -> None:
    on = {"delta.enableDeletionVectors": "true"}
    write_deltalake(uri, pa.table({"id": list(range(5))}), configuration=on)
    root = root_of(DeltaTable(uri))
    vectors = []
    for number, rows in enumerate(([1], [1, 2])):
        data, [(offset, size, cardinality)] = encode_file([rows])
        # twenty characters of Z85 are a UUID
        text = "ab^-aqEH.-t@S}K{vb[*k^" if number == 0 else "cd" + "0" * 20
        vector = DeletionVector(
            storage_type="u",
            path_or_inline_dv=text,
            offset=offset,
            size_in_bytes=size,
            cardinality=cardinality,
        )
        path = root / str(dv_path(vector))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        older(path)
        vectors.append(path)
        put_vector(uri, vector)
    table = DeltaTable(uri)
    assert table.to_pyarrow_table()["id"].to_pylist() == [0, 3, 4]
    assert table.vacuum(full=True, dry_run=False) == []
    assert set(table.vacuum(**NOW, full=True, dry_run=False)) == {str(vectors[0].relative_to(root))}
    assert table.to_pyarrow_table()["id"].to_pylist() == [0, 3, 4]
    remove_all(uri)
    publish(uri)
    assert len(DeltaTable(uri).vacuum(**NOW, full=True)) == 2


def test_files_that_came_back_stay(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    table: Any = DeltaTable(uri)
    (add,) = require_handle(table).source.adds()
    write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite")
    assert len(table.vacuum(**NOW)) == 1
    commit_actions(uri, [add])
    assert table.vacuum(**NOW, full=True, dry_run=False) == []
    assert DeltaTable(uri).count() == 2


def test_files_outside_of_the_root_stay(uri: str, tmp_path: Path) -> None:
    with use_config(Config(catalog={"allow_outside_paths": True})):
        write_deltalake(uri, pa.table({"id": [1]}))
        table: Any = DeltaTable(uri)
        (add,) = require_handle(table).source.adds()
        outside = tmp_path / "outside.parquet"
        shutil.copy(table.file_uris()[0], outside)
        commit_actions(uri, [replace(add, path=f"file://{outside}")])
        remove_all(uri)
        publish(uri)
        deleted = DeltaTable(uri).vacuum(**NOW, full=True, dry_run=False)
        assert len(deleted) == 1
        assert outside.exists()


def test_a_frozen_table_loses_no_file(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite")
    with Catalog(uri.partition("?")[0]) as catalog:
        root = catalog.describe("t").location
        before = below(root)
        registry.freeze(catalog._database, catalog.describe("t"), "for a test")
        with pytest.raises(TableFrozenError):
            catalog.table("t").vacuum(**NOW, dry_run=False)
        assert below(root) == before


def test_older_positional_arguments_are_taken(uri: str) -> None:
    write_deltalake(uri, pa.table({"id": [1]}))
    with pytest.warns(DeprecationWarning, match="positionally"):
        assert DeltaTable(uri).vacuum(None, True, True, None, None, True, [0]) == []
    with pytest.raises(InvalidArgumentError):
        DeltaTable(uri).vacuum(1)
