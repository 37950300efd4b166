"""Holding the lease of an import: one at a time for each location, and none for the dead."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from deltalakedb.catalog import imports, leases
from deltalakedb.exceptions import CatalogBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.leases import Lease

_T = TypeVar("_T")

#: seconds between two renewals
_BEAT = 10.0


@contextmanager
def held(database: Database, location: str) -> Iterator[Lease]:
    """Hold the right to import, undo or export what lies at a location.

    A lease whose holder was a process of this machine that is no more is taken over at once.

    Raises:
        CatalogBusyError: Somebody else is at work there.
    """
    name = imports.lease_name(location)
    lease = leases.acquire_from_dead(database, name, ttl_ms=imports.LEASE_MS)
    if lease is None:
        holding = leases.holding(database, name)
        who = "" if holding is None else f" ({holding.who})"
        raise CatalogBusyError(
            f"another import of {location} is at work{who}",
            suggestion="wait until it is done; the lease of a lost machine runs out in two minutes",
        )
    try:
        yield lease
    finally:
        leases.release(database, lease)


def is_held(database: Database, location: str) -> bool:
    """Whether somebody is at work on what lies at a location."""
    holding = leases.holding(database, imports.lease_name(location))
    return holding is not None and not holding.is_dead


class Heartbeat:
    """Holds a lease for longer while something long is read; call it often."""

    def __init__(self, database: Database, lease: Lease) -> None:
        self._database, self._lease = database, lease
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Renew the lease where that is due."""
        if time.monotonic() - self._last < _BEAT:
            return
        self._last = time.monotonic()
        with self._database.write() as session:
            imports.require(self._database, session, self._lease)

    def during(self, work: Callable[[], _T]) -> _T:
        """Do something in a thread that cannot call this itself; the lease is held meanwhile."""
        with ThreadPoolExecutor(1, thread_name_prefix="deltasql-held") as pool:
            future = pool.submit(copy_context().run, work)
            while not future.done():
                wait([future], timeout=1)
                self()
            return future.result()
