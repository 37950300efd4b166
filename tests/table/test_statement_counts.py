"""How many statements opening and planning send to the database, however long the history is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, telemetry, write_deltalake
from deltalakedb.metastore.database import close_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import TableUri

COMMITS = 4


@pytest.fixture
def uri(table_uri: TableUri) -> str:
    """A table of a few commits, and no connection left open."""
    made = table_uri("t")
    for number in range(COMMITS):
        data = pa.table({"x": [number], "p": [f"p{number % 2}"]})
        write_deltalake(made, data, mode="append", partition_by=["p"])
    close_all()
    return made


def statements(work: Callable[[], Any]) -> list[str]:
    found: list[str] = []

    def listen(event: telemetry.Event) -> None:
        if event.name == "sql_statement":
            found.append(event.labels["statement"])

    unsubscribe = telemetry.subscribe(listen)
    try:
        work()
    finally:
        unsubscribe()
    return found


def test_the_first_opening_checks_the_schema_by_one_statement_and_reads_one_row(uri: str) -> None:
    assert statements(lambda: DeltaTable(uri)) == ["built", "snapshots.open"]


def test_opening_again_is_one_statement(uri: str) -> None:
    DeltaTable(uri)
    assert statements(lambda: DeltaTable(uri)) == ["snapshots.open"]


def test_a_plan_is_two_statements_and_a_listing_one(uri: str) -> None:
    table = DeltaTable(uri)
    plan = statements(lambda: table.file_uris(file_pruning_predicate="x >= 2 AND p = 'p1'"))
    assert plan == ["built", "files.packs"], "recent files, and no packs"
    assert statements(table.file_uris) == ["built"]


def test_time_travel_opens_by_one_statement(uri: str) -> None:
    DeltaTable(uri)
    assert statements(lambda: DeltaTable(uri, version=1)) == ["snapshots.open at"]
