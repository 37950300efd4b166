"""Tables whose files were moved: the catalog follows if the log and the files at the new place are theirs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, import_status, import_table
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    LogMissingError,
    TableExistsError,
    TableMissingError,
    VerificationError,
)
from support.lake import ids, ids_of
from support.mirrors import commit_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Path:
    """A folder with the tables `a` and `b.c` of two versions each, and the catalog's root."""
    folder = tmp_path / "lake"
    for name in ("a", "b.c"):
        catalog.write(name, ids(1), location=folder / name)
        catalog.write(name, ids(2), mode="append")
    catalog.set_root(folder)
    return folder


def test_a_moved_table_is_read_and_written_at_its_new_place(
    catalog: Catalog, lake: Path, tmp_path: Path
) -> None:
    opened = catalog.table("a")
    (lake / "a").rename(tmp_path / "new")
    would = catalog.relocate_table("a", tmp_path / "new", dry_run=True)
    assert catalog.describe("a").location == str(lake / "a")
    done = catalog.relocate_table("a", tmp_path / "new")
    assert would.tables == done.tables
    assert (would.dry_run, done.dry_run, done.root) == (True, False, None)
    (moved,) = done.tables
    assert (moved.table, moved.old_location, moved.location, moved.version) == (
        "a", str(lake / "a"), str(tmp_path / "new"), 1,
    )  # fmt: skip
    catalog.write("a", ids(3), mode="append")
    assert ids_of(catalog.table("a")) == ids_of(deltalake.DeltaTable(tmp_path / "new")) == [1, 2, 3]
    opened.delete("id = 1")  # by a handle from before
    assert ids_of(deltalake.DeltaTable(tmp_path / "new")) == [2, 3]
    assert not (lake / "a").exists()
    assert catalog.mirror.verify("a").ok
    audit = catalog.query("SELECT table_name, details FROM dl_v_audit WHERE action = 'relocate table'")
    assert [(row["table_name"], str(tmp_path / "new") in row["details"]) for row in audit.to_pylist()] == [
        ("a", True)
    ]


def test_a_transaction_that_read_the_old_place_is_refused(
    catalog: Catalog, lake: Path, tmp_path: Path
) -> None:
    shutil.copytree(lake / "a", tmp_path / "new")
    with catalog.transaction() as tx:
        tx.write("a", ids(3))
        catalog.relocate_table("a", tmp_path / "new")
        with pytest.raises(TableMissingError, match="moved to"):
            tx.commit()
    assert ids_of(catalog.table("a")) == [1, 2]


def test_an_append_that_remembers_the_old_place_goes_to_the_new_one(
    catalog: Catalog, lake: Path, tmp_path: Path
) -> None:
    shutil.copytree(lake / "a", tmp_path / "copy")
    catalog.write("a", ids(3), mode="append")
    commit_file(tmp_path / "copy", 2).write_bytes(commit_file(lake / "a", 2).read_bytes())
    for file in (lake / "a").glob("*.parquet"):
        shutil.copy(file, tmp_path / "copy")
    before = sorted((lake / "a").iterdir())
    catalog.relocate_table("a", tmp_path / "copy")
    catalog.write("a", ids(4), mode="append")
    assert sorted((lake / "a").iterdir()) == before
    assert ids_of(deltalake.DeltaTable(tmp_path / "copy")) == [1, 2, 3, 4]


def test_a_lake_moves_with_its_tables_and_its_root(catalog: Catalog, lake: Path, tmp_path: Path) -> None:
    catalog.write("beside", ids(1), location=tmp_path / "lake2")
    lake.rename(tmp_path / "moved")
    would = catalog.relocate_tables(lake, tmp_path / "moved", dry_run=True)
    done = catalog.relocate_tables(lake, tmp_path / "moved")
    assert would.tables == done.tables
    assert [t.location for t in done.tables] == [str(tmp_path / "moved" / name) for name in ("a", "b.c")]
    assert would.root == done.root == catalog.root == str(tmp_path / "moved")
    assert catalog.describe("beside").location == str(tmp_path / "lake2")
    for name in ("a", "b.c"):
        assert ids_of(catalog.table(name)) == [1, 2]
    with pytest.raises(InvalidArgumentError, match="no table of the catalog is at or below"):
        catalog.relocate_tables(lake, tmp_path / "moved")


