"""What may be deleted: never a live file, a file of another table, of the log, or outside of the root."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.exceptions import (
    ClockSkewError,
    ConflictError,
    StorageError,
    StorageMissingError,
    TableFrozenError,
)
from deltalakedb.failpoints import FailpointError
from deltalakedb.metastore import vacuumed
from deltalakedb.metastore.database import Database
from deltalakedb.service.ratifier import Ratifier
from deltalakedb.settings import Config, use_config
from deltalakedb.storage import open_store
from deltalakedb.table import restore as restoring
from deltalakedb.table.handle import require_handle
from deltalakedb.table.maintenance import vacuum as vacuum_module
from deltalakedb.table.write_locks import WORK_FOLDER, operation_folders, work_name
from support.feeds import FEED
from support.lake import ids, ids_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri

NOW: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}
LONG_AGO = time.time() - 60 * 86_400


def aged(path: Path, text: str = "x") -> Path:
    """A file that was written two months ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def overwritten(uri: str) -> DeltaTable:
    """A table whose first file is no longer live."""
    write_deltalake(uri, ids(1))
    write_deltalake(uri, ids(2), mode="overwrite")
    return DeltaTable(uri)


def at_deletion(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something between a vacuum's last look and its deletion."""
    monkeypatch.setattr(vacuum_module, "failpoint", lambda _: act())


# ---- restores beside a vacuum ------------------------------------------------------------------------------


def test_a_restore_between_the_look_and_the_deletion_is_refused(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    table = overwritten(uri)

    def restore() -> None:
        with pytest.raises(StorageMissingError, match="vacuum of version 2 is deleting"):
            DeltaTable(uri).restore(0)
        with pytest.raises(ConflictError, match="a vacuum is deleting the file") as caught:
            DeltaTable(uri).restore(0, ignore_missing_files=True)
        assert caught.value.kind == "concurrent_vacuum"

    at_deletion(monkeypatch, restore)
    assert len(table.vacuum(**NOW, dry_run=False)) == 1
    assert ids_of(DeltaTable(uri)) == [2]
    assert ids_of(deltalake.DeltaTable(str(root_of(table)))) == [2]


def test_a_restore_that_looked_before_the_vacuum_and_commits_after_it_is_refused(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    overwritten(uri)
    demand = restoring._require_files

    def then_vacuumed(*arguments: Any) -> None:
        demand(*arguments)
        assert len(DeltaTable(uri).vacuum(**NOW, dry_run=False)) == 1

    monkeypatch.setattr(restoring, "_require_files", then_vacuumed)
    with pytest.raises(ConflictError, match="a vacuum deleted the file"):
        DeltaTable(uri).restore(0)
    assert ids_of(DeltaTable(uri)) == [2]
    monkeypatch.undo()
    with pytest.raises(StorageMissingError, match="is missing"):
        DeltaTable(uri).restore(0)


def test_a_version_that_a_vacuum_keeps_is_restored_beside_it(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    overwritten(uri)
    write_deltalake(uri, ids(3), mode="overwrite")
    table = DeltaTable(uri)
    at_deletion(monkeypatch, lambda: DeltaTable(uri).restore(1) and None)
    assert len(table.vacuum(**NOW, dry_run=False, keep_versions=[1])) == 1
    assert ids_of(DeltaTable(uri)) == [2]


def test_a_restore_before_the_announcement_keeps_its_files(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    table = overwritten(uri)
    commit = vacuum_module._commit

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(vacuum_module, "_commit", commit)
        DeltaTable(uri).restore(0)
        commit(*arguments, **options)

    monkeypatch.setattr(vacuum_module, "_commit", late)
    assert table.vacuum(**NOW, dry_run=False) == []
    assert ids_of(DeltaTable(uri)) == [1]


def test_an_interrupted_vacuum_is_finished_by_the_next(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    table = overwritten(uri)

    def stop() -> None:
        raise FailpointError("stop")

    at_deletion(monkeypatch, stop)
    with pytest.raises(FailpointError):
        table.vacuum(**NOW, dry_run=False)
    with pytest.raises(StorageMissingError, match="or was interrupted"):
        DeltaTable(uri).restore(0)
    monkeypatch.undo()
    assert len(DeltaTable(uri).vacuum(**NOW, dry_run=False)) == 1
    database = Database.open(parse_address(uri))
    (ended,) = vacuumed.ended(database, require_handle(DeltaTable(uri)).row).values()
    assert ended == DeltaTable(uri).version()
    assert ids_of(DeltaTable(uri)) == [2]


def test_files_that_an_interrupted_vacuum_deleted_are_gone_for_the_next(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    table = overwritten(uri)
    commit = vacuum_module._commit

    def only_the_first(*arguments: Any, **options: Any) -> None:
        commit(*arguments, **options)
        monkeypatch.setattr(vacuum_module, "_commit", stop)

    def stop(*_: Any, **__: Any) -> None:
        raise FailpointError("stop")

    monkeypatch.setattr(vacuum_module, "_commit", only_the_first)
    with pytest.raises(FailpointError):
        table.vacuum(**NOW, dry_run=False)
    monkeypatch.undo()
    with pytest.raises(ConflictError):
        DeltaTable(uri).restore(0, ignore_missing_files=True)
    assert DeltaTable(uri).vacuum(**NOW, dry_run=False) == []
    DeltaTable(uri).restore(0, ignore_missing_files=True)
    write_deltalake(uri, ids(3), mode="overwrite")
    assert ids_of(DeltaTable(uri)) == [3]


def test_a_vacuum_that_gives_up_leaves_the_record_of_another(table_uri: TableUri) -> None:
    uri = table_uri("t")
    row = require_handle(overwritten(uri)).row
    database = Database.open(parse_address(uri))
    started = []
    for number in (5, 6):
        with database.write() as session:
            started.append(vacuumed.record(session, row.table_id, ["x.parquet"]))
        write_deltalake(uri, ids(number), mode="append")
    with database.write() as session:
        vacuumed.release(session, row.table_id, started[1], ["x.parquet"])
        (left,) = vacuumed.among(session, row.table_id, {"x.parquet"})
        assert (left.started, left.ended) == (started[0], None)
        vacuumed.end(session, row.table_id, ["x.parquet"])
        (left,) = vacuumed.among(session, row.table_id, {"x.parquet"})
        assert left.ended == DeltaTable(uri).version()
    assert vacuumed.unended(database, row) == []


def test_a_vacuum_of_a_table_without_a_folder_has_nothing_to_do(table_uri: TableUri, tmp_path: Path) -> None:
    with use_config(Config(publish={"mode": "off"})):
        uri = table_uri("t")
        DeltaTable.create(uri, ids(1).schema)
        assert DeltaTable(uri).vacuum(**NOW, dry_run=False) == []


def test_a_vacuum_that_is_refused_lets_go_of_the_files(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    table = overwritten(uri)
    refuse = vacuum_module.require_no_foreign_commits
    calls: list[int] = []

    def second(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise TableFrozenError("for a test")
        refuse(*arguments)

    monkeypatch.setattr(vacuum_module, "require_no_foreign_commits", second)
    with pytest.raises(TableFrozenError):
        table.vacuum(**NOW, dry_run=False)
    monkeypatch.undo()
    DeltaTable(uri).restore(0)
    assert ids_of(DeltaTable(uri)) == [1]


def test_a_commit_of_another_engine_brings_no_vacuumed_file_back(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    (add,) = require_handle(DeltaTable(uri)).source.adds()
    write_deltalake(uri, ids(2), mode="overwrite")
    table = DeltaTable(uri)
    table.vacuum(**NOW, dry_run=False)
    root, version = root_of(table), table.version() + 1
    data = json.dumps({"add": {**add.to_dict(), "dataChange": True}}).encode() + b"\n"
    answer = Ratifier(Database.open(parse_address(uri))).commit(
        f"file:{root}/_delta_log/{version:020}.json", data
    )
    assert answer.word == "refused", answer
    assert "a vacuum deleted the file" in answer.text
    assert ids_of(DeltaTable(uri)) == [2]


# ---- paths of a hostile log --------------------------------------------------------------------------------

#: what a `remove` may name that must stay
HOSTILE = [
    "_delta_log/00000000000000000000.json",
    "_delta_log%2F00000000000000000000.json",
    "_delta_log/_last_checkpoint",
    ".hidden.parquet",
    "_hidden.parquet",
    "_hidden/x.parquet",
    "other/x.parquet",
    "other/deep/x.parquet",
    "registered/x.parquet",
    "link/outside.parquet",
    "inner/x.parquet",
    "link.parquet",
    ".",
    "./",
    "folder",
    "folder/.",
    "./_delta_log/00000000000000000000.json",
    "_deltasql/x",
]


def hostile_table(root: Path, paths: list[str]) -> None:
    """A plain table of two versions, whose third commit removes whatever it likes, long ago."""
    deltalake.write_deltalake(root, ids(1))
    deltalake.write_deltalake(root, ids(2), mode="overwrite")
    hostile_commit(root, 2, [*paths, "expired.parquet"])


def hostile_commit(root: Path, version: int, paths: list[str]) -> None:
    """A commit in the log that removes whatever it likes, long ago."""
    removes = [{"remove": {"path": p, "deletionTimestamp": 1, "dataChange": True, "size": 1}} for p in paths]
    text = "".join(json.dumps(r) + "\n" for r in [{"commitInfo": {"operation": "DELETE"}}, *removes])
    (root / "_delta_log" / f"{version:020}.json").write_text(text)


def everything(root: Path) -> set[str]:
    return {str(p) for p in root.rglob("*") if p.is_symlink() or p.is_file()}


@pytest.mark.parametrize("full", [False, True])
def test_a_hostile_remove_deletes_nothing_but_data_of_its_table(
    catalog_uri: str, tmp_path: Path, full: bool
) -> None:
    root = tmp_path / "t"
    hostile_table(root, HOSTILE)
    for name in (".hidden.parquet", "_hidden.parquet", "_hidden/x.parquet", "other/x.parquet"):
        aged(root / name)
    for name in ("other/deep/x.parquet", "other/_delta_log/0.json", "inside/x.parquet", "_deltasql/x"):
        aged(root / name)
    outside = aged(tmp_path / "elsewhere" / "outside.parquet")
    (root / "folder").mkdir()
    aged(root / "folder" / "_x")
    (root / "link").symlink_to(outside.parent, target_is_directory=True)
    (root / "inner").symlink_to(root / "other", target_is_directory=True)
    (root / "link.parquet").symlink_to(outside)
    aged(root / "_delta_log" / "_last_checkpoint", "{}")
    aged(root / "expired.parquet")
    aged(root / "registered" / "x.parquet")
    with Catalog(catalog_uri, create=True) as catalog, use_config(Config(publish={"mode": "off"})):
        write_deltalake(f"{catalog_uri}?table=below&location={tmp_path}/below", ids(7))
        import_table(str(root), catalog.table_uri("t"))
        with catalog.log("t").database.write() as session:  # as an older version registered them
            session.run("UPDATE dl_tables SET location = ? WHERE name = 'below'", (f"{root}/registered",))
    before = everything(tmp_path)
    table = DeltaTable(f"{catalog_uri}?table=t")
    wanted = {"expired.parquet", *(["inside/x.parquet"] if full else [])}
    assert set(table.vacuum(dry_run=True, full=full)) == wanted
    assert set(table.vacuum(dry_run=False, full=full)) == wanted
    gone = {p for p in before - everything(tmp_path) if "catalog" not in p}
    assert gone == {str(root / name) for name in wanted}
    assert table.vacuum(dry_run=False, full=full) == []


def test_a_live_file_behind_a_link_is_no_orphan(table_uri: TableUri, tmp_path: Path) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1, part="a"), partition_by=["part"])
    table = DeltaTable(uri)
    root = root_of(table)
    (root / "part=a").rename(root / "store")
    (root / "part=a").symlink_to(root / "store", target_is_directory=True)
    (root / "part=b").symlink_to(tmp_path, target_is_directory=True)
    for file in (root / "store").iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    assert table.vacuum(dry_run=False, full=True) == []
    with Catalog(uri.partition("?")[0]) as catalog:
        assert catalog.gc("t", older_than_hours=0)[0].files == ()
    assert (root / "part=b").is_symlink()
    assert ids_of(DeltaTable(uri)) == [1]


def test_a_removed_path_that_leads_to_a_live_file_is_kept(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, ids(1, part="a"), partition_by=["part"])
    (root / "part=a").rename(root / "store")
    (root / "part=a").symlink_to(root / "store", target_is_directory=True)
    (file,) = (root / "store").iterdir()
    hostile_commit(root, 1, [f"store/{file.name}"])
    with Catalog(catalog_uri, create=True) as catalog:
        import_table(str(root), catalog.table_uri("t"))
        for full in (False, True):
            assert catalog.table("t").vacuum(dry_run=False, full=full) == []
        assert ids_of(catalog.table("t")) == [1]


def test_a_live_file_that_is_a_link_is_no_orphan(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    table = DeltaTable(uri)
    root = root_of(table)
    (file,) = root.glob("*.parquet")
    (root / "store").mkdir()
    file.rename(root / "store" / "real.parquet")
    file.symlink_to(root / "store" / "real.parquet")
    os.utime(root / "store" / "real.parquet", (LONG_AGO, LONG_AGO))
    assert table.vacuum(dry_run=False, full=True) == []
    assert ids_of(DeltaTable(uri)) == [1]


def test_a_file_of_another_spelling_is_live(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, ids(1))
    log = root / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = f"./{line['add']['path']}"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file in root.glob("*.parquet"):
        os.utime(file, (LONG_AGO, LONG_AGO))
    with Catalog(catalog_uri, create=True) as catalog:
        import_table(str(root), catalog.table_uri("t"))
        assert catalog.table("t").vacuum(dry_run=False, full=True) == []
    assert len(list(root.glob("*.parquet"))) == 1


@pytest.mark.parametrize("engine_name", ["sqlite", "duckdb"])
def test_the_catalog_below_a_root_is_no_orphan(engine_name: str, tmp_path: Path) -> None:
    uri = f"deltasql://{engine_name}/{tmp_path}/t/catalog.db?table=t&location={tmp_path}/t"
    overwritten(uri)
    table = DeltaTable(uri)
    for file in (tmp_path / "t").iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    aged(tmp_path / "t" / "stray.parquet")
    assert table.vacuum(dry_run=False, full=True) == ["stray.parquet"]
    with Catalog(uri.partition("?")[0]) as catalog:
        assert catalog.gc("t", older_than_hours=0)[0].files == ()
    assert ids_of(DeltaTable(uri)) == [2]


def test_work_folders_behind_a_link_or_of_other_names_stay(table_uri: TableUri, tmp_path: Path) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    root = root_of(DeltaTable(uri))
    home = tmp_path / "home"
    aged(home / "papers" / "x")
    os.utime(home / "papers", (LONG_AGO, LONG_AGO))
    (root / WORK_FOLDER).symlink_to(home, target_is_directory=True)
    with Catalog(uri.partition("?")[0]) as catalog:
        assert catalog.gc("t")[0].work_folders == ()
        (root / WORK_FOLDER).unlink()
        aged(root / WORK_FOLDER / "mine" / "x")
        os.utime(root / WORK_FOLDER / "mine", (LONG_AGO, LONG_AGO))
        assert catalog.gc("t")[0].work_folders == ()
    assert (home / "papers" / "x").exists()
    assert (root / WORK_FOLDER / "mine" / "x").exists()


def test_an_operation_of_a_machine_whose_clock_is_ahead_protects_its_files(tmp_path: Path) -> None:
    _, _, pid, token = work_name().split("-")
    ahead = int((time.time() + 40 * 86_400) * 1000)
    (tmp_path / WORK_FOLDER / f"{ahead:013d}-{'0' * 12}-{pid}-{token}").mkdir(parents=True)
    (folder,) = operation_folders(str(tmp_path))
    assert folder.alive
    assert folder.since < time.time() * 1000 - 86_400_000


def test_a_store_deletes_nothing_through_a_link_that_leaves_it(tmp_path: Path) -> None:
    outside = aged(tmp_path / "elsewhere" / "manifest")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link").symlink_to(outside.parent, target_is_directory=True)
    with pytest.raises(StorageError, match="leads out of"):
        open_store(tmp_path / "t").delete("link/manifest")
    assert outside.exists()


def test_change_data_stays_if_not_every_retained_commit_is_known(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, pa.table({"id": [1, 2]}), configuration=FEED)
    table = DeltaTable(uri)
    table.update(updates={"id": "9"}, predicate="id = 2")
    for file in (root_of(table) / "_change_data").rglob("*.parquet"):
        os.utime(file, (LONG_AGO, LONG_AGO))
    write_deltalake(uri, pa.table({"id": [3]}), mode="append")
    DeltaTable(uri).create_checkpoint()
    with Catalog(uri.partition("?")[0]) as catalog:
        assert catalog.mirror.prune("t").commits > 0
    assert table.vacuum(full=True, dry_run=False) == []
    assert len(list((root_of(table) / "_change_data").rglob("*.parquet"))) == 1


# ---- dry runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_a_dry_run_lists_what_the_run_deletes(table_uri: TableUri, full: bool) -> None:
    uri = table_uri("t")
    table = overwritten(uri)
    aged(root_of(table) / "stray.parquet")
    for expected in (2 if full else 1, 0):
        listed = table.vacuum(**NOW, full=full)
        assert len(listed) == expected
        assert table.vacuum(**NOW, full=full, dry_run=False) == listed


def test_a_dry_run_refuses_what_the_run_refuses(table_uri: TableUri) -> None:
    uri = table_uri("t")
    table = overwritten(uri)
    plain = deltalake.DeltaTable(str(root_of(table)))
    plain.restore(0)
    for dry_run in (True, False):
        with pytest.raises(TableFrozenError):
            table.vacuum(**NOW, dry_run=dry_run)
    assert ids_of(deltalake.DeltaTable(str(root_of(table)))) == [1]


# ---- clocks ------------------------------------------------------------------------------------------------


def deletions(uri: str) -> list[Callable[[], Any]]:
    catalog = Catalog(uri.partition("?")[0])
    table = DeltaTable(uri)
    return [
        lambda: table.vacuum(dry_run=False),
        lambda: table.vacuum(dry_run=False, full=True),
        lambda: catalog.gc("t"),
        lambda: catalog.mirror.clean("t"),
    ]


@pytest.mark.parametrize("days", [40, -40])
def test_a_host_with_a_wrong_clock_deletes_nothing(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    uri = table_uri("t")
    table = overwritten(uri)
    table.create_checkpoint()
    write_deltalake(uri, ids(3), mode="append")
    (root_of(table) / "stray.parquet").write_text("x")
    (root_of(table) / "_delta_log" / ".dl-0.tmp").write_text("x")
    right = time.time_ns
    before = everything(root_of(table))
    monkeypatch.setattr(time, "time_ns", lambda: right() + days * 86_400 * 10**9)
    for run in deletions(uri):
        with pytest.raises(ClockSkewError, match="clock"):
            run()
    with use_config(Config(catalog={"clock_tolerance_s": 50 * 86_400})):
        assert DeltaTable(uri).vacuum(dry_run=True, retention_hours=24 * 200) == []
    monkeypatch.undo()
    assert everything(root_of(table)) == before
    for run in deletions(uri):
        run()
    assert ids_of(DeltaTable(uri)) == [2, 3]
