"""Publishing in the background: two threads per process, drained before the process ends."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.mirror.reconciler import checkpoint_due, publish_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.metastore.database import Database
    from deltalakedb.mirror.publisher import Target

logger = logging.getLogger(__name__)

#: how long the end of a process waits for commits that are not published yet
_PATIENCE = 30.0


class _Worker:
    """A thread that does jobs one after the other; a table has at most one job that waits."""

    def __init__(self, name: str, work: Callable[[Database, Target], None]) -> None:
        self._name = name
        self._work = work
        self._changed = threading.Condition()
        self._waiting: dict[tuple[int, str], tuple[Database, Target]] = {}
        self._busy = False
        self._thread: threading.Thread | None = None

    def soon(self, database: Database, target: Target) -> None:
        with self._changed:
            self._waiting[id(database), target.table.name] = database, target
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def flush(self, deadline: float) -> bool:
        """Wait until nothing is left to do; False if that took too long."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: not (self._waiting or self._busy), left)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                database, target = self._waiting.pop(next(iter(self._waiting)))
                self._busy = True
            try:
                self._work(database, target)
            except DeltaSqlError as error:
                logger.warning("%s waits to be published: %s", target.table.name, error.message)
            except Exception:
                logger.exception("publishing %s failed", target.table.name)


class BackgroundPublisher:
    """Publishes tables that were committed to, one after the other.

    Checkpoints have a separate thread: they take long, and other tables need not wait for them.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a forked process must: it has none of these threads."""
        self._publisher = _Worker("deltasql-publisher", self._publish)
        self._checkpointer = _Worker("deltasql-checkpointer", self._checkpoint)
        self._end: Any = None

    def soon(self, database: Database, target: Target) -> None:
        """Publish a table soon; if it is submitted twice before its turn, the later options count."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None and (self._end is None or not self._end.still_active()):
            # before Python 3.13 its children end without `atexit`, and lose what was registered earlier
            self._end = util.Finalize(None, _drain, exitpriority=100)
        self._publisher.soon(database, target)

    def flush(self, timeout: float = _PATIENCE) -> bool:
        """Wait until nothing is left to publish or to write; False if that took too long."""
        deadline = time.monotonic() + timeout
        return self._publisher.flush(deadline) and self._checkpointer.flush(deadline)

    def _publish(self, database: Database, target: Target) -> None:
        name, options = target.table.name, target.storage_options
        _, due = publish_waiting(database, name, checkpoints=target.checkpoints, storage_options=options)
        if due:
            self._checkpointer.soon(database, target)

    def _checkpoint(self, database: Database, target: Target) -> None:
        checkpoint_due(database, target.table.name, target.checkpoints, target.storage_options)


@atexit.register
def _drain() -> None:
    if not PUBLISHER.flush():
        logger.warning("some commits are not published yet: the next writer or `deltasql mirror run` does it")


PUBLISHER = BackgroundPublisher()
os.register_at_fork(after_in_child=PUBLISHER.forget)