def test_a_lake_may_move_into_itself(catalog: Catalog, tmp_path: Path) -> None:
    """One table takes the location that another leaves."""
    folder = tmp_path / "x"
    catalog.write("outer", ids(1), location=folder / "t")
    catalog.write("inner", ids(2), location=folder / "x" / "t")
    folder.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", folder / "x")
    catalog.relocate_tables(folder, folder / "x")
    assert catalog.describe("outer").location == str(folder / "x" / "t")
    assert catalog.describe("inner").location == str(folder / "x" / "x" / "t")
    assert (ids_of(catalog.table("outer")), ids_of(catalog.table("inner"))) == ([1], [2])


def nothing(lake: Path, place: Path) -> None:
    place.mkdir()


def another_table(lake: Path, place: Path) -> None:
    shutil.copytree(lake / "b.c", place)


def an_older_copy(lake: Path, place: Path) -> None:
    shutil.copytree(lake / "a", place)
    commit_file(place, 1).unlink()


def another_history(lake: Path, place: Path) -> None:
    an_older_copy(lake, place)
    deltalake.write_deltalake(place, ids(9), mode="append")


def no_data(lake: Path, place: Path) -> None:
    shutil.copytree(lake / "a", place, ignore=shutil.ignore_patterns("*.parquet"))


@pytest.mark.parametrize(
    ("prepare", "error", "words"),
    [
        (nothing, LogMissingError, "there is no _delta_log"),
        (another_table, VerificationError, "has the id"),
        (an_older_copy, VerificationError, "version 1: the commit file is missing"),
        (another_history, VerificationError, "another commit has the place of ours"),
        (no_data, VerificationError, "the data file .* is missing"),
    ],
)
def test_a_place_without_the_whole_table_is_refused(
    catalog: Catalog,
    lake: Path,
    tmp_path: Path,
    prepare: Callable[[Path, Path], None],
    error: type[DeltaSqlError],
    words: str,
) -> None:
    prepare(lake, tmp_path / "place")
    before = catalog.tables()
    for dry_run in (True, False):
        with pytest.raises(error, match=words) as caught:
            catalog.relocate_table("a", tmp_path / "place", dry_run=dry_run)
        assert caught.value.suggestion
    shutil.copytree(lake, tmp_path / "lake2")
    shutil.rmtree(tmp_path / "lake2" / "a")
    (tmp_path / "place").rename(tmp_path / "lake2" / "a")
    with pytest.raises(error, match=words):
        catalog.relocate_tables(lake, tmp_path / "lake2")
    assert catalog.tables() == before
    assert catalog.root == str(lake)


def test_a_place_of_another_table_is_refused(catalog: Catalog, lake: Path, tmp_path: Path) -> None:
    for place in (lake / "b.c", lake / "b.c" / "below", lake):
        with pytest.raises(TableExistsError):
            catalog.relocate_table("a", place)
    (tmp_path / "link").symlink_to(lake / "b.c")
    with pytest.raises(TableExistsError, match="leads to the same folder"):
        catalog.relocate_table("a", tmp_path / "link")
    with pytest.raises(InvalidArgumentError, match="already"):
        catalog.relocate_table("a", lake / "a")
    with pytest.raises(InvalidArgumentError, match="the same place"):
        catalog.relocate_tables(lake, lake)
    with pytest.raises(TableMissingError):
        catalog.relocate_table("nope", tmp_path / "x")


def test_unpublished_commits_are_published_at_the_new_place(
    catalog: Catalog, lake: Path, tmp_path: Path
) -> None:
    catalog.mirror.pause("a")
    catalog.write("a", ids(3), mode="append")
    (lake / "a").rename(tmp_path / "new")
    catalog.relocate_table("a", tmp_path / "new")
    catalog.mirror.resume("a")
    assert ids_of(deltalake.DeltaTable(tmp_path / "new")) == [1, 2, 3]


def test_an_imported_table_is_relocated_with_its_import(catalog: Catalog, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    for n in range(3):
        deltalake.write_deltalake(plain, ids(n), mode="append")
    deltalake.DeltaTable(plain).create_checkpoint()
    uri = catalog.table_uri("t")
    import_table(str(plain), uri, history="checkpoint")
    plain.rename(tmp_path / "moved")
    catalog.relocate_table("t", tmp_path / "moved")
    (status,) = import_status(uri)
    assert status.location == str(tmp_path / "moved")
    assert import_table(str(tmp_path / "moved"), uri, catch_up=True).action == "unchanged"
