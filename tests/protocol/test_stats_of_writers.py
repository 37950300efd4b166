"""Bounds read from statistics that delta-rs wrote enclose the very rows it wrote."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.protocol.actions import Add, decode_commit
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from pathlib import Path

# dates that every writer's time arithmetic can hold
START, END = datetime(1700, 1, 1), datetime(2200, 1, 1)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=80)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(START.date(), END.date())),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(START, END, timezones=st.just(UTC))),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes(START, END)),
    "decimal(9,4)": (pa.decimal128(9, 4), st.decimals(-99999, 99999, places=4)),
    "decimal(38,10)": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    "decimal(38,0)": (pa.decimal128(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
}
rows = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stats") / "table"


@settings(max_examples=40)
@given(data=rows)
def test_bounds_enclose_every_row_that_was_written(folder: Path, data: list[dict[str, Any]]) -> None:
    table = pa.table(
        {name: pa.array([row[name] for row in data], type_) for name, (type_, _) in COLUMNS.items()}
    )
    shutil.rmtree(folder, ignore_errors=True)
    write_deltalake(folder, table)
    actions = decode_commit((folder / "_delta_log" / f"{0:020}.json").read_bytes())
    (add,) = [action for action in actions if isinstance(action, Add)]
    stats = parse_stats(add.stats)
    assert stats is not None
    assert stats.num_records == len(data)
    schema = next(parse_schema(a.schema_string) for a in actions if hasattr(a, "schema_string"))
    for leaf in schema.leaves():
        assert isinstance(leaf.type, PrimitiveType)
        bounds = stats.bounds(leaf.physical_path, leaf.type)
        column = table[leaf.path[0]].to_pylist()
        for value in (v for v in column if v is not None):
            assert bounds.min is None or bounds.min <= value
            assert bounds.max is None or value <= bounds.max
        assert bounds.null_count in (None, column.count(None))
