"""Roll back an import: undo an unfinished one, turn a finished one back into a plain Delta table."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltalakedb.address import parse_address
from deltalakedb.coordinator.coordinator import refuse_fenced
from deltalakedb.exceptions import (
    InvalidArgumentError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import audit, imports, outbox, registry
from deltalakedb.metastore.database import Database
from deltalakedb.settings import get_config
from deltalakedb.transfer import FILE_LEVELS, Level
from deltalakedb.transfer.importing.options import (
    EngineOptions,
    location_lease,
    require_at_least,
    require_one_of,
)
from deltalakedb.transfer.reports import RollbackReport
from deltalakedb.transfer.verifying.verifier import require_equal, verify_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.rows import Table


def rollback_import(
    uri: str,
    *,
    keep_batches: int | None = None,
    verify: Level = "digest",
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> RollbackReport:
    """Undo an import. This never changes files of the table.

    The batches of an unfinished import are deleted. A finished one becomes a plain Delta table again, whose
    log has every commit made through the catalog. That fails while commits are unpublished, while the table
    is frozen, and if log and catalog differ. For a table that was created in the catalog, use
    ``export_table`` without a path or ``Catalog.drop_table``.

    Args:
        uri: The table's ``deltasql://`` address.
        keep_batches: The number of batches of an unfinished import to keep; the import resumes from there.
        verify: How thoroughly log and catalog are compared before a finished import is undone.
        dry_run: Report what would happen, and change nothing.
        storage_options: Options for the object store.

    Raises:
        UnsupportedOperationError: The table was never imported, or has unpublished commits.

    Example:
        >>> rollback_import("deltasql://sqlite//lake/meta.db?table=sales.orders").action
        'released'
    """
    began = time.perf_counter()
    require_one_of("level", verify, FILE_LEVELS)
    require_at_least(0, "keep_batches", keep_batches or 0)
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
            finished = "the import is finished: there are no batches to keep"
            raise InvalidArgumentError(finished, table=name, suggestion="call it without keep_batches")
        options = get_config().storage_options_for(table.location, storage_options)
        report = _release(database, table, verify, options, dry_run=dry_run)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def _undo(database: Database, row: ImportRow, keep_batches: int | None, *, dry_run: bool) -> RollbackReport:
    done, part, keep = imports.receipts(database, row.import_id), keep_batches is not None, keep_batches or 0
    drop = [r for r in done if r.batch >= keep]
    left, actions = len(done) - len(drop), sum(r.actions for r in drop)
    action, audited = ("partly undone", "undo batches") if part else ("undone", "undo import")
    report = RollbackReport(row.name, row.location, action, None, actions, len(drop), left, dry_run=dry_run)
    if dry_run:
        return report
    with location_lease(database, row.location) as lease:
        if part:
            # newest first, one transaction each, so that the import can resume from the remaining batches
            for receipt in reversed(imports.receipts(database, row.import_id)):
                if receipt.batch >= keep:
                    imports.undo_batch(database, row, receipt, lease)
                    failpoint("import.undoing")
        else:
            imports.undo_rows(database, row, lease)
            failpoint("import.undoing")
        facts: dict[str, Any] = {"kept": keep} if part else {"batches": len(drop)}
        with database.write() as session:
            imports.require(session, lease)
            imports.set_phase(session, row, "loading" if part else "undone")
            audit.record(session, audited, row, **facts)
    return report


def refuse_unreleasable(database: Database, table: Table) -> None:
    """Refuse to release a table that is frozen or fenced, or whose log lacks commits."""
    registry.refuse_frozen(table, "run `deltasql mirror status`, then `deltasql mirror resolve`")
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


def _release(
    database: Database, table: Table, level: Level, storage: Mapping[str, str] | None, *, dry_run: bool
) -> RollbackReport:
    if imports.of_table(database, table.table_id) is None:
        raise UnsupportedOperationError(
            "the table was created in this catalog and never imported: there is no import to roll back",
            table=table.name,
            version=table.head.version,
            suggestion=f"`deltasql export {table.name} --in-place` makes it a plain Delta table; "
            f"`deltasql drop {table.name}` removes it from the catalog. Both keep its files",
        )
    checked = None
    if table.state != registry.FOLLOWING:  # other writers own the log of a followed table
        refuse_unreleasable(database, table)
        checked = verify_head(database, table, level, storage, engine=EngineOptions())
        suggestion = "`deltasql verify` shows all differences, `deltasql mirror repair` repairs the log"
        if any(d.kind == "ahead" for d in checked.differences):
            catch_up = f"`deltasql import {shlex.quote(table.location)} {table.name} --catch-up`"
            suggestion = f"other writers committed: import their commits with {catch_up}, then roll back"
        require_equal(checked, "the log differs from the catalog", suggestion)
    if not dry_run:
        with location_lease(database, table.location):
            release_table(database, table)
    head, facts = table.head, (table.name, table.location, "released")
    return RollbackReport(*facts, head.version, head.num_files, verification=checked, dry_run=dry_run)


def release_table(database: Database, table: Table) -> None:
    """Drop a table whose head is published and has not moved since, in one transaction."""
    row = imports.of_table(database, table.table_id)
    with database.write() as session:
        locked = registry.lock(session, [table.table_id]).get(table.table_id)
        frozen = locked is not None and locked.frozen and table.state != registry.FOLLOWING
        if locked is None or locked.table.head.version != table.head.version or frozen:
            raise UnsupportedOperationError(
                "another writer changed the table in the meantime",
                table=table.name,
                suggestion="stop the table's writers, then try again",
            )
        registry.forget(session, locked.table)
        if row is not None:
            imports.set_phase(session, row, "undone")
        audit.record(session, "give back", table, version=table.head.version)
