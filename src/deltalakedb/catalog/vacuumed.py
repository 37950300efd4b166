"""Files that vacuums delete: recorded before the first one goes, so that no commit adds one of them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog.file_rows import path_hash
from deltalakedb.catalog.statements import statements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.catalog.statements import Statement
    from deltalakedb.catalog.values import Table

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
    """Record files as being deleted, in the transaction that commits VACUUM START; the version of that."""
    version = _head(session, table_id)
    hashes = {path: path_hash(path) for path in paths}
    forget(session, table_id, paths)
    columns = ("table_id", "path_hash", "path", "started", "ended")
    session.insert("dl_vacuumed", columns, [(table_id, h, p, version, None) for p, h in hashes.items()])
    return version


def forget(session: Session, table_id: int, paths: Collection[str]) -> None:
    """Forget files that no vacuum deletes any more."""
    for part in _parts(sorted({path_hash(path) for path in paths})):
        session.run(_sql(session, "forget").expand(len(part)), (table_id, *part))


def end(session: Session, table_id: int, started: int) -> None:
    """Note that a vacuum is done, in the transaction that commits VACUUM END."""
    session.run(_sql(session, "end"), (_head(session, table_id), table_id, started))


def end_files(session: Session, table_id: int, paths: Collection[str]) -> None:
    """Note that files are gone which vacuums deleted that were interrupted."""
    version = _head(session, table_id)
    for part in _parts(sorted({path_hash(path) for path in paths})):
        session.run(_sql(session, "end files").expand(len(part)), (version, table_id, *part))


def among(session: Session, table_id: int, paths: Collection[str]) -> list[Vacuumed]:
    """Those of some files that a vacuum deletes or has deleted."""
    found = []
    for part in _parts(sorted({path_hash(path) for path in paths})):
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


def _parts(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[at : at + _AT_ONCE] for at in range(0, len(values), _AT_ONCE))


def _sql(session: Session, name: str) -> Statement:
    return statements("vacuumed", session.engine.dialect.name)[name]
