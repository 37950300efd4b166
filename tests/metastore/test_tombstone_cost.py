"""The cost of tombstones, which every checkpoint reads: it grows as their number does, not as its square."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltalakedb import Catalog
from deltalakedb.metastore import files
from deltalakedb.settings import Config
from support.actions import add, info, metadata, protocol, remove
from support.commits import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.metastore.database import Database

_STATEMENT = ("files", "tombstones")
_FILES = 20


def overwritten(catalog_uri: str, tmp_path: Path, times: int) -> tuple[Database, int]:
    """A table whose files were all replaced some times, and its id; two paths are used again."""
    catalog = Catalog(catalog_uri, create=True, config=Config(publish={"mode": "off"}))
    name = f"t{times}"

    def paths(turn: int) -> list[str]:
        return [f"f{turn}-{n}" for n in range(_FILES - 2)] + ["again", "once more"]

    place = str(tmp_path / name)
    first = [add(path) for path in paths(0)]
    bench = Bench.make(catalog._database, name, place, protocol_=protocol(), metadata_=metadata(), adds=first)
    for turn in range(1, times + 1):
        bench.commit(*map(remove, paths(turn - 1)), info("DELETE"))
        bench.commit(*map(add, paths(turn)), info("WRITE"))
    table = catalog.describe(name)
    found = [r.path for r in files.tombstones(catalog._database, table, table.head.version)]
    assert sorted(found) == sorted(p for turn in range(times) for p in paths(turn)[:-2])
    # one version before, all of the last turn but one are gone
    found = [r.path for r in files.tombstones(catalog._database, table, table.head.version - 1)]
    assert len(found) == (_FILES - 2) * times + 2
    return catalog._database, table.table_id


def sqlite_steps(path: Path, sql: str, table_id: int) -> int:
    """How many instructions of its virtual machine a statement takes, in hundreds."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = sqlite3.connect(path)
    try:
        connection.set_progress_handler(count, 100)
        connection.execute(sql, (table_id, 1 << 40)).fetchall()
    finally:
        connection.close()
    return steps


def postgres_rows(dsn: str, schema: str, sql: str, table_id: int) -> float:
    """How many rows the steps of a statement's plan look at."""
    with psycopg.connect(dsn, options=f"-c search_path={schema}") as connection:
        asked = sql.replace("?", "%s")
        values = (table_id, 1 << 40)
        row = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {asked}", values).fetchone()  # type: ignore[call-overload]
    assert row is not None
    plan = json.loads(row[0]) if isinstance(row[0], str) else row[0]

    def rows(node: dict[str, Any]) -> float:
        seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        seen += node.get("Rows Removed by Join Filter", 0)
        return float(seen * node["Actual Loops"] + sum(map(rows, node.get("Plans", ()))))

    return rows(plan[0]["Plan"])


def test_a_path_that_is_used_again_leaves_no_tombstone(catalog_uri: str, tmp_path: Path) -> None:
    overwritten(catalog_uri, tmp_path, 3)


# DuckDB hashes both sides of such a join
@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_tombstones_cost_in_proportion_to_their_number(
    catalog_uri: str, tmp_path: Path, engine_name: str, request: pytest.FixtureRequest
) -> None:
    costs = []
    for times in (8, 32):
        database, table_id = overwritten(catalog_uri, tmp_path, times)
        sql = str(database.sql(*_STATEMENT))
        if engine_name == "sqlite":
            costs.append(sqlite_steps(tmp_path / "catalog.db", sql, table_id))
        else:
            dsn, schema = request.getfixturevalue("pg_dsn"), request.getfixturevalue("pg_schema")
            costs.append(postgres_rows(dsn, schema, sql, table_id))
    assert costs[1] < 8 * costs[0], "four times the files: linear is 4, quadratic 16"
