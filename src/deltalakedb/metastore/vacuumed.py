"""Files that vacuums delete: recorded before the first one goes, so that no commit adds one of them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.metastore.file_rows import path_hash
from deltalakedb.metastore.statements import statements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.statements import Statement
    from deltalakedb.metastore.values import Table

#: path hashes in one statement
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """A file that a vacuum deletes or has deleted.

    Attributes:
        path: Decoded, below the table's root.
        started: The version of VACUUM START.
        ended: The version of VACUUM END; None while the vacuum runs, and after it was killed.
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
    columns = ("table_id", "path_hash", "path", "started", "ended")
    rows = [(table_id, path_hash(path), path, version, None) for path in paths]
    session.insert("dl_vacuumed", columns, rows)
    return version


def release(session: Session, table_id: int, started: int, paths: Collection[str]) -> None:
    """Forget files that a vacuum will not delete."""
    _each(session, "release", (table_id, started), paths)


def end(session: Session, table_id: int, paths: Collection[str]) -> None:
    """Note that files are gone, whichever vacuums deleted them."""
    _each(session, "end", (_head(session, table_id), table_id), paths)


def among(session: Session, table_id: int, paths: Collection[str]) -> list[Vacuumed]:
    """Those of some files that a vacuum deletes or has deleted."""
    found = []
    for part in _parts(paths):
        rows = session.rows(_sql(session, "among").expand(len(part)), (table_id, *part))
        found += [Vacuumed(*row) for row in rows if row[0] in paths]
    return found


def ended(database: Database, table: Table) -> dict[str, int]:
    """Files that are deleted for certain, with the version that ended their vacuum."""
    with database.read() as session:
        return dict(session.rows(_sql(session, "ended"), (table.table_id,)))


def unended(database: Database, table: Table) -> list[str]:
    """Files of vacuums that run, or were interrupted."""
    with database.read() as session:
        return [row[0] for row in session.rows(_sql(session, "unended"), (table.table_id,))]


def added_since(session: Session, table_id: int, version: int) -> list[tuple[str, str]]:
    """Path and deletion vector id of every file that versions after one have added."""
    return [(row[0], row[1]) for row in session.rows(_sql(session, "added since"), (table_id, version))]


def _head(session: Session, table_id: int) -> int:
    row = session.row(_sql(session, "head"), (table_id,))
    return -1 if row is None else int(row[0])


def _each(session: Session, name: str, params: Sequence[int], paths: Collection[str]) -> None:
    """Run a statement for some files, many of them at a time."""
    for part in _parts(paths):
        session.run(_sql(session, name).expand(len(part)), (*params, *part))


def _parts(paths: Collection[str]) -> Iterator[Sequence[int]]:
    hashes = sorted({path_hash(path) for path in paths})
    return (hashes[at : at + _AT_ONCE] for at in range(0, len(hashes), _AT_ONCE))


def _sql(session: Session, name: str) -> Statement:
    return statements("vacuumed", session.engine.dialect.name)[name]
