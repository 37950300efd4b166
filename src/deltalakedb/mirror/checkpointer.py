"""The checkpointer: checkpoints of published versions, streamed from SQL."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb import telemetry
from deltalakedb.delta_log.checkpoint_writer import CheckpointContent, write_checkpoint
from deltalakedb.delta_log.cleanup import (
    FILE_RETENTION,
    CleanupPlan,
    clean_log,
    delete_temporary_files,
    retention_ms,
)
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import TRANSACTION_FOLDER, manifest_path
from deltalakedb.delta_log.optional_files import (
    version_checksum,
    write_checksum,
    write_compaction,
    write_last_checkpoint,
)
from deltalakedb.exceptions import (
    CatalogBusyError,
    DeltaSqlError,
    InvalidArgumentError,
    LogGapError,
    StorageMissingError,
    TableMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import audit, commits, files, outbox, registry, snapshots
from deltalakedb.metastore.leases import Lease, leased, still_held
from deltalakedb.mirror import Options, store_at
from deltalakedb.mirror.clocks import checked_clock, database_now
from deltalakedb.mirror.drift import require_folder, require_no_foreign_commits
from deltalakedb.protocol.properties import (
    CHECKPOINT_POLICY,
    IN_COMMIT_TIMESTAMPS,
    checkpoint_interval,
    is_on,
)
from deltalakedb.retry import retry_in_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind, WrittenCheckpoint
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)


#: tables that allow V2 checkpoints get them from so many files on
_SPLIT_FROM = 500_000
_LEASE_MS = 2 * 60_000
#: only if a table asks for it: what is deleted is history of other readers
_CLEANUP = "delta.enableExpiredLogCleanup"


def checkpoint(
    database: Database,
    name: str,
    *,
    version: int | None = None,
    kind: CheckpointKind | None = None,
    storage_options: Options = None,
    write: Callable[..., WrittenCheckpoint] | None = None,
) -> WrittenCheckpoint:
    """Write a checkpoint of a published version, by default the newest.

    ``kind`` defaults to what the table's features and size ask for. ``write`` writes the files, with the
    arguments of `write_checkpoint_of`, which is the default.
    """
    table, store = _writable(database, name, storage_options)
    registry.refuse_frozen(table, "resolve that first: a checkpoint would decide for one side")
    newest = table.published_version
    if newest < 0:
        raise InvalidArgumentError("nothing of the table is published yet", table=name)
    if version is None:
        version = newest
    elif not 0 <= version <= newest:
        raise InvalidArgumentError(
            f"version {version} is not published: the newest published version is {newest}",
            table=name,
            version=version,
            suggestion="publish it first, with `deltasql mirror run`",
        )
    with checkpoint_lease(database, table) as lease:
        written = (write or write_checkpoint_of)(database, name, version, store=store, kind=kind)
        with database.read() as session:
            mine = still_held(session, lease)
        # a holder that was paused past its lease leaves the hint to its successor
        if mine:
            write_last_checkpoint(store, written)
            failpoint("checkpoint.after_hint")
            outbox.set_checkpoint(database, table.table_id, version)
            failpoint("checkpoint.after_note")
            write_checksum(store, version, _checksum(database, name, version))
    telemetry.emit("checkpoint_age_versions", table.head.version - version, table=name)
    try:
        if delete_temporary_files(store, now_ms=database_now(database), dry_run=True):
            delete_temporary_files(store, now_ms=_checked_now(database, name, store))
    except DeltaSqlError as error:
        logger.info("files that dead publishers left of %s stay: %s", name, error.message)
    return written


def _writable(database: Database, name: str, storage_options: Options) -> tuple[Table, Store]:
    table = registry.find(database, name)
    registry.refuse_followed(table)
    store = store_at(database, table.location, storage_options)
    require_folder(database, table, store)
    return table, store


def _checked_now(database: Database, name: str, store: Store, *, dry_run: bool = False) -> int:
    """The time to delete log files by, if the clocks agree: the earlier of the database's and the store's."""
    clock = checked_clock(database, name, store, dry_run=dry_run)
    return min(clock.now, clock.on_store(clock.now))


def checkpoint_lease(database: Database, table: Table) -> AbstractContextManager[Lease]:
    """The right to write a table's checkpoints and to clean its log up, which one process has at a time."""
    name = f"{outbox.CHECKPOINT_LEASE}{table.table_id}"
    work = f"a checkpoint or the clean-up of {table.name}"
    return leased(database, name, work=work, table=table.name, ttl_ms=_LEASE_MS)


