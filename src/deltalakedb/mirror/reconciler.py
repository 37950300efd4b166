"""The reconciler: publishes what waits and writes due checkpoints, once, as a service, or for writers.

In the background of writers it has two threads per process, drained before the process ends.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from deltalakedb import telemetry
from deltalakedb.exceptions import (
    ArgumentTypeError,
    CatalogBusyError,
    DeltaSqlError,
    InvalidArgumentError,
    TableMissingError,
)
from deltalakedb.metastore import files, outbox, registry
from deltalakedb.mirror.checkpointer import DUE, CheckpointOptions, checkpoint_if_due
from deltalakedb.mirror.publisher import Target, publish, write_missing_manifests
from deltalakedb.retry import backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.mirror import Options

logger = logging.getLogger(__name__)

#: what a pass had to leave
_LEFT = ("frozen", "paused", "backing_off", "late", "no_checkpoint", "no_manifest")
FORCED = CheckpointOptions(force=True)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over all tables did, and what it had to leave.

    Attributes:
        published: Versions that were published.
        checkpoints: Checkpoints that were written.
        failed: Tables whose publishing failed in this pass.
        diverged: Tables that were frozen in this pass.
        frozen: Tables that are frozen, and so not published.
        paused: Tables with waiting commits whose publishing is paused.
        backing_off: Tables that failed before and are left alone until their next attempt.
        late: Tables whose commits have waited for too long.
        no_checkpoint: Tables whose due checkpoint could not be written.
        no_manifest: Tables that lack the manifest of a transaction, since it could not be written.
    """

    published: int = 0
    checkpoints: int = 0
    failed: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    backing_off: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    no_checkpoint: tuple[str, ...] = ()
    no_manifest: tuple[str, ...] = ()

    def __add__(self, other: Pass) -> Pass:
        """The sum of two passes: numbers are added, names are joined."""
        names = ("failed", "diverged", *_LEFT)
        joined = {n: tuple(dict.fromkeys(getattr(self, n) + getattr(other, n))) for n in names}
        return Pass(self.published + other.published, self.checkpoints + other.checkpoints, **joined)

    def with_left(self, found: Sequence[MirrorStatus]) -> Pass:
        """The pass, with what the tables' state after it shows was left."""
        going = [s for s in found if s.state != "frozen"]
        waiting = [s for s in going if s.backing_off and not s.paused and s.table not in self.failed]
        unwritten = [s.table for s in going if s.checkpoint_backing_off]
        return replace(
            self,
            frozen=tuple(s.table for s in found if s.state == "frozen"),
            paused=tuple(s.table for s in going if s.paused),
            backing_off=tuple(s.table for s in waiting),
            late=tuple(s.table for s in found if s.alarm),
            no_checkpoint=tuple(dict.fromkeys((*self.no_checkpoint, *unwritten))),
            no_manifest=tuple(s.table for s in found if s.manifests_missing),
        )


def run_once(database: Database, *, looked_at: dict[int, int] | None = None) -> Pass:
    """Publish everything that waits, table by table, the longest waiting first; then due checkpoints.

    ``looked_at`` keeps, from pass to pass, the published versions by table for which none was due.
    """
    done = Pass()
    for name in outbox.tables_behind(database):
        try:
            done += publish_waiting(database, name)[0]
        except DeltaSqlError:
            raise  # the database's, which all tables share
        except Exception:
            logger.exception("publishing %s failed", name)
            done += Pass(failed=(name,))
    write_missing_manifests(database)
    files.pack_all(database)
    found = outbox.status(database)
    report_lag(found)
    # what is not due by the numbers may be due by its age in the next pass
    ages = database.engine.config.publish.checkpoint_after_s > 0
    for status in found:
        seen = {} if looked_at is None or ages else looked_at
        if status.checkpoint_backing_off or seen.get(status.table_id) == status.published_version:
            continue
        tried = checkpoint_due(database, status.table)
        if tried is not None:
            done += tried
            if not tried.no_checkpoint:
                seen[status.table_id] = status.published_version
    return done.with_left(found)


