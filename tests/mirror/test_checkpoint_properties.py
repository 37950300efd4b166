"""Table properties that decide what a checkpoint holds, in any case, as Spark reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize(
    ("value", "kept"), [("False", False), ("FALSE", False), ("true", True), ("True", True)]
)
def test_switches_of_checkpoints_are_read_in_any_case(
    value: str, kept: bool, tmp_path: Path, catalog_uri: str
) -> None:
    switch = {"delta.checkpoint.writeStatsAsJson": value, "delta.checkpoint.writeStatsAsStruct": "True"}
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "t", configuration=switch)
        catalog.table("t").create_checkpoint()
    (checkpoint,) = (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")
    kind = pq.read_schema(checkpoint).field("add").type
    adds = [add for add in pq.read_table(checkpoint)["add"].to_pylist() if add is not None]
    assert any(add.get("stats") for add in adds) == kept
    assert kind.get_field_index("stats_parsed") >= 0