def _checksum(database: Database, name: str, version: int) -> dict[str, Any]:
    opened = snapshots.open_table(database, name, version)
    snapshot, (num_files, size_bytes, _, _) = opened.snapshot, files.totals(database, opened)
    return version_checksum(
        snapshot.protocol,
        snapshot.metadata,
        num_files=num_files,
        size_bytes=size_bytes,
        in_commit_timestamp=snapshot.timestamp if is_on(snapshot.metadata, IN_COMMIT_TIMESTAMPS) else None,
        txns=snapshots.txns(database, opened.table, version).values(),
        domains=snapshots.domains(database, opened.table, version).values(),
    )


def clean(
    database: Database, name: str, *, storage_options: Options = None, dry_run: bool = False
) -> CleanupPlan:
    """Delete log files whose retention has ended and that a published checkpoint covers.

    The manifests of transactions that made no later versions are deleted too. Nothing is deleted while
    commits wait to be published, or if the log has commits that the catalog lacks.

    Raises:
        TableFrozenError: The table is frozen, or its log is ahead of the catalog.
        InvalidArgumentError: Commits wait to be published.
    """
    table, store = _writable(database, name, storage_options)
    if waiting := outbox.lag(database, table.table_id).versions:
        raise InvalidArgumentError(
            f"commits that are not published yet: {waiting}",
            table=name,
            suggestion="run `deltasql mirror run` first",
        )
    opened = snapshots.open_table(database, name)
    rows = commits.history(database, table)
    with checkpoint_lease(database, table):
        require_no_foreign_commits(database, table, storage_options)
        plan = clean_log(
            store,
            now_ms=_checked_now(database, name, store, dry_run=dry_run),
            retention=retention_ms(opened.snapshot.metadata),
            times={row.version: row.timestamp for row in rows},
            # commits that arrive beyond the head from now on are not covered by a checkpoint of ours
            needed_from=table.published_version,
            dry_run=dry_run,
        )
        made = {manifest_path(row.txn_uuid): row.version for row in reversed(rows)}
        base = plan.checkpoint or 0
        old = tuple(m for m in store.list(TRANSACTION_FOLDER) if made.get(m.path, base) < base)
        if not dry_run:
            store.delete_all(meta.path for meta in old)
    return replace(plan, delete=plan.delete + old)


def compact(
    database: Database,
    name: str,
    start: int,
    end: int,
    *,
    storage_options: Options = None,
    dry_run: bool = False,
) -> str | None:
    """Write a log compaction file over published versions; its path, or None if it exists.

    Raises:
        LogGapError: The log no longer has one of the versions.
        CatalogBusyError: The log is being cleaned up, or a checkpoint written.
    """
    table, store = _writable(database, name, storage_options)
    newest = table.published_version
    if not 0 <= start < end <= newest:
        raise InvalidArgumentError(
            f"versions {start} to {end} are not a range of published versions",
            table=name,
            suggestion=f"give two versions from 0 to {newest}, the first below the last",
        )
    with checkpoint_lease(database, table):
        try:
            return write_compaction(store, start, end, dry_run=dry_run)
        except StorageMissingError as error:
            kept = [v for v in list_log(store).commits if start <= v <= end]
            raise LogGapError(
                f"the log no longer has all commits from version {start} to {end}: it was cleaned up",
                table=name,
                version=start,
                suggestion=f"compact versions {min(kept)} to {end}"
                if len(kept) > 1 and kept == list(range(min(kept), end + 1))
                else "compact newer versions; `deltasql mirror verify` reports what must not be missing",
            ) from error


def write_checkpoint_of(
    database: Database, name: str, version: int, *, store: Store, kind: CheckpointKind | None = None
) -> WrittenCheckpoint:
    """Write a checkpoint of one version into a store, without changing the hint for readers."""
    opened = snapshots.open_table(database, name, version)
    content = content_of(database, opened, files.stream_files(database, opened))
    return write_checkpoint(store, content, kind=_kind(opened) if kind is None else kind)


