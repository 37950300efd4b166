"""``DeltaTable._table`` is an ordinary attribute: stock's Python runs on whatever it holds."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.table.drop_in.raw_table import RawSqlTable
from deltalakedb.table.handle import TableHandle, handle_of, require_handle
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path


class RaceProxy:
    """As in delta-rs's ``python/tests/test_history.py``: a raw table that somebody overtakes."""

    def __init__(self, raw: Any, overtake: Any) -> None:
        self._raw = raw
        self._overtake = overtake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def history(self, limit: int | None) -> Any:
        self._overtake()
        return self._raw.history(limit)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    made = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    write_deltalake(made, ids(1))
    return made


def test_a_raw_table_may_be_replaced_as_the_tests_of_delta_rs_do(uri: str) -> None:
    table = DeltaTable(uri)
    table._table = RaceProxy(table._table, lambda: write_deltalake(uri, ids(2), mode="append"))  # type: ignore[assignment]
    assert [entry["version"] for entry in table.history()] == [0]
    assert [entry["version"] for entry in DeltaTable(uri).history()] == [1, 0]
    assert handle_of(table) is not None
    assert ids_of(table) == [1]
    table.update_incremental()
    assert (table.version(), ids_of(table), table.count()) == (1, [1, 2], 2)


def test_the_seam_is_an_attribute_of_the_table(uri: str) -> None:
    table = DeltaTable(uri)
    assert type(table) is DeltaTable
    assert type(table._table) is RawSqlTable
    assert vars(table).keys() == {"_storage_options", "_table"}
    other = DeltaTable(uri)
    write_deltalake(uri, ids(2), mode="append")
    other.update_incremental()
    table._table = other._table
    assert (table.version(), table == other) == (1, True)


def test_only_sql_backed_tables_have_a_handle(uri: str, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "plain", ids(1))
    handle = handle_of(DeltaTable(uri))
    assert isinstance(handle, TableHandle)
    assert (handle.name, handle.version, handle.row.location) == ("t", 0, str(tmp_path / "t"))
    for plain in (DeltaTable(tmp_path / "plain"), deltalake.DeltaTable(tmp_path / "plain")):
        assert handle_of(plain) is None
        with pytest.raises(InvalidArgumentError, match="plain Delta table"):
            require_handle(plain)
    for name in ("name", "address"):
        assert not hasattr(DeltaTable(tmp_path / "plain"), name)
    assert (DeltaTable(uri).name, DeltaTable(uri).address) == ("t", DeltaTable(uri).address)


def test_a_subclass_survives_a_pickle(uri: str) -> None:
    table = Subclass(uri)
    table.note = "mine"
    write_deltalake(uri, ids(2), mode="append")
    again = pickle.loads(pickle.dumps(table))
    assert (type(again), again.note, again.version(), ids_of(again)) == (Subclass, "mine", 0, [1])


class Subclass(DeltaTable):
    note = ""


def test_stock_runs_every_operation_on_the_seam(uri: str) -> None:
    """Methods of stock's class, called on a SQL-backed table, commit in SQL."""
    table = DeltaTable(uri)
    stock = deltalake.DeltaTable
    deltalake.write_deltalake(table, ids(2, 3), mode="append")
    stock.delete(table, "id = 3")
    stock.update(table, updates={"id": "id + 10"}, predicate="id = 2")
    source = pa.table({"id": [1, 5]})
    stock.merge(table, source, "s.id = t.id", "s", "t").when_not_matched_insert_all().execute()
    stock.alter.fget(table).set_table_description("of stock")  # type: ignore[attr-defined]
    stock.optimize.fget(table).compact()  # type: ignore[attr-defined]
    assert ids_of(DeltaTable(uri)) == [1, 5, 12]
    assert stock.metadata(table).description == "of stock"
    assert stock.restore(table, 0)["numRestoredFile"] == 1
    assert ids_of(DeltaTable(uri)) == [1]


def test_a_table_of_a_transaction_follows_it(uri: str) -> None:
    with Catalog(uri.partition("?")[0]) as catalog:
        with catalog.transaction() as tx:
            table = tx.table("t")
            tx.write("t", ids(2))
            assert (ids_of(table), table.version()) == ([1, 2], 0)
            assert handle_of(table) is handle_of(tx.table("t"))
        assert "version" not in repr(table)
        assert (table.version(), ids_of(table)) == (1, [1, 2])
        table.delete("id = 1")
        assert ids_of(deltalakedb.DeltaTable(uri)) == [2]
        with catalog.transaction() as tx:
            table = tx.table("t")
            tx.rollback()
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="rolled back"):
                table.version()
