"""The outbox: what is ratified and waits to be published."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog import audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.values import Table


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A ratified commit that `_delta_log` does not have yet."""

    version: int
    timestamp: int
    data: bytes
    attempts: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the log is behind."""

    versions: int
    oldest_at: int | None


def waiting(database: Database, table_id: int, *, limit: int) -> list[Unpublished]:
    """The oldest unpublished commits of a table, in order."""
    with database.read() as session:
        rows = session.rows(database.sql("outbox", "open"), (table_id, limit))
    return [Unpublished(r[0], r[1], bytes(r[2]), r[3]) for r in rows]


def mark_published(database: Database, table_id: int, versions: Sequence[int]) -> None:
    """Note that versions are in the log. Losing this note does no harm: publishing again finds them there."""
    newest, now = max(versions), time.time_ns() // 1_000_000
    with database.relaxed_write() as session, session.batch(len(versions)):
        session.update_many(
            database.sql("outbox", "published"), [(now, table_id, version) for version in versions]
        )
        session.run(database.sql("outbox", "advance"), (newest, now, table_id, newest))


def mark_failed(database: Database, table_id: int, version: int, error: str, *, retry_in_ms: int) -> None:
    """Note that publishing failed, and when to try again."""
    with database.relaxed_write() as session:
        due = session.now_ms() + retry_in_ms
        session.run(database.sql("outbox", "failed"), (due, error[:2000], table_id, version))


def freeze(database: Database, table: Table, reason: str, *, version: int | None = None) -> None:
    """Refuse writes to a table until somebody decides what is right."""
    with database.write() as session:
        now = session.now_ms()
        session.run(database.sql("tables", "set state"), ("frozen", reason, now, table.table_id))
        session.run(database.sql("tables", "set frozen"), (True, table.table_id))
        audit.record(
            session,
            "freeze",
            table_id=table.table_id,
            table=table.name,
            version=version,
            at=now,
            reason=reason,
        )


def lag(database: Database, table_id: int) -> Lag:
    """How many versions wait, and since when."""
    with database.read() as session:
        row = session.row(database.sql("outbox", "lag"), (table_id,))
    return Lag(row[0], row[1]) if row else Lag(0, None)


def last_error(database: Database, table_id: int) -> str | None:
    """Why the oldest waiting version could not be published, where that was tried."""
    with database.read() as session:
        row = session.row(database.sql("outbox", "last error"), (table_id,))
    return None if row is None else row[0]
