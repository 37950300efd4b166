"""The outbox: what is ratified and waits to be published."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.metastore import audit, group_notes
from deltalakedb.metastore.leases import Holding
from deltalakedb.metastore.statements import statements
from deltalakedb.protocol.codec import decode_json, encode_json
from deltalakedb.protocol.read_set import decode_reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row, Session
    from deltalakedb.metastore.group_notes import MissingManifest
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.read_set import ReadSet

#: tables whose notes surely fit into one statement
_TOGETHER = 8
#: commits are held in memory up to so many bytes, and one more
HELD_BYTES = 16 << 20
#: what keeps a due checkpoint from being written, by table
_CHECKPOINT = "mirror.checkpoint."
#: leases of those who write checkpoints, by table
CHECKPOINT_LEASE = "checkpoint:"
#: commits that wait longer than this are an alarm
ALARM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A ratified commit that `_delta_log` does not have yet."""

    version: int
    timestamp: int
    data: bytes
    attempts: int
    #: the transaction, where it may have changed other tables too
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the log is behind."""

    versions: int
    oldest_at: int | None


def waiting(database: Database, table_id: int, *, limit: int) -> list[Unpublished]:
    """The oldest unpublished commits of a table, in order; fewer where they are large."""
    with database.read() as session:
        rows = session.rows(database.sql("outbox", "open"), (table_id, limit, HELD_BYTES))
    return [Unpublished(r[0], r[1], bytes(r[2]), r[3], r[4]) for r in rows]


@dataclass(frozen=True, slots=True)
class Member:
    """A table's part in a transaction: the newest version that it made there."""

    table_id: int
    table: str
    location: str
    version: int
    timestamp: int
    published: bool


def group(database: Database, txn_uuid: str) -> list[Member]:
    """The tables that a transaction changed, by name."""
    with database.read() as session:
        rows = session.rows(database.sql("outbox", "group"), (txn_uuid,))
    return [Member(r[0], r[1], r[2], r[3], r[4], r[5] == "published") for r in rows]


def waiting_versions(database: Database, table_id: int) -> list[int]:
    """All unpublished versions of a table, in order."""
    with database.read() as session:
        return waiting_in(session, table_id)


def waiting_in(session: Session, table_id: int) -> list[int]:
    """The same, asked inside a transaction."""
    sql = statements("outbox", session.engine.dialect.name)["open versions"]
    return [row[0] for row in session.rows(sql, (table_id,))]


def reads_of(database: Database, table_id: int, version: int) -> ReadSet:
    """What an unpublished commit that is no blind append was made from."""
    with database.read() as session:
        row = session.row(database.sql("outbox", "reads"), (table_id, version))
    return decode_reads(None if row is None else row[0])


def mark_published(database: Database, versions: Mapping[int, Sequence[int]]) -> None:
    """Note, by table, which versions are in the log.

    Losing this note does no harm: publishing again finds them there. Publishing goes in order, so that
    whatever lies between the oldest and the newest of a table is there too.
    """
    now = time.time_ns() // 1_000_000
    if database.dialect.plans_anew and len(versions) > 1:
        values = [v for t in versions for v in (t, min(versions[t]), max(versions[t]), now)]
        with database.relaxed_write() as session:
            for name in ("published of tables", "advance tables"):
                session.run(database.sql("outbox", name).rows(len(versions), 4), values)
        return
    one, several = database.sql("outbox", "published"), database.sql("outbox", "published range")
    advance = database.sql("outbox", "advance")
    with database.relaxed_write() as session:
        # Publishers of the same tables must not wait for each other. Notes that are sent as one statement are
        # worked off from its end, so tables are locked from the highest id down, each by its watermark first.
        if len(versions) > _TOGETHER:
            lock = database.sql("outbox", "lock").expand(len(versions))
            session.rows(lock.then(database.dialect.lock_rows), sorted(versions))
        with session.batch(2 * len(versions)):
            for table_id in sorted(versions):
                oldest, newest = min(versions[table_id]), max(versions[table_id])
                if oldest == newest:
                    session.run(one, (now, table_id, newest))
                else:
                    session.run(several, (now, table_id, oldest, newest))
                session.run(advance, (newest, now, table_id, newest))


def advance(session: Session, table_id: int, version: int) -> None:
    """Note that everything up to a version is in the log, in the transaction that makes it so."""
    sql = statements("outbox", session.engine.dialect.name)["advance"]
    session.run(sql, (version, session.now_ms(), table_id, version))


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
        return lag_in(session, table_id)


