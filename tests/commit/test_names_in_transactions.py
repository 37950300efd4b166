"""Names inside a transaction: tables are dropped, renamed and made anew under one name, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, write_deltalake
from deltalakedb.exceptions import (
    ConflictError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.settings import Config, PublishConfig
from support.lake import files_below, ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.table.transaction import CatalogTransaction


class Stop(Exception):  # noqa: N818
    """What a user's code raises in the middle of a transaction."""


def contents(lake: Catalog) -> dict[str, list[int]]:
    return {t.name: ids_of(lake.table(t.name)) for t in lake.tables()}


def data_files(tmp_path: Path) -> set[str]:
    return {f for f in files_below(tmp_path / "lake") if f.endswith(".parquet")}


def rolled_back(lake: Catalog, work: Callable[[CatalogTransaction], object]) -> None:
    """Do it, and change one's mind."""

    def inside() -> None:
        with lake.transaction() as tx:
            work(tx)
            raise Stop

    with pytest.raises(Stop):
        inside()


def drop_and_create(tx: CatalogTransaction) -> None:
    tx.drop_table("a")
    with pytest.raises(TableMissingError):
        tx.table("a")
    tx.write("a", ids(100))
    tx.table("a").update({"id": "id + 1"})
    assert ids_of(tx.table("a")) == [101]
    assert [(t.name, t.head.version) for t in tx.tables()] == [("a", -1), ("b", 0), ("c", 0)]


def rename_onto_dropped(tx: CatalogTransaction) -> None:
    tx.write("b", ids(7))
    tx.drop_table("a")
    tx.rename_table("b", "a")
    assert ids_of(tx.table("a")) == [1, 7]
    tx.table("a").delete("id = 1")
    tx.write("b", ids(50))
    assert [t.name for t in tx.tables()] == ["a", "b", "c"]


def swap(tx: CatalogTransaction) -> None:
    tx.rename_table("a", "aside")
    tx.rename_table("b", "a")
    tx.rename_table("aside", "b")
    tx.write("b", ids(9))
    assert (ids_of(tx.table("a")), ids_of(tx.table("b"))) == ([1], [0, 9])


def circle(tx: CatalogTransaction) -> None:
    tx.rename_table("c", "x")
    tx.rename_table("b", "c")
    tx.rename_table("a", "b")
    tx.rename_table("x", "a")


def replace_by_new(tx: CatalogTransaction) -> None:
    """The usual way to publish a rebuilt table: made under another name, then put in its place."""
    tx.write("fresh", ids(5))
    tx.rename_table("a", "a_before")
    tx.rename_table("fresh", "a")
    assert tx.table("a").name == "a"


CHANGES = [
    (drop_and_create, {"a": [101], "b": [1], "c": [2]}),
    (rename_onto_dropped, {"a": [7], "b": [50], "c": [2]}),
    (swap, {"a": [1], "b": [0, 9], "c": [2]}),
    (circle, {"a": [2], "b": [0], "c": [1]}),
    (replace_by_new, {"a": [5], "a_before": [0], "b": [1], "c": [2]}),
]


@pytest.mark.parametrize(("work", "after"), CHANGES, ids=lambda c: getattr(c, "__name__", ""))
def test_names_change_hands_all_or_nothing(
    lake: Catalog, tmp_path: Path, work: Callable[[CatalogTransaction], None], after: dict[str, list[int]]
) -> None:
    before, files = contents(lake), data_files(tmp_path)
    places = {t.name: t.location for t in lake.tables()}
    rolled_back(lake, work)
    assert (contents(lake), data_files(tmp_path)) == (before, files)
    with lake.transaction() as tx:
        work(tx)
        assert contents(lake) == before
    assert contents(lake) == after
    assert tx.result is not None
    assert set(tx.result.versions) <= set(after)
    for name, version in tx.result.versions.items():
        assert lake.describe(name).head.version == version
    for table in lake.tables():
        assert table.published_version == table.head.version
        assert ids_of(deltalake.DeltaTable(table.location)) == after[table.name]
    # whatever was dropped is a plain table of its last version still
    for name, location in places.items():
        if all(t.location != location for t in lake.tables()):
            assert ids_of(deltalake.DeltaTable(location)) == before[name]


