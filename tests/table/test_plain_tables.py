"""Plain paths through our names behave as through stock's; addresses choose the class by themselves."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalakedb.writer._utils import try_get_table_and_table_uri

import deltalakedb
from deltalakedb.exceptions import TableExistsError, TableNotFoundError
from deltalakedb.table.handle import handle_of
from deltalakedb.transaction import AddAction, create_table_with_add_actions
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

sqlite = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


def test_a_plain_path_makes_stocks_table(tmp_path: Path) -> None:
    where = tmp_path / "t"
    assert not deltalakedb.DeltaTable.is_deltatable(where)
    deltalakedb.write_deltalake(where, ids(1, 2))
    assert deltalakedb.DeltaTable.is_deltatable(str(where))
    table = deltalakedb.DeltaTable(where)
    assert type(table) is deltalakedb.DeltaTable
    assert isinstance(table, deltalake.DeltaTable)
    assert type(table._table) is type(deltalake.DeltaTable(where)._table)
    assert ids_of(copy.copy(table)) == [1, 2]
    deltalakedb.write_deltalake(table, ids(3), mode="append")
    assert deltalake.DeltaTable(where).version() == 1
    assert deltalakedb.DeltaTable(where, 0).version() == 0


def test_what_stock_refuses_on_a_plain_path_is_refused_the_same_way(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError) as ours:
        deltalakedb.DeltaTable(tmp_path / "nothing")
    with pytest.raises(TableNotFoundError) as theirs:
        deltalake.DeltaTable(tmp_path / "nothing")
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


def test_creating_a_plain_table_by_position_warns_as_stock_does(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    properties = deltalakedb.CommitProperties(custom_metadata={"who": "me"})
    where = str(tmp_path / "t")
    with pytest.warns(DeprecationWarning, match=r"positionally to create\(\)") as caught:
        made = deltalakedb.DeltaTable.create(where, schema, "error", None, None, None, None, None, properties)
    assert caught[0].filename == __file__
    assert made.history()[0]["who"] == "me"
    with pytest.raises(TypeError, match="multiple values"), pytest.warns(DeprecationWarning, match="create"):
        deltalakedb.DeltaTable.create(
            where, schema, "error", None, None, None, None, None, None, commit_properties=properties
        )


@pytest.mark.parametrize("option", [{"without_files": True}, {"log_buffer_size": 3}, {"skip_stats": True}])
@sqlite
def test_ignored_options_warn_the_caller(option: dict[str, Any], table_uri: TableUri, tmp_path: Path) -> None:
    for where in (str(tmp_path / "plain"), table_uri("t")):
        deltalakedb.write_deltalake(where, ids(1))
        with pytest.warns(DeprecationWarning, match=f"'{next(iter(option))}'.*deprecated") as caught:
            deltalakedb.DeltaTable(where, **option)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            deltalakedb.DeltaTable(where)


@sqlite
def test_an_address_makes_a_sql_backed_table_of_any_subclass(table_uri: TableUri) -> None:
    class Named(deltalakedb.DeltaTable):
        def __init__(self, catalog: dict[str, str], *, key: str) -> None:
            super().__init__(catalog[key])
            self.key = key

        def shout(self) -> str:
            return self.key.upper()

    deltalakedb.write_deltalake(table_uri("t"), ids(1))
    table = Named({"a": table_uri("t")}, key="a")
    assert isinstance(table, Named)
    assert handle_of(table) is not None
    assert table.shout() == "A"
    assert ids_of(table) == [1]
    assert type(Named({"a": table_uri("t")}, key="a")) is type(table)


def parquet_folder(root: Path) -> None:
    for day in ("1", "2"):
        (root / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([int(day)], pa.int64())}), root / f"day={day}" / "x.parquet")


def test_a_folder_of_parquet_becomes_a_sql_backed_table(table_uri: TableUri, tmp_path: Path) -> None:
    partitions = deltalakedb.Schema([deltalakedb.Field("day", "integer")])
    for root in (tmp_path / "lake" / "t", tmp_path / "plain"):
        parquet_folder(root)
    options: dict[str, Any] = {"partition_by": partitions, "partition_strategy": "hive", "name": "logs"}
    deltalakedb.convert_to_deltalake(tmp_path / "plain", **options)
    deltalakedb.convert_to_deltalake(table_uri("t"), **options)
    table, plain = deltalakedb.DeltaTable(table_uri("t")), deltalake.DeltaTable(tmp_path / "plain")
    assert sorted(table.to_pyarrow_table().to_pylist(), key=str) == [{"id": 1, "day": 1}, {"id": 2, "day": 2}]
    assert table.metadata().name == "logs"
    told = [h.history()[0]["operationParameters"] for h in (table, plain)]
    assert told[0].keys() == told[1].keys()
    keep = ["path", "size_bytes", "num_records", "min", "max", "partition"]
    adds = [pa.table(t.get_add_actions(flatten=False)).select(keep).to_pylist() for t in (table, plain)]
    assert sorted(adds[0], key=str) == sorted(adds[1], key=str)
    # the same folder once more: refused, or left alone
    with pytest.raises(TableExistsError):
        deltalakedb.convert_to_deltalake(table_uri("t"), **options)
    deltalakedb.convert_to_deltalake(table_uri("t"), mode="ignore", **options)
    assert deltalake.DeltaTable(tmp_path / "lake" / "t").version() == table.version() == 0


@sqlite
def test_a_conversion_that_fails_leaves_the_folder_as_it_was(table_uri: TableUri, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    parquet_folder(root)
    (root / "day=1" / "broken.parquet").write_bytes(b"no parquet")
    before = sorted(root.rglob("*"))
    with pytest.raises(deltalakedb.exceptions.DeltaError):
        deltalakedb.convert_to_deltalake(table_uri("t"), partition_strategy="hive")
    assert sorted(root.rglob("*")) == before
    assert not deltalakedb.DeltaTable.is_deltatable(table_uri("t"))


def test_a_table_is_made_of_add_actions(table_uri: TableUri, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    root.mkdir(parents=True)
    schema = deltalakedb.Schema.from_arrow(pa.schema([("id", pa.int64())]))

    def file(name: str, *numbers: int) -> AddAction:
        pq.write_table(pa.table({"id": pa.array(numbers, pa.int64())}), root / name)
        stats = f'{{"numRecords":{len(numbers)}}}'
        return AddAction(name, (root / name).stat().st_size, {}, 1, data_change=True, stats=stats)

    create_table_with_add_actions(table_uri("t"), schema, [file("a.parquet", 1), file("b.parquet", 2, 3)])
    table = deltalakedb.DeltaTable(table_uri("t"))
    assert ids_of(table) == [1, 2, 3]
    create_table_with_add_actions(table_uri("t"), schema, [file("c.parquet", 4)], mode="ignore")
    with pytest.raises(TableExistsError):
        create_table_with_add_actions(table_uri("t"), schema, [file("c.parquet", 4)])
    create_table_with_add_actions(table_uri("t"), schema, [file("c.parquet", 4)], mode="overwrite")
    table.update_incremental()
    assert (table.version(), ids_of(table)) == (1, [4])
    assert (root / "a.parquet").exists()
    assert ids_of(deltalake.DeltaTable(root)) == [4]


@sqlite
def test_a_table_is_looked_up_by_its_address_or_itself(table_uri: TableUri, tmp_path: Path) -> None:
    for where in (tmp_path / "plain", str(tmp_path / "text"), table_uri("t")):
        assert try_get_table_and_table_uri(where) == (None, str(where))
        deltalakedb.write_deltalake(where, ids(1))
        found, uri = try_get_table_and_table_uri(where)
        assert isinstance(found, deltalakedb.DeltaTable)
        assert (found, uri) == (deltalakedb.DeltaTable(where), str(where))
        assert try_get_table_and_table_uri(found) == (found, found.table_uri)
    with pytest.raises(ValueError, match="not NoneType"):
        try_get_table_and_table_uri(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_no_table_is_at_another_location(catalog_uri: str, tmp_path: Path) -> None:
    uri = f"{catalog_uri}?table=t"
    assert not deltalakedb.DeltaTable.is_deltatable(f"{uri}&location={tmp_path}/t")
    deltalakedb.write_deltalake(f"{uri}&location={tmp_path}/t", pa.table({"id": [1]}))
    assert deltalakedb.DeltaTable.is_deltatable(uri)
    assert deltalakedb.DeltaTable.is_deltatable(f"{uri}&location={tmp_path}/t/")
    assert not deltalakedb.DeltaTable.is_deltatable(f"{uri}&location={tmp_path}/other")