def lag_in(session: Session, table_id: int) -> Lag:
    """The same, asked inside a transaction."""
    row = session.row(statements("outbox", session.engine.dialect.name)["lag"], (table_id,))
    return Lag(row[0], row[1]) if row else Lag(0, None)


def last_error(database: Database, table_id: int) -> str | None:
    """Why the oldest waiting version could not be published, where that was tried."""
    with database.read() as session:
        row = session.row(database.sql("outbox", "last error"), (table_id,))
    return None if row is None else row[0]


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How a table's log stands to the catalog.

    Attributes:
        table: Its name.
        location: Its root.
        state: ``active``, ``importing`` or ``frozen``.
        state_reason: Why it is frozen.
        version: The newest version.
        published_version: The newest version in the log.
        published_at: When that came there, in epoch milliseconds.
        checkpoint_version: The newest checkpoint; -1 for none.
        paused: Whether publishing stands still, for this table or all.
        versions_behind: Commits that wait.
        seconds_behind: The age of the oldest of them.
        attempts: How often its publishing failed.
        error: Why.
        table_id: Its id.
        retry_in: Seconds until a reconciler tries again; None where nothing failed.
        ahead: Versions in the log that the catalog does not know; None where nobody looked.
        checkpoint_error: Why the checkpoint that is due could not be written; None where nothing failed.
        checkpoint_attempts: How often that failed.
        checkpoint_retry_in: Seconds until it is tried again.
        checkpoint_holder: Who is writing a checkpoint or cleaning the log up, as machine and process; one
            that died is told until its lease ends or somebody takes it over.
        checkpoint_lease: Seconds until that lease ends.
        manifests_missing: Transactions over several tables that are published, and whose manifest could not
            be written beside this one.
        manifest_error: Why, for one of them.
        manifest_retry_in: Seconds until the first of them is tried again.
    """

    table: str
    location: str
    state: str
    state_reason: str | None
    version: int
    published_version: int
    published_at: int | None
    checkpoint_version: int
    paused: bool
    versions_behind: int
    seconds_behind: float
    attempts: int
    error: str | None
    table_id: int
    retry_in: float | None = None
    ahead: int | None = None
    checkpoint_error: str | None = None
    checkpoint_attempts: int = 0
    checkpoint_retry_in: float | None = None
    checkpoint_holder: str | None = None
    checkpoint_lease: float | None = None
    manifests_missing: int = 0
    manifest_error: str | None = None
    manifest_retry_in: float | None = None

    @property
    def alarm(self) -> bool:
        """Whether commits have waited for too long, though nobody paused them."""
        return self.seconds_behind > ALARM_SECONDS and not self.paused

    @property
    def backing_off(self) -> bool:
        """Whether a failed table is left alone for a while."""
        return self.retry_in is not None and self.retry_in > 0

    @property
    def checkpoint_backing_off(self) -> bool:
        """Whether a checkpoint that failed is left alone for a while."""
        return self.checkpoint_retry_in is not None and self.checkpoint_retry_in > 0

    def to_dict(self) -> dict[str, object]:
        """The status as plain data."""
        return asdict(self) | {"alarm": self.alarm}


def status(database: Database, name: str | None = None) -> list[MirrorStatus]:
    """How every table's log stands to the catalog, or that of one table."""
    with database.read() as session:
        now = session.now_ms()
        rows = session.rows(database.sql("outbox", "status"), (name,))
        noted: dict[str, str] = dict(session.rows(database.sql("outbox", "notes")))
        held = {
            lease: Holding(holder, (until - now) / 1000)
            for lease, holder, until in session.rows(
                database.sql("leases", "held"), (f"{CHECKPOINT_LEASE}%", now)
            )
        }
    missing: dict[int, list[MissingManifest]] = {}
    for key, value in noted.items():
        if key.startswith(group_notes.PREFIX):
            one = group_notes.from_note(key, value, now)
            for table_id in one.tables:
                missing.setdefault(table_id, []).append(one)
    found = (_status(row, now, everywhere="mirror.paused" in noted) for row in rows)
    found = (_with_trouble(s, noted.get(_note(s.table_id)), now) for s in found)
    found = (_with_holder(s, held.get(f"{CHECKPOINT_LEASE}{s.table_id}")) for s in found)
    return [_with_missing(s, missing.get(s.table_id, ())) for s in found]


