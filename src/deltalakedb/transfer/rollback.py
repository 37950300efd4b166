"""Rolling back: an unfinished import is undone, a finished one becomes the plain Delta table it was."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.address import parse_address
from deltalakedb.coordinator.fence import refuse_fenced
from deltalakedb.exceptions import (
    InvalidArgumentError,
    TableFrozenError,
    TableMissingError,
    UnsupportedOperationError,
    VerificationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import audit, imports, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.settings import get_config
from deltalakedb.transfer.resources import location_lease
from deltalakedb.transfer.verifying.report import FILE_LEVELS, check_level
from deltalakedb.transfer.verifying.verifier import verify_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.metastore.rows import Table
    from deltalakedb.transfer.verifying.report import Level, VerifyReport


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What a rollback did, or would do.

    Attributes:
        table: The table.
        location: Its root; nothing there is changed.
        action: ``undone`` (an unfinished import), ``partly undone``, or ``released`` (a finished one is a
            plain Delta table again).
        version: The newest version of the plain table; None for an unfinished import.
        batches: Batches that were dropped.
        batches_left: Batches that stay; the import goes on from there.
        num_files: File rows that were dropped.
        verification: How the log compared with the catalog before the table was forgotten.
        dry_run: True if nothing was changed.
        seconds: How long it took.
    """

    table: str
    location: str
    action: str
    version: int | None
    batches: int
    batches_left: int
    num_files: int
    verification: VerifyReport | None = None
    dry_run: bool = False
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        checked = self.verification
        return {**asdict(self), "verification": None if checked is None else checked.to_dict()}


