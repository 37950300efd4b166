"""Exporting a table: as a copy elsewhere, or in place, where the catalog forgets it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltalakedb.address import parse_address
from deltalakedb.coordinator.fence import refuse_fenced
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
from deltalakedb.mirror.folder import require_folder
from deltalakedb.settings import get_config
from deltalakedb.storage.store import local_path, open_store, real_location
from deltalakedb.table.locations import normal_location
from deltalakedb.transfer.exporting.copying import Copied, LogToCopy, copy_files, count_files, top_level
from deltalakedb.transfer.resources import location_lease
from deltalakedb.transfer.rollback import forget, refuse_unpublished
from deltalakedb.transfer.verifying.report import FILE_LEVELS, check_level
from deltalakedb.transfer.verifying.verifier import Subject, verify_loaded, verify_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store
    from deltalakedb.transfer.exporting.copying import DataMode
    from deltalakedb.transfer.verifying.report import Level, VerifyReport

ExportHistory: TypeAlias = Literal["full", "newest"]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export made, or would make.

    Attributes:
        table: The table.
        location: The root of the plain table.
        in_place: True if it stayed where it was, and the catalog has forgotten it.
        version: Its newest version.
        first_version: Its oldest.
        num_files: Files of data, deletion vectors and changes that were copied or linked.
        size_bytes: Their bytes.
        files_outside: Files that the log names by absolute paths; they stay where they are.
        files_gone: Files of older versions that a vacuum had deleted before.
        versions_gone: Older versions that the log leaves out, since a commit after them is neither in the
            catalog nor in the table's own log.
        verification: How the plain table compared with the catalog.
        dry_run: True if nothing was done.
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
        path: The root of the copy. Without one the table stays where it is and the catalog forgets it, after
            everything is published and compared. The table's own location is refused here.
        history: ``"full"`` writes every version that SQL holds and whose commits are available,
            ``"newest"`` only the newest one.
        data: ``"copy"`` copies data files, ``"link"`` makes hard links if the file system can, ``"none"``
            writes the log alone.
        verify: How thoroughly the plain table is compared with the catalog.
        dry_run: Report what would happen, and do nothing.
        storage_options: Options for the object store.
        progress: Called now and then with files done and files there are.

    Raises:
        InvalidArgumentError: The path is the table's own location, is inside another table, or holds anything
            but what an earlier attempt of this export left.
        TableExistsError: The path belongs to another table of the catalog, or one is inside the other.
        VerificationError: The plain table is not what the catalog says; the catalog keeps the table.

    Example:
        >>> export_table("deltasql://sqlite//lake/meta.db?table=sales.orders", "/archive/orders").version
        12
    """
    began = time.perf_counter()
    check_level(verify, FILE_LEVELS)
    for name, value, allowed in (
        ("history", history, ("full", "newest")),
        ("data", data, ("copy", "link", "none")),
    ):
        if value not in allowed:
            raise InvalidArgumentError(f"unknown {name} {value!r}", suggestion=f"use {' or '.join(allowed)}")
    address = parse_address(uri)
    table_name = address.require_table()
    database = Database.open(address)
    table = registry.find(database, table_name)
    export = _Export(database, table, uri, history, data, verify, dry_run, storage_options, progress)
    if path is None:
        report = export.in_place()
    else:
        target = normal_location(path)
        if real_location(target) == real_location(table.location):
            raise InvalidArgumentError(
                f"{path} is the table's own place",
                table=table.name,
                suggestion="say --in-place (in Python: give no path) to leave it there and let the catalog "
                "forget it; for a copy choose another place",
            )
        registry.refuse_taken(database, table.name, target, free=True)
        report = export.copy_to(target)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


@dataclass(frozen=True, slots=True)
class _Export:
    """The table and the arguments of ``export_table``."""

    database: Database
    table: Table
    uri: str
    history: ExportHistory
    data: DataMode
    verify: Level
    dry_run: bool
    storage_options: Mapping[str, str] | None
    progress: Callable[[int, int], None] | None

    def in_place(self) -> ExportReport:
        """Let the catalog forget the table, after everything is published and compared."""
        database, table = self.database, self.table
        options = get_config().storage_options_for(table.location, self.storage_options)
        head = table.head
        report = ExportReport(
            table.name,
            table.location,
            True,
            head.version,
            head.first_version,
            head.num_files,
            head.size_bytes,
            dry_run=self.dry_run,
        )
        if self.dry_run:
            _refuse_what_waits(database, table, options)
            refuse_fenced(database, table)
            checked = verify_table(self.uri, self.verify, storage_options=options)
            _refuse_differences(checked, table)
            return replace(report, verification=checked)
        with location_lease(database, table.location):
            if table.state != "frozen":
                reconciler.reconcile(database, table.name, storage_options=options)
            table = registry.find(database, table.name)
            refuse_unpublished(database, table)
            checked = verify_table(self.uri, self.verify, storage_options=options)
            _refuse_differences(checked, table)
            failpoint("export.verified")
            forget(database, table)
        return replace(report, version=table.head.version, verification=checked)

    def copy_to(self, target: str) -> ExportReport:
        """Write the log, and copy the files that it needs."""
        database, table, config = self.database, self.table, get_config()
        source = open_store(table.location, config.storage_options_for(table.location, self.storage_options))
        options = config.storage_options_for(target, self.storage_options)
        goal = open_store(target, options)
        log = LogToCopy.find(database, table, source, newest_only=self.history == "newest")
        _refuse_place(log, goal)
        _refuse_other_log(database, table, goal, log.first)
        version = table.head.version
        report = ExportReport(table.name, target, False, version, log.first, dry_run=self.dry_run)
        if self.history == "full":
            report = replace(report, versions_gone=log.first - table.head.first_version)
        copied = Copied()
        if self.dry_run:
            return _with_files(report, copied if self.data == "none" else count_files(log, goal))
        with location_lease(database, target):
            if self.data != "none":
                copied = copy_files(log, goal, mode=self.data, progress=self.progress)
            failpoint("export.before_log")
            _write_log(log, goal)
            subject = Subject(
                database,
                table.table_id,
                table.name,
                FileTxnLogReader(target, options),
                table.head.first_version,
                version,
                first_commit=log.first + log.bare,
            )
            checked = verify_loaded(subject, self.verify)
            if self.verify == "data" and checked.ok:
                from deltalakedb.transfer.verifying.data_rows import check_rows  # imports deltalake's reader

                checked = check_rows(checked, self.uri, target, options, self.storage_options)
            _refuse_differences(checked, table)
        return replace(_with_files(report, copied), verification=checked)


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
            suggestion="resolve that first: `deltasql mirror status` and `deltasql mirror resolve`",
        )
    require_folder(database, table, open_store(table.location, options))


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
    foreign = not listing.commits and bool(set(listing.checkpoints) - {first})
    for version, meta in listing.commits.items():
        ours = commits.one(database, table, version) if version >= first else None
        foreign |= ours is None or commit_digest(goal, meta.path).sha256 != ours.sha256
    if foreign:
        raise InvalidArgumentError(
            f"there is another table's log at {goal.location}",
            table=table.name,
            suggestion="choose an empty place",
        )


def _write_log(log: LogToCopy, goal: Store) -> None:
    """A checkpoint if the log does not begin with the commit of version 0, then every commit."""
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
