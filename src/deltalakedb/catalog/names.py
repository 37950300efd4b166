"""Names of tables inside a commit: drops and renames that happen as if all at once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog import audit, registry
from deltalakedb.exceptions import TableExistsError, TableMissingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.values import LockedTable, Table


@dataclass(frozen=True, slots=True)
class NameChange:
    """A table that gets another name, or none any more.

    Attributes:
        table: The table as it was read.
        new_name: Its name from now on; None where it is dropped.
    """

    table: Table
    new_name: str | None = None


def change_names(
    database: Database, session: Session, held: Mapping[int, LockedTable], changes: Sequence[NameChange]
) -> None:
    """Drop and rename tables whose heads the transaction holds; names may change hands in a circle."""
    for change in changes:
        _refuse_moved(held, change.table)
    for change in changes:
        if change.new_name is None:
            registry.forget(session, held[change.table.table_id].table)
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
    audit.record(
        session, "rename table", table_id=table.table_id, table=new_name, at=now, old_name=table.name
    )


def _refuse_moved(held: Mapping[int, LockedTable], table: Table) -> None:
    found = held.get(table.table_id)
    if found is None or found.table.name != table.name:
        how = "dropped" if found is None else f"renamed to {found.table.name!r}"
        raise TableMissingError(
            f"the table {table.name!r} was {how} in the meantime",
            table=table.name,
            suggestion="look at the catalog's tables and repeat the transaction",
        )
