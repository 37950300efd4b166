"""``vacuum``: files that no retained version needs are deleted, between two commits that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.coordinator.guard import handle_foreign_commits
from deltalakedb.delta_log.cleanup import retention_ms
from deltalakedb.exceptions import (
    ArgumentTypeError,
    ConflictError,
    DeltaSqlError,
    InvalidArgumentError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import files, registry, snapshots, vacuumed
from deltalakedb.mirror.clocks import checked_clock
from deltalakedb.mirror.outside import ADOPT, POLICY, require_no_foreign_commits
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.features import COMMITTER_FEATURES, SPARK_FEATURES, check_writable
from deltalakedb.protocol.paths import decode_path, encode_path
from deltalakedb.protocol.properties import DAY_MS
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.table.arguments import whole_number
from deltalakedb.table.commit_info import app_transactions
from deltalakedb.table.intent import WriteIntent
from deltalakedb.table.maintenance.live_files import (
    Deletable,
    file_names,
    linked,
    needed_by,
    orphans,
    referenced_files,
)
from deltalakedb.table.restore import missing_files
from deltalakedb.table.sources import SqlSource
from deltalakedb.table.write_locks import oldest_pending_write

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import deltalake

    from deltalakedb.commit.request import UserStatement
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import OpenTable
    from deltalakedb.protocol.actions import Action
    from deltalakedb.table.handle import TableHandle

DELETED_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION_MS: Final = 7 * DAY_MS
_HOUR_MS: Final = 3_600_000
#: files that are deleted between two looks at what is live
_BATCH: Final = 1_000
#: change data, which only commits name
CHANGES: Final = "_change_data/"
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
    table: TableHandle,
    *,
    dry_run: bool,
    retention_hours: int | None,
    enforce: bool,
    full: bool,
    keep_versions: Sequence[int] | None = None,
    commit_properties: deltalake.CommitProperties | None = None,
) -> list[str]:
    """Delete (or list) data files that no retained version references.

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
    if not table.is_live:
        raise UnsupportedOperationError(
            "vacuum deletes files at once, which a transaction could not take back",
            table=table.name,
            suggestion="vacuum outside of the transaction",
        )
    table.update()
    registry.refuse_followed(table.row)
    table.require_folder()
    check_writable(table.source.snapshot.protocol, table=table.name, also=COMMITTER_FEATURES | SPARK_FEATURES)
    if table.row.settings.get(POLICY) == ADOPT:
        handle_foreign_commits(table.database, table.row, table.root.options)
        table.update()
    require_no_foreign_commits(table.database, table.row, table.root.options)
    found = plan(
        table, retention_hours, enforce=enforce, full=full, keep_versions=keep_versions, dry_run=dry_run
    )
    if dry_run:
        return list(found.files)
    _settle(table, found)
    if not found.files:
        return []
    custom = dict(commit_properties.custom_metadata or {}) if commit_properties is not None else {}
    going = _Going(table, found)
    _commit(table, [_start(found, custom)], own=going.record)
    deleted = _delete(table, found, going)
    txns = app_transactions(commit_properties)
    _commit(table, [_end(len(deleted), custom), *txns], own=going.end)
    going.ensure_ended()
    return deleted


def _settle(table: TableHandle, found: VacuumPlan) -> None:
    """Note the end of vacuums that were interrupted, for files of theirs that are gone."""
    left = [p for p in vacuumed.unended(table.database, table.row) if p not in found.files]
    if left and (gone := missing_files(table.root, [encode_path(path) for path in left])):
        with table.database.write() as session:
            vacuumed.end(session, table.row.table_id, [decode_path(path) for path in gone])


class _Going:
    """The files that a vacuum deletes, recorded in the database before the first of them goes.

    They are chosen while the head is held, from what no version has then. From there on a commit that adds
    one of them again is refused. So no restore can come between the choice and the deletion, however long
    this process pauses there.
    """

    def __init__(self, table: TableHandle, found: VacuumPlan) -> None:
        self._database = table.database
        self._row = table.row
        self._found = found
        self._ended = False
        self.paths: list[str] = list(found.files)
        self.started = -1

    def record(self, session: Session) -> None:
        """Record the files, without those that commits since the plan have brought back."""
        root, table_id = self._row.location, self._row.table_id
        added = files.keys_added_since(session, table_id, self._found.version)
        back = {name for path, vector in added for name in file_names(root, path, vector)}
        self.paths = [path for path in self._found.files if path not in back]
        self.started = vacuumed.record(session, table_id, self.paths)

    def end(self, session: Session) -> None:
        """Note that they are gone."""
        vacuumed.end(session, self._row.table_id, self.paths)
        self._ended = True

    def ensure_ended(self) -> None:
        """Note the same without a commit, if the one that was to say so had been made before."""
        if not self._ended:
            with self._database.write() as session:
                self.end(session)

    def release(self, paths: Collection[str]) -> None:
        """Let commits add files again that will not be deleted."""
        kept = frozenset(paths)
        self.paths = [path for path in self.paths if path not in kept]
        with self._database.write() as session:
            vacuumed.release(session, self._row.table_id, self.started, paths)


