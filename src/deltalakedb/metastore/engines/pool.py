"""A small pool of connections: bounded, checked when stale, closed when idle or at exit, aware of forks."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from deltalakedb import telemetry
from deltalakedb.exceptions import CatalogBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

_pools: weakref.WeakSet[Pool[object]] = weakref.WeakSet()
#: connections of a parent process: kept alive untouched, since closing them here would disturb the parent
_inherited: list[object] = []


class Pool(Generic[C]):
    """Lends connections, newest first.

    Args:
        connect: Opens a connection.
        close: Closes one, quietly.
        healthy: Says whether an idle connection still works; asked after ``check_after`` idle seconds.
        size: The most connections open at once.
        timeout: How long to wait for one, in seconds.
        check_after: Idle seconds after which a connection is checked before it is lent.
        idle: Idle seconds after which a connection is closed, even if no other is wanted.
        keep: So many stay open even if they are idle.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], None],
        healthy: Callable[[C], bool],
        *,
        size: int,
        timeout: float,
        check_after: float,
        idle: float,
        keep: int = 0,
    ) -> None:
        self._connect, self._close, self._healthy = connect, close, healthy
        self._size, self._timeout, self._check_after, self._idle_limit = size, timeout, check_after, idle
        self._keep = keep
        self._reset()
        _pools.add(self)  # type: ignore[arg-type]  # the set holds pools of any connection type

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._ready = threading.Condition()
        self._idle: deque[tuple[float, C]] = deque()
        self._open = 0
        self._timer: threading.Timer | None = None

    def take(self) -> C:
        """Borrow a connection; CatalogBusyError when none comes free in time."""
        if self._pid != os.getpid():
            _inherited.extend(c for _, c in self._idle)
            self._reset()
        deadline = time.monotonic() + self._timeout
        while True:
            with self._ready:
                while not self._idle and self._open >= self._size:
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._ready.wait(left):
                        raise CatalogBusyError(
                            f"none of {self._size} database connections came free within {self._timeout:g} s",
                            suggestion="raise pool.max_size, or close long-running readers",
                        )
                if self._idle:
                    since, connection = self._idle.pop()
                else:
                    since, connection = None, None
                    self._open += 1
            if since is None:
                return self._fresh()
            rested = time.monotonic() - since
            if rested < self._check_after or self._healthy(connection):  # type: ignore[arg-type]
                self._report()
                return connection  # type: ignore[return-value]
            self.discard(connection)  # type: ignore[arg-type]

    def give(self, connection: C) -> None:
        """Give a working connection back."""
        if self._pid != os.getpid():
            _inherited.append(connection)
            return
        with self._ready:
            self._idle.append((time.monotonic(), connection))
            self._ready.notify()
            if self._open > self._keep:
                self._watch(self._idle_limit)
        self._report()

    def _watch(self, seconds: float) -> None:
        """Look after a while for idle connections. One timer runs on over many uses: each is a thread."""
        if self._timer is not None:
            return
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        """Close connections that were idle for too long, the oldest first."""
        with _closing:
            with self._ready:
                self._timer = None
            while self._pid == os.getpid():
                with self._ready:
                    if not self._idle or self._open <= self._keep:
                        return
                    left = self._idle[0][0] + self._idle_limit - time.monotonic()
                    if left > 0:
                        self._watch(left)
                        return
                    _, connection = self._idle.popleft()
                self.discard(connection)

    def discard(self, connection: C) -> None:
        """Give back a connection that must not be used again."""
        if self._pid != os.getpid():
            _inherited.append(connection)
            return
        with suppress(Exception):
            self._close(connection)
        with self._ready:
            self._open -= 1
            self._ready.notify()
        self._report()

    def swap(self, connection: C) -> C:
        """A fresh connection in the place of a dead one, which the borrower gives back should this fail."""
        with suppress(Exception):
            self._close(connection)
        return self._connect()

    def drop_idle(self) -> None:
        """Close what is idle: after one connection broke, its neighbours are likely broken too."""
        if self._pid != os.getpid():
            return
        while True:
            with self._ready:
                if not self._idle:
                    return
                _, connection = self._idle.pop()
            self.discard(connection)

    def close(self) -> None:
        """Close what is idle, and look for nothing any more."""
        with self._ready:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self.drop_idle()

    def usage(self) -> tuple[int, int]:
        """Connections lent and open."""
        with self._ready:
            return self._open - len(self._idle), self._open

    def _fresh(self) -> C:
        try:
            connection = self._connect()
        except BaseException:
            with self._ready:
                self._open -= 1
                self._ready.notify()
            raise
        self._report()
        return connection

    def _report(self) -> None:
        if telemetry.active():
            used, total = self.usage()
            telemetry.emit("pool_connections", used, state="used")
            telemetry.emit("pool_connections", total, state="open")


#: held while a timer closes connections: a fork in the middle would leave the child half a driver
_closing = threading.Lock()
os.register_at_fork(
    before=lambda: _closing.acquire(),
    after_in_parent=lambda: _closing.release(),
    after_in_child=lambda: _closing.release(),
)


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
