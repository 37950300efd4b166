"""Taking back: commits that nobody outside ever saw are undone, so that others can stand in their place."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.catalog import audit, registry
from deltalakedb.catalog.ratify import set_head
from deltalakedb.catalog.statements import statements
from deltalakedb.catalog.values import Head, LockedTable
from deltalakedb.exceptions import CatalogBusyError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.values import Table


@dataclass(frozen=True, slots=True)
class Note:
    """What must not be forgotten about commits that were taken back."""

    name: str
    value: str
    reason: str


def take_back(
    database: Database,
    table: Table,
    first: int,
    last: int,
    *,
    note: Note | None = None,
    own: Sequence[Callable[[Session], object]] = (),
) -> None:
    """Undo every commit of a table from a version on. All of them must be unpublished.

    Args:
        database: The catalog.
        table: The table.
        first: The first version to undo.
        last: The newest version that the caller knows of.
        note: What is left to do with them, kept in the same transaction; the table is frozen until it is
            done (``outbox.unfreeze``).
        own: Done inside the transaction, such as asking whether it may still be made.
    """
    if first <= table.published_version or first <= table.head.first_version:
        raise InvalidArgumentError(
            f"version {first} is published or the first one: it cannot be taken back", table=table.name
        )
    dialect = database.dialect.name
    with database.write() as session:
        locked = registry.lock(session, [table.table_id])[table.table_id]
        if locked.table.head.version != last:
            # whoever made it was told that it stands
            raise CatalogBusyError(
                f"version {locked.table.head.version} was committed meanwhile, so nothing was taken back",
                table=table.name,
                suggestion="let its writers rest, then try again",
            )
        for work in own:
            work(session)
        for statement in statements("unratify", dialect).values():
            if not statement.only or dialect in statement.only:
                session.run(statement, (table.table_id, first))
        before = first - 1
        when = session.row(database.sql("commits", "one"), (table.table_id, before))
        totals = session.row(database.sql("files", "totals at"), (table.table_id, before, before))
        since = session.row(database.sql("snapshots", "state versions"), (table.table_id, table.table_id))
        if when is None or totals is None or since is None:
            raise InvalidArgumentError(f"the catalog does not have version {before}", table=table.name)
        head = Head(before, when[1], table.head.first_version, *(int(n) for n in totals))
        set_head(
            session,
            LockedTable(
                replace(table, head=head),
                locked.next_file_seq,
                since[0],
                since[1],
                locked.frozen,
                uuid.uuid4().hex,
            ),
        )
        if note is not None:
            session.run(database.sql("tables", "insert setting"), (note.name, note.value))
            session.run(
                database.sql("tables", "set state"), ("frozen", note.reason, session.now_ms(), table.table_id)
            )
            session.run(database.sql("tables", "set frozen"), (True, table.table_id))
        audit.record(
            session,
            "take back",
            table_id=table.table_id,
            table=table.name,
            version=before,
            first=first,
            last=locked.table.head.version,
        )
