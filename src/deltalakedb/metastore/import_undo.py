"""Taking back what an unfinished import loaded, whole or batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore import imports
from deltalakedb.metastore.file_rows import FILE_ID_BITS
from deltalakedb.metastore.statements import statements

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.imports import ImportRow, Receipt
    from deltalakedb.metastore.leases import Lease


def undo_rows(database: Database, row: ImportRow, lease: Lease) -> int:
    """Delete everything that an unfinished import loaded, in pieces; how many files it had at the most."""
    files = 0
    for receipt in reversed(imports.receipts(database, row.import_id)):
        files = max(files, receipt.next_file_seq)
        if receipt.kind == "base":
            undo_batch(database, row, receipt, lease)
    start = (row.table_id << FILE_ID_BITS) | 0
    end = ((row.table_id + 1) << FILE_ID_BITS) - 1
    with database.write() as session:
        imports.require(database, session, lease)
        _drop_between(database, session, start, end)
        _drop_all(database, session, row)
        session.run(database.sql("imports", "drop receipts"), (row.import_id, 0))
    return files


def undo_batch(database: Database, row: ImportRow, receipt: Receipt, lease: Lease) -> None:
    """Delete one batch that is the newest, and its receipt, in one transaction."""
    dialect = database.dialect.name
    with database.write() as session:
        imports.require(database, session, lease)
        if receipt.kind == "tail":
            for statement in statements("unratify", dialect).values():
                session.run(statement, (row.table_id, receipt.begins))
        elif receipt.ends < receipt.begins:  # the first version's state, on which everything else stood
            _drop_all(database, session, row)
        else:
            first = (row.table_id << FILE_ID_BITS) | receipt.begins
            last = (row.table_id << FILE_ID_BITS) | (receipt.next_file_seq - 1)
            _drop_between(database, session, first, last)
        session.run(database.sql("imports", "drop receipts"), (row.import_id, receipt.batch))


def _drop_all(database: Database, session: Session, row: ImportRow) -> None:
    for statement in statements("drop", database.dialect.name).values():
        session.run(statement, (row.table_id,))


def _drop_between(database: Database, session: Session, first: int, last: int) -> None:
    for name, statement in statements("imports", database.dialect.name).items():
        if name in ("drop side rows between", "drop files between"):
            session.run(statement, (first, last))
