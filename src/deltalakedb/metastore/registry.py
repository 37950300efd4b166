"""The registry: which tables there are, under which names, at which locations."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import (
    ArgumentTypeError,
    InvalidArgumentError,
    TableExistsError,
    TableFollowedError,
    TableMissingError,
)
from deltalakedb.metastore import audit
from deltalakedb.metastore.statements import statements
from deltalakedb.metastore.values import TABLE_COLUMNS, Head, LockedTable, Table, table_from_row
from deltalakedb.protocol.codec import decode_json, encode_json
from deltalakedb.storage.store import RealPlaces, real_location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row, Session

_EMPTY = Head(-1, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A named group of tables."""

    name: str
    comment: str | None
    properties: Mapping[str, str]
    created_at: int


def list_tables(database: Database, *, namespace: str | None = None) -> list[Table]:
    """All tables, or those of a namespace and below it."""
    with database.read() as session:
        return list_in(database, session, namespace=namespace)


def list_in(database: Database, session: Session, *, namespace: str | None = None) -> list[Table]:
    """All tables that a session sees."""
    tables = [_table(r) for r in session.rows(database.sql("tables", "list"))]
    if namespace is None:
        return tables
    return [t for t in tables if t.name.startswith(f"{namespace}.")]


def find(database: Database, name: str) -> Table:
    """The table of a name; TableMissingError with near names where there is none."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a table's name must be text, not {name!r}")
    with database.read() as session:
        row = session.row(database.sql("tables", "by name"), (name,))
        if row is None:
            raise missing(database, session, name)
    return _table(row)


#: the state of a table that others own: its rows follow the log, and nothing is written through them
FOLLOWING = "following"


def refuse_followed(table: Table) -> None:
    """Refuse to change a table that others own, or a file of it."""
    if table.state == FOLLOWING:
        raise TableFollowedError(
            "the table is a read-only copy: others write it, and the catalog follows",
            table=table.name,
            version=table.head.version,
            suggestion=f"write to {table.location} as its owners do; to own it here, `deltasql rollback` the "
            "copy and import the table without --follow",
        )


def find_location(database: Database, location: str) -> Table | None:
    """The table at a location, or None."""
    with database.read() as session:
        row = session.row(database.sql("tables", "by location"), (location,))
    return None if row is None else _table(row)


def missing(database: Database, session: Session, name: str) -> TableMissingError:
    """The error for a name that is not there, with names that are close to it."""
    names = [r[0] for r in session.rows(database.sql("tables", "names"))]
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        hint = "`deltasql list` shows the tables of a catalog"
    else:
        hint = "the catalog is empty: create a table with write_deltalake or Catalog.create_table"
    return TableMissingError(
        f"there is no table {name!r} in {database.address.catalog.to_uri()}", table=name, suggestion=hint
    )


def insert(
    session: Session,
    name: str,
    location: str,
    *,
    state: str = "active",
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    published_version: int = -1,
) -> LockedTable:
    """A new row of the registry, without a version yet; TableExistsError where name or location is taken."""
    sql = statements("tables", session.engine.dialect.name)
    refuse_taken_in(session, name, location)
    now = session.now_ms()
    settings_text, tags_text = encode_json(dict(settings or {})), encode_json(dict(tags or {}))
    row = session.row(sql["insert"], (name, location, state, comment, tags_text, settings_text, now, now))
    if row is None:  # somebody else was first, a moment ago
        refuse_taken_in(session, name, location)
        raise TableExistsError(f"the name {name!r} or its location was taken a moment ago", table=name)
    table_id = int(row[0])
    session.run(sql["insert head"], (table_id,))
    session.run(sql["insert mirror"], (table_id, published_version))
    table = Table(
        table_id,
        name,
        location,
        state,
        None,
        comment,
        dict(tags or {}),
        dict(settings or {}),
        now,
        now,
        _EMPTY,
    )
    audit.record(session, "create table", table_id=table_id, table=name, at=now, location=location)
    return LockedTable(table, 0)


def refuse_taken(database: Database, name: str, location: str, *, free: bool = False) -> None:
    """TableExistsError where a name is taken, or a location belongs to another table or overlaps it.

    Args:
        database: The catalog.
        name: The name.
        location: The location.
        free: The name will be free by the time it is given away, so only the location is looked at.
    """
    with database.read() as session:
        refuse_taken_in(session, None if free else name, location)


def refuse_taken_in(session: Session, name: str | None, location: str) -> None:
    """The same, asked inside a transaction."""
    sql = statements("tables", session.engine.dialect.name)["places"]
    # a location is kept as it was spelled, and a link leads two spellings to one folder
    real = RealPlaces()
    mine = real.of(location)
    for other, place in session.rows(sql):
        if other == name:
            raise TableExistsError(
                f"the name {name!r} is taken by the table at {place}",
                table=name,
                suggestion="choose another name, or mode='append' or 'overwrite' to write to that table",
            )
        theirs = real.of(place)
        if theirs == mine:
            link = "" if place == location else f"{location} leads to the same folder as {place}: "
            raise TableExistsError(
                f"{link}the location {place} belongs to the table {other!r}",
                table=name,
                suggestion=f"use the table {other!r}, or another location",
            )
        if theirs.startswith(f"{mine.rstrip('/')}/") or mine.startswith(f"{theirs.rstrip('/')}/"):
            raise TableExistsError(
                f"the location {location} and that of the table {other!r}, {place}, lie inside each other",
                table=name,
                suggestion="choose a location outside: cleaning one table would delete files of the other",
            )


def refuse_elsewhere(table: Table, location: str) -> None:
    """Refuse a location that is not the table's own, by whichever link it is reached."""
    if real_location(table.location) != real_location(location):
        raise TableExistsError(
            f"the name {table.name!r} is taken by the table at {table.location}",
            table=table.name,
            suggestion="give the path of that table, or choose another name",
        )


