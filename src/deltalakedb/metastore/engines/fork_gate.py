"""Forks beside an open database file: no thread uses it, and it is closed, while a process forks.

SQLite and DuckDB keep their locks in memory. A child that inherits this state seems to hold locks that only
its parent has, and what it commits can be lost when the parent closes the file.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: how long a fork waits for other threads, in seconds
_PATIENCE = 5.0


class ForkGate:
    """Counts the threads that use a database file, and makes forks wait for them.

    Args:
        close: Closes what is open and idle; called right before a fork.
        name: The file, for messages.
    """

    def __init__(self, close: Callable[[], None], name: str) -> None:
        self._close = close
        self._name = name
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._forking = 0
        self._carried = False
        _gates.add(self)

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
        deadline = time.monotonic() + _PATIENCE
        with self._changed:
            self._forking += 1
            while any(thread != me for thread in self._inside):
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
        self._close()

    def after_fork_in_parent(self) -> None:
        """Let others in again."""
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Start again; threads that were inside are the parent's, and then the file must not be touched."""
        self._carried = self._carried or bool(self._inside)
        self._changed = threading.Condition()
        self._inside = Counter()
        self._forking = 0


_gates: weakref.WeakSet[ForkGate] = weakref.WeakSet()
_at_fork: list[ForkGate] = []


def _before() -> None:
    _at_fork[:] = list(_gates)
    for gate in _at_fork:
        gate.before_fork()


def _in_parent() -> None:
    for gate in _at_fork:
        gate.after_fork_in_parent()
    _at_fork.clear()


def _in_child() -> None:
    for gate in _at_fork:
        gate.after_fork_in_child()
    _at_fork.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
