"""OPTIMIZE, RESTORE, ALTER and repair inside transactions: seen at once inside, committed with the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, Field, write_deltalake
from deltalakedb.commit.fold import fold
from deltalakedb.exceptions import ConflictError
from deltalakedb.protocol.actions import Add, Remove
from support.lake import files_below, ids, ids_of, root_of
from support.twins import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import TableUri


@pytest.fixture
def catalog(table_uri: TableUri, catalog_uri: str) -> Iterator[Catalog]:
    """A table ``t`` of three files in three versions, and an empty one."""
    for number in range(3):
        write_deltalake(table_uri("t"), ids(number), mode="append")
    DeltaTable.create(table_uri("notes"), ids(1).schema)
    with Catalog(catalog_uri) as made:
        yield made


def steps(catalog: Catalog, name: str = "t") -> list[str]:
    return [h["operation"] for h in catalog.table(name).history()]


def same(catalog: Catalog, name: str = "t") -> None:
    """The folder says what the catalog says, and nothing lies about."""
    table = catalog.table(name)
    root = root_of(table)
    assert rows_of(table) == rows_of(deltalake.DeltaTable(str(root)))
    assert not (root / "_deltasql").exists()
    assert catalog.mirror.verify(name).ok


def test_operations_are_seen_inside_and_committed_together(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        table = tx.table("t")
        table.alter.add_columns(Field("more", "long"))
        assert [f.name for f in table.schema().fields] == ["id", "part", "more"]
        done = table.optimize.compact()
        assert (done["numFilesRemoved"], done["numFilesAdded"]) == (3, 1)
        assert len(table.file_uris()) == 1
        tx.write("notes", ids(7))
        assert catalog.table("t").version() == 2
    assert tx.commits["t"].version == 3, "one version for both"
    assert ids_of(catalog.table("t")) == [0, 1, 2]
    assert steps(catalog)[0] == "TRANSACTION"
    same(catalog)
    same(catalog, "notes")


def test_new_rows_are_not_hidden_by_their_compaction(catalog: Catalog) -> None:
    """Folded into one version, an append and its compaction would pass for no change at all."""
    with catalog.transaction() as tx:
        tx.write("t", ids(3))
        tx.table("t").optimize.compact()
        tx.table("t").delete("id = 1")
    assert steps(catalog)[:3] == ["DELETE", "OPTIMIZE", "WRITE"]
    assert ids_of(catalog.table("t")) == [0, 2, 3]
    same(catalog)


def test_a_restore_inside_sees_what_was_done_before_it(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        table = tx.table("t")
        table.delete("id = 0")
        tx.write("t", ids(9))
        assert table.restore(1) == {"numRemovedFile": 2, "numRestoredFile": 1}
        assert ids_of(table) == [0, 1]
    assert ids_of(catalog.table("t")) == [0, 1]
    same(catalog)


def test_what_is_rolled_back_leaves_nothing(catalog: Catalog) -> None:
    root = root_of(catalog.table("t"))
    before = files_below(root)
    with catalog.transaction() as tx:
        tx.table("t").optimize.z_order(["id"])
        tx.table("t").alter.set_table_name("never")
        tx.table("t").restore(0)
        tx.rollback()
    assert files_below(root) == before
    assert catalog.table("t").version() == 2


def test_a_compaction_inside_minds_no_append_outside(catalog: Catalog, table_uri: TableUri) -> None:
    with catalog.transaction() as tx:
        tx.table("t").optimize.compact()
        tx.write("notes", ids(1))
        write_deltalake(table_uri("t"), ids(5), mode="append")
    assert ids_of(catalog.table("t")) == [0, 1, 2, 5]
    with catalog.transaction() as tx:
        tx.table("t").optimize.compact()
        catalog.table("t").delete("id = 1")
        with pytest.raises(ConflictError):
            tx.commit()
    same(catalog)


def test_several_commits_of_one_operation_fold(catalog: Catalog, table_uri: TableUri) -> None:
    for part in ("a", "b"):
        for number in range(2):
            write_deltalake(table_uri("p"), ids(number, part=part), mode="append", partition_by=["part"])
    with catalog.transaction() as tx:
        tx.table("p").optimize.compact(min_commit_interval=0)
    assert steps(catalog, "p") == ["OPTIMIZE", "WRITE", "WRITE", "WRITE", "WRITE"]
    same(catalog, "p")


def test_lost_files_are_taken_out_inside(catalog: Catalog) -> None:
    Path(catalog.table("t").file_uris()[0]).unlink()
    with catalog.transaction() as tx:
        assert len(tx.table("t").repair()["files_removed"]) == 1
        tx.write("t", ids(8))
    assert 8 in ids_of(catalog.table("t"))
    assert len(ids_of(catalog.table("t"))) == 3
    same(catalog)


def test_a_fold_keeps_apart_what_changes_rows_and_what_does_not() -> None:
    def add(path: str, *, change: bool) -> Add:
        return Add(path=path, partition_values={}, size=1, modification_time=1, data_change=change)

    def gone(path: str, *, change: bool) -> Remove:
        return Remove(path=path, data_change=change)

    written, compacted = [add("a", change=True)], [gone("a", change=False), add("b", change=False)]
    deleted = [gone("b", change=True), add("c", change=True)]
    assert len(fold([written, compacted]).versions) == 2
    assert len(fold([compacted, deleted]).versions) == 2
    assert len(fold([written, [gone("a", change=True)]]).versions) == 1


def test_predicates_know_the_columns_that_the_transaction_added(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        table = tx.table("t")
        table.alter.add_columns(Field("q", "string"))
        table.update({"q": "'x'"}, predicate="id = 1")
        assert table.to_pyarrow_table(filters=[("q", "=", "x")])["id"].to_pylist() == [1]
        table.delete("q = 'x'")
        assert len(table.file_uris(file_pruning_predicate="q = 'x'")) <= 3
    assert ids_of(catalog.table("t")) == [0, 2]
    same(catalog)
