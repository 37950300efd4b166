"""Transactions over many tables: all or nothing, one snapshot, own work seen, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import (
    CatalogBusyError,
    CommitFailedError,
    ConflictError,
    DeltaError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
)
from deltalakedb.table.retries import backoff
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from conftest import TableUri


class Stop(Exception):  # noqa: N818
    """What a user's code raises in the middle of a transaction."""


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Catalog:
    """A catalog with the tables a, b and c of one row each, and a place for more."""
    catalog.set_root(tmp_path / "lake")
    for number, name in enumerate("abc"):
        catalog.write(name, ids(number))
    return catalog


def contents(lake: Catalog) -> dict[str, list[int]]:
    """All rows of all tables."""
    return {t.name: ids_of(lake.table(t.name)) for t in lake.tables()}


def versions(lake: Catalog) -> dict[str, int]:
    return {t.name: t.head.version for t in lake.tables()}


def everything(tmp_path: Path) -> set[str]:
    return files_below(tmp_path / "lake") if (tmp_path / "lake").exists() else set()


# ---- all or nothing ------------------------------------------------------------------------------------


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


# ---- own work ------------------------------------------------------------------------------------------


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


# ---- snapshots -----------------------------------------------------------------------------------------


def test_a_transaction_reads_all_tables_at_one_moment(lake: Catalog) -> None:
    with lake.transaction() as tx:
        assert ids_of(tx.table("a")) == [0]
        with lake.transaction() as other:
            other.write("a", ids(50))
            other.write("b", ids(50))
        lake.write("late", ids(1))
        assert ids_of(tx.table("a")) == [0]
        assert ids_of(tx.table("b")) == [1]
        assert [t.name for t in tx.tables()] == ["a", "b", "c"]
        with pytest.raises(TableMissingError):
            tx.table("late")
    assert contents(lake)["b"] == [1, 50]


def test_a_snapshot_is_consistent_and_read_only(lake: Catalog, tmp_path: Path) -> None:
    with lake.snapshot() as seen:
        with lake.transaction() as tx:
            tx.write("a", ids(50))
            tx.table("b").delete()
        assert (ids_of(seen.table("a")), ids_of(seen.table("b"))) == ([0], [1])
        found = seen.query("select count(*) as n from dl_commits")
        assert found.column(0).to_pylist() == [3]
        files = everything(tmp_path)
        for change in (
            lambda: seen.write("a", ids(1)),
            lambda: seen.table("a").delete(),
            lambda: seen.table("a").update({"id": "1"}),
            lambda: seen.create_table("x", ids().schema),
            lambda: seen.rename_table("a", "z"),
            lambda: seen.drop_table("a"),
            lambda: seen.execute("create table mine (id integer)"),
        ):
            with pytest.raises(InvalidArgumentError):
                change()
            assert everything(tmp_path) == files
    assert contents(lake) == {"a": [0, 50], "b": [], "c": [2]}


def test_queries_inside_are_asked_at_the_snapshot_and_change_nothing(lake: Catalog) -> None:
    with lake.transaction() as tx:
        before = tx.query("select count(*) from dl_commits").column(0)[0].as_py()
        lake.write("a", ids(5), mode="append")
        assert tx.query("select count(*) from dl_commits").column(0)[0].as_py() == before
        with pytest.raises(DeltaError):
            tx.query("delete from dl_commits")
    assert ids_of(lake.table("a")) == [0, 5]


# ---- conflicts -----------------------------------------------------------------------------------------


def test_write_skew_is_stopped(lake: Catalog) -> None:
    """Each reads both tables and empties the other's: only one may."""
    first, second = lake.transaction(), lake.transaction()
    with first, second:
        for tx in (first, second):
            assert len(ids_of(tx.table("a")) + ids_of(tx.table("b"))) == 2
        first.table("a").delete()
        second.table("b").delete()
        first.commit()
        with pytest.raises(ConflictError) as caught:
            second.commit()
    assert caught.value.context["kind"] in ("concurrent_delete_read", "concurrent_append")
    assert contents(lake) == {"a": [], "b": [1], "c": [2]}


def test_write_skew_by_appends_is_stopped(lake: Catalog) -> None:
    first, second = lake.transaction(), lake.transaction()
    with first, second:
        first.write("b", ids(len(ids_of(first.table("a")))))
        second.write("a", ids(len(ids_of(second.table("b")))))
        second.commit()
        with pytest.raises(ConflictError):
            first.commit()
    assert contents(lake) == {"a": [0, 1], "b": [1], "c": [2]}


def test_write_serializable_lets_the_appends_of_the_other_pass(lake: Catalog) -> None:
    with lake.transaction(isolation="WriteSerializable") as tx:
        count = len(ids_of(tx.table("a")))
        lake.write("a", ids(5), mode="append")
        tx.write("b", ids(count))
    assert contents(lake)["b"] == [1, 1]


