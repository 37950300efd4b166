"""Leases: a named right that one holder has for a while; its token grows whenever it changes hands.

A holder renews its lease while it works. If it crashes, the lease ends when its time has passed, or when
another process takes it over (`taking_over`). What a holder changes is guarded by `require` inside the same
transaction, so that one that was paused past its deadline changes nothing.
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

#: the part of a lease's time after which it is renewed: two renewals may fail
_RENEWED_AT = 0.3

#: holders of this process at work
_working: set[str] = set()
#: holders of this process whose work has ended, and whose lease the database may still have
_abandoned: set[str] = set()
#: how many callers want leases of other processes to be taken over
_taking_over = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A right that is held."""

    name: str
    holder: str
    token: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Holding:
    """How a lease is held, for those who do not hold it: for how many seconds, unless it is renewed."""

    holder: str
    seconds: float
    token: int = 0

    @property
    def who(self) -> str:
        return self.holder.rpartition(":")[0]

    @property
    def is_abandoned(self) -> bool:
        """Whether this process held it and could not release it when its work ended."""
        return self.holder in _abandoned

    @property
    def may_be_taken(self) -> bool:
        """Whether it is abandoned, or is to be taken over from another process."""
        return self.is_abandoned or (_taking_over > 0 and self.holder not in _working)


@contextmanager
def taking_over() -> Iterator[None]:
    """Take leases over from other processes, in all threads of this one: for a holder that has crashed.

    A holder that is still alive loses its lease, and its work ends with an error.
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
        if lease is None and (held := holding(db, name)) is not None and held.may_be_taken:
            lease = _acquire(db, name, me, ttl_ms, over=held.token)
    except BaseException:
        _abandoned.add(me)  # it may have been taken all the same
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
    """How a lease is held; None if it is free."""
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
    """Give a lease back; nothing happens if it was lost already."""
    with db.write() as session:
        session.run(session.sql("leases", "extend"), (0, lease.name, lease.token, lease.holder))
    _abandoned.discard(lease.holder)


def still_held(session: Session, lease: Lease) -> bool:
    """Whether a lease is still ours; call it inside the transaction that relies on it."""
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
    """Hold a lease for a piece of work, renewed for as long as the process runs and the work takes.

    CatalogBusyError if another holder has it; ``work`` and ``table`` are for its message.
    """
    lease = acquire(database, name, ttl_ms=ttl_ms)
    if lease is None:
        held = holding(database, name)
        who, until = ("", "") if held is None else (f" on {held.who}", f" within {held.seconds:.0f} s")
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
        # first of all: from here on nothing relies on it, whatever interrupts its release
        _abandoned.add(lease.holder)
        _working.discard(lease.holder)
        done.set()
        if beat.ident is not None:
            beat.join()
        try:
            release(database, lease)
        except DeltaSqlError as error:
            # the work under it is done, and its own error is the one to report
            logger.info("the lease %s could not be released: %s", name, error.message)


def _renew_until(done: threading.Event, database: Database, lease: Lease, ttl_ms: int) -> None:
    while not done.wait(ttl_ms / 1000 * _RENEWED_AT):
        try:
            if renew(database, lease, ttl_ms=ttl_ms) is None:
                return  # it was lost, which the work finds out
        except DeltaSqlError as error:
            logger.info("the lease %s was not renewed: %s", lease.name, error.message)
