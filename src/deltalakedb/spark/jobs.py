"""Spark jobs: work split into tasks, run on executors, and monitored by the driver."""

from __future__ import annotations

import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from deltalakedb.exceptions import DeltaSqlError, OperationError, SparkSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark.sql import SparkSession

    from deltalakedb.delta_log.checkpoint import CheckpointScan, Window

T = TypeVar("T")

#: seconds between two calls of ``look``
_INTERVAL_S: Final = 1.0
#: the rows in which tasks return values: a pickled value, or the error that ended the task
_RESULT_DDL: Final = "ok boolean, payload binary"
_RESULT: Final = pa.schema([("ok", pa.bool_()), ("payload", pa.binary())])


def split_rows(rows: int, size: int, windows: int, begun: Collection[int] = ()) -> list[range]:
    """Split rows into ranges of at most `windows` windows, without those whose first row is in `begun`."""
    ranges: list[range] = []
    for begin in range(0, rows, size):
        if begin in begun:
            continue
        end = min(begin + size, rows)
        last = ranges[-1] if ranges else range(0)
        if ranges and last.stop == begin and end - last.start <= windows * size:
            ranges[-1] = range(last.start, end)
        else:
            ranges.append(range(begin, end))
    return ranges


def windows_of(scan: CheckpointScan, rows: range, size: int) -> Iterator[Window]:
    """The windows of a range of rows."""
    return takewhile(lambda window: window.begin < rows.stop, scan.windows(size, after=rows.start))


def run_tasks(
    spark: SparkSession,
    count: int,
    work: Callable[[int], Iterator[T]],
    look: Callable[[], None] = lambda: None,
) -> list[T]:
    """Run `work` in one task for each number below a count, and return the values that it yields.

    `look` is called every second while the job runs. Spark repeats a task after a transient error; the first
    other error of a task is raised. See `run_monitored` for errors of Spark.
    """

    def result(value: Any, *, ok: bool = True) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"ok": [ok], "payload": [pickle.dumps(value)]}, schema=_RESULT)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            try:
                yield from map(result, work(number))
            except DeltaSqlError as error:
                if error.transient:
                    raise  # Spark repeats the task
                yield result(error, ok=False)

    def collect() -> list[T]:
        values: list[T] = []
        frame = spark.range(0, count, 1, max(1, count)).mapInArrow(run, _RESULT_DDL)
        # as Arrow, since payloads are large: rows would be pickled once more on their way
        for batch in frame.toArrow().to_batches():
            for ok, payload in zip(batch.column("ok"), batch.column("payload"), strict=True):
                # the payload is trusted: tasks run our own code
                value = pickle.loads(payload.as_buffer())  # noqa: S301
                if not ok.as_py():
                    raise value
                values.append(value)
        return values

    return run_monitored(spark, collect, look)


def run_monitored(spark: SparkSession, job: Callable[[], T], look: Callable[[], None]) -> T:
    """Run a job in a thread and call `look` every second; an error of `look` cancels the job.

    Raises:
        OperationError: Spark could not run it.
        SparkSetupError: An executor lacks this package.
    """
    tag = f"deltasql-{uuid.uuid4().hex}"

    def run() -> T:
        spark.addTag(tag)
        try:
            return job()
        finally:
            spark.removeTag(tag)

    with ThreadPoolExecutor(1, thread_name_prefix="deltasql-spark") as pool:
        future = pool.submit(copy_context().run, run)
        try:
            while not wait([future], _INTERVAL_S).done:
                look()
            return future.result()
        except BaseException as error:
            spark.interruptTag(tag)
            if (translated := _translate_spark_error(error)) is not None:
                raise translated from error
            raise


def _translate_spark_error(error: BaseException) -> DeltaSqlError | None:
    """Spark's report of a failed job, in one line; None for other errors."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("No module named 'deltalakedb'" in line for line in lines):
        return SparkSetupError(
            "deltalakedb is not installed on Spark's executors",
            suggestion="install it in their Python, or ship it (spark.archives); see PYSPARK_PYTHON",
        )
    reasons = [line for line in lines if "Error: " in line and "PythonException" not in line]
    return OperationError(
        f"a Spark job failed: {reasons[-1] if reasons else (lines or ['no reason is given'])[0]}",
        suggestion="check the executors' logs, then repeat the call; it resumes after the finished tasks",
    )
