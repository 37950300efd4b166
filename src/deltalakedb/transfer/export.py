"""Giving a table away: a plain Delta table elsewhere, or the same place without the catalog."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltalakedb.config import get_config
from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.last_checkpoint import write_last_checkpoint
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, TableFrozenError, VerificationError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.mirror import outside, reconciler
from deltalakedb.mirror.checkpointer import write_checkpoint_of
from deltalakedb.mirror.fencing import refuse_fenced
from deltalakedb.mirror.folder import require_folder
from deltalakedb.storage.links import real_location
from deltalakedb.storage.store import local_path, open_store
from deltalakedb.table.places import normal_location
from deltalakedb.transfer.copying import Copied, DataMode, copy_files, count_files, top_level
from deltalakedb.transfer.holding import held
from deltalakedb.transfer.log_copies import LogToCopy
from deltalakedb.transfer.memory import memory_bound
from deltalakedb.transfer.rollback import forget, refuse_unpublished
from deltalakedb.transfer.verify import Subject, check_level, verify_loaded, verify_table
from deltalakedb.uri import parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.metastore.values import Table
    from deltalakedb.storage.store import Store
    from deltalakedb.transfer.findings import Level, VerifyReport

ExportHistory: TypeAlias = Literal["full", "newest"]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export made, or would make.

    Attributes:
        table: The table.
        location: Where the plain table lies.
        in_place: True where it lies where it lay, and the catalog has forgotten it.
        version: Its newest version.
        first_version: Its oldest.
        num_files: Files of data, deletion vectors and changes that were copied or linked.
        size_bytes: Their bytes.
        files_outside: Files that the log names by absolute paths; they stay where they are.
        files_gone: Files of older versions that a vacuum had deleted before.
        versions_gone: Older versions that the log leaves out, since a commit after them is neither in the
            catalog nor in the table's own log.
        verification: How the plain table compared with the catalog.
        dry_run: True where nothing was done.
        seconds: How long it took.
    """

    table: str
    location: str
    in_place: bool
    version: int
    first_version: int
    num_files: int = 0
    size_bytes: int = 0
    files_outside: int = 0
    files_gone: int = 0
    versions_gone: int = 0
    verification: VerifyReport | None = None
    dry_run: bool = False
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        checked = self.verification
        return {**asdict(self), "verification": None if checked is None else checked.to_dict()}


