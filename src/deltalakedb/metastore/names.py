"""Names of tables inside a commit: drops and renames that happen as if all at once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.exceptions import TableExistsError, TableMissingError, UnsupportedOperationError
from deltalakedb.metastore import audit, registry
from deltalakedb.metastore.outbox import lag_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.values import LockedTable, Table


@dataclass(frozen=True, slots=True)
class NameChange:
    """A table that gets another name, or none any more.

    Attributes:
        table: The table as it was read.
        new_name: Its name from now on; None where it is dropped.
        force: Drop it although commits of it were never published.
    """

    table: Table
    new_name: str | None = None
    force: bool = False


def change_names(
    database: Database, session: Session, held: Mapping[int, LockedTable], changes: Sequence[NameChange]
) -> None:
    """Drop and rename tables whose heads the transaction holds; names may change hands in a circle."""
    for change in changes:
        still_there(held, change.table)
    for change in changes:
        if change.new_name is None:
            _drop(session, held[change.table.table_id].table, force=change.force)
    renames = [(c.table, c.new_name) for c in changes if c.new_name is not None]
    left = {table.name for table, _ in renames}
    if any(name in left for _, name in renames):
        # a name is unique at every moment: out of the way first. No table can be called like this
        for table, _ in renames:
            session.run(
                database.sql("tables", "rename"), (f"~{uuid.uuid4()}", session.now_ms(), table.table_id)
            )
    for table, name in renames:
        rename(database, session, table, name)


def drop_table(database: Database, name: str, *, force: bool = False) -> Table:
    """Forget a table in a transaction of its own, unless commits of it stand nowhere but in the catalog."""
    with database.write() as session:
        table = registry.for_change(database, session, name)
        _drop(session, table, force=force)
        return table


def _drop(session: Session, table: Table, *, force: bool) -> None:
    """Forget a table whose head is held: whoever had a commit on the way has made it, or finds no table."""
    if not force:
        refuse_unpublished(session, table)
    registry.forget(session, table)


def refuse_unpublished(session: Session, table: Table) -> None:
    """Refuse to drop a table whose newest commits stand nowhere but in the catalog."""
    if behind := lag_in(session, table.table_id).versions:
        raise UnsupportedOperationError(
            f"commits of the table are not in its _delta_log yet and would be lost: {behind}",
            table=table.name,
            suggestion="publish them first (`deltasql mirror run`), or drop with force=True (`--force`)",
        )


def rename_table(database: Database, name: str, new_name: str) -> Table:
    """Give a table another name in a transaction of its own; its location and history stay."""
    with database.write() as session:
        rename(database, session, registry.for_change(database, session, name), new_name)
    return registry.find(database, new_name)


def rename(database: Database, session: Session, table: Table, new_name: str) -> None:
    """Give a table another name, unless a third one has it."""
    other = session.row(database.sql("tables", "by name"), (new_name,))
    if other is not None and other[0] != table.table_id:
        raise TableExistsError(
            f"the name {new_name!r} is taken by the table at {other[2]}",
            table=new_name,
            suggestion="choose another name",
        )
    now = session.now_ms()
    session.run(database.sql("tables", "rename"), (new_name, now, table.table_id))
    session.run(database.sql("tables", "reshape"), (uuid.uuid4().hex, table.table_id))
    audit.record(
        session, "rename table", table_id=table.table_id, table=new_name, at=now, old_name=table.name
    )


def still_there(held: Mapping[int, LockedTable], table: Table, *, named: bool = True) -> LockedTable:
    """A table whose head is held, if it is the one that was read.

    Whoever works on a name means the table that has it: where another one was put in its place meanwhile, a
    commit to the one that was read would go where nobody looks.

    Args:
        held: Tables as they are now, by id.
        table: The table as it was read.
        named: It must have its name still.
    """
    found = held.get(table.table_id)
    if found is not None and found.table.location != table.location:
        found = None  # ids begin anew in a database that was put in the place of another
    if found is None or (named and found.table.name != table.name):
        how = "dropped" if found is None else f"renamed to {found.table.name!r}"
        raise TableMissingError(
            f"the table {table.name!r} was {how} in the meantime",
            table=table.name,
            suggestion="look at the catalog's tables and repeat the transaction",
        )
    return found
