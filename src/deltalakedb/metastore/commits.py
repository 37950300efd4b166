"""Commits: history, exact bytes, and finding an earlier attempt by its id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogCorruptError, VersionMissingError
from deltalakedb.metastore import audit, group_notes
from deltalakedb.metastore.snapshots import missing_version
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.txn_log import Commit, Committed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row, Session
    from deltalakedb.metastore.values import Table

#: SQL's way to say "all"
_ALL = 2**62


@dataclass(frozen=True, slots=True)
class CommitRow:
    """What the catalog keeps of a commit besides its bytes."""

    version: int
    timestamp: int
    operation: str | None
    is_blind_append: bool
    data_change: bool
    num_added: int
    num_removed: int
    info: str | None
    origin: str
    actor: str | None
    sha256: str | None
    size_bytes: int | None
    txn_uuid: str

    def commit(self) -> Commit:
        """The commit as the log's seam knows it."""
        info = None if self.info is None else CommitInfo.from_dict(decode_json(self.info))
        return Commit(self.version, self.timestamp, info)


def history(
    database: Database, table: Table, *, upto: int | None = None, limit: int | None = None
) -> list[CommitRow]:
    """Commits, newest first, from a version downwards."""
    newest = table.head.version if upto is None else upto
    with database.read() as session:
        rows = session.rows(
            database.sql("commits", "history"), (table.table_id, newest, _ALL if limit is None else limit)
        )
    return [_row(r) for r in rows]


def of_table(database: Database, table_id: int) -> list[CommitRow]:
    """All commits of a table that need not be visible yet, newest first."""
    with database.read() as session:
        rows = session.rows(database.sql("commits", "history"), (table_id, _ALL, _ALL))
    return [_row(r) for r in rows]


def kept_bytes(database: Database, table_id: int, version: int) -> bytes | None:
    """A commit's bytes as they are kept, unchecked; None where they are not."""
    with database.read() as session:
        found = session.row(database.sql("commits", "bytes"), (table_id, version))
    return None if found is None else bytes(found[0])


def versions(database: Database, table: Table) -> list[int]:
    """All versions that SQL holds, ascending."""
    with database.read() as session:
        return [r[0] for r in session.rows(database.sql("commits", "versions"), (table.table_id,))]


def one(database: Database, table: Table, version: int) -> CommitRow | None:
    """One commit's row, or None where SQL does not have it."""
    return by_id(database, table.table_id, version)


def by_id(database: Database, table_id: int, version: int) -> CommitRow | None:
    """The same for a table that is not visible yet."""
    with database.read() as session:
        row = session.row(database.sql("commits", "one"), (table_id, version))
    return None if row is None else _row(row)


def tail(database: Database, table_id: int, after: int, upto: int) -> tuple[int, int | None]:
    """The bytes of the commits between two versions, and the time of the oldest of them."""
    with database.read() as session:
        row = session.row(database.sql("commits", "tail"), (table_id, after, upto))
    return (0, None) if row is None else (int(row[0]), row[1])


def commit_bytes(database: Database, table: Table, version: int) -> bytes:
    """A commit's exact bytes, checked against their digest."""
    with database.read() as session:
        found = session.row(database.sql("commits", "bytes"), (table.table_id, version))
        row = session.row(database.sql("commits", "one"), (table.table_id, version))
    if row is None:
        raise missing_version(table, version)
    if found is None:
        raise VersionMissingError(
            f"the bytes of version {version} are no longer kept",
            table=table.name,
            version=version,
            suggestion="read them from _delta_log, where that version was published",
        )
    return _checked(table, _row(row), bytes(found[0]))


def between(
    database: Database, table: Table, first: int, last: int, *, page: int = 500
) -> Iterator[tuple[CommitRow, bytes | None]]:
    """Commits from a version to another with their bytes, oldest first; None where bytes are not kept."""
    for start in range(first, last + 1, page):
        with database.read() as session:
            rows = session.rows(
                database.sql("commits", "between"), (table.table_id, start, min(start + page - 1, last))
            )
        for *head, data in rows:
            row = _row(tuple(head))
            yield row, None if data is None else _checked(table, row, bytes(data))


def _checked(table: Table, row: CommitRow, data: bytes) -> bytes:
    if digest(data) != row.sha256:
        raise CatalogCorruptError(
            "the bytes of a commit do not match their digest",
            table=table.name,
            version=row.version,
            suggestion="restore the database from a backup, and compare with _delta_log",
        )
    return data


def first_with_bytes(database: Database, table: Table) -> int:
    """The oldest version whose successors all have their bytes."""
    with database.read() as session:
        row = session.row(database.sql("commits", "newest without bytes"), (table.table_id,))
    return table.head.first_version if row is None or row[0] is None else int(row[0])


def without_bytes(database: Database, table: Table) -> list[int]:
    """The versions whose bytes are not kept, newest first."""
    with database.read() as session:
        return [r[0] for r in session.rows(database.sql("commits", "without bytes"), (table.table_id,))]


def tail_start(database: Database, table: Table) -> int:
    """The oldest version from which on all have their bytes; beyond the newest where not even that has."""
    with database.read() as session:
        row = session.row(database.sql("commits", "newest without bytes"), (table.table_id,))
    return table.head.first_version if row is None or row[0] is None else int(row[0]) + 1


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a transaction achieved.

    Attributes:
        commits: Its commits by (table id, ordinal).
        adopted: Some came back from a log, so that not all of its tables need to be known.
    """

    commits: Mapping[tuple[int, int], Committed]
    adopted: bool


def by_transaction(database: Database, session: Session, txn_uuid: str) -> Achieved | None:
    """What a transaction achieved; None if it never committed.

    Raises:
        CommitError: Some of its tables lost their part, so it is neither done nor undone.
    """
    if session.row(database.sql("commits", "transaction"), (txn_uuid,)) is None:
        return None
    lost = session.row(database.sql("tables", "setting"), (f"{group_notes.LOST}{txn_uuid}",))
    if lost is not None:
        raise group_notes.lost_in_part(txn_uuid, lost[0])
    rows = session.rows(database.sql("commits", "by transaction"), (txn_uuid,))
    made = {(r[0], r[1]): Committed(r[2], r[3], replayed=True) for r in rows}
    return Achieved(made, any(r[4] != "sql" for r in rows))


def count_of_transaction(session: Session, txn_uuid: str, table_id: int) -> int:
    """How many versions of a table a transaction made."""
    sql = statements("commits", session.engine.dialect.name)["by transaction"]
    return sum(row[0] == table_id for row in session.rows(sql, (txn_uuid,)))


def insert_transaction(
    database: Database, session: Session, txn_uuid: str, count: int, *, fresh: bool
) -> None:
    """Note a transaction of so many commits.

    Args:
        database: The catalog.
        session: Inside the transaction that writes the commits.
        txn_uuid: Its id.
        count: Commits.
        fresh: Nobody may have used the id before; else it may be there already.
    """
    row = (txn_uuid, session.now_ms(), audit.actor(), count)
    if fresh:
        session.insert("dl_transactions", ("txn_uuid", "committed_at", "actor", "num_commits"), [row])
    else:
        session.run(database.sql("commits", "insert transaction"), row)


def digest(data: bytes) -> str:
    """The digest that the catalog keeps for ever."""
    return hashlib.sha256(data).hexdigest()


def _row(row: Row) -> CommitRow:
    values = (*row[:3], bool(row[3]), bool(row[4]), *row[5:])
    return CommitRow(*values)
