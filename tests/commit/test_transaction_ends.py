"""The end of a transaction: what it leaves, and what its handles are afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    ConflictError,
    InvalidArgumentError,
)
from support.lake import ids, ids_of
from support.transactions import contents, everything, versions

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri


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


def test_an_empty_transaction_makes_no_catalog(catalog_uri: str, tmp_path: Path) -> None:
    catalog = Catalog(catalog_uri)
    with catalog.transaction(txn_uuid="mine") as tx:
        pass
    assert tx.commits == {}
    with catalog.transaction() as tx:
        for use in (lambda: tx.table("a"), lambda: tx.tables(), lambda: tx.drop_table("a")):
            with pytest.raises(CatalogNotFoundError):
                use()
    assert catalog.run(lambda tx: tx.uuid)
    with pytest.raises(CatalogNotFoundError):
        catalog.tables()
    with catalog.transaction() as tx:
        tx.write("a", ids(5), location=tmp_path / "a")
        assert [t.name for t in tx.tables()] == ["a"]
        assert ids_of(tx.table("a")) == [5]
    assert contents(catalog) == {"a": [5]}


def test_a_statement_of_ones_own_is_enough_to_make_a_catalog(catalog_uri: str) -> None:
    catalog = Catalog(catalog_uri)
    with catalog.transaction() as tx:
        tx.execute("create table mine (id integer)")
    assert catalog.query("select * from mine").num_rows == 0


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
