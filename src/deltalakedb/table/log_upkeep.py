"""Upkeep of a table's `_delta_log`, as stock's users ask for it: the mirror does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.mirror import checkpointer
from deltalakedb.mirror.manifests import write_manifests
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.table.work import AutoCommit

if TYPE_CHECKING:
    from deltalakedb.table.sql_table import SqlDeltaTable


def create_checkpoint(table: SqlDeltaTable) -> None:
    """Write a checkpoint of the open version."""
    _published(table, "a checkpoint is written")
    checkpointer.checkpoint(
        table._database, table.name, version=table.version(), storage_options=_options(table)
    )


def cleanup_metadata(table: SqlDeltaTable) -> None:
    """Delete log files whose retention has ended and that a checkpoint covers."""
    _published(table, "the log is cleaned up")
    checkpointer.clean(table._database, table.name, storage_options=_options(table))


def compact_logs(table: SqlDeltaTable, start: int, end: int) -> None:
    """Write a log compaction file over some versions."""
    _published(table, "the log is compacted")
    if not 0 <= start < end <= table._row.head.version:
        raise InvalidArgumentError(
            f"versions {start} to {end} are not a range of this table's versions",
            table=table.name,
            version=table._row.head.version,
        )
    Mirror(table._database).compact(table.name, start, end)


def generate(table: SqlDeltaTable) -> None:
    """Write symlink manifests of the open version."""
    _outside(table, "manifests are written")
    found = table._source.scan(("path", "dv_id"))
    paths, vectors = (c.to_pylist() for c in found.columns)
    write_manifests(
        table.table_uri,
        zip(paths, vectors, strict=True),
        table=table.name,
        storage_options=_options(table),
    )


def _published(table: SqlDeltaTable, what: str) -> None:
    """Publish what waits: only what is in the log can be tidied there."""
    _outside(table, what)
    Mirror(table._database).publish(table.name)


def _outside(table: SqlDeltaTable, what: str) -> None:
    if not isinstance(table._sink, AutoCommit):
        raise UnsupportedOperationError(
            f"{what} from published versions, and a transaction's are still to come",
            table=table.name,
            suggestion="do it after the transaction",
        )


def _options(table: SqlDeltaTable) -> dict[str, str] | None:
    return table._database.engine.config.storage_options_for(table.table_uri, table._storage_options)
