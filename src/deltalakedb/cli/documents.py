"""Library values as the plain data that ``--json`` prints: times in ISO 8601, nothing internal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.cli.render import iso

if TYPE_CHECKING:
    from deltalakedb.metastore.values import Table

_TIMES = ("created_at", "updated_at", "committed_at")


def table_document(table: Table) -> dict[str, Any]:
    """A row of the registry."""
    data = table.to_dict()
    for internal in ("table_id", "records_counted"):
        data.pop(internal)
    return {key: iso(value) if key in _TIMES else value for key, value in data.items()}
