"""The indexes of files, taken away for a first large load and built again after it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogError
from deltalakedb.metastore import imports
from deltalakedb.metastore.migrations import migrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.metastore.statements import Statement

logger = logging.getLogger(__name__)

#: a load of so many files pays for building the indexes afterwards
_WORTHWHILE = 200_000
_PREFIX = "CREATE INDEX "
_TABLE = " ON dl_files "
#: those that only planning asks for; the rest finds files by path and version
_PLANNING = ("dl_files_part", "dl_files_slot")


def defer(database: Database, row: ImportRow, lease: Lease) -> ImportRow:
    """Drop the file indexes before a large load into a catalog that holds no other files."""
    if row.deferred_indexes or row.files_expected < _WORTHWHILE or not database.dialect.indexed:
        return row
    if imports.receipts(database, row.import_id):
        return row
    with database.write() as session:
        imports.require(database, session, lease)
        if imports.has_other_files(database, session, row.table_id):
            return row
        for statement in _file_indexes():
            session.run(f"DROP INDEX IF EXISTS {_name(statement)}")
        _note(database, session, row, deferred=True)
    return replace(row, deferred_indexes=True)


def restore(database: Database, row: ImportRow, lease: Lease, *, planning: bool = True) -> ImportRow:
    """Build the file indexes that a load did without; those that are there already stay.

    Args:
        database: The catalog.
        row: The import.
        lease: The right to import, checked in the transaction of every index.
        planning: Those for planning too; without them the import stays marked as one that lacks indexes.
    """
    if not row.deferred_indexes:
        return row
    _build(database, lambda session: imports.require(database, session, lease), planning=planning)
    if not planning:
        return row
    with database.write() as session:
        imports.require(database, session, lease)
        _note(database, session, row, deferred=False)
    return replace(row, deferred_indexes=False)


def abandoned(database: Database) -> list[ImportRow]:
    """Imports that took the indexes away and at which nobody is at work any more."""
    if not database.dialect.indexed:
        return []
    with database.engine.read() as session:
        if session.row(database.sql("imports", "any deferred")) is None:
            return []
        now = session.now_ms()
        found = []
        for row in imports.list_in(session):
            held = session.row(database.sql("leases", "one"), (imports.lease_name(row.location),))
            if row.deferred_indexes and (held is None or held[2] <= now):
                found.append(row)
    return found


def mend(database: Database) -> int:
    """Build the indexes again that abandoned imports took away; how many imports those were."""
    lost = abandoned(database)
    if not lost:
        return 0
    names = ", ".join(row.name for row in lost)
    logger.warning("building the indexes that the interrupted import of %s took away", names)
    _build(database, lambda _: None, planning=True)
    with database.engine.write() as session:
        for row in lost:
            _note(database, session, row, deferred=False)
    return len(lost)


def mend_if_possible(database: Database) -> bool:
    """Mend before a write of somebody else; whether there is nothing left to be mended.

    Whoever may not build indexes writes without them: that is slow, and never wrong.
    """
    if not database.dialect.indexed:
        return True
    try:
        with database.engine.read() as session:
            if session.row(database.sql("imports", "any deferred")) is None:
                return True
        return mend(database) > 0
    except CatalogError as error:
        if error.transient:
            return False  # the next write tries again
        logger.warning("the indexes of an interrupted import cannot be built: %s", error.message)
        return True


def _build(database: Database, check: Callable[[Session], None], *, planning: bool) -> None:
    """One transaction for each index, so that others get their turn in between."""
    for statement in _file_indexes():
        if not planning and _name(statement).startswith(_PLANNING):
            continue
        with database.engine.write() as session:
            check(session)
            for tuning in database.dialect.before_index:
                session.run(tuning)
            session.run(str(statement).replace(_PREFIX, f"{_PREFIX}IF NOT EXISTS ", 1))
            for tuning in database.dialect.after_index:
                session.run(tuning)


def _note(database: Database, session: Session, row: ImportRow, *, deferred: bool) -> None:
    session.run(database.sql("imports", "set deferred"), (deferred, session.now_ms(), row.import_id))


def _file_indexes() -> list[Statement]:
    """The statements of the migrations that index files."""
    return [
        statement
        for step in migrations()
        for statement in step.statements
        if str(statement).startswith(_PREFIX) and _TABLE in str(statement)
    ]


def _name(statement: Statement) -> str:
    return str(statement).removeprefix(_PREFIX).split(" ", 1)[0]
