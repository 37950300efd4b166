"""Connections and forks: a bounded pool, a timer for idle ones, and files that are closed during forks."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from deltalakedb import telemetry
from deltalakedb.exceptions import CatalogBusyError, CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalakedb.settings import PoolConfig

C = TypeVar("C")

#: how long a fork waits for other threads, in seconds
_FORK_PATIENCE = 5.0
#: connections of a parent process: kept alive untouched, since closing them here would disturb the parent
inherited: list[object] = []
#: held while a timer closes connections: a fork in the middle would leave the child half a driver
_closing = threading.Lock()


class IdleTimer:
    """Calls a function after a while, in a thread that serves many uses."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._timer: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = threading.Timer(seconds, self._run)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        with _closing:
            self._timer = None
            self._look()


class Pool(Generic[C]):
    """Lends connections, newest first. Idle ones are checked by ``healthy`` before they are lent again."""

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], None],
        healthy: Callable[[C], bool],
        limits: PoolConfig,
    ) -> None:
        self._connect, self._close, self._healthy = connect, close, healthy
        self._limits = limits
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._ready = threading.Condition()
        self._idle: deque[tuple[float, C]] = deque()
        self._open = 0
        self._timer = IdleTimer(self._look)

    def take(self) -> C:
        """Borrow a connection; CatalogBusyError when none comes free in time."""
        if self._pid != os.getpid():
            inherited.extend(c for _, c in self._idle)
            self._reset()
        deadline = time.monotonic() + self._limits.timeout_s
        while True:
            with self._ready:
                while not self._idle and self._open >= self._limits.max_size:
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._ready.wait(left):
                        raise CatalogBusyError(
                            f"none of {self._limits.max_size} database connections came free "
                            f"within {self._limits.timeout_s:g} s",
                            suggestion="raise pool.max_size, or close long-running readers",
                        )
                if not self._idle:
                    self._open += 1
                    break
                since, connection = self._idle.pop()
            if time.monotonic() - since < self._limits.health_check_s or self._healthy(connection):
                self._report()
                return connection
            self.discard(connection)
        try:
            connection = self._connect()
        except BaseException:
            with self._ready:
                self._open -= 1
                self._ready.notify()
            raise
        self._report()
        return connection

    def give(self, connection: C) -> None:
        """Give a working connection back."""
        if self._pid != os.getpid():
            inherited.append(connection)
            return
        with self._ready:
            self._idle.append((time.monotonic(), connection))
            self._ready.notify()
            if self._open > self._limits.min_size:
                self._timer.start(self._limits.idle_s)
        self._report()

    def _look(self) -> None:
        """Close connections that were idle for too long, the oldest first."""
        while self._pid == os.getpid():
            with self._ready:
                if not self._idle or self._open <= self._limits.min_size:
                    return
                left = self._idle[0][0] + self._limits.idle_s - time.monotonic()
                if left > 0:
                    self._timer.start(left)
                    return
                _, connection = self._idle.popleft()
            self.discard(connection)

    def discard(self, connection: C) -> None:
        """Give back a connection that must not be used again."""
        if self._pid != os.getpid():
            inherited.append(connection)
            return
        with suppress(Exception):
            self._close(connection)
        with self._ready:
            self._open -= 1
            self._ready.notify()
        self._report()

    def swap(self, connection: C) -> C:
        """A new connection instead of a dead one, which the borrower gives back should this fail.

        Idle connections are closed too: after one broke, its neighbours are likely broken.
        """
        self.close()
        with suppress(Exception):
            self._close(connection)
        return self._connect()

    def close(self) -> None:
        """Close what is idle."""
        with self._ready:
            self._timer.cancel()
        while self._pid == os.getpid():
            with self._ready:
                if not self._idle:
                    return
                _, connection = self._idle.pop()
            self.discard(connection)

    def usage(self) -> tuple[int, int]:
        """Connections lent and open."""
        with self._ready:
            return self._open - len(self._idle), self._open

    def _report(self) -> None:
        if telemetry.active():
            for state, count in zip(("used", "open"), self.usage(), strict=True):
                telemetry.emit("pool_connections", count, state=state)


class ForkGate:
    """Counts the threads that use a database file, and makes forks wait for them.

    SQLite and DuckDB keep their locks in memory. A child that inherits this state seems to hold locks that
    only its parent has, and what it commits can be lost when the parent closes the file.

    Args:
        close: Closes what is open and idle; called right before a fork.
        name: The file, for messages.
    """

    def __init__(self, close: Callable[[], None], name: str) -> None:
        self._close = close
        self._name = name
        self._carried = False
        self._reset()
        _gates.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._forking = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Use the file; waits while the process is being forked, unless this thread was inside before."""
        me = threading.get_ident()
        with self._changed:
            if self._carried:
                raise CatalogError(
                    f"cannot use {self._name} after fork(): the parent was using it",
                    suggestion="fork while nothing is under way, or start processes by spawn or forkserver",
                )
            while self._forking and not self._inside[me]:
                self._changed.wait()
            self._inside[me] += 1
        owner = os.getpid()
        try:
            yield
        finally:
            if owner == os.getpid():
                with self._changed:
                    self._inside[me] -= 1
                    if not self._inside[me]:
                        del self._inside[me]
                    self._changed.notify_all()

    def before_fork(self) -> None:
        """Let no thread in, wait for those inside, close the file."""
        me = threading.get_ident()
        deadline = time.monotonic() + _FORK_PATIENCE
        with self._changed:
            self._forking += 1
            while any(thread != me for thread in self._inside):
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
        self._close()

    def after_fork(self, *, child: bool) -> None:
        """Let threads in again. If some were inside, the file is the parent's: the child must not use it."""
        if child:
            self._carried = self._carried or bool(self._inside)
            self._reset()
            return
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()


_gates: weakref.WeakSet[ForkGate] = weakref.WeakSet()
_at_fork: list[ForkGate] = []


def _before_fork() -> None:
    _at_fork[:] = list(_gates)
    for gate in _at_fork:
        gate.before_fork()
    _closing.acquire()


def _after_fork(*, child: bool) -> None:
    _closing.release()
    for gate in _at_fork:
        gate.after_fork(child=child)
    _at_fork.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)
