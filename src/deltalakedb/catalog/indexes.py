"""The indexes of files, taken away for a first large load and built again after it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.catalog import imports
from deltalakedb.catalog.migrations import migrations

if TYPE_CHECKING:
    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.imports import ImportRow
    from deltalakedb.catalog.leases import Lease
    from deltalakedb.catalog.statements import Statement

#: a load of so many files pays for building the indexes afterwards
_WORTHWHILE = 200_000
_PREFIX = "CREATE INDEX "
_TABLE = " ON dl_files "


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


def restore(database: Database, row: ImportRow, lease: Lease) -> ImportRow:
    """Build the file indexes that a load did without; those that are there already stay."""
    if not row.deferred_indexes:
        return row
    with database.write() as session:
        imports.require(database, session, lease)
        for tuning in database.dialect.before_index:
            session.run(tuning)
        for statement in _file_indexes():
            session.run(str(statement).replace(_PREFIX, f"{_PREFIX}IF NOT EXISTS ", 1))
        for tuning in database.dialect.after_index:
            session.run(tuning)
        _note(database, session, row, deferred=False)
    return replace(row, deferred_indexes=False)


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
