"""What transactions read, what they run into, and how often they are repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.exceptions import (
    CatalogBusyError,
    ConflictError,
    DeltaError,
    InvalidArgumentError,
    TableMissingError,
)
from deltalakedb.retry import backoff
from support.lake import ids, ids_of
from support.transactions import Stop, contents, everything

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog


# ---- snapshots --------------------------------------------------------------------------------------


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


# ---- conflicts --------------------------------------------------------------------------------------


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


# ---- run --------------------------------------------------------------------------------------------


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


def test_run_with_an_id_has_one_effect(lake: Catalog) -> None:
    attempts = []

    def work(tx: Any) -> None:
        attempts.append(tx.uuid)
        tx.table("a").update({"id": "id + 1"})
        if len(attempts) == 1:
            lake.write("a", ids(10), mode="append")

    for _ in range(2):
        lake.run(work, txn_uuid="once")
    assert set(attempts) == {"once"}
    assert ids_of(lake.table("a")) == [1, 11]


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