def paused(database: Database, table_ids: Sequence[int]) -> set[int]:
    """Those of some tables whose publishing stands still, by themselves or with the whole catalog."""
    sql = database.sql("outbox", "paused").expand(len(table_ids))
    with database.read() as session:
        return {row[0] for row in session.rows(sql, table_ids)}


def all_paused(database: Database) -> bool:
    """Whether publishing stands still for the whole catalog."""
    with database.read() as session:
        return session.row(database.sql("tables", "setting"), ("mirror.paused",)) is not None


def status_of(database: Database, name: str) -> MirrorStatus | None:
    """How one table's log stands to the catalog."""
    return next(iter(status(database, name)), None)


def _status(row: Row, now: int, *, everywhere: bool) -> MirrorStatus:
    name, state, reason, head, published, at, checkpoint, paused, waiting, oldest, tries, error, *rest = row
    retry_at, table_id, location = rest
    return MirrorStatus(
        table=name,
        location=location,
        state=state,
        state_reason=reason,
        version=head,
        published_version=published,
        published_at=at,
        checkpoint_version=checkpoint,
        paused=bool(paused) or everywhere,
        versions_behind=waiting,
        seconds_behind=0.0 if oldest is None else max(0, now - oldest) / 1000,
        attempts=tries or 0,
        error=error,
        table_id=table_id,
        retry_in=None if retry_at is None else max(0, retry_at - now) / 1000,
    )


def _with_trouble(status: MirrorStatus, note: str | None, now: int) -> MirrorStatus:
    if note is None:
        return status
    error, attempts, due = decode_json(note)
    return replace(
        status,
        checkpoint_error=error,
        checkpoint_attempts=attempts,
        checkpoint_retry_in=max(0, due - now) / 1000,
    )


def _with_holder(status: MirrorStatus, held: Holding | None) -> MirrorStatus:
    if held is None:
        return status
    return replace(status, checkpoint_holder=held.who, checkpoint_lease=held.seconds)


def _with_missing(status: MirrorStatus, missing: Sequence[MissingManifest]) -> MirrorStatus:
    if not missing:
        return status
    first = min(missing, key=lambda one: one.retry_in)
    return replace(
        status,
        manifests_missing=len(missing),
        manifest_error=first.error,
        manifest_retry_in=first.retry_in,
    )


def _note(table_id: int) -> str:
    return f"{_CHECKPOINT}{table_id}"


def checkpoint_failed(database: Database, status: MirrorStatus, error: str, *, retry_in_ms: int) -> None:
    """Note that a checkpoint could not be written, and when to try again."""
    with database.relaxed_write() as session:
        value = [error[:2000], status.checkpoint_attempts + 1, session.now_ms() + retry_in_ms]
        session.run(database.sql("tables", "delete setting"), (_note(status.table_id),))
        session.run(database.sql("tables", "insert setting"), (_note(status.table_id), encode_json(value)))


def behind(database: Database) -> list[str]:
    """Names of tables with something to publish now, the longest waiting first."""
    with database.read() as session:
        return [r[1] for r in session.rows(database.sql("outbox", "behind"), (session.now_ms(),))]


def set_paused(database: Database, table: Table, paused: bool) -> None:
    """Let publishing of a table stand still, or go on."""
    with database.write() as session:
        session.run(database.sql("outbox", "set paused"), (paused, table.table_id))
        audit.record(session, "pause" if paused else "resume", table_id=table.table_id, table=table.name)


def unfreeze(database: Database, table: Table, reason: str) -> None:
    """Let a frozen table be written again."""
    with database.write() as session:
        unfreeze_in(session, table, reason)


def unfreeze_in(session: Session, table: Table, reason: str) -> None:
    """The same inside a transaction."""
    sql, now = statements("tables", session.engine.dialect.name), session.now_ms()
    session.run(sql["set state"], ("active", None, now, table.table_id))
    session.run(sql["set frozen"], (False, table.table_id))
    audit.record(session, "unfreeze", table_id=table.table_id, table=table.name, at=now, reason=reason)


def set_checkpoint(database: Database, table_id: int, version: int) -> None:
    """Note the newest checkpoint, and forget that one could not be written."""
    with database.relaxed_write() as session:
        session.run(database.sql("tables", "delete setting"), (_note(table_id),))
        session.run(database.sql("outbox", "set checkpoint"), (version, table_id, version))
