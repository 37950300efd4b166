"""Commits: history, exact bytes, what concurrent ones did, and finding an earlier attempt by its id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from deltalakedb.exceptions import CatalogBusyError, CatalogCorruptError, CommitError, VersionMissingError
from deltalakedb.metastore import audit, registry
from deltalakedb.metastore.files import ConcurrentChange
from deltalakedb.metastore.outbox import put_setting
from deltalakedb.metastore.snapshots import missing_version
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.txn_log import Commit, Committed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Session, SessionSource
    from deltalakedb.metastore.rows import Table

#: "all" as a LIMIT
_ALL = 2**62
#: commits whose bytes are read at a time
_PAGE = 500
#: settings of the catalog, one for each transaction that is lost in some tables and not in others
_LOST = "mirror.lost."


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
        info = None if self.info is None else CommitInfo.from_dict(decode_json(self.info))
        return Commit(
            self.version,
            self.timestamp,
            self.operation,
            self.is_blind_append,
            self.num_added,
            self.num_removed,
            self.actor,
            self.origin,
            self.txn_uuid,
            self.sha256,
            self.size_bytes,
            info,
        )


class TableCommit(NamedTuple):
    """A commit, and the name of its table."""

    table: str
    commit: Commit


class CommitWatch:
    """Finds the commits of some tables, or of all, that were made since it looked last.

    Args:
        database: The catalog.
        names: The tables; by default all, new ones included.
        from_version: Begin with this version of each table; by default with the next commit.
    """

    def __init__(self, database: SessionSource, names: Collection[str], from_version: int | None) -> None:
        self._database, self._names, self._from = database, names, from_version
        for name in names:
            registry.find(database, name)
        self._seen: dict[int, int] = {}
        if from_version is None:
            self._seen = {t.table_id: t.head.version for t in registry.list_tables(database)}

    def look(self) -> Iterator[TableCommit]:
        """The new commits of each table, in the order of their versions."""
        for table in registry.list_tables(self._database):
            if self._names and table.name not in self._names:
                continue
            seen = self._seen.get(table.table_id, (self._from or 0) - 1)
            if table.head.version > seen:
                found = history(self._database, table, limit=table.head.version - seen)
                for row in reversed(found):
                    if row.version > seen:
                        yield TableCommit(table.name, row.commit())
            self._seen[table.table_id] = table.head.version


def history(
    db: SessionSource, table: Table, *, upto: int | None = None, limit: int | None = None
) -> list[CommitRow]:
    """Commits, newest first, from a version downwards."""
    return of_table(db, table.table_id, table.head.version if upto is None else upto, limit)


def of_table(db: SessionSource, table_id: int, upto: int = _ALL, limit: int | None = None) -> list[CommitRow]:
    """Commits of a table that need not be visible yet, newest first."""
    values = (table_id, upto, _ALL if limit is None else limit)
    return [_row(row) for row in db.rows(db.sql("commits", "history"), values)]


def kept_bytes(db: SessionSource, table_id: int, version: int) -> bytes | None:
    """A commit's bytes as they are kept, unchecked; None if they are not."""
    found = db.row(db.sql("commits", "bytes"), (table_id, version))
    return None if found is None else bytes(found[0])


def versions(db: SessionSource, table: Table) -> list[int]:
    return [version for (version,) in db.rows(db.sql("commits", "versions"), (table.table_id,))]


def one(db: SessionSource, table: Table, version: int) -> CommitRow | None:
    return by_id(db, table.table_id, version)


def by_id(db: SessionSource, table_id: int, version: int) -> CommitRow | None:
    """A commit of a table that need not be visible yet."""
    row = db.row(db.sql("commits", "one"), (table_id, version))
    return None if row is None else _row(row)


def tail(db: SessionSource, table_id: int, after: int, upto: int) -> tuple[int, int | None]:
    """The bytes of the commits between two versions, and the time of the oldest of them."""
    row = db.row(db.sql("commits", "tail"), (table_id, after, upto))
    return (0, None) if row is None else (int(row[0]), row[1])


def commit_bytes(db: SessionSource, table: Table, version: int) -> bytes:
    found = next(between(db, table, version, version), None)
    if found is None:
        raise missing_version(table, version)
    if (data := found[1]) is None:
        raise VersionMissingError(
            f"the bytes of version {version} are no longer kept",
            table=table.name,
            version=version,
            suggestion="read them from _delta_log if that version was published",
        )
    return data


def between(
    db: SessionSource, table: Table, first: int, last: int
) -> Iterator[tuple[CommitRow, bytes | None]]:
    """Commits from a version to another with their bytes, oldest first; None if the bytes are not kept."""
    for start in range(first, last + 1, _PAGE):
        values = (table.table_id, start, min(start + _PAGE - 1, last))
        for *columns, data in db.rows(db.sql("commits", "between"), values):
            row = _row(columns)
            yield row, None if data is None else checked_bytes(row, bytes(data), table=table.name)


