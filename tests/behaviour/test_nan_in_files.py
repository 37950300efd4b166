"""NaN stays NaN and is found, whoever wrote the file and whatever its statistics leave out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from deltalakedb import DeltaTable, write_deltalake

if TYPE_CHECKING:
    from collections.abc import Callable


def values(table: Any, **options: Any) -> list[str]:
    found = pa.RecordBatchReader.from_stream(table.scan(columns=["x"], **options)).read_all()
    return sorted(map(repr, found["x"].to_pylist()))


def test_delta_rs_does_not_take_a_column_with_nan_for_a_constant(table_uri: Callable[[str], str]) -> None:
    uri = table_uri("t")
    # delta-rs writes the first file, with 1.0 as minimum and maximum; the second is ours
    write_deltalake(uri, pa.table({"x": [1.0, math.nan], "p": ["a", "b"]}))
    write_deltalake(uri, pa.table({"x": [2.0, math.nan], "p": ["a", "b"]}), mode="append")
    table = DeltaTable(uri)
    assert values(table, predicate="x >= 0") == ["1.0", "2.0", "nan", "nan"]
    table.update({"p": "'c'"}, predicate="x >= 0")
    assert values(DeltaTable(uri)) == ["1.0", "2.0", "nan", "nan"]
    assert DeltaTable(uri).to_pyarrow_table()["p"].to_pylist() == ["c"] * 4


def test_stock_filters_files_whose_columns_hold_nan(table_uri: Callable[[str], str]) -> None:
    uri = table_uri("t")
    for least in (1.0, 2.0, 3.0):
        write_deltalake(uri, pa.table({"x": [least, math.nan], "p": ["a", "b"]}), mode="append")
    # stock's dataset finds nothing in files that have no minimum
    plain = deltalake.DeltaTable(DeltaTable(uri).table_uri)
    for table in (DeltaTable(uri), plain):
        found = table.to_pyarrow_table(filters=[("x", ">=", 2.0)])["x"].to_pylist()
        assert sorted(x for x in found if x == x) == [2.0, 3.0]


def test_negative_zero_equals_zero(table_uri: Callable[[str], str]) -> None:
    uri = table_uri("t")
    for part in (-0.0, 0.0, 1.0):
        write_deltalake(uri, pa.table({"x": [part] * 2, "p": [part] * 2}), mode="append", partition_by=["p"])
    table = DeltaTable(uri)
    for column in ("x", "p"):
        for text in (f"{column} = 0", f"{column} IN (0.0, 5)", f"{column} <= 0"):
            assert len(values(table, predicate=text)) == 4, text
        assert table.to_pyarrow_table(filters=[(column, "=", 0.0)]).num_rows == 4
    assert table.delete("p = 0")["num_deleted_rows"] == 4
    assert values(DeltaTable(uri)) == ["1.0", "1.0"]
