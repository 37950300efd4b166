"""The outbox: commits that are ratified and not yet published, and the publishing status of each table."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.metastore import audit
from deltalakedb.metastore.engines.base import Note
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.read_set import ReadSet, decode_reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row, Session, SessionSource
    from deltalakedb.metastore.rows import Table

#: limit of `waiting` in bytes; the commit that exceeds it is still returned
MAX_BATCH_BYTES: Final = 16 << 20
#: names in ``dl_settings``: the pause of all publishing; by table or transaction, failed checkpoints and
#: manifests that are to be retried
PAUSED: Final = "mirror.paused"
_CHECKPOINT: Final = "mirror.checkpoint."
_MANIFEST: Final = "mirror.manifest."
#: prefix of the lease that a writer of a table's checkpoint holds
CHECKPOINT_LEASE: Final = "checkpoint:"
#: `MirrorStatus.alarm` is set if a commit waits longer than this
ALARM_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A ratified commit that `_delta_log` does not have yet."""

    version: int
    timestamp: int
    data: bytes
    attempts: int
    #: the id of its transaction, if that may have changed other tables too
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """How many versions are not published, and the timestamp of the oldest."""

    versions: int
    oldest_at: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """A table that a transaction changed, with the newest version that it made there."""

    table_id: int
    table: str
    location: str
    version: int
    timestamp: int
    published: bool


@dataclass(frozen=True, slots=True)
class MissingManifest:
    """A transaction whose manifest is not beside all of its tables, and why."""

    txn: str
    tables: tuple[int, ...]
    error: str
    attempts: int
    retry_in: float


def waiting(db: SessionSource, table_id: int, *, limit: int) -> list[Unpublished]:
    """The oldest unpublished commits of a table, in order; fewer if they are large."""
    rows = db.rows(db.sql("outbox", "open"), (table_id, limit, MAX_BATCH_BYTES))
    return [Unpublished(version, at, bytes(data), *rest) for version, at, data, *rest in rows]


def waiting_versions(db: SessionSource, table_id: int) -> list[int]:
    return [version for (version,) in db.rows(db.sql("outbox", "open versions"), (table_id,))]


def lag(db: SessionSource, table_id: int) -> Lag:
    row = db.row(db.sql("outbox", "lag"), (table_id,))
    return Lag(*row) if row else Lag(0, None)


def tables_behind(db: SessionSource) -> list[str]:
    """Names of tables with commits to publish, the longest waiting first; not those that are backing off."""
    with db.read() as session:
        return [name for (name,) in session.rows(session.sql("outbox", "behind"), (session.now_ms(),))]


def members(db: SessionSource, txn_uuid: str) -> list[Member]:
    """The tables that a transaction changed, by name."""
    rows = db.rows(db.sql("outbox", "group"), (txn_uuid,))
    return [Member(*(*row, state == "published")) for *row, state in rows]


def reads_of(db: SessionSource, table_id: int, version: int) -> ReadSet:
    """Return the read set of an unpublished commit that is not a blind append."""
    row = db.row(db.sql("outbox", "reads"), (table_id, version))
    return decode_reads(None if row is None else row[0])


def last_error(db: SessionSource, table_id: int) -> str | None:
    """Why publishing the oldest waiting version failed, if it was tried."""
    row = db.row(db.sql("outbox", "last error"), (table_id,))
    return None if row is None else row[0]


def mark_published(database: Database, versions: Mapping[int, Sequence[int]]) -> None:
    """Record, by table, which versions are in the log.

    Losing this record does no harm: the next publisher finds the files. Versions are published in order, so
    every version between the oldest and the newest of a table is in the log too.
    """
    now = time.time_ns() // 1_000_000
    notes = {table_id: Note(min(some), max(some), now) for table_id, some in versions.items()}
    if not database.engine.postpone(notes, _record_published):
        with database.relaxed_write() as session:
            _record_published(session, notes)


