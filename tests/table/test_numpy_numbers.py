"""Whole numbers of numpy are taken wherever whole numbers are, as in stock deltalake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, write_deltalake
from support.lake import ids, ids_of

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def uri(tmp_path: Any, catalog_uri: str) -> str:
    address = f"{catalog_uri}?table=t&location={tmp_path}/t"
    feed = {"delta.enableChangeDataFeed": "true"}
    for n in range(3):
        write_deltalake(address, ids(n), mode="append", configuration=feed)
    return address


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_numbers_of_numpy(uri: str, kind: Any) -> None:
    table = DeltaTable(uri, version=kind(1))
    assert (table.version(), type(table.version())) == (1, int)
    table.load_as_version(kind(0))
    assert ids_of(table) == [0]
    table.update_incremental()
    assert [c["version"] for c in table.history(kind(1))] == [2]
    feed = pa.table(table.load_cdf(starting_version=kind(1), ending_version=kind(1)))
    assert feed.num_rows == 1
    assert table.vacuum(kind(200), keep_versions=[kind(0)]) == []
    table.restore(kind(1))
    assert ids_of(DeltaTable(uri)) == [0, 1]
    assert DeltaTable(uri).history(1)[0]["operationParameters"]["version"] == "1"


def test_truth_values_and_fractions_are_no_numbers(uri: str) -> None:
    table = DeltaTable(uri)
    for wrong in (True, np.float64(1), np.bool_(True), 1.0):
        for call in (table.history, table.vacuum, table.load_as_version):
            with pytest.raises(TypeError):
                call(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            DeltaTable(uri, version=wrong)  # type: ignore[arg-type]