def rollback_import(
    uri: str,
    *,
    keep_batches: int | None = None,
    verify: Level = "digest",
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> RollbackReport:
    """Undo an import. Files of the table are never touched.

    An unfinished import loses what it loaded. A finished one becomes a plain Delta table again, with every
    commit that was made through the catalog in its log; it is refused while some are not published, while the
    table is frozen, and if log and catalog do not agree. A table that was created in the catalog was never
    imported, so it is refused too: use ``export_table`` without a path or ``Catalog.drop_table``.

    Args:
        uri: The table's ``deltasql://`` address.
        keep_batches: Of an unfinished import, keep the first so many batches and drop the rest; the import
            goes on from there.
        verify: How thoroughly log and catalog are compared before a finished import is forgotten.
        dry_run: Report what would happen, and change nothing.
        storage_options: Options for the object store.

    Raises:
        UnsupportedOperationError: The table was never imported, or commits of it are not published.

    Example:
        >>> rollback_import("deltasql://sqlite//lake/meta.db?table=sales.orders").action
        'released'
    """
    began = time.perf_counter()
    check_level(verify, FILE_LEVELS)
    address = parse_address(uri)
    name = address.require_table()
    database = Database.open(address)
    try:
        table = registry.find(database, name)
    except TableMissingError:
        row = imports.newest_of(database, name)
        if row is None or not row.is_open:
            raise
        report = _undo(database, row, keep_batches, dry_run=dry_run)
    else:
        if keep_batches is not None:
            raise InvalidArgumentError(
                "the import is finished: there are no batches to keep",
                table=name,
                suggestion="leave keep_batches out",
            )
        options = get_config().storage_options_for(table.location, storage_options)
        report = _forget(database, table, uri, verify, options, dry_run=dry_run)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def _undo(database: Database, row: ImportRow, keep_batches: int | None, *, dry_run: bool) -> RollbackReport:
    done = imports.receipts(database, row.import_id)
    keep = 0 if keep_batches is None else keep_batches
    if keep < 0:
        raise InvalidArgumentError(f"keep_batches must be 0 or more, not {keep}", table=row.name)
    drop = [r for r in done if r.batch >= keep]
    part = keep_batches is not None
    report = RollbackReport(
        row.name,
        row.location,
        "partly undone" if part else "undone",
        None,
        len(drop),
        len(done) - len(drop),
        sum(r.actions for r in drop),
        dry_run=dry_run,
    )
    if dry_run:
        return report
    if row.deferred_indexes:
        database.leave_indexes()
    with location_lease(database, row.location) as lease:
        if part:
            _undo_batches(database, row, keep, lease)
        else:
            imports.undo_rows(database, row, lease)
            failpoint("import.undoing")
            moved = imports.restore_indexes(database, row, lease)
            with database.write() as session:
                imports.require(session, lease)
                imports.set_phase(session, moved, "undone")
                audit.record(session, "undo import", table_id=row.table_id, table=row.name, batches=len(drop))
    return report


def _undo_batches(database: Database, row: ImportRow, keep: int, lease: Lease) -> None:
    """Drop the newest batches, one transaction each, so that the import can go on from those that stay."""
    for receipt in reversed(imports.receipts(database, row.import_id)):
        if receipt.batch >= keep:
            imports.undo_batch(database, row, receipt, lease)
            failpoint("import.undoing")
    with database.write() as session:
        imports.require(session, lease)
        imports.set_phase(session, row, "loading")
        audit.record(session, "undo batches", table_id=row.table_id, table=row.name, kept=keep)


def refuse_unpublished(database: Database, table: Table) -> None:
    """Refuse to release a table whose log does not hold all of it, or that is frozen or fenced."""
    if table.state == "frozen":
        raise TableFrozenError(
            f"the table is frozen: {table.state_reason}",
            table=table.name,
            version=table.head.version,
            suggestion="resolve that first: `deltasql mirror status` and `deltasql mirror resolve`",
        )
    waiting = outbox.lag(database, table.table_id).versions
    if waiting or table.published_version < table.head.version:
        raise UnsupportedOperationError(
            f"{max(waiting, table.head.version - table.published_version)} commits of the table are not in "
            "its _delta_log yet and would be lost",
            table=table.name,
            version=table.head.version,
            suggestion="publish them with `deltasql mirror run` (after `deltasql mirror resume` if it is "
            "paused), then try again",
        )
    refuse_fenced(database, table)


def _forget(
    database: Database,
    table: Table,
    uri: str,
    level: Level,
    options: Mapping[str, str] | None,
    *,
    dry_run: bool,
) -> RollbackReport:
    _refuse_native(database, table)
    followed = table.state == registry.FOLLOWING  # its owners have all of it
    if not followed:
        refuse_unpublished(database, table)
    checked = None if followed else verify_table(uri, level, storage_options=options)
    if checked is not None and not checked.ok:
        ahead = any(d.kind == "ahead" for d in checked.differences)
        bring = f"`deltasql import {shlex.quote(table.location)} {table.name} --catch-up`"
        raise VerificationError(
            f"the log is not what the catalog says: {checked.differences[0].detail}",
            table=table.name,
            version=table.head.version,
            suggestion=f"other writers committed: import that with {bring}, then roll back"
            if ahead
            else "`deltasql verify` shows all differences, `deltasql mirror repair` repairs the log",
            report=checked,
        )
    report = RollbackReport(
        table.name,
        table.location,
        "released",
        table.head.version,
        0,
        0,
        table.head.num_files,
        verification=checked,
        dry_run=dry_run,
    )
    if dry_run:
        return report
    with location_lease(database, table.location):
        forget(database, table)
    return report


def _refuse_native(database: Database, table: Table) -> None:
    """Refuse to undo the import of a table that was created in the catalog."""
    if imports.of_table(database, table.table_id) is None:
        raise UnsupportedOperationError(
            "the table was created in this catalog and never imported: there is no import to roll back",
            table=table.name,
            version=table.head.version,
            suggestion=f"`deltasql export {table.name} --in-place` makes it a plain Delta table; "
            f"`deltasql drop {table.name}` removes it from the catalog. Both keep its files",
        )


def forget(database: Database, table: Table) -> None:
    """Drop a table whose head is published and has not moved since, in one transaction."""
    row = imports.of_table(database, table.table_id)
    with database.write() as session:
        locked = registry.lock(session, [table.table_id]).get(table.table_id)
        frozen = locked is not None and locked.frozen and table.state != registry.FOLLOWING
        if locked is None or locked.table.head.version != table.head.version or frozen:
            raise UnsupportedOperationError(
                "another writer wrote to the table in the meantime",
                table=table.name,
                suggestion="stop its writers, then try again",
            )
        registry.forget(session, locked.table)
        if row is not None:
            imports.set_phase(session, row, "undone")
        audit.record(
            session, "give back", table_id=table.table_id, table=table.name, version=table.head.version
        )
