"""Taking back: commits that nobody outside ever saw are undone, so that others can stand in their place."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import audit
from deltalakedb.metastore.ratify import set_head
from deltalakedb.metastore.statements import statements
from deltalakedb.metastore.values import Head, LockedTable

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session


def take_back(database: Database, session: Session, locked: LockedTable, first: int) -> None:
    """Undo every commit of a table from a version on. All of them must be unpublished.

    What takes their place is committed in the same transaction: readers must never see the table without it.

    Args:
        database: The catalog.
        session: Inside the transaction that holds the head.
        locked: The table.
        first: The first version to undo; the one before it must be in the catalog.
    """
    table, before, dialect = locked.table, first - 1, database.dialect.name
    for statement in statements("unratify", dialect).values():
        session.run(statement, (table.table_id, first))
    when = session.row(database.sql("commits", "one"), (table.table_id, before))
    totals = session.row(database.sql("files", "totals at"), (table.table_id, before, before))
    since = session.row(database.sql("snapshots", "state versions"), (table.table_id, table.table_id))
    if when is None or totals is None or since is None:
        raise InvalidArgumentError(f"the catalog does not have version {before}", table=table.name)
    head = Head(before, when[1], table.head.first_version, *(int(n) for n in totals))
    moved = LockedTable(
        replace(table, head=head), locked.next_file_seq, since[0], since[1], locked.frozen, uuid.uuid4().hex
    )
    set_head(session, moved)
    audit.record(
        session,
        "take back",
        table_id=table.table_id,
        table=table.name,
        version=before,
        first=first,
        last=table.head.version,
    )