def reconcile(
    database: Database, name: str, *, checkpoints: CheckpointOptions = DUE, storage_options: Options = None
) -> Pass:
    """Publish everything that waits of one table, then write a due checkpoint."""
    done, due = publish_waiting(database, name, checkpoints=checkpoints, storage_options=storage_options)
    written = checkpoint_due(database, name, checkpoints, storage_options) if due else None
    return done if written is None else done + written


def publish_waiting(
    database: Database, name: str, *, checkpoints: CheckpointOptions = DUE, storage_options: Options = None
) -> tuple[Pass, bool]:
    """Publish everything that waits of one table; returns also whether a checkpoint may be due."""
    try:
        table = registry.find(database, name)
    except TableMissingError:
        return Pass(), False  # dropped a moment ago
    result = publish(database, table, storage_options=storage_options)
    failed = (name,) if result.error is not None else ()
    diverged = (name,) if result.diverged and not failed else ()
    done = Pass(len(result.versions), failed=failed, diverged=diverged)
    return done, not (failed or diverged) and result.may_need_checkpoint(checkpoints)


def checkpoint_due(
    database: Database, name: str, options: CheckpointOptions = DUE, storage_options: Options = None
) -> Pass | None:
    """Write a table's checkpoint if one is due, and log errors; None if another process is writing it."""
    try:
        written = checkpoint_if_due(database, name, options, storage_options)
        return Pass(checkpoints=int(written is not None))
    except TableMissingError:
        return Pass()  # dropped a moment ago
    except CatalogBusyError as error:
        logger.info("the checkpoint of %s must wait: %s", name, error.message)
        return None
    except DeltaSqlError as error:
        logger.warning("the checkpoint of %s must wait: %s", name, error.message)
    except Exception:
        # other tables must not wait for it
        logger.exception("the checkpoint of %s must wait", name)
    return Pass(no_checkpoint=(name,))


def report_lag(found: Sequence[MirrorStatus]) -> None:
    """Report how far logs are behind as telemetry, and as errors past the alarm."""
    for status in found:
        telemetry.emit("publish_lag_versions", status.versions_behind, table=status.table)
        telemetry.emit("publish_oldest_unpublished_seconds", status.seconds_behind, table=status.table)
        if status.alarm:
            logger.error(
                "the log of %s is %.0f s and %d versions behind: %s",
                status.table,
                status.seconds_behind,
                status.versions_behind,
                status.error or "no error is recorded",
            )


def checked_interval(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ArgumentTypeError(f"the interval must be a number of seconds, not {seconds!r}")
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(
            f"the interval cannot be {seconds!r}", suggestion="give a number of seconds above 0, such as 5"
        )
    return float(seconds)


def watch(database: Database, *, stop: threading.Event, interval: float = 1.0) -> Pass:
    """Reconcile until ``stop`` is set; after errors of the database, the pauses grow."""
    interval = checked_interval(interval)
    done, trouble = Pass(), 0  # what was left is that of the last pass
    looked_at: dict[int, int] = {}
    while not stop.is_set():
        try:
            last = run_once(database, looked_at=looked_at)
            done = replace(done + last, **{name: getattr(last, name) for name in _LEFT})
            trouble = 0
        except DeltaSqlError as error:
            if not error.transient:
                raise
            trouble += 1
            logger.warning("the reconciler waits: %s", error.message)
        # jitter, so that several reconcilers do not run in step
        stop.wait(backoff(trouble, first=interval, longest=max(60.0, interval), certain=0.8))
    return done


class ReconcilerThread:
    """A reconciler in a thread of a long-lived process, as a context manager; it ends its pass on exit."""

    def __init__(self, database: Database, *, interval: float = 1.0) -> None:
        self._database = database
        self._interval = checked_interval(interval)

    def _work(self) -> None:
        try:
            watch(self._database, stop=self._stop, interval=self._interval)
        except DeltaSqlError:
            logger.exception("the reconciler stopped")

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="deltasql-reconciler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# ---- in the background of writers -----------------------------------------------------------------------

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
