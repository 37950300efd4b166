"""Reading what is not there, what others have overtaken, and what thousands of values are asked for."""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError, TableExistsError
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from conftest import TableUri


def test_filters_may_be_a_sql_predicate(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]}))
    table = DeltaTable(table_uri("t"))
    assert table.to_pyarrow_table(filters="id >= 2", columns=["s"]).to_pydict() == {"s": ["b", "c"]}
    assert table.to_pandas(filters="s = 'a'")["id"].tolist() == [1]


def test_an_unknown_column_is_named(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), pa.table({"id": [1]}))
    table = DeltaTable(table_uri("t"))
    for read in (lambda: table.scan(columns=["x"]), lambda: table.to_pyarrow_table(columns=["x"])):
        with pytest.raises(InvalidArgumentError, match="no column 'x'"):
            read()


def test_a_missing_data_file_is_a_typed_error(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), pa.table({"id": [1]}))
    table = DeltaTable(table_uri("t"))
    Path(table.file_uris()[0]).unlink()
    with pytest.raises(StorageMissingError, match="missing"):
        table.to_pyarrow_table()


def test_data_that_is_no_table_is_refused_by_name(table_uri: TableUri) -> None:
    with pytest.raises(InvalidArgumentError, match="list"):
        write_deltalake(table_uri("t"), [1, 2])
    assert not DeltaTable.is_deltatable(table_uri("t"))


def test_an_overwrite_counts_the_files_it_removes(table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), pa.table({"id": [1]}))
    write_deltalake(table_uri("t"), pa.table({"id": [2]}), mode="append")
    write_deltalake(table_uri("t"), pa.table({"id": [3]}), mode="overwrite")
    metrics = DeltaTable(table_uri("t")).history(1)[0]["operationMetrics"]
    assert metrics["num_removed_files"] == 2


@pytest.mark.parametrize("inner", ["outer/inner", ".", "outer"])
def test_locations_may_not_overlap(catalog_uri: str, tmp_path: Path, inner: str) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("outer", pa.table({"id": [1]}), location=tmp_path / "lake" / "outer")
        with pytest.raises(TableExistsError):
            catalog.write("inner", pa.table({"id": [1]}), location=tmp_path / "lake" / inner)
        catalog.write("beside", pa.table({"id": [1]}), location=tmp_path / "lake" / "outer2")


# A handle keeps reading its own version after other writers have committed newer ones.


def test_a_stale_handle_keeps_the_files_that_a_later_overwrite_removed(table_uri):
    uri = table_uri("t")
    write_deltalake(uri, pa.table({"id": [1, 2, 3]}))
    stale = DeltaTable(uri)
    write_deltalake(uri, pa.table({"id": [9]}), mode="overwrite")

    assert stale.version() == 0
    assert len(stale.file_uris()) == 1
    assert stale.file_uris(file_pruning_predicate="id = 2") == stale.file_uris()
    assert stale.to_pyarrow_table().column("id").to_pylist() == [1, 2, 3]
    assert pa.table(stale.scan().read_all()).column("id").to_pylist() == [1, 2, 3]


def test_a_stale_handle_does_not_see_later_appends(table_uri):
    uri = table_uri("t")
    write_deltalake(uri, pa.table({"id": [1]}))
    stale = DeltaTable(uri)
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")

    assert stale.to_pyarrow_table().column("id").to_pylist() == [1]
    stale.update_incremental()
    assert sorted(stale.to_pyarrow_table().column("id").to_pylist()) == [1, 2]


# Filters of thousands of values: planned on every engine, and still picking files.


MANY = range(1_000, 4_000)
EQUAL = [f"id = {n}" for n in MANY]


@pytest.fixture
def table(table_uri: TableUri) -> DeltaTable:
    """Two files: one that the filters ask for, and one that they do not."""
    uri = table_uri("t")
    write_deltalake(uri, ids(*range(10)))
    write_deltalake(uri, ids(*range(1_000, 1_010)), mode="append")
    return DeltaTable(uri)


def test_long_lists_and_chains_pick_files_and_rows(table: DeltaTable) -> None:
    listed = f"id IN ({', '.join(map(str, MANY))})"
    for predicate in (listed, " OR ".join(EQUAL), f"NOT ({' AND '.join(f'id <> {n}' for n in MANY)})"):
        assert len(table.file_uris(file_pruning_predicate=predicate)) == 1
    # nothing is said of these by the bounds of files
    for predicate in (f"NOT {listed}", " AND ".join(f"id <> {n}" for n in MANY)):
        assert len(table.file_uris(file_pruning_predicate=predicate)) == 2
    groups = [[("id", "=", n), ("id", "<", 5_000)] for n in MANY[:1_000]]
    filters: dict[str, Any] = {
        "in": [("id", "in", list(MANY))],
        "groups": groups,
        "expression": reduce(or_, (ds.field("id") == n for n in MANY[:300])),
    }
    for wanted in filters.values():
        assert table.to_pyarrow_table(filters=wanted).num_rows == 10
    assert table.to_pyarrow_table(filters=[("id", "not in", list(MANY))]).num_rows == 10


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_rows_are_changed_by_long_predicates(table: DeltaTable) -> None:
    assert table.delete(" OR ".join(EQUAL[1:1_200]))["num_deleted_rows"] == 9
    assert ids_of(table) == [*range(10), 1_000]