def test_a_failure_at_commit_gives_every_name_back(lake: Catalog, tmp_path: Path) -> None:
    def work() -> None:
        with lake.transaction() as tx:
            swap(tx)
            tx.drop_table("c")
            tx.write("c", ids(3))
            assert ids_of(tx.table("a")) == [1]
            lake.write("b", ids(77), mode="append")

    with pytest.raises(ConflictError) as caught:
        work()
    assert caught.value.table == "b"
    assert contents(lake) == {"a": [0], "b": [1, 77], "c": [2]}
    live = {Path(u).name for t in lake.tables() for u in lake.table(t.name).file_uris()}
    assert {Path(f).name for f in data_files(tmp_path)} == live


def test_what_was_done_to_a_dropped_table_is_not_done(lake: Catalog, tmp_path: Path) -> None:
    files, location = data_files(tmp_path), lake.describe("a").location
    with lake.transaction() as tx:
        tx.write("a", ids(8))
        handle = tx.table("a")
        tx.drop_table("a")
        with pytest.raises(TableMissingError, match="dropped in this transaction"):
            handle.delete()
        tx.write("new", ids(1))
        tx.rename_table("new", "newer")
        newer = tx.table("newer")
        tx.drop_table("newer")
        with pytest.raises(TableMissingError):
            write_deltalake(newer, ids(2), mode="append")
    assert contents(lake) == {"b": [1], "c": [2]}
    assert data_files(tmp_path) == files
    assert tx.commits == {}
    assert ids_of(deltalake.DeltaTable(location)) == [0]


def test_a_table_that_others_drop_or_rename_meanwhile_is_told(lake: Catalog, tmp_path: Path) -> None:
    def renamed_meanwhile(tx: CatalogTransaction) -> None:
        tx.rename_table("a", "mine")
        lake.rename_table("a", "theirs")

    def replaced_meanwhile(tx: CatalogTransaction) -> None:
        tx.drop_table("b")
        lake.drop_table("b")
        lake.write("b", ids(5))

    def taken_meanwhile(tx: CatalogTransaction) -> None:
        tx.rename_table("c", "wanted")
        lake.write("wanted", ids(6))

    for work, error in (
        (renamed_meanwhile, TableMissingError),
        (replaced_meanwhile, TableMissingError),
        (taken_meanwhile, TableExistsError),
    ):

        def attempt(work: Callable[[CatalogTransaction], None] = work) -> None:
            with lake.transaction() as tx:
                tx.write("extra", ids(1))
                work(tx)

        with pytest.raises(error):
            attempt()
    assert contents(lake) == {"theirs": [0], "b": [5], "c": [2], "wanted": [6]}


def test_rows_for_a_name_never_go_to_the_table_that_had_it_before(lake: Catalog, tmp_path: Path) -> None:
    late = lake.table("a", version=0)  # stays at its version

    def late_append(tx: CatalogTransaction) -> None:
        tx.write("a", ids(7))
        with lake.transaction() as other:  # a rebuilt table takes the place of the old one
            other.write("rebuilt", other.table("a").to_pyarrow_table())
            other.rename_table("a", "before")
            other.rename_table("rebuilt", "a")

    def attempt() -> None:
        with lake.transaction() as tx:
            tx.write("b", ids(8))
            late_append(tx)

    with pytest.raises(TableMissingError, match="'a' was renamed to 'before' in the meantime"):
        attempt()
    before = data_files(tmp_path)
    with pytest.raises(TableMissingError, match="renamed to 'before'"):
        late.update({"id": "id + 1"})
    assert data_files(tmp_path) == before
    write_deltalake(lake.table_uri("a"), ids(9), mode="append")
    assert contents(lake) == {"a": [0, 9], "b": [1], "before": [0], "c": [2]}


def test_taken_names_are_refused_at_once(lake: Catalog) -> None:
    with lake.transaction() as tx:
        for change in (
            lambda: tx.rename_table("a", "b"),
            lambda: tx.create_table("a", ids().schema),
        ):
            with pytest.raises(TableExistsError):
                change()
        tx.create_table("d", ids().schema)
        with pytest.raises(TableExistsError):
            tx.rename_table("a", "d")
        tx.rename_table("a", "a")
        tx.rename_table("b", "z")
        with pytest.raises(TableExistsError):
            tx.rename_table("c", "z")
        with pytest.raises(TableMissingError):
            tx.rename_table("b", "y")
    assert contents(lake) == {"a": [0], "z": [1], "c": [2], "d": []}


