"""``vacuum`` deletes files that no retained version references, and ``gc`` what dead operations left."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.delta_log.cleanup import FILE_RETENTION, delete_temporary_files, retention_ms
from deltalakedb.exceptions import (
    ArgumentTypeError,
    ConflictError,
    DeltaSqlError,
    InvalidArgumentError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, files, registry, snapshots, vacuumed
from deltalakedb.mirror.clocks import checked_clock
from deltalakedb.mirror.drift import ADOPT, FOREIGN_COMMITS, require_no_foreign_commits
from deltalakedb.protocol.features import COMMITTER_FEATURES, SPARK_FEATURES, check_writable
from deltalakedb.protocol.paths import decode_path, encode_path
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.storage.store import ObjectMeta, is_local, open_store
from deltalakedb.table.arguments import checked_number, whole_number
from deltalakedb.table.handle import TableHandle, commit_info
from deltalakedb.table.maintenance.live_files import (
    CHANGES,
    DataFiles,
    file_names,
    linked,
    needed_by,
    referenced_files,
)
from deltalakedb.table.restore import missing_files
from deltalakedb.table.sources import SqlSource
from deltalakedb.table.write_locks import oldest_pending_write, operation_folders, remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import deltalake

    from deltalakedb.commit.request import UserStatement
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.protocol.actions import Action

_HOUR_MS: Final = 3_600_000
#: files that are deleted between two checks of what is live
_BATCH: Final = 1_000
#: how often a commit of a vacuum is retried after a conflict
_RETRIES: Final = 10


@dataclass(slots=True)
class Vacuum:
    """The files that a vacuum deletes, recorded in the database before the first deletion.

    They are chosen while the head is locked, from what no version has then. From there on a commit that adds
    one of them again is refused, so no restore can come between the choice and the deletion.
    """

    table: TableHandle
    #: the table and its version when the vacuum was planned
    row: Table
    version: int
    #: paths below the root, with their sizes
    files: Mapping[str, int]
    #: those that no version references, with the times they were last written
    strangers: Mapping[str, int]
    #: how the history describes the vacuum
    parameters: Mapping[str, str]
    #: the recorded files, and the version that recorded them
    paths: list[str] = field(default_factory=list)
    started: int = -1
    ended: bool = False

    def record(self, session: Session) -> None:
        """Record the files, without those that commits since the plan have brought back."""
        added = files.keys_added_since(session, self.row.table_id, self.version)
        back = {name for path, vector in added for name in file_names(self.row.location, path, vector)}
        self.paths = [path for path in self.files if path not in back]
        self.started = vacuumed.record(session, self.row.table_id, self.paths)

    def end(self, session: Session) -> None:
        vacuumed.end(session, self.row.table_id, self.paths)
        self.ended = True

    def release(self, paths: Collection[str]) -> None:
        """Allow commits again to add files that will not be deleted."""
        kept = frozenset(paths)
        self.paths = [path for path in self.paths if path not in kept]
        with self.table.database.write() as session:
            vacuumed.release(session, self.row.table_id, self.started, paths)


def vacuum(
    table: TableHandle,
    *,
    dry_run: bool,
    retention_hours: int | None,
    enforce_retention_duration: bool,
    full: bool,
    keep_versions: Sequence[int] | None = None,
    commit_properties: deltalake.CommitProperties | None = None,
) -> list[str]:
    """Delete (or list) data files that no retained version references, whichever version is open.

    ``enforce_retention_duration`` refuses a shorter retention than the table's property asks for. A ``full``
    vacuum also deletes files below the root that no version references.
    """
    why = "vacuum deletes files immediately, which a transaction could not undo"
    table.require_live(why, "vacuum outside of the transaction")
    table.update()
    registry.refuse_followed(table.row)
    table.require_writable()
    check_writable(table.snapshot.protocol, table=table.name, also=COMMITTER_FEATURES | SPARK_FEATURES)
    if table.row.settings.get(FOREIGN_COMMITS) == ADOPT:
        coordinator = Coordinator(table.database, {table.row.location: table.root.options})
        coordinator.handle_foreign_commits(table.row)
        table.update()
    require_no_foreign_commits(table.database, table.row, table.root.options)
    enforce = enforce_retention_duration
    run = plan_vacuum(table, retention_hours, keep_versions, enforce=enforce, full=full, dry_run=dry_run)
    if dry_run:
        return list(run.files)
    _end_interrupted(table, run.files)
    if not run.files:
        return []
    metrics = {"numFilesToDelete": len(run.files), "sizeOfDataToDelete": sum(run.files.values())}
    info, *_ = commit_info("VACUUM START", run.parameters, metrics, commit_properties)
    _commit(table, [info], own=run.record)
    deleted = _delete(run)
    metrics = {"numDeletedFiles": len(deleted), "numVacuumedDirectories": 0}
    end = commit_info("VACUUM END", {"status": "COMPLETED"}, metrics, commit_properties)
    _commit(table, end, own=run.end)
    if not run.ended:  # the commit repeated an earlier one, and did not run its statement
        with table.database.write() as session:
            run.end(session)
    return deleted


def _end_interrupted(table: TableHandle, due: Collection[str]) -> None:
    """Note the end of vacuums that were interrupted, for files of theirs that are gone and not due again."""
    left = [p for p in vacuumed.unended(table.database, table.row) if p not in due]
    if left and (gone := missing_files(table.root, [encode_path(path) for path in left])):
        with table.database.write() as session:
            vacuumed.end(session, table.row.table_id, [decode_path(path) for path in gone])


def plan_vacuum(
    table: TableHandle,
    retention_hours: int | None,
    keep_versions: Sequence[int] | None = None,
    *,
    enforce: bool,
    full: bool,
    dry_run: bool,
    list_files: Callable[[DataFiles], Iterable[ObjectMeta]] = DataFiles.list,
) -> Vacuum:
    """What a vacuum of the newest version would delete: files that exist, and may be deleted."""
    source = table.source
    if not isinstance(source, SqlSource):  # the newest version is always in SQL
        raise UnsupportedOperationError("only the newest version can be vacuumed", table=table.name)
    shortest = retention_ms(source.snapshot.metadata, FILE_RETENTION)
    retention = shortest if retention_hours is None else _hours(retention_hours) * _HOUR_MS
    if enforce and retention < shortest:
        raise InvalidArgumentError(
            "Generic error: Invalid retention period, minimum retention for vacuum is configured to be "
            f"greater than {shortest // _HOUR_MS} hours, got {retention // _HOUR_MS} hours",
            table=table.name,
            suggestion="pass enforce_retention_duration=False (`--no-check`) if no reader needs the files "
            "of older versions",
        )
    clock = checked_clock(table.database, table.name, table.root.store, dry_run=dry_run)
    cutoff = clock.now - retention
    # before anything is read: what is in flight now may be committed in the next moment
    pending = oldest_pending_write(table.row.location) if full else None
    kept = [table.source_at(version) for version in _versions(keep_versions)]
    found = referenced_files(table.database, source.opened, cutoff=cutoff, kept=kept, with_changes=full)
    data = DataFiles.of(table.database, source.opened, table.root.options)
    sizes, strangers = dict(found.expired), {}
    if not table.root.is_local:
        # a request for each file would cost as much as deleting it, and the catalog knows what is gone
        gone = vacuumed.ended(table.database, table.row)
        sizes = {path: size for path, size in sizes.items() if gone.get(path, -1) <= found.removed[path]}
    if full:
        before, now = clock.on_store(cutoff), clock.on_store(clock.now)
        known = found.needed | found.expired.keys()
        for meta in data.orphans(known, list_files(data), before=before, pending=pending, now=now):
            sizes[meta.path] = meta.size
            strangers[meta.path] = meta.modified_ms
    if not found.changes_known:
        sizes = {path: size for path, size in sizes.items() if not path.startswith(CHANGES)}
    behind_links = linked(table.row.location, found.needed) if sizes and table.root.is_local else ()
    sizes = {path: sizes[path] for path in data.deletable(sizes) if path not in behind_links}
    parameters = {
        "retentionCheckEnabled": str(enforce).lower(),
        "specifiedRetentionMillis": str(retention),
        "defaultRetentionMillis": str(shortest),
    }
    return Vacuum(table, table.row, source.snapshot.version, sizes, strangers, parameters)


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
    if not isinstance(wanted, list | tuple | set | range):
        raise ArgumentTypeError(f"keep_versions is a list of versions, not {wanted!r}")
    return sorted({checked_number(version, "version") for version in wanted})


def _delete(run: Vacuum) -> list[str]:
    """Delete the recorded files, except those that other writers have added again or are about to commit.

    Commits that are adopted from the log are not refused, so live files are checked before each batch, and so
    is the log: a version in it that the catalog does not know may need any file.
    """
    table, store, root = run.table, run.table.root.store, run.table.row.location
    deleted: list[str] = []
    seen, live = run.started, frozenset[str]()
    paths = list(run.paths)
    for start in range(0, len(paths), _BATCH):
        try:
            oldest = oldest_pending_write(root) if run.strangers else None
            now = _newest(table)
        except DeltaSqlError:
            run.release(paths[start:])
            raise
        if now.snapshot.version != seen:
            seen, live = now.snapshot.version, needed_by(SqlSource(table.database, now), root)
        batch = paths[start : start + _BATCH]
        due = [
            path
            for path in batch
            if path not in live and (oldest is None or run.strangers.get(path, oldest - 1) < oldest)
        ]
        if kept := set(batch).difference(due):
            run.release(kept)
        failpoint("vacuum.deleting")
        store.delete_all(due)
        deleted += due
    return deleted


def _newest(table: TableHandle) -> OpenTable:
    """The table's newest version, unless the log has one that the catalog does not know."""
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
    """Commit the start or the end of a vacuum, which depends on no other commit."""
    for attempt in range(_RETRIES + 1):
        try:
            table.submit(
                table.snapshot, [actions], NOTHING, handled_features=SPARK_FEATURES, statements=(own,)
            )
        except ConflictError:
            if attempt == _RETRIES:
                raise
            table.update()
        else:
            return


