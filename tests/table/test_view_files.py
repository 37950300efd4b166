"""Filters on texts and bytes in files that delta-rs rewrote, which have them as view types."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from deltalakedb import DeltaTable, write_deltalake

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def table(tmp_path: Any, catalog_uri: str) -> DeltaTable:
    """A table with a rewritten file and a plain one."""
    address = f"{catalog_uri}?table=t&location={tmp_path}/t"
    rows = pa.table({"k": ["a", "b", "c", None], "b": [b"a", b"b", b"c", None], "v": [1, 2, 3, 4]})
    write_deltalake(address, rows)
    DeltaTable(address).delete("v = 3")
    write_deltalake(address, pa.table({"k": ["a", "x"], "b": [b"a", b"x"], "v": [7, 8]}), mode="append")
    return DeltaTable(address)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([("k", "=", "a")], [1, 7]),
        ([("b", "=", b"a")], [1, 7]),
        ([("k", ">", "a")], [2, 8]),
        ([("k", "!=", "a")], [2, 8]),
        ([("k", "in", ["b", "x"])], [2, 8]),
        ([[("k", "=", "b")], [("v", "=", 7)]], [2, 7]),
        ([("k", "=", "nowhere")], []),
        ([("v", ">", 2)], [4, 7, 8]),
    ],
)
def test_filters_in_tuples(table: DeltaTable, filters: Any, wanted: list[int]) -> None:
    assert sorted(table.to_pyarrow_table(filters=filters)["v"].to_pylist()) == wanted
    some = table.to_pyarrow_table(columns=["v"], filters=filters)
    assert (some.column_names, sorted(some["v"].to_pylist())) == (["v"], wanted)
    assert sorted(table.to_pandas(filters=filters)["v"].tolist()) == wanted


def test_filters_of_a_dataset(table: DeltaTable) -> None:
    rows = table.to_pyarrow_dataset()
    assert isinstance(rows, ds.FileSystemDataset)
    where = ds.field("k") == "a"
    assert rows.count_rows(filter=where) == 2
    assert rows.to_table(filter=where).schema == rows.schema
    assert sum(b.num_rows for b in rows.to_batches(filter=where, columns=["v"])) == 2
    assert rows.scanner(filter=where, columns={"double": ds.field("v") * 2}).to_table()["double"].to_pylist()
    assert rows.head(1, filter=where).num_rows == 1
    assert rows.to_table(filter=ds.field(0) == "a", columns=["v"]).num_rows == 2
    assert rows.to_table(["v"], where).column_names == ["v"]
    kept = rows.filter(where)
    assert kept.to_table().num_rows == kept.count_rows() == 2
    assert kept.filter(ds.field("v") > 1).to_table(filter=ds.field("b") == b"a")["v"].to_pylist() == [7]
    assert pickle.loads(pickle.dumps(rows)).to_table().num_rows == rows.to_table().num_rows == 5
    with pytest.raises(pa.ArrowNotImplementedError):
        rows.to_table(filter=ds.field("v") == "a")
