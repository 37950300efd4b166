"""Following: a read-only copy in SQL of a table that others write, kept in step with its log."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb import telemetry
from deltalakedb.coordinator import guard
from deltalakedb.delta_log.names import commit_path
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    StorageUnavailableError,
    TableExistsError,
    TableMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import imports, leases, registry
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import outside
from deltalakedb.transfer.importing.api import import_new
from deltalakedb.transfer.importing.engines import EngineOptions
from deltalakedb.transfer.importing.options import ImportOptions, import_target
from deltalakedb.transfer.resources import location_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.metastore.rows import Table
    from deltalakedb.transfer.importing.engines import EngineName
    from deltalakedb.transfer.importing.options import History
    from deltalakedb.transfer.importing.report import ImportProgress
    from deltalakedb.transfer.verifying.report import Level


@dataclass(frozen=True, slots=True)
class FollowReport:
    """How far a copy is behind the log that it follows.

    Attributes:
        table: The copy's name.
        location: The table that is followed.
        version: The newest version of the copy.
        source_version: The newest version of the log at that time.
        brought: Versions that this look brought in.
        seconds_behind: Age of the oldest version that the copy lacked.
        action: ``imported`` for a copy that was made now, ``caught up`` or ``unchanged``.
        error: Why the log could not be reached this time; the next look tries again.
    """

    table: str
    location: str
    version: int
    source_version: int
    brought: int
    seconds_behind: float
    action: str
    error: str | None = None

    @property
    def lag(self) -> int:
        """Versions of the log that the copy does not have."""
        return max(0, self.source_version - self.version)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "lag": self.lag}


def follow_table(
    path: str,
    uri: str,
    *,
    interval: float = 10.0,
    once: bool = False,
    history: History = "auto",
    verify: Level = "digest",
    batch_size: int | None = None,
    rate_limit: int | None = None,
    engine: EngineName = "auto",
    spark: Any = None,
    master: str | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    on_report: Callable[[FollowReport], None] | None = None,
    progress: Callable[[ImportProgress], None] | None = None,
) -> FollowReport:
    """Keep a read-only copy of a table that others write: its metadata in SQL, its files untouched.

    The first call imports the table; from then on every look at the log imports the new commits. Writes
    through the copy are refused with ``TableFollowedError``. It can be killed at any time: the next call goes
    on from there. ``rollback_import`` forgets the copy.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address of the copy.
        interval: Seconds between two looks at the log.
        once: Look once and return, as for cron; otherwise until ``stop`` is set.
        history: As in ``import_table``, for the first call.
        verify: As in ``import_table``, for the first call.
        batch_size: As in ``import_table``, for the first call.
        rate_limit: As in ``import_table``, for the first call.
        engine: As in ``import_table``, for the first call; this process imports later commits.
        spark: As in ``import_table``.
        master: As in ``import_table``.
        remote: As in ``import_table``.
        storage_options: Options for the object store.
        stop: Ends the following when it is set.
        on_report: Called after every look.
        progress: Called while the table is imported.

    Returns:
        What the last look found.

    Raises:
        TableExistsError: The name or the location belongs to a table of the catalog that is not a copy.
        LogGapError: The log was cleaned up beyond the copy.
        LogCorruptError: The log is not the one that was followed.
        CatalogBusyError: Another process follows the table.

    Example:
        >>> follow_table("s3://theirs/orders", "deltasql://sqlite//lake/meta.db?table=orders", once=True).lag
        0
    """
    address, location = import_target(path, uri)
    if not 0 < interval < float("inf"):
        raise InvalidArgumentError(f"interval must be a number of seconds above 0, not {interval}")
    options = ImportOptions(
        history,
        verify,
        batch_size,
        rate_limit,
        EngineOptions(engine, spark, master, remote),
        storage_options,
        progress,
        following=True,
    )
    storage = options.storage_for(location)
    database, name = Database.open(address), address.table or ""
    imported = False
    try:
        table = registry.find(database, name)
    except TableMissingError:
        import_new(database, address, location, options)
        imported, table = True, registry.find(database, name)
    _refuse_others(table, location)
    end = stop or threading.Event()
    with location_lease(database, table.location) as lease:
        while True:
            with database.read() as session:
                leases.require(session, lease, work="following", table=name)
            report = _look(database, name, storage, imported=imported)
            imported = False
            if on_report is not None:
                on_report(report)
            if once or end.wait(interval):
                return report


def _refuse_others(table: Table, location: str) -> None:
    registry.refuse_elsewhere(table, location)
    if table.state != registry.FOLLOWING:
        raise TableExistsError(
            f"{table.name!r} is a table of the catalog, not a copy",
            table=table.name,
            suggestion="`deltasql import --catch-up` brings outside commits in; to follow it instead, "
            "`deltasql rollback` it first",
        )


def _look(
    database: Database, name: str, options: Mapping[str, str] | None, *, imported: bool
) -> FollowReport:
    """Import what the log has beyond the copy, and record how far it is."""
    table = registry.find(database, name)
    reader = FileTxnLogReader(table.location, options)
    try:
        newest = reader.latest_version()
        behind = _seconds_behind(reader, table)
        brought = _catch_up(database, table, reader, newest, options)
        newest = max(newest, reader.latest_version())
    except StorageUnavailableError as error:
        # a follower waits until the store is back
        return FollowReport(
            name, table.location, table.head.version, table.head.version, 0, 0.0, "unchanged", error.message
        )
    row = imports.of_table(database, table.table_id)
    if row is not None:
        imports.note_follower(database, row, newest)
    version = registry.find(database, name).head.version
    telemetry.emit("follow_lag_versions", max(0, newest - version), table=name)
    action = "imported" if imported else "caught up" if brought else "unchanged"
    return FollowReport(name, table.location, version, newest, brought, behind, action)


def _seconds_behind(reader: FileTxnLogReader, table: Table) -> float:
    missing = table.head.version + 1
    if not reader.store.exists(commit_path(missing)):
        return 0.0
    return round(max(0.0, time.time() - reader.timestamp_of(missing) / 1000), 3)


def _catch_up(
    database: Database,
    table: Table,
    reader: FileTxnLogReader,
    newest: int,
    options: Mapping[str, str] | None,
) -> int:
    head = table.head.version
    again = f"`deltasql rollback {table.name}` forgets the copy; then follow the table again"
    if newest < head or outside.is_rewritten(database, table, reader.store):
        raise LogCorruptError(
            f"the log at {table.location} is not the one that was followed: it was rewritten",
            table=table.name,
            version=head,
            suggestion=again,
        )
    if newest == head:
        return 0
    if not reader.store.exists(commit_path(head + 1)):
        raise LogGapError(
            f"version {head + 1} was cleaned up before the copy had it; the log is at {newest}",
            table=table.name,
            version=head + 1,
            suggestion=f"{again}, and more often than its log is cleaned up",
        )
    failpoint("follow.before_bringing")
    return len(guard.adopt(database, table.name, options, origin="import").versions)
