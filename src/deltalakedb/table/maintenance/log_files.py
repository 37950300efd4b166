"""Upkeep of a table's `_delta_log`, as stock's users ask for it: the mirror does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.metastore import registry
from deltalakedb.mirror import checkpointer
from deltalakedb.mirror.manifests import write_manifests
from deltalakedb.mirror.reconciler import reconcile

if TYPE_CHECKING:
    from deltalakedb.table.handle import TableHandle


def create_checkpoint(table: TableHandle) -> None:
    _published(table, "a checkpoint is written")
    checkpointer.checkpoint(
        table.database, table.name, version=table.version, storage_options=table.root.options
    )


def cleanup_metadata(table: TableHandle) -> None:
    """Delete log files whose retention has ended and that a checkpoint covers."""
    _published(table, "the log is cleaned up")
    checkpointer.clean(table.database, table.name, storage_options=table.root.options)


def compact_logs(table: TableHandle, start: int, end: int) -> None:
    """Write a log compaction file over some versions."""
    _published(table, "the log is compacted")
    checkpointer.compact(table.database, table.name, start, end, storage_options=table.root.options)


def generate(table: TableHandle) -> None:
    """Write symlink manifests of the open version."""
    _outside(table, "manifests are written")
    table.require_folder()
    paths, vectors = (c.to_pylist() for c in table.source.scan(("path", "dv_id")).columns)
    files = zip(paths, vectors, strict=True)
    write_manifests(table.root.paths, files, storage_options=table.root.options)


def _published(table: TableHandle, what: str) -> None:
    """Publish first: only published versions can be cleaned up."""
    _outside(table, what)
    reconcile(table.database, table.name, storage_options=table.root.options)


def _outside(table: TableHandle, what: str) -> None:
    if not table.is_live:
        raise UnsupportedOperationError(
            f"{what} from published versions, and a transaction's are still to come",
            table=table.name,
            suggestion="do it after the transaction",
        )
    registry.refuse_followed(table.row)