def test_blind_appends_of_transactions_never_conflict(lake: Catalog) -> None:
    first, second = lake.transaction(), lake.transaction()
    with first, second:
        for tx in (first, second):
            for name in "abc":
                tx.write(name, ids(9))
    assert contents(lake) == {"a": [0, 9, 9], "b": [1, 9, 9], "c": [2, 9, 9]}


def test_a_table_dropped_by_others_fails_the_transaction(lake: Catalog) -> None:
    def work() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(5))
            tx.write("b", ids(5))
            lake.drop_table("b")

    with pytest.raises(DeltaError):
        work()
    assert contents(lake) == {"a": [0], "c": [2]}


def test_a_table_dropped_and_made_again_is_another_table(lake: Catalog, tmp_path: Path) -> None:
    def work() -> None:
        with lake.transaction() as tx:
            tx.write("b", ids(5))
            lake.drop_table("b")
            lake.write("b", ids(9), location=tmp_path / "another")

    with pytest.raises(DeltaError):
        work()
    assert contents(lake)["b"] == [9]


# ---- run -----------------------------------------------------------------------------------------------


def test_run_repeats_until_it_succeeds(lake: Catalog) -> None:
    attempts = []

    def work(tx: Any) -> int:
        attempts.append(ids_of(tx.table("a")))
        if len(attempts) < 3:
            lake.write("a", ids(len(attempts) * 10), mode="append")
        tx.table("a").update({"id": "id + 1"})
        return len(attempts)

    assert lake.run(work) == 3
    assert attempts == [[0], [0, 10], [0, 10, 20]]
    assert ids_of(lake.table("a")) == [1, 11, 21]


def test_run_raises_the_conflict_when_its_retries_are_used_up(lake: Catalog) -> None:
    attempts = []

    def work(tx: Any) -> None:
        attempts.append(1)
        tx.table("a").update({"id": "id + 1"})
        lake.write("a", ids(9), mode="append")

    with pytest.raises(ConflictError):
        lake.run(work, retries=2)
    assert len(attempts) == 3
    assert ids_of(lake.table("a")) == [0, 9, 9, 9]


def test_run_waits_for_a_database_that_is_held(lake: Catalog) -> None:
    attempts = []

    def work(tx: Any) -> str:
        attempts.append(tx.uuid)
        tx.write("a", ids(9))
        if len(attempts) < 3:
            raise CatalogBusyError("somebody holds it")
        return "done"

    assert lake.run(work) == "done"
    assert len(set(attempts)) == 3
    assert ids_of(lake.table("a")) == [0, 9]
    with pytest.raises(InvalidArgumentError, match="retries"):
        lake.run(work, retries=-1)


def test_waits_between_attempts_grow_and_are_never_in_step() -> None:
    first, later = ([backoff(attempt) for _ in range(200)] for attempt in (0, 5))
    assert 0 <= min(first) < max(first) <= 0.02 < max(later)
    assert len(set(first)) > 100
    assert max(backoff(60) for _ in range(200)) <= 2


def test_run_does_not_repeat_a_users_own_error(lake: Catalog) -> None:
    attempts = []

    def work(tx: Any) -> None:
        attempts.append(1)
        tx.write("a", ids(9))
        raise Stop

    with pytest.raises(Stop):
        lake.run(work)
    assert attempts == [1]
    assert ids_of(lake.table("a")) == [0]


# ---- own statements ------------------------------------------------------------------------------------


