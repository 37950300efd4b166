"""Filters of thousands of values: planned on every engine, and still picking files."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from deltalakedb import DeltaTable, write_deltalake
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from conftest import TableUri

MANY = range(1_000, 4_000)
EQUAL = [f"id = {n}" for n in MANY]


@pytest.fixture
def table(table_uri: TableUri) -> DeltaTable:
    """Two files: one that the filters ask for, and one that they do not."""
    uri = table_uri("t")
    write_deltalake(uri, ids(*range(10)))
    write_deltalake(uri, ids(*range(1_000, 1_010)), mode="append")
    return DeltaTable(uri)


def test_long_lists_and_chains_pick_files_and_rows(table: DeltaTable) -> None:
    listed = f"id IN ({', '.join(map(str, MANY))})"
    for predicate in (listed, " OR ".join(EQUAL), f"NOT ({' AND '.join(f'id <> {n}' for n in MANY)})"):
        assert len(table.file_uris(file_pruning_predicate=predicate)) == 1
    # nothing is said of these by the bounds of files
    for predicate in (f"NOT {listed}", " AND ".join(f"id <> {n}" for n in MANY)):
        assert len(table.file_uris(file_pruning_predicate=predicate)) == 2
    groups = [[("id", "=", n), ("id", "<", 5_000)] for n in MANY[:1_000]]
    filters: dict[str, Any] = {
        "in": [("id", "in", list(MANY))],
        "groups": groups,
        "expression": reduce(or_, (ds.field("id") == n for n in MANY[:300])),
    }
    for wanted in filters.values():
        assert table.to_pyarrow_table(filters=wanted).num_rows == 10
    assert table.to_pyarrow_table(filters=[("id", "not in", list(MANY))]).num_rows == 10


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_rows_are_changed_by_long_predicates(table: DeltaTable) -> None:
    assert table.delete(" OR ".join(EQUAL[1:1_200]))["num_deleted_rows"] == 9
    assert ids_of(table) == [*range(10), 1_000]
