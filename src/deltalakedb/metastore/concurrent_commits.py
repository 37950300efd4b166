"""What committed since a version: the queries of the conflict check that are not about files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore.files import ConcurrentChange
from deltalakedb.protocol.codec import decode_json

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltalakedb.metastore.engines.base import Session


def txns(session: Session, table_id: int, since: int, app_ids: Collection[str]) -> ConcurrentChange | None:
    """Application transactions with one of these ids, recorded after a version."""
    return _named(session, "txns", table_id, since, app_ids)


def domains(session: Session, table_id: int, since: int, names: Collection[str]) -> ConcurrentChange | None:
    """Metadata domains with one of these names, changed after a version."""
    return _named(session, "domains", table_id, since, names)


def operation(session: Session, table_id: int, version: int) -> str | None:
    """The operation that a commit names."""
    row = session.row(session.sql("concurrent_commits", "operation"), (table_id, version))
    return None if row is None else row[0]


def application(session: Session, table_id: int, app_id: str) -> tuple[int, int] | None:
    """The version that an application recorded last, and the table's version with that record."""
    row = session.row(session.sql("concurrent_commits", "application"), (table_id, app_id))
    if row is None:
        return None
    app_version, version = row
    return app_version, version


def domain(session: Session, table_id: int, name: str) -> dict[str, object] | None:
    """A metadata domain's action as it stands."""
    row = session.row(session.sql("concurrent_commits", "domain"), (table_id, name))
    return None if row is None else decode_json(row[0])


def _named(
    session: Session, statement: str, table_id: int, since: int, names: Collection[str]
) -> ConcurrentChange | None:
    if not names:
        return None
    sql = session.sql("concurrent_commits", statement).expand(len(names))
    row = session.row(sql, (table_id, since, *sorted(names)))
    if row is None:
        return None
    name, version = row
    return ConcurrentChange(version, (name,))