def _record_published(session: Session, notes: Mapping[int, Note]) -> None:
    values = [value for table_id, note in notes.items() for value in (table_id, *note)]
    for statement in session.all_sql("outbox", "publish "):
        session.run(statement.rows(len(notes), 4), values)


def mark_range(session: Session, table_id: int, oldest: int, newest: int, now: int) -> None:
    """Record that a range of a table\'s versions is published."""
    session.run(session.sql("outbox", "published"), (now, table_id, oldest, newest))


def advance(session: Session, table_id: int, version: int) -> None:
    """Record the newest published version of a table, if it is newer than the recorded one."""
    session.run(session.sql("outbox", "advance"), (version, session.now_ms(), table_id, version))


def mark_failed(db: SessionSource, table_id: int, version: int, error: str, *, retry_in_ms: int) -> None:
    """Record why a version could not be published, and when to try again."""
    with db.relaxed_write() as session:
        due = session.now_ms() + retry_in_ms
        session.run(session.sql("outbox", "failed"), (due, error[:2000], table_id, version))


def set_checkpoint(db: SessionSource, table_id: int, version: int) -> None:
    """Record the newest checkpoint, and delete the record that one could not be written."""
    with db.relaxed_write() as session:
        put_setting(session, f"{_CHECKPOINT}{table_id}", None)
        session.run(session.sql("outbox", "set checkpoint"), (version, table_id, version))


def checkpoint_failed(db: SessionSource, status: MirrorStatus, error: str, *, retry_in_ms: int) -> None:
    with db.relaxed_write() as session:
        value = [error[:2000], status.checkpoint_attempts + 1, session.now_ms() + retry_in_ms]
        put_setting(session, f"{_CHECKPOINT}{status.table_id}", encode_json(value))


def missing_manifests(db: SessionSource) -> list[MissingManifest]:
    with db.read() as session:
        rows = session.rows(session.sql("tables", "settings like"), (f"{_MANIFEST}%",))
        if not rows:
            return []
        now = session.now_ms()
    return [_manifest(name, value, now) for name, value in rows]


def manifest_failed(
    db: SessionSource, txn: str, tables: Sequence[int], error: str, *, attempts: int, retry_in_ms: int
) -> None:
    with db.write() as session:
        value = [list(tables), error[:2000], attempts, session.now_ms() + retry_in_ms]
        put_setting(session, _MANIFEST + txn, encode_json(value))


def forget_manifest(db: SessionSource, txn: str) -> None:
    """Delete the record of a missing manifest: it was written, or is no longer needed."""
    with db.relaxed_write() as session:
        put_setting(session, _MANIFEST + txn, None)


def put_setting(session: Session, name: str, value: str | None) -> bool:
    """Set or delete a setting of the catalog; False if another process set it meanwhile: its value stays."""
    session.run(session.sql("tables", "delete setting"), (name,))
    return value is None or session.run(session.sql("tables", "insert setting"), (name, value)) != 0


def _manifest(name: str, value: str, now_ms: int) -> MissingManifest:
    tables, error, attempts, due = decode_json(value)
    return MissingManifest(
        name.removeprefix(_MANIFEST), tuple(tables), error, attempts, _seconds_between(due, now_ms)
    )


def paused(db: SessionSource, table_ids: Sequence[int]) -> set[int]:
    """Return which of the tables are paused, individually or with the whole catalog."""
    rows = db.rows(db.sql("outbox", "paused").expand(len(table_ids)), table_ids)
    return {table_id for (table_id,) in rows}


def all_paused(db: SessionSource) -> bool:
    return db.row(db.sql("tables", "setting"), (PAUSED,)) is not None