# ---- files that no version ever referenced -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Garbage:
    """What was found under one table's root.

    Attributes:
        table: The table's name.
        files: Data files that no version ever referenced, and unfinished ones, below the root.
        work_folders: Folders of operations that died.
        size_bytes: The size of the files.
        deleted: Whether they were deleted.
        kept: Why the table was skipped: its log may name files that the catalog does not know.
    """

    table: str
    files: tuple[str, ...]
    work_folders: tuple[str, ...]
    size_bytes: int
    deleted: bool
    kept: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**asdict(self), "files": list(self.files), "work_folders": list(self.work_folders)}


def collect(
    database: Database,
    name: str,
    *,
    older_than_hours: float,
    dry_run: bool,
    storage_options: Mapping[str, str] | None = None,
) -> Garbage:
    """Delete files below a table's root that dead operations left; nothing that a version in SQL names.

    Younger files stay: writers outside of the catalog may be about to commit them. A table that is frozen, or
    whose log is ahead, raises a TableFrozenError; clocks that differ raise a ClockSkewError.
    """
    opened = snapshots.open_table(database, name)
    table = opened.table
    store = open_store(table.location, storage_options)
    require_no_foreign_commits(database, table, storage_options)
    clock = checked_clock(database, name, store, dry_run=dry_run)
    # before anything is read: what is in flight now may be committed in the next moment
    pending = oldest_pending_write(table.location)
    folders = operation_folders(table.location) if is_local(table.location) else []
    dead = [folder for folder in folders if folder.ours and not folder.alive]
    known = referenced_files(database, opened, cutoff=0, with_changes=True).known
    age = int(older_than_hours * _HOUR_MS)
    now, before = clock.on_store(clock.now), clock.on_store(clock.now - age)
    data = DataFiles.of(database, opened, storage_options, temporary=True)
    created = table.created_at + max(0, clock.ahead)
    # change data of versions whose commits are not all here may be named by the log alone
    whole = table.head.first_version == 0 and commits.tail_start(database, table) <= 1
    strangers = {
        meta.path: meta
        for meta in data.orphans(known, data.list(), before=before, pending=pending, now=now)
        # older ones may belong to versions from before the import
        if meta.modified_ms >= created and (whole or not meta.path.startswith(CHANGES))
    }
    strangers = {path: strangers[path] for path in data.deletable(strangers)}
    if not dry_run:
        again = snapshots.open_table(database, name)
        require_no_foreign_commits(database, again.table, storage_options)
        live = referenced_files(database, again, cutoff=0, with_changes=True).known
        strangers = {path: meta for path, meta in strangers.items() if path not in live}
        for path in strangers:
            store.delete(path)
        for folder in dead:
            remove_folder(folder.path)
    unfinished = delete_temporary_files(store, now_ms=now, older_than_ms=age, dry_run=dry_run)
    return Garbage(
        name,
        tuple(meta.path for meta in (*strangers.values(), *unfinished)),
        tuple(folder.path.name for folder in dead),
        sum(meta.size for meta in (*strangers.values(), *unfinished)),
        deleted=not dry_run,
    )
