"""Commits after the base of an import: executors parse and encode them, the driver writes them in order."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.commit_file import is_large
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.spark.shares import ANSWER, answers, collect, spread, watched
from deltalakedb.transfer.plan import tail_batches
from deltalakedb.transfer.tails import ready_tail
from deltalakedb.transfer.windows import Encoders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from pyspark.sql import SparkSession

    from deltalakedb.transfer.engines import LoadTask
    from deltalakedb.transfer.tails import ReadyTail

#: batches that come to the driver at a time
_BATCHES_PER_JOB: Final = 4


class TailJobs:
    """Makes batches ready, some at a time; the next ones are made while these are written.

    A batch that is not made ready, such as one that changes the schema, is the driver's: what follows it is
    encoded anew.

    Args:
        spark: The session.
        task: The import.
    """

    def __init__(self, spark: SparkSession, task: LoadTask) -> None:
        self._spark, self._task = spark, task
        self._listing = list_log(task.reader.store)
        self._made: dict[int, ReadyTail | None] = {}
        self._encoders: Encoders | None = None
        self._coming: tuple[int, Future[dict[int, ReadyTail | None]]] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="deltasql-tail")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, versions: range) -> ReadyTail | None:
        """The batch of some versions; None where the driver has to make it."""
        if versions.start not in self._made:
            self._made = self._next(versions.start)
        ready = self._made.pop(versions.start, None)
        if ready is None:
            # what was made after it knows nothing of what it changes
            self._made, self._encoders, self._coming = {}, None, None
        return ready

    def _next(self, start: int) -> dict[int, ReadyTail | None]:
        encoders, group = self._encoders, self._group(start)
        if encoders is None:
            with self._task.database.read() as session:
                encoders = self._encoders = Encoders.of(session, self._task.row.table_id, self._task.paths)
        coming, self._coming = self._coming, None
        made = coming[1].result() if coming and coming[0] == start else self._job(group, encoders)
        if None not in made.values() and (more := self._group(group[-1].stop)):
            run = copy_context().run
            self._coming = more[0].start, self._pool.submit(run, self._job, more, encoders)
        return made

    def _group(self, start: int) -> list[range]:
        """The next batches, as the import cuts them; one that is read line by line ends them."""
        batches = tail_batches(self._listing, range(start, self._task.plan.version + 1))
        small = takewhile(lambda b: not is_large(self._listing.commits.get(b.start)), batches)
        return list(islice(small, _BATCHES_PER_JOB))

    def _job(self, group: Sequence[range], encoders: Encoders) -> dict[int, ReadyTail | None]:
        store = self._task.reader.store

        def work(number: int) -> Iterator[tuple[int, ReadyTail | None]]:
            versions = group[number]
            try:
                yield versions.start, ready_tail(store, versions, encoders)
            except DeltaSqlError as error:
                if error.transient:
                    raise
                yield versions.start, None  # the driver meets the same, and knows what to say of it

        def run() -> list[tuple[int, ReadyTail | None]]:
            return collect(spread(self._spark, len(group), answers(work), ANSWER))

        return dict(watched(self._spark, run, lambda: None))