def lock(session: Session, table_ids: Sequence[int]) -> dict[int, LockedTable]:
    """Hold the heads of some tables until the transaction ends, always in the order of their ids."""
    sql = statements("snapshots", session.engine.dialect.name)["lock"]
    ids = sorted(set(table_ids))
    rows = session.rows(sql.expand(len(ids)).then(session.engine.dialect.lock_rows), ids)
    if rows and rows[0][-1] is not None:
        session.take_time(max(row[-1] for row in rows))
    return {
        row[0]: LockedTable(
            table_from_row(row), seq, metadata, protocol, bool(frozen), shape, sha256, published, bool(paused)
        )
        for row in rows
        for seq, metadata, protocol, frozen, shape, sha256, published, paused, _ in [row[TABLE_COLUMNS:]]
    }


def set_comment(database: Database, name: str, comment: str | None) -> None:
    """Set or clear a table's comment."""
    _change(database, name, "set comment", comment, comment=comment)


def set_tags(database: Database, name: str, tags: Mapping[str, str]) -> None:
    """Replace a table's tags."""
    _change(database, name, "set tags", encode_json(dict(tags)), tags=dict(tags))


def set_table_setting(database: Database, name: str, setting_name: str, value: Any) -> None:
    """Set one setting of a table."""
    with database.write() as session:
        table = for_change(database, session, name)
        now = session.now_ms()
        settings = {**table.settings, setting_name: value}
        session.run(database.sql("tables", "set settings"), (encode_json(settings), now, table.table_id))
        audit.record(
            session,
            "set setting",
            table_id=table.table_id,
            table=name,
            at=now,
            setting=setting_name,
            value=value,
        )


def forget(session: Session, table: Table) -> None:
    """Delete every row of a table whose head the transaction holds; data files and `_delta_log` stay."""
    engine = session.engine.dialect.name
    for statement in statements("drop", engine).values():
        if not statement.only or engine in statement.only:
            session.run(statement, (table.table_id,))
    audit.record(
        session,
        "drop table",
        table_id=table.table_id,
        table=table.name,
        version=table.head.version,
        location=table.location,
    )


def namespaces(database: Database) -> list[Namespace]:
    """Namespaces that were created, and those that tables' names imply."""
    with database.read() as session:
        rows = session.rows(database.sql("tables", "namespaces"))
    found = {r[0]: Namespace(r[0], r[1], decode_json(r[2]), r[3]) for r in rows}
    for table in list_tables(database):
        if table.namespace and table.namespace not in found:
            found[table.namespace] = Namespace(table.namespace, None, {}, table.created_at)
    return [found[k] for k in sorted(found)]


def create_namespace(
    database: Database, name: str, *, comment: str | None = None, properties: Mapping[str, str] | None = None
) -> Namespace:
    """Create a namespace; it may be empty."""
    with database.write() as session:
        if any(r[0] == name for r in session.rows(database.sql("tables", "namespaces"))):
            raise TableExistsError(f"the namespace {name!r} exists", suggestion="use it, or another name")
        now = session.now_ms()
        made = Namespace(name, comment, dict(properties or {}), now)
        session.run(
            database.sql("tables", "insert namespace"), (name, comment, encode_json(made.properties), now)
        )
        audit.record(session, "create namespace", at=now, namespace=name)
    return made


def drop_namespace(database: Database, name: str) -> None:
    """Drop an empty namespace."""
    if inside := list_tables(database, namespace=name):
        raise InvalidArgumentError(
            f"the namespace {name!r} still holds {len(inside)} tables, for example {inside[0].name}",
            suggestion="drop or rename them first",
        )
    with database.write() as session:
        session.run(database.sql("tables", "delete namespace"), (name,))
        audit.record(session, "drop namespace", namespace=name)


def setting(database: Database, name: str) -> str | None:
    """A setting of the whole catalog."""
    with database.read() as session:
        row = session.row(database.sql("tables", "setting"), (name,))
    return None if row is None else row[0]


def set_setting(database: Database, name: str, value: str | None) -> None:
    """Set or clear a setting of the whole catalog."""
    with database.write() as session:
        session.run(database.sql("tables", "delete setting"), (name,))
        if value is not None:
            session.run(database.sql("tables", "insert setting"), (name, value))
        audit.record(session, "set setting", setting=name, value=value)


def _table(row: Row) -> Table:
    return table_from_row(row, published=row[TABLE_COLUMNS])


def for_change(database: Database, session: Session, name: str) -> Table:
    """A table by name, its head held until the transaction ends."""
    sql = database.sql("tables", "by name")
    if (found := session.row(sql, (name,))) is None:
        raise missing(database, session, name)
    lock(session, [found[0]])
    # whoever held the head before may have dropped or renamed the table
    now = session.row(sql, (name,))
    if now is None or now[0] != found[0]:
        raise missing(database, session, name)
    return _table(now)


def _change(database: Database, name: str, statement: str, value: str | None, **details: Any) -> None:
    with database.write() as session:
        table = for_change(database, session, name)
        now = session.now_ms()
        session.run(database.sql("tables", statement), (value, now, table.table_id))
        audit.record(session, statement, table_id=table.table_id, table=name, at=now, **details)
