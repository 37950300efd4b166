"""A fair queue of writers over a lock file: threads and processes are served in the order they came.

SQLite's own busy handler sleeps and tries again, so that a lucky writer overtakes the others for seconds.
The kernel's queue on a file lock has no luck in it, and a holder that dies gives its turn back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Turn:
    """Turns on one lock file.

    Args:
        path: The lock file; it is created when needed and stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def take(self, timeout: float) -> Iterator[bool]:
        """Wait for the turn; yields False where it did not come in time."""
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            got = self._try(lock) or _Waiter(lock).wait(timeout)
        except BaseException:
            os.close(lock)
            raise
        if not got:
            yield False  # the waiter closes the file when its turn comes at last
            return
        try:
            yield True
        finally:
            os.close(lock)

    @staticmethod
    def _try(lock: int) -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True


class _Waiter:
    """Waits for a lock in a thread of its own, since a kernel's queue knows no deadline."""

    def __init__(self, lock: int) -> None:
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
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            self._error = error
        with self._guard:
            if self._given_up:
                os.close(self._lock)
            self._done.set()
