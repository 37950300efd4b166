"""Leases: only one process does a job at a time. A fencing token grows with every new holder.

A holder renews its lease while it works. If it crashes, the lease ends when it expires, or when another
process takes it over (`taking_over`). A holder calls `require` in every transaction that depends on the
lease, so that it changes nothing after it was paused for too long.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogBusyError, DeltaSqlError
from deltalakedb.metastore import audit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session, SessionSource

logger = logging.getLogger(__name__)

#: the fraction of its time to live after which a lease is renewed: two renewals may fail
_RENEWED_AT = 0.3

#: holders in this process that are working
_working: set[str] = set()
#: holders in this process that have finished, and whose lease may not be released
_abandoned: set[str] = set()
#: how many `taking_over` blocks are active
_taking_over = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this process holds."""

    name: str
    holder: str
    token: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Holding:
    """The holder of a lease, and the seconds until it expires unless it is renewed."""

    holder: str
    seconds: float
    token: int = 0

    @property
    def process(self) -> str:
        return self.holder.rpartition(":")[0]

    @property
    def is_abandoned(self) -> bool:
        """Whether this process held it and could not release it when its work ended."""
        return self.holder in _abandoned

    @property
    def can_be_taken_over(self) -> bool:
        """Whether `acquire` may take it before it expires."""
        return self.is_abandoned or (_taking_over > 0 and self.holder not in _working)


@contextmanager
def taking_over() -> Iterator[None]:
    """Let `acquire` take leases that other processes hold, in all threads; use it if a holder has crashed.

    A holder that is still alive loses its lease, and its work fails.
    """
    global _taking_over
    _taking_over += 1
    try:
        yield
    finally:
        _taking_over -= 1


def acquire(db: SessionSource, name: str, *, ttl_ms: int = 60_000) -> Lease | None:
    """Take a lease that is free, expired, or may be taken over; None if another holder has it."""
    me = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
    try:
        lease = _acquire(db, name, me, ttl_ms)
        if lease is None and (held := holding(db, name)) is not None and held.can_be_taken_over:
            lease = _acquire(db, name, me, ttl_ms, over=held.token)
    except BaseException:
        _abandoned.add(me)  # the database may have recorded it
        raise
    return lease


def _acquire(db: SessionSource, name: str, me: str, ttl_ms: int, over: int = 0) -> Lease | None:
    """Take a lease that is free or expired, or whose token is ``over``."""
    with db.write() as session:
        now = session.now_ms()
        until = now + ttl_ms
        take, insert = session.sql("leases", "take"), session.sql("leases", "insert")
        row = session.row(take, (me, until, name, now, over)) or session.row(insert, (name, me, until, name))
        if row is None:
            return None
        lease = Lease(name, me, int(row[0]), until)
        audit.record(session, "take lease", at=now, lease=name, token=lease.token)
    return lease


def holding(db: SessionSource, name: str) -> Holding | None:
    """The holder of a lease; None if it is free."""
    with db.read() as session:
        holder, token, expires_at = session.row(session.sql("leases", "one"), (name,)) or ("", 0, 0)
        left = expires_at - session.now_ms()
    return Holding(holder, left / 1000, token) if left > 0 else None


def renew(db: SessionSource, lease: Lease, *, ttl_ms: int = 60_000) -> Lease | None:
    with db.write() as session:
        return extend_lease(session, lease, ttl_ms) if still_held(session, lease) else None


def extend_lease(session: Session, lease: Lease, ttl_ms: int) -> Lease | None:
    """Extend a lease now; None if it was lost.

    From here on its row is locked: another process that takes it over waits until the transaction ends.
    """
    until = session.now_ms() + ttl_ms
    extended = session.run(session.sql("leases", "extend"), (until, lease.name, lease.token, lease.holder))
    return replace(lease, expires_at=until) if extended else None


def release(db: SessionSource, lease: Lease) -> None:
    """Release a lease, unless it is already lost."""
    with db.write() as session:
        session.run(session.sql("leases", "extend"), (0, lease.name, lease.token, lease.holder))
    _abandoned.discard(lease.holder)


def still_held(session: Session, lease: Lease) -> bool:
    """Whether this process still holds a lease; call it inside the transaction that depends on it."""
    held = (lease.holder, lease.token)
    row = session.row(session.sql("leases", "one"), (lease.name,))
    return row is not None and row[:2] == held and bool(row[2] > session.now_ms())


def require(
    session: Session, lease: Lease, *, work: str, table: str | None = None, extend_ms: int = 0
) -> None:
    """Raise CatalogBusyError if a lease was lost; call it inside the transaction that relies on it.

    With ``extend_ms`` it is extended too, so that it cannot be lost before the transaction ends.
    """
    held = still_held(session, lease)
    if not held or (extend_ms and extend_lease(session, lease, extend_ms) is None):
        raise CatalogBusyError(
            f"the lease was lost before {work} was done",
            table=table,
            suggestion="another process may have taken it over; rerun the command to continue",
        )


@contextmanager
def leased(
    database: Database, name: str, *, work: str, table: str | None = None, ttl_ms: int = 60_000
) -> Iterator[Lease]:
    """Hold a lease during a piece of work, and renew it in the background.

    CatalogBusyError if another holder has it; its message names ``work`` and ``table``.
    """
    lease = acquire(database, name, ttl_ms=ttl_ms)
    if lease is None:
        held = holding(database, name)
        who, until = ("", "") if held is None else (f" on {held.process}", f" within {held.seconds:.0f} s")
        raise CatalogBusyError(
            f"{work} is already in progress{who}",
            table=table,
            suggestion=f"wait until it is done or its lease ends{until}; if that process has crashed, "
            "pass --take-over",
        )
    done = threading.Event()
    beat = threading.Thread(
        target=_renew_until, args=(done, database, lease, ttl_ms), name="deltasql-lease", daemon=True
    )
    _working.add(lease.holder)
    try:
        beat.start()
        yield lease
    finally:
        # first, in case the release is interrupted: nothing depends on the lease from here on
        _abandoned.add(lease.holder)
        _working.discard(lease.holder)
        done.set()
        if beat.ident is not None:
            beat.join()
        try:
            release(database, lease)
        except DeltaSqlError as error:
            # the work is done; do not hide an error of its own
            logger.info("the lease %s could not be released: %s", name, error.message)


def _renew_until(done: threading.Event, database: Database, lease: Lease, ttl_ms: int) -> None:
    while not done.wait(ttl_ms / 1000 * _RENEWED_AT):
        try:
            if renew(database, lease, ttl_ms=ttl_ms) is None:
                return  # it was lost; `require` reports that
        except DeltaSqlError as error:
            logger.info("the lease %s was not renewed: %s", lease.name, error.message)
