"""A fair queue of writers over a lock file: threads and processes are served in the order they came.

SQLite's own busy handler sleeps and tries again, so that some writers starve for seconds. The kernel's queue
on a file lock is fair, and a holder that dies gives its turn back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class WriterQueue:
    """A queue of writers on one lock file.

    Args:
        path: The lock file; it is created when needed and stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def take(self, timeout: float) -> Iterator[bool]:
        """Wait for the turn; yields False if it did not come in time."""
        lock = _Lock(self._path)
        try:
            got = lock.try_now() or _Waiter(lock).wait(timeout)
        except BaseException:
            lock.release()
            raise
        if not got:
            yield False  # the waiter releases the lock when its turn comes at last
            return
        try:
            yield True
        finally:
            lock.release()


class _Lock:
    """An open lock file. A forked child lets go of the copies it inherits: they would keep the lock alive."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _locks.add(self)

    def try_now(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def wait(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the turn back; unlocking works even if a process forked in between has the file open."""
        if self._file >= 0:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the file; the turn stays with any process that holds it open."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class _Waiter:
    """Waits for a lock in a thread of its own, since the kernel's queue has no deadline."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock
        self._done = threading.Event()
        self._guard = threading.Lock()
        self._given_up = False
        self._error: OSError | None = None

    def wait(self, timeout: float) -> bool:
        threading.Thread(target=self._block, name="deltasql-turn", daemon=True).start()
        deadline = time.monotonic() + timeout
        self._done.wait(max(0.0, deadline - time.monotonic()))
        with self._guard:
            if not self._done.is_set():
                self._given_up = True
                return False
        if self._error is not None:
            raise self._error
        return True

    def _block(self) -> None:
        try:
            self._lock.wait()
        except OSError as error:
            self._error = error
        with self._guard:
            if self._given_up:
                self._lock.release()
            self._done.set()


_locks: weakref.WeakSet[_Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)
