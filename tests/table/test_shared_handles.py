"""A table object that several threads share: an operation conflicts with one that was committed meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.exceptions import ConflictError
from deltalakedb.table import restore, scratch
from deltalakedb.table.write import write
from support.lake import ids_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import TableUri


@pytest.fixture
def table(table_uri: TableUri) -> DeltaTable:
    uri = table_uri("shared")
    for start in (1, 2, 3):
        write_deltalake(uri, pa.table({"id": pa.array([start, start + 10])}), mode="append")
    return DeltaTable(uri)


def overtake(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, other: Callable[[], object]) -> None:
    """Run another operation once, right after a function of a module was called."""
    original = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if args != ("data.before",):
            monkeypatch.setattr(module, name, original)
            other()
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, call)


def test_rows_are_not_rewritten_twice(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    overtake(monkeypatch, scratch, "failpoint", lambda: table.update({"id": "id + 100"}))
    with pytest.raises(ConflictError):
        table.update({"id": "id + 100"})
    assert ids_of(table) == [101, 102, 103, 111, 112, 113]


def test_an_append_meets_a_new_schema(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace() -> None:
        write_deltalake(table, pa.table({"name": ["x"]}), mode="overwrite", schema_mode="overwrite")

    overtake(monkeypatch, write, "failpoint", replace)
    with pytest.raises(ConflictError):
        write_deltalake(table, pa.table({"id": [4]}), mode="append")
    assert table.to_pyarrow_table().to_pydict() == {"name": ["x"]}


def test_an_overwrite_meets_a_delete(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    overtake(monkeypatch, scratch, "failpoint", lambda: table.delete("id = 1"))
    with pytest.raises(ConflictError):
        write_deltalake(table, pa.table({"id": [4]}), mode="overwrite")
    assert ids_of(table) == [2, 3, 11, 12, 13]


def test_a_restore_meets_a_delete(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    overtake(monkeypatch, restore, "_require_files", lambda: table.delete("id = 1"))
    with pytest.raises(ConflictError):
        table.restore(1)
    assert ids_of(table) == [2, 3, 11, 12, 13]
