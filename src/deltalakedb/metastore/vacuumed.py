"""Files that vacuums delete: recorded before the first one goes, so that no commit adds one of them again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.protocol.paths import canonical_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from deltalakedb.metastore.engines.base import Session, SessionSource
    from deltalakedb.metastore.rows import Table

#: path hashes in one statement
_AT_ONCE: Final = 500


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
    rows = [(table_id, _path_hash(path), path, version) for path in paths]
    session.insert("dl_vacuumed", ("table_id", "path_hash", "path", "started"), rows)
    return version


def release(session: Session, table_id: int, started: int, paths: Collection[str]) -> None:
    _each(session, "release", (table_id, started), paths)


def end(session: Session, table_id: int, paths: Collection[str]) -> None:
    """Record that files are deleted, whichever vacuums deleted them."""
    _each(session, "end", (_head(session, table_id), table_id), paths)


def among(session: Session, table_id: int, paths: Collection[str]) -> list[Vacuumed]:
    sql, parts = session.sql("vacuumed", "among"), _hash_parts(paths)
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
    for part in _hash_parts(paths):
        session.run(session.sql("vacuumed", name).expand(len(part)), (*params, *part))


def _hash_parts(paths: Collection[str]) -> Iterator[Sequence[int]]:
    """The hashes of some paths, as many at a time as one statement takes."""
    hashes = sorted({_path_hash(path) for path in paths})
    return (hashes[at : at + _AT_ONCE] for at in range(0, len(hashes), _AT_ONCE))


def _path_hash(path: str) -> int:
    """A 64-bit hash of a path's canonical form."""
    data = canonical_path(path).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