def test_own_rows_are_written_with_the_commit(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.execute("create table mine (id integer, note varchar(50))")
        tx.execute("insert into mine values (?, ?)", (1, "a?b"))
        tx.execute("insert into mine values (2, 'it''s; dl_files -- no')")
        tx.write("a", ids(5))
    rows = lake.query("select id, note from mine order by id").to_pylist()
    assert rows == [{"id": 1, "note": "a?b"}, {"id": 2, "note": "it's; dl_files -- no"}]


def test_own_rows_are_undone_with_the_commit(lake: Catalog) -> None:
    with lake.transaction() as tx:
        tx.execute("create table mine (id integer)")

    def work() -> None:
        with lake.transaction() as tx:
            tx.table("a").delete()
            tx.execute("insert into mine values (1)")
            lake.write("a", ids(5), mode="append")

    with pytest.raises(ConflictError):
        work()
    assert lake.query("select * from mine").num_rows == 0


DISTURBING = [
    "commit",
    "ROLLBACK",
    "  begin",
    "/* x */ commit",
    "-- x\ncommit",
    "savepoint s",
    "end",
    "insert into mine values (1); commit",
    "delete from dl_commits",
    'delete from "dl_commits"',
    "delete from main.dl_commits",
    "insert into DL_FILES values (1)",
    "update [dl_heads] set head_version = 9",
    "vacuum",
    "set transaction isolation level serializable",
    "pragma journal_mode = delete",
    "attach 'x.db' as x",
    "",
    " ; ",
    "select 1 -- ; \n; commit",
]


def test_statements_that_would_disturb_are_refused(lake: Catalog) -> None:
    for statement in DISTURBING:
        with lake.transaction() as tx, pytest.raises(InvalidArgumentError):
            tx.execute(statement)
    assert versions(lake) == {"a": 0, "b": 0, "c": 0}


def test_a_wrong_statement_fails_the_commit_and_names_the_database(lake: Catalog) -> None:
    def work() -> None:
        with lake.transaction() as tx:
            tx.write("a", ids(5))
            tx.execute("insert into nowhere values (1)")

    with pytest.raises(DeltaError):
        work()
    assert contents(lake)["a"] == [0]


# ---- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["committed", "rolled back"])
def test_a_transaction_that_is_over_answers_no_more(lake: Catalog, how: str) -> None:
    tx = lake.transaction()
    with tx:
        table = tx.table("a")
        tx.commit() if how == "committed" else tx.rollback()
        for use in (
            lambda: tx.table("a"),
            lambda: tx.write("a", ids(1)),
            lambda: tx.query("select 1"),
            lambda: tx.tables(),
            lambda: tx.execute("create table mine (id integer)"),
            lambda: tx.commit(),
            lambda: tx.create_table("x", ids().schema),
            *((lambda: table.delete(),) if how == "rolled back" else ()),  # else it is an ordinary table now
        ):
            with pytest.raises(InvalidArgumentError, match=how):
                use()
    with pytest.raises(InvalidArgumentError), tx:
        pass
    assert contents(lake) == {"a": [0], "b": [1], "c": [2]}


def test_a_handle_kept_after_a_rollback_leaves_no_file_behind(lake: Catalog, tmp_path: Path) -> None:
    with lake.transaction() as tx:
        table = tx.table("a")
        tx.rollback()
    files = everything(tmp_path)
    for use in (
        lambda: table.delete(),
        lambda: table.update({"id": "7"}),
        lambda: write_deltalake(table, ids(1), mode="append"),
        lambda: write_deltalake(table, ids(1), mode="overwrite"),
    ):
        with pytest.raises(InvalidArgumentError):
            use()
        assert everything(tmp_path) == files


def test_a_transaction_that_has_not_begun_answers_nothing(lake: Catalog) -> None:
    with pytest.raises(InvalidArgumentError, match="begun"):
        lake.transaction().write("a", ids(1))


def test_a_failed_commit_does_not_say_that_it_was_committed(lake: Catalog) -> None:
    tx = lake.transaction()
    with tx:
        tx.table("a").delete()
        lake.write("a", ids(5), mode="append")
        with pytest.raises(ConflictError):
            tx.commit()
        with pytest.raises(InvalidArgumentError) as caught:
            tx.write("a", ids(1))
    assert "committed" not in str(caught.value)
    assert tx.commits == {}


def test_transactions_in_one_another_are_separate(lake: Catalog) -> None:
    with lake.transaction() as outer:
        outer.write("a", ids(5))
        with lake.transaction() as inner:
            inner.write("b", ids(5))
        assert ids_of(lake.table("b")) == [1, 5]
        assert ids_of(lake.table("a")) == [0]
    assert contents(lake) == {"a": [0, 5], "b": [1, 5], "c": [2]}


def test_an_empty_transaction_does_nothing(lake: Catalog) -> None:
    with lake.transaction() as tx:
        ids_of(tx.table("a"))
    assert tx.commits == {}
    assert versions(lake) == {"a": 0, "b": 0, "c": 0}


def test_a_failed_operation_inside_can_be_caught_and_the_rest_committed(
    lake: Catalog, tmp_path: Path
) -> None:
    with lake.transaction() as tx:
        tx.write("a", ids(5))
        with pytest.raises(Exception):  # noqa: B017
            tx.table("a").update({"id": "no_such_column"})
        with pytest.raises(Exception):  # noqa: B017
            tx.write("b", pa.table({"other": [1]}))
        tx.write("c", ids(5))
    assert contents(lake) == {"a": [0, 5], "b": [1], "c": [2, 5]}
    assert not any("_deltasql" in f for f in everything(tmp_path))


def test_the_library_and_stock_write_through_a_transactions_handle(lake: Catalog) -> None:
    with lake.transaction() as tx:
        write_deltalake(tx.table("a"), ids(5), mode="append")
        deltalake.write_deltalake(tx.table("b"), ids(6), mode="append")
        assert ids_of(lake.table("a")) == [0]
    assert contents(lake) == {"a": [0, 5], "b": [1, 6], "c": [2]}


def test_handles_outside_see_the_commit_when_they_look_again(lake: Catalog, table_uri: TableUri) -> None:
    outside = lake.table("a")
    with lake.transaction() as tx:
        tx.write("a", ids(5))
    assert ids_of(outside) == [0]
    outside.update_incremental()
    assert ids_of(outside) == [0, 5]
    assert isinstance(outside, DeltaTable)


def test_an_unknown_isolation_level_is_refused(lake: Catalog) -> None:
    with pytest.raises(InvalidArgumentError, match="isolation"):
        lake.transaction(isolation="sometimes")  # type: ignore[arg-type]