def export_table(
    uri: str,
    path: str | None = None,
    *,
    history: ExportHistory = "full",
    data: DataMode = "copy",
    verify: Level = "digest",
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write a SQL-backed table as a plain Delta table: elsewhere as a copy, or in place, leaving the catalog.

    Args:
        uri: The table's ``deltasql://`` address.
        path: Where to; without one the table stays where it is and the catalog forgets it, after everything
            is published and compared. The table's own location is refused here.
        history: ``"full"`` writes every version that SQL holds and whose commits can be had,
            ``"newest"`` only the newest one.
        data: ``"copy"`` copies data files, ``"link"`` makes hard links where the file system can, ``"none"``
            writes the log alone.
        verify: How thoroughly the plain table is compared with the catalog.
        dry_run: Say what would happen, and do nothing.
        storage_options: Options for the object store.
        progress: Called now and then with files done and files there are.

    Raises:
        InvalidArgumentError: The path is the table's own place, is inside another table, or holds anything
            but what an earlier attempt of this export left.
        TableExistsError: The path belongs to another table of the catalog, or one lies inside the other.
        VerificationError: The plain table is not what the catalog says; the catalog keeps the table.

    Example:
        >>> export_table("deltasql://sqlite//lake/meta.db?table=sales.orders", "/archive/orders").version
        12
    """
    began = time.perf_counter()
    check_level(verify)
    for name, value, allowed in (
        ("history", history, ("full", "newest")),
        ("data", data, ("copy", "link", "none")),
    ):
        if value not in allowed:
            raise InvalidArgumentError(f"unknown {name} {value!r}", suggestion=f"use {' or '.join(allowed)}")
    address = parse_uri(uri)
    name = address.require_table()
    database = Database.open(address)
    table = registry.find(database, name)
    if path is None:
        options = get_config().storage_options_for(table.location, storage_options)
        report = _in_place(database, table, uri, verify, options, dry_run=dry_run)
    else:
        target = normal_location(path)
        if real_location(target) == real_location(table.location):
            # who asks for a copy does not ask that the catalog forget the table
            raise InvalidArgumentError(
                f"{path} is the table's own place",
                table=table.name,
                suggestion="say --in-place (in Python: give no path) to leave it there and let the catalog "
                "forget it; for a copy choose another place",
            )
        registry.refuse_taken(database, table.name, target, free=True)
        report = _elsewhere(
            database, table, uri, target, history, data, verify, storage_options, progress, dry_run=dry_run
        )
    return replace(report, seconds=round(time.perf_counter() - began, 3))


# ---- in place ----


def _in_place(
    database: Database,
    table: Table,
    uri: str,
    level: Level,
    options: Mapping[str, str] | None,
    *,
    dry_run: bool,
) -> ExportReport:
    report = ExportReport(
        table.name,
        table.location,
        True,
        table.head.version,
        table.head.first_version,
        table.head.num_files,
        table.head.size_bytes,
        dry_run=dry_run,
    )
    if dry_run:
        _refuse_what_waits(database, table, options)
        refuse_fenced(database, table)
        checked = verify_table(uri, level, storage_options=options)
        _refuse_differences(checked, table)
        return replace(report, verification=checked)
    with held(database, table.location):
        if table.state != "frozen":
            reconciler.reconcile(database, table.name, storage_options=options)
        table = registry.find(database, table.name)
        refuse_unpublished(database, table)
        checked = verify_table(uri, level, storage_options=options)
        _refuse_differences(checked, table)
        failpoint("export.verified")
        forget(database, table)
    return replace(report, version=table.head.version, verification=checked)


def _refuse_what_waits(database: Database, table: Table, options: Mapping[str, str] | None) -> None:
    """Refuse a table with commits that could not be published; those that can be are published later."""
    status = outbox.status_of(database, table.name)
    if table.published_version == table.head.version or status is None or status.paused:
        refuse_unpublished(database, table)
        return
    if table.state == "frozen" or outside.looked_at(database, status).ahead:
        raise TableFrozenError(
            f"commits of the table cannot be published: {table.state_reason or 'its log has others there'}",
            table=table.name,
            version=table.head.version,
            suggestion="settle that first: `deltasql mirror status` and `deltasql mirror resolve`",
        )
    require_folder(database, table, open_store(table.location, options))


# ---- elsewhere ----


def _elsewhere(
    database: Database,
    table: Table,
    uri: str,
    target: str,
    history: ExportHistory,
    data: DataMode,
    level: Level,
    storage_options: Mapping[str, str] | None,
    progress: Callable[[int, int], None] | None,
    *,
    dry_run: bool,
) -> ExportReport:
    config = get_config()
    source = open_store(table.location, config.storage_options_for(table.location, storage_options))
    options = config.storage_options_for(target, storage_options)
    goal = open_store(target, options)
    version = table.head.version
    log = LogToCopy.find(database, table, source, newest_only=history == "newest")
    _refuse_place(log, goal)
    _refuse_other_log(database, table, goal, log.first)
    report = ExportReport(table.name, target, False, version, log.first, dry_run=dry_run)
    if history == "full":
        report = replace(report, versions_gone=log.first - table.head.first_version)
    if dry_run:
        return _with_files(report, Copied() if data == "none" else count_files(log, goal))
    with held(database, target):
        copied = Copied()
        if data != "none":
            copied = copy_files(log, goal, mode=data, progress=progress)
        failpoint("export.before_log")
        _write_log(log, goal)
        reader = FileTxnLogReader(target, options)
        oldest = table.head.first_version
        subject = Subject(database, table.table_id, table.name, reader, oldest, version, memory_bound())
        checked = verify_loaded(subject, level)
        if level == "data" and checked.ok:
            from deltalakedb.transfer.data_rows import check_rows  # reading data costs time to import

            checked = check_rows(checked, uri, target, options, storage_options)
        _refuse_differences(checked, table)
    return replace(_with_files(report, copied), verification=checked)


def _with_files(report: ExportReport, copied: Copied) -> ExportReport:
    return replace(
        report,
        num_files=copied.files,
        size_bytes=copied.size,
        files_outside=copied.outside,
        files_gone=copied.gone,
    )


def _refuse_place(log: LogToCopy, goal: Store) -> None:
    """Refuse a folder that holds more than an earlier attempt left, or that is inside another table."""
    table, place = log.table, local_path(goal.location)
    if place is not None and place.is_file():
        raise InvalidArgumentError(
            f"{goal.location} is a file", table=table.name, suggestion="choose an empty folder"
        )
    for above in () if place is None else place.parents:
        if above.name == LOG_FOLDER or (above / LOG_FOLDER).is_dir():
            raise InvalidArgumentError(
                f"{goal.location} is inside the Delta table at {above}",
                table=table.name,
                suggestion="choose a folder outside: cleaning that table would delete the exported files",
            )
    there = {*goal.folders(), *(meta.path for meta in goal.list())}
    if there and (foreign := sorted(there - {LOG_FOLDER} - top_level(log))):
        raise InvalidArgumentError(
            f"the target {goal.location} is not empty: it holds {', '.join(foreign[:3])}"
            + (", …" if len(foreign) > 3 else ""),
            table=table.name,
            suggestion="choose an empty or new folder",
        )


def _refuse_other_log(database: Database, table: Table, goal: Store, first: int) -> None:
    """Go on with what an earlier attempt left, and refuse anything else."""
    listing = list_log(goal)
    for version, meta in sorted(listing.commits.items()):
        ours = commits.one(database, table, version) if version >= first else None
        if ours is None or commit_digest(goal, meta.path).sha256 != ours.sha256:
            raise InvalidArgumentError(
                f"there is another table's log at {goal.location}",
                table=table.name,
                suggestion="choose an empty place",
            )
    if not listing.commits and set(listing.checkpoints) - {first}:
        raise InvalidArgumentError(
            f"there is another table's log at {goal.location}",
            table=table.name,
            suggestion="choose an empty place",
        )


def _write_log(log: LogToCopy, goal: Store) -> None:
    """A checkpoint where the log does not begin with the commit of version 0, then every commit."""
    if log.first > 0 or log.bare:
        written = write_checkpoint_of(log.database, log.table.name, log.first, store=goal)
        write_last_checkpoint(goal, written.hint())
    log.write(goal)


def _refuse_differences(checked: VerifyReport, table: Table) -> None:
    if not checked.ok:
        raise VerificationError(
            f"the plain table is not what the catalog says: {checked.differences[0].detail}",
            table=table.name,
            version=table.head.version,
            suggestion="the catalog keeps the table; `deltasql verify` shows all differences",
            report=checked,
        )
