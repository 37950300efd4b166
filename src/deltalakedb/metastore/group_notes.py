"""Notes of transactions over several tables: manifests that could not be written, and parts that are lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import CommitError
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.codec import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session

#: settings of the catalog, one for each transaction
PREFIX: Final = "mirror.manifest."
#: settings of the catalog, one for each transaction that lost its part in some tables and not in others
LOST: Final = "mirror.lost."


@dataclass(frozen=True, slots=True)
class MissingManifest:
    """A transaction whose manifest is not beside all of its tables.

    Attributes:
        txn: The transaction's id.
        tables: Ids of the tables that lack it.
        error: Why.
        attempts: How often it failed.
        retry_in: Seconds until it is tried again.
    """

    txn: str
    tables: tuple[int, ...]
    error: str
    attempts: int
    retry_in: float


def from_note(name: str, value: str, now_ms: int) -> MissingManifest:
    """What a setting of the catalog says."""
    tables, error, attempts, due = decode_json(value)
    return MissingManifest(
        name.removeprefix(PREFIX), tuple(tables), error, attempts, max(0, due - now_ms) / 1000
    )


def missing(database: Database) -> list[MissingManifest]:
    """All of them."""
    with database.read() as session:
        rows = session.rows(database.sql("tables", "settings like"), (f"{PREFIX}%",))
        if not rows:
            return []
        now = session.now_ms()
    return [from_note(name, value, now) for name, value in rows]


def note(
    database: Database, txn: str, tables: Sequence[int], error: str, *, attempts: int, retry_in_ms: int
) -> None:
    """Note that a manifest is missing beside some tables, and when to try again."""
    with database.write() as session:
        value = encode_json([list(tables), error[:2000], attempts, session.now_ms() + retry_in_ms])
        session.run(database.sql("tables", "delete setting"), (PREFIX + txn,))
        session.run(database.sql("tables", "insert setting unless there"), (PREFIX + txn, value))


def forget(database: Database, txn: str) -> None:
    """Forget a note: the manifest is there, or nobody needs it any more."""
    with database.relaxed_write() as session:
        session.run(database.sql("tables", "delete setting"), (PREFIX + txn,))


def lost(session: Session, txn: str) -> tuple[str, ...]:
    """The tables in which a transaction is lost although it stands in others."""
    sql = statements("tables", session.engine.dialect.name)["setting"]
    row = session.row(sql, (LOST + txn,))
    return () if row is None else tuple(decode_json(row[0])["lost"])


def note_lost(session: Session, txn: str, lost: Collection[str], stands: Collection[str]) -> None:
    """Note in which tables a transaction is lost and in which it stands; forget it if it stands in none.

    A transaction that is lost in all its tables never was: repeating it does it.
    """
    engine = session.engine.dialect.name
    session.run(statements("tables", engine)["delete setting"], (LOST + txn,))
    if stands:
        value = encode_json({"lost": sorted(lost), "stands": sorted(stands)})
        session.run(statements("tables", engine)["insert setting"], (LOST + txn, value))
    else:
        session.run(statements("commits", engine)["delete transaction"], (txn,))


def lost_in_part(txn: str, note: str) -> CommitError:
    """The answer to whoever repeats a transaction that `mirror resolve` could not keep as a whole."""
    tables = decode_json(note)
    lost, stands = ", ".join(tables["lost"]), ", ".join(tables["stands"])
    return CommitError(
        f"the transaction {txn!r} is lost in {lost}, where `mirror resolve` kept commits of other writers, "
        f"and stands in {stands}: it is neither done nor undone, and nothing was committed",
        suggestion=f"compare the tables, then write what {lost} lacks in a transaction with another id",
    )
