"""Transactions over many tables: all or nothing, and own work seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from deltalakedb.exceptions import (
    CommitFailedError,
    ConflictError,
    DeltaError,
    TableExistsError,
    TableMissingError,
)
from support.lake import files_below, ids, ids_of, root_of
from support.transactions import Stop, contents, everything, versions

if TYPE_CHECKING:
    from deltalakedb import Catalog


# ---- all or nothing ---------------------------------------------------------------------------------


def test_data_and_ddl_become_visible_together(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.write("a", ids(10))
        tx.table("b").delete("id = 1")
        tx.table("c").update({"id": "id * 100"})
        tx.write("d", ids(4))
        tx.create_table("e", ids().schema, comment="new")
        assert contents(lake) == {"a": [0], "b": [1], "c": [2]}
    assert contents(lake) == {"a": [0, 10], "b": [], "c": [200], "d": [4], "e": []}
    assert {n: c.version for n, c in tx.commits.items()} == {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}
    assert lake.describe("e").comment == "new"
    assert len({lake.table(n).history(1)[0]["txnId"] for n in "abcde"}) == 1
    for table in lake.tables():
        assert ids_of(deltalake.DeltaTable(table.location)) == ids_of(lake.table(table.name))
        assert table.published_version == table.head.version


def test_an_exception_rolls_everything_back(lake: Catalog, tmp_path: Path) -> None:
    before, files = contents(lake), everything(tmp_path)

    def work() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(10))
            tx.write("b", ids(11), mode="overwrite")
            tx.table("c").delete()
            tx.write("d", ids(4))
            tx.create_table("e", ids().schema)
            tx.rename_table("a", "z")
            tx.drop_table("b")
            tx.execute("create table mine (id integer)")
            raise Stop

    with pytest.raises(Stop):
        work()
    assert contents(lake) == before
    assert versions(lake) == {"a": 0, "b": 0, "c": 0}
    assert everything(tmp_path) == files
    with pytest.raises(DeltaError):
        lake.query("select * from mine")


@pytest.mark.parametrize("loser", ["a", "b", "c", "new", "own"])
def test_a_failure_at_commit_undoes_all_of_it(lake: Catalog, tmp_path: Path, loser: str) -> None:
    with lake.transaction() as tx:
        tx.execute("create table mine (id integer primary key)")
        tx.execute("insert into mine values (1)")

    def work() -> None:
        with lake.transaction() as tx:
            for name in "abc":
                tx.table(name).update({"id": "id + 1"})
            tx.write("new", ids(9))
            tx.rename_table("a", "z")
            tx.execute("insert into mine values (?)", (1 if loser == "own" else 2,))
            if loser in "abc":
                lake.write(loser, ids(77), mode="append")
            elif loser == "new":
                lake.write("new", ids(77))

    with pytest.raises(DeltaError) as caught:
        work()
    if loser in "abc":
        assert isinstance(caught.value, ConflictError)
        assert isinstance(caught.value, CommitFailedError)
        assert caught.value.table == loser
    elif loser == "new":
        assert isinstance(caught.value, TableExistsError)
    expected = {"a": [0], "b": [1], "c": [2]}
    if loser != "own":
        expected[loser] = sorted([*expected.get(loser, []), 77])
    assert contents(lake) == expected
    assert lake.query("select id from mine").column(0).to_pylist() == [1]
    live = {Path(u).name for t in lake.tables() for u in lake.table(t.name).file_uris()}
    assert {Path(f).name for f in everything(tmp_path) if f.endswith(".parquet")} == live
    assert not any("_deltasql" in f for f in everything(tmp_path))


def test_rename_and_drop_happen_with_the_data(lake: Catalog) -> None:
    where = lake.describe("c").location
    with lake.transaction() as tx:
        tx.write("a", ids(5))
        tx.rename_table("b", "renamed")
        tx.drop_table("c")
    assert contents(lake) == {"a": [0, 5], "renamed": [1]}
    assert ids_of(deltalake.DeltaTable(where)) == [2]


def test_a_table_that_is_written_and_renamed_is_published_under_its_new_name(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.write("a", ids(5))
        tx.rename_table("a", "z")
    assert contents(lake)["z"] == [0, 5]
    assert ids_of(deltalake.DeltaTable(lake.describe("z").location)) == [0, 5]


def test_ddl_on_tables_that_are_not_there_fails_and_changes_nothing(lake: Catalog) -> None:
    def rename() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(5))
            tx.rename_table("nobody", "somebody")

    def drop() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(5))
            tx.drop_table("nobody")

    def taken() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(5))
            tx.rename_table("b", "c")

    for work, error in ((rename, TableMissingError), (drop, TableMissingError), (taken, TableExistsError)):
        with pytest.raises(error):
            work()
    assert contents(lake) == {"a": [0], "b": [1], "c": [2]}


def test_creating_what_exists_is_refused_inside(lake: Catalog) -> None:
    with lake.transaction() as tx:
        with pytest.raises(TableExistsError):
            tx.create_table("a", ids().schema)
        tx.create_table("d", ids().schema)
        with pytest.raises(TableExistsError):
            tx.create_table("d", ids().schema)
        with pytest.raises(TableExistsError):
            tx.write("a", ids(1), mode="error")
        tx.write("a", ids(1), mode="ignore")
    assert contents(lake) == {"a": [0], "b": [1], "c": [2], "d": []}


# ---- own work ---------------------------------------------------------------------------------------


def test_reads_inside_see_own_writes(lake: Catalog) -> None:
    with lake.transaction() as tx:
        a = tx.table("a")
        assert ids_of(a) == [0]
        tx.write("a", ids(1, 2, 3))
        assert ids_of(a) == [0, 1, 2, 3]
        assert len(a.file_uris()) == 2
        assert a.file_uris(file_pruning_predicate="id > 100") == []
        assert len(a.file_uris(file_pruning_predicate="id = 2")) == 1
        a.delete("id < 2")
        assert ids_of(a) == [2, 3]
        a.update({"id": "id * 10"}, predicate="id = 3")
        assert ids_of(a) == [2, 30]
        merger = a.merge(ids(30, 40), "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update({"id": "t.id + 1"}).when_not_matched_insert_all().execute()
        assert ids_of(a) == [2, 31, 40]
        assert sorted(pa.table(a.scan().read_all())["id"].to_pylist()) == [2, 31, 40]
        assert sorted(a.to_pandas()["id"]) == [2, 31, 40]
        tx.write("a", ids(5), mode="overwrite", predicate="id > 35 OR id = 5")
        tx.write("d", ids(7))
        tx.table("d").update({"id": "id + 1"})
        assert ids_of(tx.table("d")) == [8]
        assert ids_of(lake.table("a")) == [0]
    assert contents(lake) == {"a": [2, 5, 31], "b": [1], "c": [2], "d": [8]}
    assert versions(lake) == {"a": 1, "b": 0, "c": 0, "d": 0}


def test_operations_fold_into_one_version_without_leftover_files(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.write("a", ids(1, 2))
        tx.table("a").update({"id": "id + 10"})
        tx.table("a").delete("id = 12")
        tx.write("a", ids(3))
    table = lake.table("a")
    assert (table.version(), ids_of(table)) == (1, [3, 10, 11])
    data = {f for f in files_below(root_of(table)) if f.endswith(".parquet")}
    live = {Path(u).name for u in table.file_uris()}
    stock = deltalake.DeltaTable(table.table_uri)
    assert ids_of(stock) == [3, 10, 11]
    # what is on disk is live now, or was live at version 0
    first = {Path(u).name for u in lake.table("a", version=0).file_uris()}
    assert data == live | first
    assert table.history(1)[0]["operation"] == "TRANSACTION"


def test_a_table_that_ends_as_it_began_keeps_its_rows(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.write("a", ids(1))
        tx.table("a").delete("id = 1")
    assert ids_of(lake.table("a")) == [0]
    assert {Path(f).name for f in files_below(lake.describe("a").location) if f.endswith(".parquet")} == {
        Path(u).name for u in lake.table("a").file_uris()
    }


def test_schema_changes_inside_are_seen_and_become_versions(lake: Catalog) -> None:
    wider = pa.table({"id": pa.array([9], pa.int64()), "part": ["a"], "more": ["x"]})
    widest = pa.table({"id": pa.array([10], pa.int64()), "part": ["a"], "most": [1.5]})
    with lake.transaction() as tx:
        tx.write("a", wider, schema_mode="merge")
        assert tx.table("a").to_pyarrow_table().column_names == ["id", "part", "more"]
        tx.table("a").update({"id": "id + 2"}, predicate="id = 9")
        tx.write("a", ids(9), schema_mode="merge")
        tx.write("a", widest, schema_mode="merge")
    table = lake.table("a")
    assert table.version() == 2
    assert table.schema().to_arrow().names == ["id", "part", "more", "most"]
    assert ids_of(table) == [0, 9, 10, 11]
    stock = deltalake.DeltaTable(table.table_uri)
    assert (stock.version(), ids_of(stock)) == (2, [0, 9, 10, 11])
    assert ids_of(deltalake.DeltaTable(table.table_uri, version=1)) == [0, 9, 11]


def test_a_change_feed_gets_a_version_for_each_operation(lake: Catalog) -> None:
    lake.write("f", ids(1, 2, 3), configuration={"delta.enableChangeDataFeed": "true"})
    lake.write("other", ids(1))
    with lake.transaction() as tx:
        tx.table("f").update({"id": "id + 10"}, predicate="id = 1")
        tx.table("f").delete("id = 2")
        tx.write("other", ids(2))
        # others make progress meanwhile: the versions are numbered when they are committed
        lake.write("other", ids(3), mode="append")
    table = lake.table("f")
    assert (table.version(), ids_of(table)) == (2, [3, 11])
    assert tx.commits["f"].version == 2
    stock = deltalake.DeltaTable(table.table_uri)
    changes = pa.table(stock.load_cdf(starting_version=1).read_all()).to_pylist()
    found = sorted((c["_commit_version"], c["_change_type"], c["id"]) for c in changes)
    assert found == [
        (1, "update_postimage", 11),
        (1, "update_preimage", 1),
        (2, "delete", 2),
    ]
    assert contents(lake)["other"] == [1, 2, 3]


def test_versions_of_one_transaction_are_renumbered_together(lake: Catalog) -> None:
    lake.write("f", ids(1, 2, 3), configuration={"delta.isolationLevel": "WriteSerializable"})
    wider = pa.table({"id": pa.array([9], pa.int64()), "part": ["a"], "more": ["x"]})
    with lake.transaction() as tx:
        tx.write("f", ids(4))
        tx.write("f", ids(5))
        lake.write("f", ids(6), mode="append")
    assert tx.commits["f"].version == 2
    with lake.transaction() as tx:
        tx.write("f", wider, schema_mode="merge")
    assert ids_of(deltalake.DeltaTable(lake.describe("f").location)) == [1, 2, 3, 4, 5, 6, 9]