def checked_bytes(row: CommitRow, data: bytes, *, table: str | None = None) -> bytes:
    """A commit's bytes, if they match their digest; else a CatalogCorruptError."""
    if digest(data) != row.sha256:
        raise CatalogCorruptError(
            "the bytes of a commit do not match their digest",
            table=table,
            version=row.version,
            suggestion="restore the database from a backup, and compare with _delta_log",
        )
    return data


def tail_start(db: SessionSource, table: Table) -> int:
    """The oldest version from which on all have their bytes; after the newest if not even that has."""
    row = db.row(db.sql("commits", "newest without bytes"), (table.table_id,))
    return table.head.first_version if row is None or row[0] is None else int(row[0]) + 1


def without_bytes(db: SessionSource, table: Table) -> list[int]:
    return [version for (version,) in db.rows(db.sql("commits", "without bytes"), (table.table_id,))]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The commits of a transaction by (table id, ordinal).

    ``adopted``: some came back from a log, so that not all of its tables need to be known.
    """

    commits: Mapping[tuple[int, int], Committed]
    adopted: bool


def by_transaction(session: Session, txn_uuid: str) -> TransactionResult | None:
    """The commits of a transaction; None if it never committed.

    CommitError if some of its tables lost their part, so it is neither done nor undone.
    """
    if session.row(session.sql("commits", "transaction"), (txn_uuid,)) is None:
        return None
    if (note := _lost_note(session, txn_uuid)) is not None:
        lost, stands = ", ".join(note["lost"]), ", ".join(note["stands"])
        raise CommitError(
            f"the transaction {txn_uuid!r} is lost in {lost}, where `mirror resolve` kept commits of other "
            f"writers, and stands in {stands}: it is neither done nor undone, and nothing was committed",
            suggestion=f"compare the tables, then write what {lost} lacks in a transaction with another id",
        )
    rows = session.rows(session.sql("commits", "by transaction"), (txn_uuid,))
    made = {(row[0], row[1]): Committed(row[2], row[3], replayed=True) for row in rows}
    return TransactionResult(made, any(origin != "sql" for *_, origin in rows))


def lost_tables(session: Session, txn_uuid: str) -> tuple[str, ...]:
    """The tables in which a transaction is lost although others kept their part."""
    note = _lost_note(session, txn_uuid)
    return () if note is None else tuple(note["lost"])


def note_lost(session: Session, txn_uuid: str, lost: Collection[str], stands: Collection[str]) -> None:
    """Record in which tables a transaction is lost and in which it is kept; delete it if all lost it.

    A transaction that is lost in all its tables never was: repeating it does it.
    """
    note = encode_json({"lost": sorted(lost), "stands": sorted(stands)}) if stands else None
    if not put_setting(session, _LOST + txn_uuid, note):
        # that resolution does not know of this one, so the note would lack the tables of one of them
        raise CatalogBusyError(
            f"another process resolves a table of the transaction {txn_uuid!r}; nothing was changed",
            suggestion="try again",
        )
    if note is None:
        session.run(session.sql("commits", "delete transaction"), (txn_uuid,))


def _lost_note(session: Session, txn_uuid: str) -> dict[str, list[str]] | None:
    row = session.row(session.sql("tables", "setting"), (_LOST + txn_uuid,))
    return None if row is None else decode_json(row[0])


def count_of_transaction(session: Session, txn_uuid: str, table_id: int) -> int:
    rows = session.rows(session.sql("commits", "by transaction"), (txn_uuid,))
    return sum(found == table_id for found, *_ in rows)


def insert_transaction(session: Session, txn_uuid: str, count: int, *, new_id: bool) -> None:
    """Record a transaction of ``count`` commits, whose id must be new or may be there already."""
    row = (txn_uuid, session.now_ms(), audit.actor(), count)
    if new_id:
        session.insert("dl_transactions", ("txn_uuid", "committed_at", "actor", "num_commits"), [row])
    else:
        session.update_many(session.sql("commits", "insert transaction"), [row])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def first_since(
    session: Session, kind: Literal["txns", "domains"], table_id: int, since: int, names: Collection[str]
) -> ConcurrentChange | None:
    """The first txn or metadata domain with one of these names that was committed after a version."""
    if not names:
        return None
    sql = session.sql("commits", f"{kind} since").expand(len(names))
    row = session.row(sql, (table_id, since, *sorted(names)))
    return None if row is None else ConcurrentChange(row[1], (row[0],))


def operation(session: Session, table_id: int, version: int) -> str | None:
    return None if (row := by_id(session, table_id, version)) is None else row.operation


def application(session: Session, table_id: int, app_id: str) -> tuple[int, int] | None:
    """The version that an application recorded last, and the table's version with that record."""
    row = session.row(session.sql("commits", "application"), (table_id, app_id))
    return None if row is None else (row[0], row[1])


def domain(session: Session, table_id: int, name: str) -> dict[str, object] | None:
    """The live action of a metadata domain."""
    row = session.row(session.sql("commits", "domain"), (table_id, name))
    return None if row is None else decode_json(row[0])


def _row(columns: Sequence[Any]) -> CommitRow:
    version, timestamp, operation, blind, data_change, *others = columns
    return CommitRow(version, timestamp, operation, bool(blind), bool(data_change), *others)
