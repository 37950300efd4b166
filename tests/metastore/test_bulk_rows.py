"""Rows that come as columns: the same from every bulk way, nulls and constants among them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogError
from deltalakedb.metastore.database import Database

MANY = 200
NAMES = "file_id, stats, partition_values, base_row_id, default_row_commit_version, clustering_provider"


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
@pytest.mark.parametrize("long", [20, 70_000])
def test_columns_become_rows(catalog_uri: str, long: int) -> None:
    database = Database.open(parse_address(catalog_uri))
    database.ensure()
    data = pa.table(
        {
            "file_id": pa.array(range(MANY), pa.int64()),
            "stats": pa.array([None if n % 3 else "é\t'\"\\" * (long if n == 6 else n) for n in range(MANY)]),
            "base_row_id": pa.array([None if n % 5 else n - (1 << 40) for n in range(MANY)], pa.int64()),
            "default_row_commit_version": pa.array([-n for n in range(MANY)], pa.int64()),
        }
    )
    with database.write() as session:
        session.insert_arrow("dl_file_json", data, {"partition_values": "{}", "clustering_provider": ""})
    with database.read() as session:
        found = session.rows(f"SELECT {NAMES} FROM dl_file_json ORDER BY file_id")
    assert found == [
        (row["file_id"], row["stats"], "{}", row["base_row_id"], row["default_row_commit_version"], "")
        for row in data.to_pylist()
    ]
    with pytest.raises(CatalogError), database.write() as session:
        session.insert_arrow("dl_file_json", data, {"partition_values": "{}"})
    with database.write() as session:  # the connection is as good as before
        session.insert_arrow(
            "dl_file_json",
            data.set_column(0, "file_id", pa.array(range(MANY, 2 * MANY))),
            {"partition_values": "[]"},
        )
        assert session.row("SELECT count(*) FROM dl_file_json") == (2 * MANY,)
