"""Reading asks for what is not there: typed errors that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError, TableExistsError

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
