"""Files that vacuums delete: recorded before the first one goes, so that no commit adds one of them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.metastore.files import hash_parts, path_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltalakedb.metastore.engines.base import Session, SessionSource
    from deltalakedb.metastore.rows import Table


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """A file (decoded path) that a vacuum deletes: the versions of VACUUM START and END.

    ``ended`` is None while the vacuum runs, and after it was killed.
    """

    path: str
    started: int
    ended: int | None


def record(session: Session, table_id: int, paths: Collection[str]) -> int:
    """Record files as being deleted, in the transaction that commits VACUUM START; the version of that.

    Another vacuum that deletes one of them as well keeps its own record.
    """
    version = _head(session, table_id)
    _each(session, "forget", (table_id,), paths)
    rows = [(table_id, path_hash(path), path, version) for path in paths]
    session.insert("dl_vacuumed", ("table_id", "path_hash", "path", "started"), rows)
    return version


def release(session: Session, table_id: int, started: int, paths: Collection[str]) -> None:
    _each(session, "release", (table_id, started), paths)


def end(session: Session, table_id: int, paths: Collection[str]) -> None:
    """Record that files are deleted, whichever vacuums deleted them."""
    _each(session, "end", (_head(session, table_id), table_id), paths)


def among(session: Session, table_id: int, paths: Collection[str]) -> list[Vacuumed]:
    sql, parts = session.sql("vacuumed", "among"), hash_parts(paths)
    rows = (row for part in parts for row in session.rows(sql.expand(len(part)), (table_id, *part)))
    return [Vacuumed(*row) for row in rows if row[0] in paths]


def ended(db: SessionSource, table: Table) -> dict[str, int]:
    """Files that are deleted for certain, with the version that ended their vacuum."""
    return dict(db.rows(db.sql("vacuumed", "ended"), (table.table_id,)))


def unended(db: SessionSource, table: Table) -> list[str]:
    return [path for (path,) in db.rows(db.sql("vacuumed", "unended"), (table.table_id,))]


def _head(session: Session, table_id: int) -> int:
    row = session.row(session.sql("vacuumed", "head"), (table_id,))
    return -1 if row is None else int(row[0])


def _each(session: Session, name: str, params: Sequence[int], paths: Collection[str]) -> None:
    for part in hash_parts(paths):
        session.run(session.sql("vacuumed", name).expand(len(part)), (*params, *part))
