"""Publishing in the background: one thread per process, drained before the process ends."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.mirror.reconciler import DUE, reconcile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.catalog.database import Database
    from deltalakedb.mirror.checkpointer import Checkpoints

logger = logging.getLogger(__name__)

#: how long the end of a process waits for what is still to be published
_PATIENCE = 30.0


class BackgroundPublisher:
    """Publishes tables that were committed to, each as soon as the one before is done."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: dict[tuple[int, str], tuple[Database, Checkpoints, Mapping[str, str] | None]] = {}
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._busy = False
        self._thread: threading.Thread | None = None

    def soon(
        self,
        database: Database,
        name: str,
        checkpoints: Checkpoints = DUE,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Publish a table soon; asked twice before it begins, it is done once, as it was asked for last."""
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            self._waiting[id(database), name] = database, checkpoints, storage_options
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="deltasql-publisher", daemon=True)
                self._thread.start()
        self._wake.put(None)

    def flush(self, timeout: float = _PATIENCE) -> bool:
        """Wait until nothing is left to publish; False where that took too long."""
        if self._pid != os.getpid():
            return True
        deadline = time.monotonic() + timeout
        with self._idle:
            while self._waiting or self._busy:
                left = deadline - time.monotonic()
                if left <= 0 or not self._idle.wait(left):
                    return False
        return True

    def _work(self) -> None:
        while True:
            self._wake.get()
            with self._lock:
                if not self._waiting:
                    continue
                key, (database, checkpoints, options) = next(iter(self._waiting.items()))
                del self._waiting[key]
                self._busy = True
            try:
                reconcile(database, key[1], checkpoints=checkpoints, storage_options=options)
            except DeltaSqlError as error:
                logger.warning("%s waits to be published: %s", key[1], error.message)
            except Exception:
                logger.exception("publishing %s failed", key[1])
            finally:
                with self._idle:
                    self._busy = False
                    self._idle.notify_all()


PUBLISHER = BackgroundPublisher()


@atexit.register
def _drain() -> None:
    if not PUBLISHER.flush():
        logger.warning("some commits are not published yet: the next writer or `deltasql mirror run` does it")