def test_commits_that_are_not_published_keep_a_table_from_being_dropped(
    catalog_uri: str, tmp_path: Path
) -> None:
    quiet = Catalog(catalog_uri, config=Config(publish=PublishConfig(mode="off")))
    quiet.set_root(tmp_path / "lake")
    quiet.write("a", ids(1))
    with quiet.transaction() as tx:
        with pytest.raises(UnsupportedOperationError, match="would be lost"):
            tx.drop_table("a")
        assert ids_of(tx.table("a")) == [1]
        tx.drop_table("a", force=True)
    assert quiet.tables() == []


def test_a_commit_that_comes_before_the_drop_and_is_not_published_keeps_the_table(
    catalog_uri: str, tmp_path: Path
) -> None:
    quiet = Catalog(catalog_uri, config=Config(publish=PublishConfig(mode="off")))
    quiet.set_root(tmp_path / "lake")
    quiet.write("a", ids(1))
    quiet.mirror.publish("a")

    def dropped(*, force: bool) -> None:
        with quiet.transaction() as tx:
            tx.drop_table("a", force=force)
            tx.write("b", ids(7))
            quiet.write("a", ids(2), mode="append")

    with pytest.raises(UnsupportedOperationError, match="would be lost: 1"):
        dropped(force=False)
    assert contents(quiet) == {"a": [1, 2]}
    with pytest.raises(UnsupportedOperationError, match="would be lost: 1"):
        quiet.drop_table("a")
    dropped(force=True)
    assert contents(quiet) == {"b": [7]}


def test_a_repeated_transaction_does_not_change_names_twice(lake: Catalog) -> None:
    results = []
    for _ in range(2):
        with lake.transaction(txn_uuid="swap-once") as tx:
            tx.rename_table("a", "aside")
            tx.rename_table("b", "a")
            tx.rename_table("aside", "b")
            tx.drop_table("c")
            tx.write("c", ids(9))
        assert tx.result is not None
        results.append((tx.result.versions, tx.result.replayed))
    assert contents(lake) == {"a": [1], "b": [0], "c": [9]}
    assert results == [({"c": 0}, False), ({"c": 0}, True)]


# ---- older versions --------------------------------------------------------------------------------------


def test_an_older_version_is_read_inside_and_never_changed(lake: Catalog, tmp_path: Path) -> None:
    for number in (10, 20):
        lake.write("a", ids(number), mode="append")
    files = data_files(tmp_path)
    with lake.transaction() as tx:
        old = tx.table("a", version=1)
        lake.write("a", ids(30), mode="append")
        tx.write("b", ids(*ids_of(old)))
        assert (old.version(), ids_of(old), len(old.history())) == (1, [0, 10], 2)
        assert tx.table("a").version() == 2
        changes: list[Callable[[], Any]] = [
            lambda: old.delete(),
            lambda: old.update({"id": "1"}),
            lambda: write_deltalake(old, ids(1), mode="append"),
            lambda: write_deltalake(old, ids(1), mode="overwrite"),
            lambda: (
                old.merge(ids(1), "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_delete()
                .execute()
            ),
        ]
        for change in changes:
            with pytest.raises(InvalidArgumentError, match="reading only") as caught:
                change()
            assert (caught.value.table, caught.value.version) == ("a", 1)
        for wrong in (3, 99):  # 3 is there by now, but not at the transaction's snapshot
            with pytest.raises(VersionMissingError):
                tx.table("a", version=wrong)
        with pytest.raises(InvalidArgumentError):
            tx.table("a", version=-1)
        tx.rename_table("a", "z")
        assert ids_of(tx.table("z", version=0)) == [0]
        with pytest.raises(TableMissingError):
            tx.table("a", version=0)
        tx.create_table("a", ids().schema)
        with pytest.raises(VersionMissingError):
            tx.table("a", version=0)
    assert contents(lake) == {"a": [], "b": [0, 1, 10], "c": [2], "z": [0, 10, 20, 30]}
    assert (
        data_files(tmp_path) - files
        == {f for f in data_files(tmp_path) if Path(f).name in _names(lake, "b", "z")} - files
    )
    with lake.snapshot() as seen:
        assert ids_of(seen.table("z", version=2)) == [0, 10, 20]


def _names(lake: Catalog, *tables: str) -> set[str]:
    return {Path(u).name for t in tables for u in lake.table(t).file_uris()}
