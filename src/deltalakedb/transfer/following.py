"""Following: a read-only copy in SQL of a table that other engines write, kept in step with its log."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Unpack

from deltalakedb import telemetry
from deltalakedb.coordinator.coordinator import Coordinator
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
from deltalakedb.mirror import Options, drift
from deltalakedb.transfer.importing.api import import_new
from deltalakedb.transfer.importing.options import ImportOptions, import_target, location_lease
from deltalakedb.transfer.reports import FollowReport, ImportProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.transfer.importing.options import ImportArguments


def follow_table(
    path: str,
    uri: str,
    *,
    interval: float = 10.0,
    once: bool = False,
    stop: threading.Event | None = None,
    on_report: Callable[[FollowReport], None] | None = None,
    progress: Callable[[ImportProgress], None] | None = None,
    **options: Unpack[ImportArguments],
) -> FollowReport:
    """Keep a read-only copy of a table that other engines write: its metadata in SQL, its files untouched.

    The first call imports the table; from then on every look at the log imports the new commits. Writes
    through the copy are refused with ``TableFollowedError``. It can be killed at any time: the next call
    resumes. ``rollback_import`` forgets the copy.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address of the copy.
        interval: Seconds between two looks at the log.
        once: Look once and return, as for cron; otherwise until ``stop`` is set.
        stop: Ends the following when it is set.
        on_report: Called after every look.
        progress: Called while the table is imported.
        **options: As in ``import_table``, for the first call; this process imports later commits.

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
    asked = ImportOptions(progress=progress, following=True, **options)
    storage = asked.storage_for(location)
    database, name = Database.open(address), address.table or ""
    imported = False
    try:
        table = registry.find(database, name)
    except TableMissingError:
        import_new(database, address, location, asked)
        imported, table = True, registry.find(database, name)
    registry.require_location(table, location)
    if table.state != registry.FOLLOWING:
        raise TableExistsError(
            f"{name!r} is a table of the catalog, not a copy",
            table=name,
            suggestion="`deltasql import --catch-up` imports outside commits; to follow the table instead, "
            "undo its import first: `deltasql import --undo`",
        )
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


def _look(database: Database, name: str, storage: Options, *, imported: bool) -> FollowReport:
    """Import what the log has beyond the copy, and record how far it is."""
    table = registry.find(database, name)
    reader, location, head = FileTxnLogReader(table.location, storage), table.location, table.head.version
    again = f"`deltasql import --undo {name}` forgets the copy; then follow the table again"
    behind, brought = 0.0, 0
    try:
        newest = reader.latest_version()
        has_next = reader.store.exists(commit_path(head + 1))
        if has_next:
            behind = round(max(0.0, time.time() - reader.timestamp_of(head + 1) / 1000), 3)
        if newest < head or drift.is_rewritten(database, table, reader.store):
            raise LogCorruptError(
                f"the log at {location} is not the one that was followed: it was rewritten",
                table=name,
                version=head,
                suggestion=again,
            )
        if newest > head and not has_next:
            raise LogGapError(
                f"version {head + 1} was cleaned up before the copy had it; the log is at {newest}",
                table=name,
                version=head + 1,
                suggestion=f"{again}, and more often than its log is cleaned up",
            )
        if newest > head:
            failpoint("follow.before_bringing")
            brought = len(Coordinator(database, {location: storage}).adopt(name, origin="import").versions)
        newest = max(newest, reader.latest_version())
    except StorageUnavailableError as error:
        # a follower waits until the store is back
        return FollowReport(name, location, head, head, 0, 0.0, "unchanged", error.message)
    row = imports.of_table(database, table.table_id)
    if row is not None:
        imports.note_follower(database, row, newest)
    version = registry.find(database, name).head.version
    telemetry.emit("follow_lag_versions", max(0, newest - version), table=name)
    action = "imported" if imported else "caught up" if brought else "unchanged"
    return FollowReport(name, location, version, newest, brought, behind, action)
