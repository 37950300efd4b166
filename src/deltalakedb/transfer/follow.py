"""Following: a read-only copy in SQL of a table that others own, kept in step with its log."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb import telemetry
from deltalakedb.config import get_config
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
from deltalakedb.transfer.holding import held
from deltalakedb.transfer.plan import checked_rate, target_of
from deltalakedb.transfer.verify import check_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.metastore.values import Table
    from deltalakedb.transfer.choosing import EngineName
    from deltalakedb.transfer.findings import Level
    from deltalakedb.transfer.plan import History
    from deltalakedb.transfer.report import ImportProgress


@dataclass(frozen=True, slots=True)
class FollowReport:
    """How far a copy is behind the log that it follows.

    Attributes:
        table: The copy's name.
        location: The table that is followed.
        version: The newest version of the copy.
        source_version: The newest version of the log when it was looked at.
        brought: Versions that this look brought in.
        seconds_behind: How long the copy had been behind: from the oldest version that it lacked to now.
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
    tell: Callable[[FollowReport], None] | None = None,
    progress: Callable[[ImportProgress], None] | None = None,
) -> FollowReport:
    """Keep a read-only copy of a table that others own: its metadata in SQL, its files untouched.

    The first call imports the table; from then on every look brings in the commits that were made since.
    Writes through the copy are refused with ``TableFollowedError``. Killed at any time, it goes on where it
    was. ``rollback_import`` forgets the copy.

    Args:
        path: The table's root.
        uri: The ``deltasql://`` address of the copy.
        interval: Seconds between two looks at the log.
        once: Look once and return, as cron likes it; otherwise until ``stop`` is set.
        history: As in ``import_table``, for the first call.
        verify: As in ``import_table``, for the first call.
        batch_size: As in ``import_table``, for the first call.
        rate_limit: As in ``import_table``, for the first call.
        engine: As in ``import_table``, for the first call; later commits are brought in by this process.
        spark: As in ``import_table``.
        master: As in ``import_table``.
        remote: As in ``import_table``.
        storage_options: Options for the object store.
        stop: Ends the following when it is set.
        tell: Called after every look.
        progress: Called while the table is imported.

    Returns:
        What the last look found.

    Raises:
        TableExistsError: The name or the location belongs to a table of the catalog that is no copy.
        LogGapError: The log was cleaned up beyond the copy.
        LogCorruptError: The log is not the one that was followed.
        CatalogBusyError: Another process follows the table.

    Example:
        >>> follow_table("s3://theirs/orders", "deltasql://sqlite//lake/meta.db?table=orders", once=True).lag
        0
    """
    address, location = target_of(path, uri)
    check_level(verify)
    if not 0 < interval < float("inf"):
        raise InvalidArgumentError(f"interval must be a number of seconds above 0, not {interval}")
    from deltalakedb.transfer.choosing import EngineWish  # Arrow's functions cost time to import

    wish, limit = EngineWish(engine, spark, master, remote), checked_rate(rate_limit)
    options = get_config().storage_options_for(location, storage_options)
    database, name = Database.open(address), address.table or ""
    made = False
    try:
        table = registry.find(database, name)
    except TableMissingError:
        reader = FileTxnLogReader(location, options)
        reader.versions()  # what is not there leaves no empty catalog behind
        wish.check()
        database.ensure()
        # Arrow's functions cost time to import
        from deltalakedb.transfer.pipeline import Pipeline

        Pipeline(
            database,
            address,
            location,
            reader,
            history=history,
            level=verify,
            batch_size=batch_size,
            rate_limit=limit,
            progress=progress,
            wish=wish,
            following=True,
            options=options,
        ).whole()
        made, table = True, registry.find(database, name)
    _refuse_others(table, location)
    end = stop or threading.Event()
    with held(database, table.location) as lease:
        while True:
            with database.read() as session:
                leases.require(session, lease, work="following", table=name)
            report = _look(database, name, options, made=made)
            made = False
            if tell is not None:
                tell(report)
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


def _look(database: Database, name: str, options: Mapping[str, str] | None, *, made: bool) -> FollowReport:
    """Bring in what the log has beyond the copy, and note how far it is."""
    table = registry.find(database, name)
    reader = FileTxnLogReader(table.location, options)
    try:
        newest = reader.latest_version()
        behind = _seconds_behind(reader, table)
        brought = _bring(database, table, reader, newest, options)
        newest = max(newest, reader.latest_version())
    except StorageUnavailableError as error:
        # a store that is away for a while is what a follower sits out
        return FollowReport(
            name, table.location, table.head.version, table.head.version, 0, 0.0, "unchanged", error.message
        )
    row = imports.of_table(database, table.table_id)
    if row is not None:
        imports.note_follower(database, row, newest)
    version = registry.find(database, name).head.version
    telemetry.emit("follow_lag_versions", max(0, newest - version), table=name)
    action = "imported" if made else "caught up" if brought else "unchanged"
    return FollowReport(name, table.location, version, newest, brought, behind, action)


def _seconds_behind(reader: FileTxnLogReader, table: Table) -> float:
    missing = table.head.version + 1
    if not reader.store.exists(commit_path(missing)):
        return 0.0
    return round(max(0.0, time.time() - reader.timestamp_of(missing) / 1000), 3)


def _bring(
    database: Database,
    table: Table,
    reader: FileTxnLogReader,
    newest: int,
    options: Mapping[str, str] | None,
) -> int:
    head = table.head.version
    again = f"`deltasql rollback {table.name}` forgets the copy; follow the table anew"
    if newest < head or outside.is_rewritten(database, table, reader.store):
        raise LogCorruptError(
            f"the log at {table.location} is not the one that was followed: it was written anew",
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
    return len(outside.adopt(database, table.name, options, origin="import").versions)
