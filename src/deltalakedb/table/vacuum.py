"""``vacuum``: files that no retained version needs are deleted, between two commits that say so."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.catalog import registry, snapshots
from deltalakedb.exceptions import (
    ArgumentTypeError,
    ConflictError,
    InvalidArgumentError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.log.cleanup import retention_ms
from deltalakedb.mirror.outside import refuse_strangers
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.properties import DAY_MS
from deltalakedb.protocol.reads import NOTHING
from deltalakedb.protocol.rules import OURS, SPARKS
from deltalakedb.table.in_flight import in_flight_since
from deltalakedb.table.orphans import orphans
from deltalakedb.table.referenced import needed_by, references
from deltalakedb.table.source import SqlSource
from deltalakedb.table.whole_numbers import whole_number
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import deltalake

    from deltalakedb.protocol.actions import Action
    from deltalakedb.table.sql_table import SqlDeltaTable

DELETED_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION_MS: Final = 7 * DAY_MS
_HOUR_MS: Final = 3_600_000
#: files that are deleted between two looks at what is live
_BATCH: Final = 1_000
#: how often the commits around a vacuum are tried again over those of others
_RETRIES: Final = 10


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """What a vacuum would delete, and by which retention.

    Attributes:
        version: The version that it was made for.
        files: Paths below the root, with their sizes.
        strangers: When those of them were last written that no version knows.
        retention: How long removed files stay, in milliseconds.
        default_retention: How long the table's property says.
        enforced: Whether the property had to be respected.
    """

    version: int
    files: Mapping[str, int]
    strangers: Mapping[str, int]
    retention: int
    default_retention: int
    enforced: bool


def vacuum(
    table: SqlDeltaTable,
    *,
    dry_run: bool,
    retention_hours: int | None,
    enforce: bool,
    full: bool,
    keep_versions: Sequence[int] | None,
    commit_properties: deltalake.CommitProperties | None,
) -> list[str]:
    """Delete, or list, the files that no version needs which the retention lets a reader ask for.

    Args:
        table: The open table; the newest version counts, whichever is open.
        dry_run: Only list.
        retention_hours: How long removed files stay; by default as the table's property says.
        enforce: Refuse a shorter retention than the property's.
        full: Also list the root, for files that no version knows.
        keep_versions: Versions whose files stay.
        commit_properties: Custom metadata and application transactions of the commits.

    Raises:
        UnsupportedOperationError: The table is inside a transaction.
        InvalidArgumentError: The retention is too short.
    """
    if not table._moves:
        raise UnsupportedOperationError(
            "vacuum deletes files at once, which a transaction could not take back",
            table=table.name,
            suggestion="vacuum outside of the transaction",
        )
    table.update_incremental()
    found = plan(table, retention_hours, enforce=enforce, full=full, keep_versions=keep_versions)
    if dry_run:
        return list(found.files)
    registry.refuse_followed(table._row)
    table._require_folder()
    check_writable(table._source.snapshot.protocol, table=table.name, also=OURS | SPARKS)
    if full:
        refuse_strangers(table._database, table._row, table._root.options)
    there = _existing(table, list(found.files))
    if not there:
        return []
    custom = dict(commit_properties.custom_metadata or {}) if commit_properties is not None else {}
    _commit(table, [_start(found, there, custom)])
    deleted = _delete(table, found, there)
    txns = [
        Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated)
        for t in (commit_properties.app_transactions or () if commit_properties is not None else ())
    ]
    _commit(table, [_end(len(deleted), custom), *txns])
    return deleted


def plan(
    table: SqlDeltaTable,
    retention_hours: int | None,
    *,
    enforce: bool,
    full: bool,
    keep_versions: Sequence[int] | None,
) -> VacuumPlan:
    """What a vacuum of the newest version would delete."""
    source = table._source
    if not isinstance(source, SqlSource):  # the newest version is always in SQL
        raise UnsupportedOperationError("only the newest version can be vacuumed", table=table.name)
    metadata = source.snapshot.metadata
    shortest = retention_ms(metadata, DELETED_FILE_RETENTION, DEFAULT_RETENTION_MS)
    retention = shortest if retention_hours is None else _hours(retention_hours) * _HOUR_MS
    if enforce and retention < shortest:
        raise InvalidArgumentError(
            "Generic error: Invalid retention period, minimum retention for vacuum is configured to be "
            f"greater than {shortest // _HOUR_MS} hours, got {retention // _HOUR_MS} hours"
        )
    now = time.time_ns() // 1_000_000
    cutoff = now - retention
    # before anything is read: what is in flight now may be committed in the next moment
    oldest = in_flight_since(table._row.location) if full else None
    kept = [table._source_at(version) for version in _versions(keep_versions)]
    found = references(table._database, source.opened, cutoff=cutoff, kept=kept, with_changes=full)
    files, strangers = dict(found.expired), {}
    if full:
        for meta in orphans(
            table._row.location,
            found.needed | found.expired.keys(),
            partition_columns=metadata.partition_columns,
            before=cutoff if oldest is None else min(cutoff, oldest),
            now=now,
            storage_options=table._root.options,
        ):
            files[meta.path] = meta.size
            strangers[meta.path] = meta.modified_ms
    return VacuumPlan(source.snapshot.version, files, strangers, retention, shortest, enforce)


def _hours(value: Any) -> int:
    hours = whole_number(value)
    if hours is None:
        raise ArgumentTypeError(f"retention_hours is a whole number, not {value!r}")
    if hours < 0:
        raise InvalidArgumentError("The retention periods should be positive.")
    return hours


def _versions(wanted: Any) -> list[int]:
    if wanted is None:
        return []
    versions = [whole_number(v) for v in wanted] if isinstance(wanted, list | tuple | set | range) else [None]
    known = {v for v in versions if v is not None}
    if None in versions:
        raise ArgumentTypeError(f"keep_versions is a list of versions, not {wanted!r}")
    return sorted(known)


def _existing(table: SqlDeltaTable, paths: list[str]) -> list[str]:
    """Those that are still there. An object store is not asked: that costs as much as deleting."""
    if not table._root.is_local:
        return paths
    store = table._root.store
    return [path for path in paths if store.exists(path)]


def _delete(table: SqlDeltaTable, found: VacuumPlan, paths: list[str]) -> list[str]:
    """Delete files, but for those that others have brought back or are about to commit."""
    store = table._root.store
    deleted: list[str] = []
    # nothing but our own first commit came after the plan: then there is nothing to look at again
    seen, live = found.version + 1, frozenset[str]()
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        oldest = in_flight_since(table._row.location) if found.strangers else None
        now = snapshots.open_table(table._database, table.name)
        if now.snapshot.version != seen:
            seen, live = now.snapshot.version, needed_by(SqlSource(table._database, now), table._row.location)
        going = [
            path
            for path in batch
            if path not in live and (oldest is None or found.strangers.get(path, oldest - 1) < oldest)
        ]
        failpoint("vacuum.deleting")
        store.delete_all(going)
        deleted += going
    return deleted


def _commit(table: SqlDeltaTable, actions: Sequence[Action]) -> None:
    """Commit what says that files are being deleted; it depends on nothing that others do."""
    for attempt in range(_RETRIES + 1):
        try:
            snapshot, root = table._source.snapshot, table._root
            table._hand_on(Work(table._row, actions, snapshot, NOTHING, root=root, kept=SPARKS))
        except ConflictError:
            if attempt == _RETRIES:
                raise
            table.update_incremental()
        else:
            return


def _start(found: VacuumPlan, there: Sequence[str], custom: dict[str, Any]) -> CommitInfo:
    return CommitInfo(
        extra={
            "operation": "VACUUM START",
            "operationParameters": {
                "retentionCheckEnabled": str(found.enforced).lower(),
                "specifiedRetentionMillis": str(found.retention),
                "defaultRetentionMillis": str(found.default_retention),
            },
            **custom,
            "operationMetrics": {
                "numFilesToDelete": len(there),
                "sizeOfDataToDelete": sum(found.files[path] for path in there),
            },
        }
    )


def _end(deleted: int, custom: dict[str, Any]) -> CommitInfo:
    return CommitInfo(
        extra={
            "operation": "VACUUM END",
            "operationParameters": {"status": "COMPLETED"},
            **custom,
            "operationMetrics": {"numDeletedFiles": deleted, "numVacuumedDirectories": 0},
        }
    )
