"""Going back: before an import is finished, after it, and part of the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import (
    Catalog,
    DeltaTable,
    follow_table,
    import_status,
    import_table,
    rollback_import,
    write_deltalake,
)
from deltalakedb.exceptions import (
    InvalidArgumentError,
    TableFrozenError,
    TableMissingError,
    UnsupportedOperationError,
    VerificationError,
)
from deltalakedb.failpoints import FailpointError
from deltalakedb.transfer.importing import encoding, plan
from support.lake import files_below, ids, ids_of
from support.processes import Child, arm
from support.sources import change, contents, count, many_files, plain_table

if TYPE_CHECKING:
    from pathlib import Path

LOADED = ("dl_commits", "dl_commit_bytes", "dl_metadata", "dl_protocol")
FILES = {
    "dl_files": "file_id", "dl_file_details": "file_id", "dl_file_stats": "file_id", "dl_packs": "first_id",
    "dl_pack_columns": "first_id", "dl_stats_blocks": "first_id",
}  # fmt: skip


def interrupted(root: Path, uri: str, batches: int, history: str = "checkpoint") -> None:
    """An import that stopped after some batches."""
    arm(f"import.batch_done=error@{batches}")
    try:
        with pytest.raises(FailpointError):
            import_table(str(root), uri, history=history, batch_size=15)
    finally:
        arm("")


def test_an_unfinished_import_loses_only_what_it_loaded(tmp_path: Path, catalog_uri: str) -> None:
    other, uri = f"{catalog_uri}?table=other", f"{catalog_uri}?table=t"
    import_table(str(plain_table(tmp_path / "other")), other)
    before = contents(other)
    root = many_files(tmp_path / "many")
    interrupted(root, uri, 5)
    would = rollback_import(uri, dry_run=True)
    assert (would.action, would.batches, would.dry_run) == ("undone", 5, True)
    assert import_status(uri)[0].phase == "loading"
    done = rollback_import(uri)
    assert (done.action, done.batches, done.num_files) == ("undone", 5, would.num_files)
    assert contents(other) == before
    for table, key in [*((name, "table_id") for name in LOADED), *FILES.items()]:
        which = key if key == "table_id" else f"({key} >> 40)"
        with Catalog(catalog_uri) as catalog:
            ours = catalog.describe("other").table_id
            asked = catalog.query(f"SELECT count(*) AS n FROM {table} WHERE {which} <> {ours}")
        assert asked.to_pylist() == [{"n": 0}], table
    assert import_status(uri)[0].phase == "undone"
    with pytest.raises(TableMissingError):
        rollback_import(uri)
    assert import_table(str(root), uri, history="checkpoint").action == "imported"


def test_batches_can_be_undone_one_by_one_and_loaded_again(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    import_table(str(root), uri, history="checkpoint", batch_size=15)
    wanted = contents(uri)
    rollback_import(uri)
    for keep in (4, 2, 0):
        interrupted(root, uri, 5)
        part = rollback_import(uri, keep_batches=keep)
        assert (part.action, part.batches, part.batches_left) == ("partly undone", 5 - keep, keep)
        assert import_status(uri)[0].batches_done == keep
        with pytest.raises(InvalidArgumentError, match="started with history='checkpoint'"):
            import_table(str(root), uri, history="full")
        assert import_table(str(root), uri).action == "resumed"
        assert contents(uri) == wanted, keep
        with pytest.raises(InvalidArgumentError):
            rollback_import(uri, keep_batches=1)
        rollback_import(uri)


def test_packed_commits_that_were_undone_are_loaded_again(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PACK_MIN", 1)
    monkeypatch.setattr(plan, "COMMITS_PER_BATCH", 2)
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri, history="full")
    wanted = contents(uri)
    rollback_import(uri)
    for keep in (3, 1, 0):
        interrupted(root, uri, 4, history="full")
        rollback_import(uri, keep_batches=keep)
        assert import_table(str(root), uri, verify="full").action == "resumed"
        assert contents(uri) == wanted, keep
        rollback_import(uri)


def test_a_finished_import_becomes_a_plain_table_with_every_later_commit(
    tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    write_deltalake(uri, ids(100, 101, part="z"), mode="append")
    DeltaTable(uri).delete("id = 3")
    expected = ids_of(DeltaTable(uri))
    before = files_below(root)
    would = rollback_import(uri, dry_run=True)
    assert (would.action, would.version) == ("released", 10)
    assert DeltaTable(uri).version() == 10
    done = rollback_import(uri, verify="full")
    assert (done.action, done.version) == ("released", 10)
    assert done.verification is not None
    assert done.verification.ok
    stock = deltalake.DeltaTable(root)
    assert (stock.version(), ids_of(stock)) == (10, expected)
    assert files_below(root) == before
    assert import_status(uri)[0].phase == "undone"
    deltalake.write_deltalake(root, ids(200), mode="append")
    again = import_table(str(root), uri)
    assert (again.action, again.version) == ("imported", 11)


def test_a_table_that_was_never_imported_is_not_rolled_back(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    with Catalog(catalog_uri, create=True) as catalog:
        # created under the name of a table that was imported and dropped
        catalog.drop_table("t")
        catalog.write("t", ids(1), location=tmp_path / "native")
        catalog.write("t", ids(2), mode="append")
        for dry_run in (True, False):
            with pytest.raises(UnsupportedOperationError, match="never imported") as caught:
                rollback_import(uri, dry_run=dry_run)
            assert "export t --in-place" in (caught.value.suggestion or "")
            assert "drop t" in (caught.value.suggestion or "")
        assert ids_of(catalog.table("t")) == [1, 2]
        catalog.write("t", ids(3), mode="append")
    assert ids_of(deltalake.DeltaTable(tmp_path / "native")) == [1, 2, 3]


def test_a_followed_copy_is_rolled_back_and_a_renamed_import_too(tmp_path: Path, catalog_uri: str) -> None:
    root = plain_table(tmp_path / "plain")
    follow_table(str(root), f"{catalog_uri}?table=copy", once=True)
    assert rollback_import(f"{catalog_uri}?table=copy").action == "released"
    import_table(str(root), f"{catalog_uri}?table=t")
    with Catalog(catalog_uri) as catalog:
        catalog.rename_table("t", "u")
    assert rollback_import(f"{catalog_uri}?table=u").action == "released"


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_what_is_not_in_the_log_is_never_given_up(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.pause("t")
        write_deltalake(uri, ids(100), mode="append")
        with pytest.raises(UnsupportedOperationError) as caught:
            rollback_import(uri)
        assert "mirror run" in (caught.value.suggestion or "")
        catalog.mirror.resume("t")
        deltalake.write_deltalake(root, ids(300), mode="append")
        with pytest.raises(VerificationError) as ahead:
            rollback_import(uri)
        assert f"deltasql import {root} t --catch-up" in (ahead.value.suggestion or "")
        with pytest.raises(TableFrozenError):
            write_deltalake(uri, ids(101), mode="append")
        with pytest.raises(TableFrozenError) as frozen:
            rollback_import(uri)
        assert "mirror" in (frozen.value.suggestion or "")
        catalog.mirror.recover("t")
    change(uri, "UPDATE dl_files SET size = size + 1 WHERE remove_version IS NULL")
    with pytest.raises(VerificationError):
        rollback_import(uri)
    assert DeltaTable(uri).version() == 10


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_rollback_that_is_killed_can_be_repeated(tmp_path: Path, catalog_uri: str) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    for keep, left in ((None, 0), (1, 4)):
        interrupted(root, uri, 5)
        Child(undo, uri, keep, folder=tmp_path, points="import.undoing=kill@1").died()
        assert import_status(uri)[0].batches_done == left
        rollback_import(uri)
        assert count(uri, "dl_files") == count(uri, "dl_commits") == 0
        assert import_status(uri)[0].phase == "undone"


def undo(uri: str, keep: int | None) -> None:
    rollback_import(uri, keep_batches=keep)
