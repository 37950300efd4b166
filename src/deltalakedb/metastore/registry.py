"""The registry: tables with their names and locations, namespaces, and settings of the catalog."""

from __future__ import annotations

import difflib
import re
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import (
    ArgumentTypeError,
    CatalogError,
    InvalidArgumentError,
    TableExistsError,
    TableFollowedError,
    TableFrozenError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.metastore import audit, files
from deltalakedb.metastore.outbox import lag, put_setting
from deltalakedb.metastore.rows import Head, LockedTable, Table
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.storage.store import real_location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from deltalakedb.metastore.engines.base import Row, Session, SessionSource

_QUOTES = re.compile('["`]')
_NAMES = re.compile(r"[\w.]+")
#: the tables with rows of one table, except its files, in the order in which they are deleted
_TABLES = (
    "dl_domains", "dl_txns", "dl_metadata", "dl_protocol", "dl_vacuumed", "dl_outbox", "dl_commit_bytes",
    "dl_commits", "dl_mirror", "dl_heads", "dl_tables",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Namespace:
    """A named group of tables."""

    name: str
    comment: str | None
    properties: Mapping[str, str]
    created_at: int


#: how many leading columns of a query make a Table: those of ``{table}`` in the statements
TABLE_COLUMNS = 18


def table_from_row(row: Row) -> Table:
    """A Table from the columns of ``{table}``, which lead the row."""
    values = [*row[:10], Head(*row[10:17]), row[17]]
    values[6:8] = map(decode_json, values[6:8])  # tags and settings
    return Table(*values)


def list_tables(db: SessionSource, *, namespace: str | None = None) -> list[Table]:
    if namespace is None:
        rows = db.rows(db.sql("tables", "list"))
    else:
        rows = db.rows(db.sql("tables", "in namespace"), _prefix_range(f"{namespace}."))
    return list(map(table_from_row, rows))


def _prefix_range(prefix: str) -> tuple[str, str]:
    """The texts between which all texts are that begin with a prefix and go on."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def find(db: SessionSource, name: str) -> Table:
    """Find a table by name; the TableMissingError suggests similar names."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a table's name must be text, not {name!r}")
    with db.read() as session:
        row = session.row(session.sql("tables", "by name"), (name,))
        if row is None:
            raise missing(session, name)
    return table_from_row(row)


#: the state of a read-only copy of a table that other writers own: its rows follow the log
FOLLOWING = "following"


def refuse_followed(table: Table) -> None:
    if table.state == FOLLOWING:
        raise TableFollowedError(
            "the table is a read-only copy of a table that other writers own",
            table=table.name,
            version=table.head.version,
            suggestion=f"write to the original at {table.location}; to manage it here, remove the copy with "
            f"`deltasql import --undo {table.name}` and import the table without --follow",
        )


def refuse_frozen(table: Table, suggestion: str) -> None:
    if table.state == "frozen":
        raise TableFrozenError(
            f"the table is frozen: {table.state_reason}",
            table=table.name,
            version=table.head.version,
            suggestion=suggestion,
        )


def find_location(db: SessionSource, location: str) -> Table | None:
    row = db.row(db.sql("tables", "by location"), (location,))
    return None if row is None else table_from_row(row)


def missing(session: Session, name: str) -> TableMissingError:
    """The error for an unknown name, with similar names."""
    names = [found for (found,) in session.rows(session.sql("tables", "names"))]
    if near := difflib.get_close_matches(name, names, n=3):
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        hint = "`deltasql list` shows the tables of a catalog"
    else:
        hint = "the catalog is empty: `deltasql write`, `deltasql create` and `deltasql import` add tables"
    return TableMissingError(
        f"there is no table {name!r} in {session.engine.address.catalog.to_uri()}",
        table=name,
        suggestion=hint,
    )


def query(database: SessionSource, session: Session, sql: str, params: Sequence[object]) -> pa.Table:
    """A user's query; InvalidArgumentError if it fails and names a table that holds data."""
    try:
        return session.query(sql, params)
    except CatalogError as error:
        named = f" {' '.join(_NAMES.findall(_QUOTES.sub('', sql.lower())))} "
        # another session: Postgres answers nothing more in one that failed
        for (name,) in database.rows(database.sql("tables", "names")):
            if f" {name.lower()} " in named:
                raise InvalidArgumentError(
                    f"{name} is a data table: only the views of the catalog can be queried here, dl_v_files "
                    "for example",
                    table=name,
                    suggestion="query rows with Catalog.sql",
                    command="query rows with `deltasql sql`",
                ) from error
        raise


def insert(
    session: Session,
    name: str,
    location: str,
    *,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> LockedTable:
    """Register a table without a version yet; TableExistsError if name or location is taken."""
    refuse_taken(session, name, location)
    now = session.now_ms()
    tags, settings = dict(tags or {}), dict(settings or {})
    table_id = insert_row(session, name, location, "active", comment, tags, settings)
    insert_head(session, table_id, name, -1)
    head = Head(-1, 0, 0, 0, 0, 0, 0)
    table = Table(table_id, name, location, "active", None, comment, tags, settings, now, now, head)
    audit.record(session, "create table", table, at=now, location=location)
    session.flush()  # or the database might number the commit that follows before it
    return LockedTable(table, 0)


def insert_row(
    session: Session,
    name: str,
    location: str,
    state: str,
    comment: str | None,
    tags: Mapping[str, str],
    settings: Mapping[str, Any],
) -> int:
    """Insert the row of a table and return its id; TableExistsError if another writer was first."""
    now = session.now_ms()
    texts = (comment, encode_json(tags), encode_json(settings))
    values = (name, location, real_location(location), state, *texts, now, now)
    row = session.row(session.sql("tables", "insert"), values)
    if row is None:
        refuse_taken(session, name, location)
        raise TableExistsError(f"the name {name!r} or its location already exists", table=name)
    return int(row[0])


def insert_head(session: Session, table_id: int, name: str, published_version: int) -> None:
    session.update_many(session.sql("tables", "insert head"), [(table_id, name)])
    session.update_many(session.sql("tables", "insert mirror"), [(table_id, published_version)])


def refuse_taken(db: SessionSource, name: str, location: str, *, free: bool = False) -> None:
    """Refuse a name that is taken, unless it will be free, and a location that overlaps another table's."""
    mine = real_location(location)
    for other, place, theirs in _near(db, name, mine):
        if other == name and not free:
            raise TableExistsError(
                f"the name {name!r} is taken by the table at {place}",
                table=name,
                suggestion="choose another name, or mode='append' or 'overwrite' to write to that table",
                command="choose another name, or write to that table with `deltasql write`",
            )
        _refuse_overlap(name, location, mine, other, place, theirs)


def refuse_overlaps(db: SessionSource, moves: Sequence[tuple[Table, str]]) -> None:
    """Refuse new locations of tables that overlap those of tables that stay where they are."""
    moving = {table.name for table, _ in moves}
    for table, location in moves:
        mine = real_location(location)
        for other, place, theirs in _near(db, table.name, mine):
            if other not in moving:
                _refuse_overlap(table.name, location, mine, other, place, theirs)


def _near(db: SessionSource, name: str, mine: str) -> Sequence[Row]:
    """Name, location and real location of each table with a name, or at, above or below a real location."""
    above = [mine[:end] for end in range(1, len(mine)) if "/" in mine[end - 1 : end + 1]]
    sql = db.sql("tables", "near").expand(1 + len(above))
    return db.rows(sql, (name, *_prefix_range(f"{mine.rstrip('/')}/"), mine, *above))


def _refuse_overlap(name: str, location: str, mine: str, other: str, place: str, theirs: str) -> None:
    """Refuse a location that is another table's, or inside or around it; ``mine`` and ``theirs`` are real."""
    if theirs == mine:
        link = "" if place == location else f"{location} leads to the same folder as {place}: "
        raise TableExistsError(
            f"{link}the location {place} belongs to the table {other!r}",
            table=name,
            suggestion=f"use the table {other!r}, or another location",
        )
    if theirs.startswith(f"{mine.rstrip('/')}/") or mine.startswith(f"{theirs.rstrip('/')}/"):
        raise TableExistsError(
            f"the location {location} and that of the table {other!r}, {place}, overlap",
            table=name,
            suggestion="choose another location: a vacuum of one table would delete the other's files",
        )


def move_tables(session: Session, moves: Sequence[tuple[Table, str]]) -> None:
    """Change the locations of tables whose heads are locked; one may take the place that another leaves."""
    now, change = session.now_ms(), session.sql("tables", "set location")
    # locations are always unique: first all tables leave theirs
    between = [(table, f"~{uuid.uuid4()}") for table, _ in moves]
    for step in (between, moves):
        rows = [(location, real_location(location), now, table.table_id) for table, location in step]
        session.update_many(change, rows)
    for renew in session.all_sql("tables", "renew head"):
        for table, _ in moves:
            session.rows(renew, (table.table_id,))
    of_imports = session.sql("imports", "set location")
    session.update_many(of_imports, [(location, table.table_id) for table, location in moves])
    for table, location in moves:
        old = table.location
        audit.record(session, "relocate table", table, at=now, location=location, old_location=old)


def require_location(table: Table, location: str) -> None:
    """Raise TableExistsError if a location, with links resolved, is not the table's own."""
    if real_location(table.location) != real_location(location):
        raise TableExistsError(
            f"the name {table.name!r} is taken by the table at {table.location}",
            table=table.name,
            suggestion="pass the location of that table, or choose another name",
        )


def lock(session: Session, table_ids: Sequence[int]) -> dict[int, LockedTable]:
    """Lock the heads of tables until the transaction ends, in the order of their ids to avoid deadlocks."""
    ids = sorted(set(table_ids))
    found = _lock(session, ids)
    if len(found) < len(ids):  # dropped, or relocated while this waited
        found = _lock(session, ids)
    if clocks := [row[-1] for row in found.values() if row[-1] is not None]:
        session.set_clock(max(clocks))
    out, postponed = {}, session.engine.postponed()
    for table_id, (*columns, published, published_all, paused, _) in found.items():
        if (note := postponed.get(table_id)) is not None and published_all == published >= note.oldest - 1:
            published = published_all = max(published, note.newest)
        table = table_from_row((table_id, *columns[: TABLE_COLUMNS - 2], published))
        head = (*columns[TABLE_COLUMNS - 2 :], published_all, paused)
        out[table_id] = LockedTable(table, *head)
    return out


def _lock(session: Session, ids: Sequence[int]) -> dict[int, Row]:
    found: dict[int, Row] = dict.fromkeys(ids, ())
    for statement in session.all_sql("snapshots", "lock"):
        part = session.rows(statement.expand(len(ids)).then(session.dialect.lock_rows), ids)
        # the parts of an engine that reads them one by one are joined by the table's id
        found = {row[0]: (*found[row[0]], *row[1:]) for row in part if row[0] in found}
    return found


def set_comment(db: SessionSource, name: str, comment: str | None) -> None:
    with db.write() as session:
        _set(session, _locked(session, name), "set comment", comment, comment=comment)


def set_tags(db: SessionSource, name: str, tags: Mapping[str, str]) -> None:
    _check_texts("tags", tags)
    with db.write() as session:
        _set(session, _locked(session, name), "set tags", encode_json(dict(tags)), tags=dict(tags))


def update_tags(db: SessionSource, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Set tags, and remove those whose new value is None; return all."""
    _check_texts("tags", {key: value or "" for key, value in changes.items()})
    with db.write() as session:
        table = _locked(session, name)
        tags = {key: value for key, value in {**table.tags, **changes}.items() if value is not None}
        if tags != table.tags:
            _set(session, table, "set tags", encode_json(tags), tags=tags)
    return tags


def _check_texts(what: str, values: Mapping[str, str]) -> None:
    wrong = next((v for pair in values.items() for v in pair if not isinstance(v, str)), None)
    if wrong is not None:
        raise ArgumentTypeError(f"names and values of {what} must be text, not {wrong!r}")


def set_table_setting(db: SessionSource, name: str, setting_name: str, value: Any) -> None:
    with db.write() as session:
        table = _locked(session, name)
        settings = encode_json({**table.settings, setting_name: value})
        _set(session, table, "set setting", settings, setting=setting_name, value=value)


def _set(session: Session, table: Table, what: str, text: str | None, **details: Any) -> None:
    now = session.now_ms()
    session.run(session.sql("tables", what), (text, now, table.table_id))
    audit.record(session, what, table, at=now, **details)


def _locked(session: Session, name: str) -> Table:
    """A table by name, its head locked until the transaction ends."""
    found = find(session, name)
    lock(session, [found.table_id])
    # the writer that had the lock before may have dropped or renamed the table
    now = find(session, name)
    if now.table_id != found.table_id:
        raise missing(session, name)
    return now


def freeze(db: SessionSource, table: Table, reason: str, *, version: int | None = None) -> None:
    with db.write() as session:
        now = set_state(session, table.table_id, "frozen", reason)
        audit.record(session, "freeze", table, version=version, at=now, reason=reason)


def unfreeze(db: SessionSource, table: Table, reason: str) -> None:
    with db.write() as session:
        now = set_state(session, table.table_id, "active", None)
        audit.record(session, "unfreeze", table, at=now, reason=reason)


def set_state(session: Session, table_id: int, state: str, reason: str | None) -> int:
    """Set a table's state, also in the row that commits lock; return the time of the change."""
    now = session.now_ms()
    session.run(session.sql("tables", "set state"), (state, reason, now, table_id))
    session.run(session.sql("tables", "set frozen"), (state != "active", table_id))
    return now


@dataclass(frozen=True, slots=True)
class NameChange:
    """A table to rename, or to drop if there is no new name; ``force`` drops unpublished commits too."""

    table: Table
    new_name: str | None = None
    force: bool = False


def change_names(session: Session, held: Mapping[int, LockedTable], changes: Sequence[NameChange]) -> None:
    """Drop and rename tables whose heads are locked; tables may swap their names."""
    for change in changes:
        require_same_table(held, change.table)
    for change in changes:
        if change.new_name is None:
            forget(session, held[change.table.table_id].table, force=change.force)
    renames = [(c.table, c.new_name) for c in changes if c.new_name is not None]
    left = {table.name for table, _ in renames}
    if any(name in left for _, name in renames):
        # names are always unique: first rename all tables to temporary names, which no table can have
        moves = [(f"~{uuid.uuid4()}", session.now_ms(), table.table_id) for table, _ in renames]
        session.update_many(session.sql("tables", "rename"), moves)
    for table, name in renames:
        _rename(session, table, name)


def drop_table(db: SessionSource, name: str, *, force: bool = False) -> Table:
    with db.write() as session:
        table = _locked(session, name)
        forget(session, table, force=force)
        return table


def rename_table(db: SessionSource, name: str, new_name: str) -> Table:
    with db.write() as session:
        _rename(session, _locked(session, name), new_name)
    return find(db, new_name)


def refuse_unpublished(session: Session, table: Table) -> None:
    if behind := lag(session, table.table_id).versions:
        raise UnsupportedOperationError(
            f"commits of the table are not in its _delta_log yet and would be lost: {behind}",
            table=table.name,
            suggestion="publish them first with Catalog.mirror.publish, or pass force=True",
            command=f"publish them first with `deltasql mirror run {table.name}`, or pass --force",
        )


def forget(session: Session, table: Table, *, force: bool = True) -> None:
    """Delete every row of a table whose head is locked; data files and `_delta_log` stay."""
    if not force:
        refuse_unpublished(session, table)
    delete_rows(session, table.table_id)
    audit.record(session, "drop table", table, version=table.head.version, location=table.location)


def delete_rows(session: Session, table_id: int) -> None:
    """Delete every row of a table, visible or still being imported."""
    files.drop_files(session, table_id)
    for table in _TABLES:
        session.run(f"DELETE FROM {table} WHERE table_id = ?", (table_id,))  # noqa: S608
    session.run(session.sql("imports", "drop table"), (table_id,))


def _rename(session: Session, table: Table, new_name: str) -> None:
    row = session.row(session.sql("tables", "by name"), (new_name,))
    if row is not None and (other := table_from_row(row)).table_id != table.table_id:
        raise TableExistsError(
            f"the name {new_name!r} is taken by the table at {other.location}",
            table=new_name,
            suggestion="choose another name",
        )
    now = session.now_ms()
    session.run(session.sql("tables", "rename"), (new_name, now, table.table_id))
    session.run(session.sql("tables", "rename head"), (new_name, table.table_id))
    audit.record(session, "rename table", replace(table, name=new_name), at=now, old_name=table.name)


def require_same_table(held: Mapping[int, LockedTable], table: Table, *, named: bool = True) -> LockedTable:
    """Return the locked table; raise TableMissingError if it is no longer the one that was read.

    An operation addresses a table by name: if another table has taken the name meanwhile, readers of that
    name would not see a commit to the table that was read.
    """
    found = held.get(table.table_id)
    how = "dropped"
    if found is not None and (there := found.table.location) != table.location:
        # or the database was replaced, and the new one uses the same ids
        found, how = None, f"moved to {there}"
    if found is None or (named and found.table.name != table.name):
        how = how if found is None else f"renamed to {found.table.name!r}"
        raise TableMissingError(
            f"the table {table.name!r} was {how} in the meantime",
            table=table.name,
            suggestion="`deltasql list` shows the tables of the catalog; then repeat the transaction",
        )
    return found


def namespaces(db: SessionSource) -> list[Namespace]:
    """Namespaces that were created, and those in names of tables."""
    found = _created_namespaces(db)
    for table in list_tables(db):
        if (name := table.namespace) is not None:
            found.setdefault(name, Namespace(name, None, {}, table.created_at))
    return [found[name] for name in sorted(found)]


def _created_namespaces(db: SessionSource) -> dict[str, Namespace]:
    rows = db.rows(db.sql("tables", "namespaces"))
    return {name: Namespace(name, comment, decode_json(text), at) for name, comment, text, at in rows}


def create_namespace(
    db: SessionSource, name: str, *, comment: str | None = None, properties: Mapping[str, str] | None = None
) -> Namespace:
    with db.write() as session:
        if name in _created_namespaces(session):
            raise TableExistsError(f"the namespace {name!r} exists", suggestion="choose another name")
        made = Namespace(name, comment, dict(properties or {}), session.now_ms())
        values = (name, comment, encode_json(made.properties), made.created_at)
        session.run(session.sql("tables", "insert namespace"), values)
        audit.record(session, "create namespace", at=made.created_at, namespace=name)
    return made


def drop_namespace(db: SessionSource, name: str, *, dry_run: bool = False) -> None:
    with db.read() if dry_run else db.write() as session:
        if inside := list_tables(session, namespace=name):
            tables = "1 table" if len(inside) == 1 else f"{len(inside)} tables"
            raise InvalidArgumentError(
                f"the namespace {name!r} still has {tables}, for example {inside[0].name}",
                suggestion="drop or rename them first",
            )
        created = _created_namespaces(session)
        if name not in created:
            near = difflib.get_close_matches(name, created, n=1)
            hint = f"did you mean {near[0]}?" if near else "`deltasql namespace list` shows the namespaces"
            raise InvalidArgumentError(f"there is no namespace {name!r}", suggestion=hint)
        if not dry_run:
            session.run(session.sql("tables", "delete namespace"), (name,))
            audit.record(session, "drop namespace", namespace=name)


def setting(db: SessionSource, name: str) -> str | None:
    row = db.row(db.sql("tables", "setting"), (name,))
    return None if row is None else row[0]


def set_setting(db: SessionSource, name: str, value: str | None) -> None:
    with db.write() as session:
        put_setting(session, name, value)
        audit.record(session, "set setting", setting=name, value=value)