def content_of(database: Database, opened: OpenTable, rows: Iterable[pa.RecordBatch]) -> CheckpointContent:
    """What a checkpoint of an open version holds, with some rows as its files."""
    version = opened.snapshot.version
    oldest = database_now(database) - retention_ms(opened.snapshot.metadata, FILE_RETENTION)
    return CheckpointContent(
        version=version,
        protocol=opened.snapshot.protocol,
        metadata=opened.snapshot.metadata,
        files=rows,
        tombstones=(
            remove
            for remove in files.tombstones(database, opened.table, version)
            if remove.deletion_timestamp is not None and remove.deletion_timestamp > oldest
        ),
        txns=list(snapshots.txns(database, opened.table, version).values()),
        domains=list(snapshots.domains(database, opened.table, version).values()),
    )


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Whether due checkpoints are written, and the log is cleaned up after one.

    Attributes:
        write: Write them.
        cleanup: Clean up; None leaves it to the table's ``delta.enableExpiredLogCleanup``.
        interval: Look only if a multiple of this was published just now; None always looks.
        force: Try again although a try failed a moment ago.
    """

    write: bool = True
    cleanup: bool | None = None
    interval: int | None = None
    force: bool = False


#: due checkpoints are written, and the tables' properties decide the rest
DUE = CheckpointOptions()


def checkpoint_if_due(
    database: Database, name: str, options: CheckpointOptions = DUE, storage_options: Options = None
) -> WrittenCheckpoint | None:
    """Write a checkpoint if published versions have passed a multiple of the table's interval.

    Also if the commits since the last one are too large or too old by the settings. A failure is recorded and
    shown by the table's status, and the next attempt has to wait a while.
    """
    status = outbox.status_of(database, name)
    if status is None or status.paused or status.state != "active":
        return None
    if status.checkpoint_backing_off and not options.force:
        return None
    metadata = snapshots.open_table(database, name).snapshot.metadata
    every = checkpoint_interval(metadata)
    passed = status.published_version // every > max(status.checkpoint_version, 0) // every
    if not passed and not _tail_is_due(database, status):
        return None
    try:
        written = checkpoint(database, name, storage_options=storage_options)
    except CatalogBusyError:
        raise  # another process is writing it
    except Exception as error:
        message = error.message if isinstance(error, DeltaSqlError) else str(error)
        note, wait = f"{type(error).__name__}: {message}", retry_in_ms(status.checkpoint_attempts)
        outbox.checkpoint_failed(database, status, note, retry_in_ms=wait)
        raise
    if not database.engine.config.publish.keep_bytes:
        prune(database, name)
    if is_on(metadata, _CLEANUP) if options.cleanup is None else options.cleanup:
        try:
            clean(database, name, storage_options=storage_options)
        except InvalidArgumentError as error:
            logger.info("the log of %s is cleaned up later: %s", name, error.message)
        except DeltaSqlError as error:
            logger.warning("the log of %s was not cleaned up: %s", name, error.message)
    return written


def _tail_is_due(database: Database, status: MirrorStatus) -> bool:
    """Whether the commits since the last checkpoint are too large, or too old."""
    config = database.engine.config.publish
    last, newest = status.checkpoint_version, status.published_version
    if newest <= last or not (config.checkpoint_tail_bytes or config.checkpoint_after_s):
        return False
    size, oldest = commits.tail(database, status.table_id, last, newest)
    if config.checkpoint_tail_bytes and size >= config.checkpoint_tail_bytes:
        return True
    if oldest is None or not config.checkpoint_after_s:
        return False
    return database_now(database) - oldest >= config.checkpoint_after_s * 1000


def _kind(opened: OpenTable) -> CheckpointKind:
    policy = (opened.snapshot.metadata.configuration.get(CHECKPOINT_POLICY) or "").strip().lower()
    if "v2Checkpoint" not in (opened.snapshot.protocol.writer_features or ()):
        return "classic"
    return "v2" if policy == "v2" or opened.table.head.num_files >= _SPLIT_FROM else "classic"


# ---- bytes that the catalog need not keep ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pruned:
    """Commits that lost their bytes, or would; ``upto`` is the newest version that may, -1 for none."""

    table: str
    upto: int
    commits: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def prune(database: Database, name: str, *, dry_run: bool = False) -> Pruned:
    """Delete the bytes of published commits that a published checkpoint covers; a dry run only counts them.

    Their sha256 and length stay, and so does everything that tables are read from. `repair` and `rebuild` can
    no longer write such commits.
    """
    table, status = registry.find(database, name), outbox.status_of(database, name)
    if status is None:
        raise TableMissingError(f"the table {name!r} was dropped a moment ago", table=name)
    registry.refuse_frozen(table, "resolve that first: its bytes may be needed for it")
    waiting = outbox.waiting_versions(database, table.table_id)
    # the checkpoint's own version stays, because a rebuilt log continues from it
    covered = (status.checkpoint_version, status.published_version, *waiting[:1])
    upto = max(-1, min(covered) - 1)
    with database.write() as session:
        row = session.row(database.sql("commits", "kept bytes"), (table.table_id, upto))
        count = 0 if row is None else int(row[0])
        if count and not dry_run:
            session.run(database.sql("commits", "prune bytes"), (table.table_id, upto))
            audit.record(session, "prune", table, version=upto, commits=count)
    return Pruned(name, upto, count)
