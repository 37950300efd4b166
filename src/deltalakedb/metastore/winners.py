"""Winners: what committed since a version, asked in SQL by the conflict check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.metastore import slot_rows
from deltalakedb.metastore.file_rows import path_hash
from deltalakedb.metastore.pruning import EngineFacts, plan_added
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.paths import canonical_path, encode_path
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from deltalakedb.metastore.engines.base import Row, Session
    from deltalakedb.metastore.statements import Statement
    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.predicate import Expr

#: path hashes asked about at once
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Found:
    """The first thing that stands in the way: the winner's version, and the files or names at fault."""

    version: int
    names: tuple[str, ...]


def removed(
    session: Session, table_id: int, since: int, files: Collection[tuple[str, str]] | None = None
) -> Found | None:
    """Files live at a version and removed or replaced since: any, or some of those given by key."""
    if files is None:
        rows = session.rows(_sql(session, "removed"), (table_id, since, since))
        return _first(rows)
    hashes = sorted({path_hash(encode_path(path)) for path, _ in files})
    found: list[Row] = []
    for start in range(0, len(hashes), _AT_ONCE):
        part = hashes[start : start + _AT_ONCE]
        sql = _sql(session, "removed among").expand(len(part))
        found += session.rows(sql, (table_id, since, since, *part))
    return _first(r for r in found if (canonical_path(r[0]), r[1]) in files)


def added(
    session: Session,
    table_id: int,
    since: int,
    *,
    metadata: Metadata,
    where: Expr | None = None,
    skip_blind: bool = False,
) -> Found | None:
    """Files added after a version that may hold rows a predicate asks for.

    Args:
        session: Inside the committing transaction.
        table_id: The table.
        since: The version that was read.
        metadata: The table's metadata, unchanged since.
        where: The predicate over logical columns; None for any row.
        skip_blind: Leave out blind appends, as WriteSerializable does.
    """
    dialect = session.engine.dialect
    schema = parse_schema(metadata.schema_string)
    physical = None if where is None else to_physical(where, schema)
    plan = plan_added(
        physical,
        table_id=table_id,
        since=since,
        slots=[s for s in slot_rows.read_slots(session, table_id) if s.dropped is None],
        facts=EngineFacts(indexed=dialect.indexed, side_table=dialect.side_table),
        skip_blind=skip_blind,
    )
    rows = session.rows(plan.sql, plan.params)
    if physical is not None:
        files = FileFilter(physical, column_types(schema))
        rows = [r for r in rows if files.may_match(parse_stats(r[2]), decode_json(r[3]))]
    return _first((r[0], None, r[1]) for r in rows)


def txns(session: Session, table_id: int, since: int, app_ids: Collection[str]) -> Found | None:
    """Application transactions with one of these ids, recorded after a version."""
    return _named(session, "txns", table_id, since, app_ids)


def domains(session: Session, table_id: int, since: int, names: Collection[str]) -> Found | None:
    """Metadata domains with one of these names, changed after a version."""
    return _named(session, "domains", table_id, since, names)


def operation(session: Session, table_id: int, version: int) -> str | None:
    """What a winner says it did."""
    row = session.row(_sql(session, "operation"), (table_id, version))
    return None if row is None else row[0]


def application(session: Session, table_id: int, app_id: str) -> tuple[int, int] | None:
    """The version an application recorded last, and the table's version that carries it."""
    row = session.row(_sql(session, "application"), (table_id, app_id))
    return None if row is None else (row[0], row[1])


def domain(session: Session, table_id: int, name: str) -> dict[str, object] | None:
    """A metadata domain's action as it stands."""
    row = session.row(_sql(session, "domain"), (table_id, name))
    return None if row is None else decode_json(row[0])


def _named(
    session: Session, statement: str, table_id: int, since: int, names: Collection[str]
) -> Found | None:
    if not names:
        return None
    row = session.row(_sql(session, statement).expand(len(names)), (table_id, since, *sorted(names)))
    return None if row is None else Found(row[1], (row[0],))


def _first(rows: Iterable[Row]) -> Found | None:
    """The earliest winner among rows of (path, _, version), with the files that it touched."""
    found = sorted(rows, key=lambda r: r[2])
    if not found:
        return None
    version = found[0][2]
    return Found(version, tuple(r[0] for r in found if r[2] == version)[:5])


def _sql(session: Session, name: str) -> Statement:
    return statements("winners", session.engine.dialect.name)[name]
