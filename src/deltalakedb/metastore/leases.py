"""Leases: a named right that one holder has for a while; its token grows whenever it changes hands."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogBusyError, DeltaSqlError
from deltalakedb.metastore import audit
from deltalakedb.metastore.holders import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session

logger = logging.getLogger(__name__)

#: the part of a lease's time after which it is renewed: two renewals may fail
_RENEWED_AT = 0.3

#: holders of this process whose work has ended, and whose lease the database may still have
_abandoned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Lease:
    """A right that is held."""

    name: str
    holder: str
    token: int
    expires_at: int


def acquire(database: Database, name: str, *, ttl_ms: int = 60_000, over: int | None = None) -> Lease | None:
    """Take a lease that is free or expired; None where somebody else holds it.

    Args:
        database: The catalog.
        name: The lease.
        ttl_ms: How long it lasts.
        over: The token of a holder that is no more: the lease is taken from it, and from nobody else.
    """
    me = str(Holder.me())
    try:
        return _acquire(database, name, me, ttl_ms, over)
    except BaseException:
        _abandoned.add(me)  # it may have been taken all the same
        raise


def _acquire(database: Database, name: str, me: str, ttl_ms: int, over: int | None) -> Lease | None:
    with database.write() as session:
        now = session.now_ms()
        row = session.row(database.sql("leases", "one"), (name,))
        token = 1 if row is None else row[1] + 1
        lease = Lease(name, me, token, now + ttl_ms)
        if row is None:
            session.run(database.sql("leases", "insert"), (name, me, token, lease.expires_at))
        elif row[2] > now and row[1] != over:
            return None
        else:
            session.run(database.sql("leases", "take"), (me, token, lease.expires_at, name, row[1]))
        # a rival may have been faster where several write at a time
        if session.row(database.sql("leases", "one"), (name,)) != (me, token, lease.expires_at):
            return None
        audit.record(session, "take lease", at=now, lease=name, token=lease.token)
    return lease


def acquire_from_dead(database: Database, name: str, *, ttl_ms: int = 60_000) -> Lease | None:
    """Take a lease that is free or expired, or that nobody relies on any more.

    Its holder was a process of this machine that has ended, or this process, which could not release it.
    """
    lease = acquire(database, name, ttl_ms=ttl_ms)
    if lease is None and (held := holding(database, name)) is not None and held.is_dead:
        # under a name of our own: whoever comes next sees that we live
        lease = acquire(database, name, ttl_ms=ttl_ms, over=held.token)
    return lease


@dataclass(frozen=True, slots=True)
class Holding:
    """How a lease is held, for those who do not hold it.

    Attributes:
        holder: Who has it.
        seconds: How long it lasts, unless it is renewed.
        token: What tells this holding from those before and after.
    """

    holder: str
    seconds: float
    token: int = 0

    @property
    def who(self) -> str:
        """The holder's machine and process."""
        return self.holder.rpartition(":")[0]

    @property
    def is_dead(self) -> bool:
        """Whether nobody relies on it: its process has ended, or is this one and could not release it."""
        if self.holder in _abandoned:
            return True
        holder = Holder.parse(self.holder)
        return holder is not None and holder.is_dead


def holding(database: Database, name: str) -> Holding | None:
    """How a lease is held; None where it is free."""
    with database.read() as session:
        row = session.row(database.sql("leases", "one"), (name,))
        now = session.now_ms()
    return None if row is None or row[2] <= now else Holding(row[0], (row[2] - now) / 1000, row[1])


def renew(database: Database, lease: Lease, *, ttl_ms: int = 60_000) -> Lease | None:
    """Hold a lease for longer; None where it was lost."""
    with database.write() as session:
        if not still_held(session, lease):
            return None
        return replace(lease, expires_at=extend_lease(session, lease, ttl_ms))


def extend_lease(session: Session, lease: Lease, ttl_ms: int) -> int:
    """Extend a lease inside a transaction; the new deadline."""
    until = session.now_ms() + ttl_ms
    session.run(session.sql("leases", "extend"), (until, lease.name, lease.token, lease.holder))
    return until


def release(database: Database, lease: Lease) -> None:
    """Give a lease back; nothing happens where it was lost already."""
    with database.write() as session:
        session.run(database.sql("leases", "extend"), (0, lease.name, lease.token, lease.holder))
    _abandoned.discard(lease.holder)


def still_held(session: Session, lease: Lease) -> bool:
    """Whether a lease is still ours: asked inside the transaction that relies on it."""
    row = session.row(session.sql("leases", "one"), (lease.name,))
    if row is None:
        return False
    holder, token, expires_at = row
    return bool(holder == lease.holder and token == lease.token and expires_at > session.now_ms())


def require(session: Session, lease: Lease, *, work: str, table: str) -> None:
    """Refuse to go on where a lease was lost; asked inside the transaction that relies on it.

    Args:
        session: The transaction.
        lease: What it relies on.
        work: What is being done, for the message.
        table: The table's name, for the message.
    """
    if not still_held(session, lease):
        raise CatalogBusyError(
            f"the lease was lost before {work} was done",
            table=table,
            suggestion="look whether somebody else is at it, then repeat it: what was done stays",
        )


@contextmanager
def leased(
    database: Database, name: str, *, work: str, table: str | None = None, ttl_ms: int = 60_000
) -> Iterator[Lease]:
    """Hold a lease for a piece of work; CatalogBusyError where somebody else has it.

    It is renewed for as long as the process runs and the work takes. A lease whose holder was a process of
    this machine that is no more is taken over at once, and so is one that this process could not release.

    Args:
        database: The catalog.
        name: The lease.
        work: What it is for, for the message.
        table: The table's name, for the message.
        ttl_ms: How long others wait for a holder that has stopped.
    """
    lease = acquire_from_dead(database, name, ttl_ms=ttl_ms)
    if lease is None:
        held = holding(database, name)
        who = "" if held is None else f" ({held.who})"
        until = "" if held is None else f", at the latest in {held.seconds:.0f} s"
        raise CatalogBusyError(
            f"somebody else{who} is at work on {work}",
            table=table,
            suggestion=f"wait until it is done, or its lease runs out{until}",
        )
    done = threading.Event()
    beat = threading.Thread(
        target=_renew_until, args=(done, database, lease, ttl_ms), name="deltasql-lease", daemon=True
    )
    try:
        beat.start()
        yield lease
    finally:
        # first of all: from here on nobody relies on it, whatever interrupts its release
        _abandoned.add(lease.holder)
        done.set()
        if beat.ident is not None:
            beat.join()
        try:
            release(database, lease)
        except DeltaSqlError as error:
            # what was done under it stands, and an error of its own is the one to report
            logger.info("the lease %s could not be released: %s", name, error.message)


def _renew_until(done: threading.Event, database: Database, lease: Lease, ttl_ms: int) -> None:
    while not done.wait(ttl_ms / 1000 * _RENEWED_AT):
        try:
            if renew(database, lease, ttl_ms=ttl_ms) is None:
                return  # it was lost, which whoever relies on it finds out
        except DeltaSqlError as error:
            logger.info("the lease %s was not renewed: %s", lease.name, error.message)
