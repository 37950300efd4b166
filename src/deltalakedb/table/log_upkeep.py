"""Upkeep of a table's `_delta_log`, as stock's users ask for it: the mirror does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.metastore import registry
from deltalakedb.mirror import checkpointer
from deltalakedb.mirror.manifests import write_manifests
from deltalakedb.mirror.reconciler import reconcile

if TYPE_CHECKING:
    from deltalakedb.table.sql_table import SqlDeltaTable


def create_checkpoint(table: SqlDeltaTable) -> None:
    """Write a checkpoint of the open version."""
    _published(table, "a checkpoint is written")
    checkpointer.checkpoint(
        table._database, table.name, version=table.version(), storage_options=table._root.options
    )


def cleanup_metadata(table: SqlDeltaTable) -> None:
    """Delete log files whose retention has ended and that a checkpoint covers."""
    _published(table, "the log is cleaned up")
    checkpointer.clean(table._database, table.name, storage_options=table._root.options)


def compact_logs(table: SqlDeltaTable, start: int, end: int) -> None:
    """Write a log compaction file over some versions."""
    _published(table, "the log is compacted")
    checkpointer.compact(table._database, table.name, start, end, storage_options=table._root.options)


def generate(table: SqlDeltaTable) -> None:
    """Write symlink manifests of the open version."""
    _outside(table, "manifests are written")
    table._require_folder()
    found = table._source.scan(("path", "dv_id"))
    paths, vectors = (c.to_pylist() for c in found.columns)
    write_manifests(
        table._root.paths,
        zip(paths, vectors, strict=True),
        storage_options=table._root.options,
    )


def _published(table: SqlDeltaTable, what: str) -> None:
    """Publish what waits: only what is in the log can be tidied there."""
    _outside(table, what)
    reconcile(table._database, table.name, storage_options=table._root.options)


def _outside(table: SqlDeltaTable, what: str) -> None:
    if not table._moves:
        raise UnsupportedOperationError(
            f"{what} from published versions, and a transaction's are still to come",
            table=table.name,
            suggestion="do it after the transaction",
        )
    registry.refuse_followed(table._row)