def plan(
    table: TableHandle,
    retention_hours: int | None,
    *,
    enforce: bool,
    full: bool,
    keep_versions: Sequence[int] | None = None,
    dry_run: bool = False,
) -> VacuumPlan:
    """What a vacuum of the newest version would delete: files that are there, and may be deleted."""
    source = table.source
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
    clock = checked_clock(table.database, table.name, table.root.store, dry_run=dry_run)
    cutoff = clock.now - retention
    # before anything is read: what is in flight now may be committed in the next moment
    oldest = oldest_pending_write(table.row.location) if full else None
    kept = [table.source_at(version) for version in _versions(keep_versions)]
    found = referenced_files(table.database, source.opened, cutoff=cutoff, kept=kept, with_changes=full)
    rule = Deletable(
        table.database,
        table.row,
        partition_columns=metadata.partition_columns,
        storage_options=table.root.options,
    )
    files, strangers = dict(found.expired), {}
    if not table.root.is_local:
        # a store is not asked whether files are there, which costs as much as deleting: the catalog knows
        gone = vacuumed.ended(table.database, table.row)
        files = {path: size for path, size in files.items() if gone.get(path, -1) <= found.removed[path]}
    if full:
        before = clock.on_store(cutoff)
        for meta in orphans(
            table.row.location,
            found.needed | found.expired.keys(),
            partition_columns=metadata.partition_columns,
            before=before if oldest is None else min(before, oldest),
            now=clock.on_store(clock.now),
            others=rule.others,
            storage_options=table.root.options,
        ):
            files[meta.path] = meta.size
            strangers[meta.path] = meta.modified_ms
    if not found.changes_known:
        files = {path: size for path, size in files.items() if not path.startswith(CHANGES)}
    behind_links = linked(table.row.location, found.needed) if files and table.root.is_local else ()
    files = {path: files[path] for path in rule.among(files) if path not in behind_links}
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


def _delete(table: TableHandle, found: VacuumPlan, going: _Going) -> list[str]:
    """Delete the recorded files, but for those that others have brought back or are about to commit.

    Commits that are taken over from the log are not refused, so what is live is looked at before each batch,
    and so is the log: a version in it that the catalog does not know may need any file.
    """
    store, root = table.root.store, table.row.location
    deleted: list[str] = []
    seen, live = going.started, frozenset[str]()
    paths = list(going.paths)
    for start in range(0, len(paths), _BATCH):
        try:
            oldest = oldest_pending_write(root) if found.strangers else None
            now = _looked_at(table)
        except DeltaSqlError:
            going.release(paths[start:])
            raise
        if now.snapshot.version != seen:
            seen, live = now.snapshot.version, needed_by(SqlSource(table.database, now), root)
        batch = paths[start : start + _BATCH]
        due = [
            path
            for path in batch
            if path not in live and (oldest is None or found.strangers.get(path, oldest - 1) < oldest)
        ]
        if kept := set(batch).difference(due):
            going.release(kept)
        failpoint("vacuum.deleting")
        store.delete_all(due)
        deleted += due
    return deleted


def _looked_at(table: TableHandle) -> OpenTable:
    """The table's newest version, if the log has no other that the catalog does not know."""
    now = snapshots.open_table(table.database, table.name)
    if now.table.table_id != table.row.table_id:
        raise TableMissingError(
            f"the table {table.name!r} was dropped and created again while it was vacuumed",
            table=table.name,
            suggestion="run vacuum again",
        )
    require_no_foreign_commits(table.database, now.table, table.root.options)
    return now


def _commit(table: TableHandle, actions: Sequence[Action], own: UserStatement) -> None:
    """Commit what says that files are being deleted; it depends on nothing that others do."""
    for attempt in range(_RETRIES + 1):
        try:
            snapshot, root = table.source.snapshot, table.root
            table.submit(
                WriteIntent(
                    table.row,
                    actions,
                    snapshot,
                    NOTHING,
                    root=root,
                    handled_features=SPARK_FEATURES,
                    own=(own,),
                )
            )
        except ConflictError:
            if attempt == _RETRIES:
                raise
            table.update()
        else:
            return


def _start(found: VacuumPlan, custom: dict[str, Any]) -> CommitInfo:
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
                "numFilesToDelete": len(found.files),
                "sizeOfDataToDelete": sum(found.files.values()),
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
