"""The same table twice, in the catalog and as stock keeps it: what is done to both comes out the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, write_deltalake
from support.lake import files_below, root_of

if TYPE_CHECKING:
    from collections.abc import Callable


def sales(*numbers: int) -> pa.Table:
    """Rows with an id, a place and an amount; the place is a partition column in some tests."""
    places = ["x", None, "a b", "é/%=:", "y"]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "place": pa.array([places[n % len(places)] for n in numbers], pa.string()),
            "amount": pa.array([None if n % 4 == 3 else n / 2 for n in numbers], pa.float64()),
        }
    )


def rows_of(table: deltalake.DeltaTable) -> list[dict[str, Any]]:
    found = pa.RecordBatchReader.from_stream(table.scan()).read_all()
    return sorted(found.to_pylist(), key=lambda r: json.dumps(r, sort_keys=True, default=str))


def shape(value: Any) -> Any:
    """Metrics without clocks and sizes; details that stock writes as a text, as what they say."""
    if not isinstance(value, dict):
        return value
    varies = ("_ms", "size", "Size", "time", "avg", "max", "min")
    return {
        k: shape(json.loads(v)) if isinstance(v, str) and v.startswith("{") else v
        for k, v in value.items()
        if k in ("maxBinSpanFiles",) or not any(word in k for word in varies)
    }


@dataclass
class Twins:
    """The same table twice: in the catalog, and as stock keeps it."""

    uri: str
    plain: str

    def open(self) -> tuple[DeltaTable, deltalake.DeltaTable]:
        return DeltaTable(self.uri), deltalake.DeltaTable(self.plain)

    def write(self, data: pa.Table, **options: Any) -> None:
        write_deltalake(self.uri, data, **options)
        deltalake.write_deltalake(self.plain, data, **options)

    def both(self, operation: Callable[[Any], Any]) -> None:
        """Run an operation on both, and find no difference."""
        ours, stock = self.open()
        mine, theirs = operation(ours), operation(stock)
        if isinstance(theirs, dict):
            assert shape(mine) == shape(theirs)
            assert {k: type(v) for k, v in mine.items()} == {k: type(v) for k, v in theirs.items()}
        self.check()

    def both_fail(self, operation: Callable[[Any], Any], *kinds: type[BaseException]) -> None:
        """Run an operation that neither takes: whoever catches stock's exception catches ours."""
        before = files_below(root_of(DeltaTable(self.uri)))
        ours, stock = self.open()
        with pytest.raises(Exception) as theirs:
            operation(stock)
        with pytest.raises(kinds or type(theirs.value)):
            operation(ours)
        assert files_below(root_of(ours)) == before
        self.check()

    def check(self) -> None:
        ours, stock = self.open()
        expected = rows_of(stock)
        assert rows_of(ours) == expected
        assert ours.version() == stock.version()
        published = deltalake.DeltaTable(ours.table_uri)
        assert published.version() == stock.version()
        assert rows_of(published) == expected
        for mine, theirs in zip(ours.history(), stock.history(), strict=True):
            assert mine["operation"] == theirs["operation"]
            assert set(theirs) <= set(mine)
            assert set(theirs.get("operationMetrics", {})) <= set(mine.get("operationMetrics", {}))
            assert set(theirs["operationParameters"]) == set(mine["operationParameters"])
        left = files_below(root_of(ours))
        assert not any(name.startswith("_deltasql") for name in left)
        assert not (root_of(ours) / "_deltasql").exists()
        live = {Path(u).name for u in ours.file_uris()}
        assert live <= {Path(name).name for name in left}