def set_paused(db: SessionSource, table: Table, paused: bool) -> None:
    with db.write() as session:
        session.run(session.sql("outbox", "set paused"), (paused, table.table_id))
        audit.record(session, "pause" if paused else "resume", table)


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far a table is published, and what keeps its log from being complete.

    Attributes:
        table: Its name.
        location: Its root.
        state: ``active``, ``importing`` or ``frozen``.
        state_reason: Why it is frozen.
        version: The newest version.
        published_version: The newest version in the log.
        published_at: When that was published, in epoch milliseconds.
        checkpoint_version: The newest checkpoint; -1 for none.
        paused: Whether publishing is paused, for this table or all.
        versions_behind: Commits that wait.
        seconds_behind: The age of the oldest of them.
        attempts: How often its publishing failed.
        error: Why.
        table_id: Its id.
        retry_in: Seconds until a reconciler tries again; None if nothing failed.
        ahead: Versions in the log that the catalog does not know; None if the log was not looked at.
        checkpoint_error: Why the checkpoint that is due could not be written; None if nothing failed.
        checkpoint_attempts: How often that failed.
        checkpoint_retry_in: Seconds until it is tried again.
        checkpoint_holder: The machine and process that writes a checkpoint or cleans the log up; one that
            died is named until its lease ends or another process takes it over.
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
        """Whether commits have waited for too long although publishing is not paused."""
        return self.seconds_behind > ALARM_SECONDS and not self.paused

    @property
    def backing_off(self) -> bool:
        """Whether publishing failed and is not due for another attempt yet."""
        return self.retry_in is not None and self.retry_in > 0

    @property
    def checkpoint_backing_off(self) -> bool:
        """Whether a checkpoint failed and is not due for another attempt yet."""
        return self.checkpoint_retry_in is not None and self.checkpoint_retry_in > 0

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"alarm": self.alarm}


def status_of(db: SessionSource, name: str) -> MirrorStatus | None:
    return next(iter(status(db, name)), None)


def status(db: SessionSource, name: str | None = None) -> list[MirrorStatus]:
    with db.read() as session:
        now = session.now_ms()
        rows = session.rows(session.sql("outbox", "status"), (name,))
        notes: dict[str, str] = dict(session.rows(session.sql("outbox", "notes")))
        leases = session.rows(session.sql("leases", "held"), (f"{CHECKPOINT_LEASE}%", now))
    held = {lease: (holder.rpartition(":")[0], (until - now) / 1000) for lease, holder, until in leases}
    manifests = [_manifest(key, value, now) for key, value in notes.items() if key.startswith(_MANIFEST)]
    return [_status(row, now, notes, held, manifests) for row in rows]


def _status(
    row: Row,
    now: int,
    notes: Mapping[str, str],
    held: Mapping[str, tuple[str, float]],
    manifests: Sequence[MissingManifest],
) -> MirrorStatus:
    *begin, paused, waiting, oldest, attempts, error, retry_at, table_id = row
    note = notes.get(f"{_CHECKPOINT}{table_id}", "[null, 0, null]")
    checkpoint_error, checkpoint_attempts, due = decode_json(note)
    holder, lease = held.get(f"{CHECKPOINT_LEASE}{table_id}", (None, None))
    missing = sorted((m for m in manifests if table_id in m.tables), key=lambda m: m.retry_in)
    return MirrorStatus(  # type: ignore[call-arg, misc]  # the row has as many columns as there are fields
        *begin,
        bool(paused) or PAUSED in notes,
        waiting,
        0.0 if oldest is None else _seconds_between(now, oldest),
        attempts or 0,
        error,
        table_id,
        retry_in=None if retry_at is None else _seconds_between(retry_at, now),
        checkpoint_error=checkpoint_error,
        checkpoint_attempts=checkpoint_attempts,
        checkpoint_retry_in=None if due is None else _seconds_between(due, now),
        checkpoint_holder=holder,
        checkpoint_lease=lease,
        manifests_missing=len(missing),
        manifest_error=missing[0].error if missing else None,
        manifest_retry_in=missing[0].retry_in if missing else None,
    )


def _seconds_between(later: int, earlier: int) -> float:
    """The seconds between two times in milliseconds; 0 if the first is not later."""
    return max(0, later - earlier) / 1000
