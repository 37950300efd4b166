"""The Spark engine of imports and verification: executors read, encode and hash logs."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from math import ceil
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltalakedb.delta_log.checkpoint import CheckpointScan
from deltalakedb.delta_log.commit_file import is_large
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import DeltaSqlError, LogCorruptError, OperationError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import imports
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.digest import FileDigest
from deltalakedb.settings import Config, get_config, use_config
from deltalakedb.spark.jobs import run_tasks, split_rows, windows_of
from deltalakedb.spark.scratch import spark_path
from deltalakedb.spark.sessions import check_delta, num_cores
from deltalakedb.transfer.importing.encoding import Layout, ahead, prepare, prepare_tail, write_window
from deltalakedb.transfer.importing.loader import (
    Batch,
    LoadTask,
    LocalEngine,
    Pace,
    TornCheckpointError,
    ready_tail,
)
from deltalakedb.transfer.importing.plan import base_checkpoint
from deltalakedb.transfer.verifying.data_rows import RowDigest
from deltalakedb.transfer.verifying.log_replay import WINDOW, LogReplay, add_part, digest_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from deltalakedb.address import Address
    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.storage import Store
    from deltalakedb.transfer.importing.encoding import PreparedWindow, ReadyTail
    from deltalakedb.transfer.importing.loader import LargeCommit
    from deltalakedb.transfer.reports import ImportPlan

logger = logging.getLogger(__name__)

#: the most windows of one task, if there are more than each core can have one task of
_MOST_WINDOWS: Final = 32
#: windows of a task if the driver writes; and the number of such tasks in successive jobs, few at first
_WINDOWS_SENT: Final = 2
_TASKS_PER_JOB: Final = (2, 3, 4)
#: executors parse the commits after the checkpoint if they have at least so many bytes
_LONG_TAIL: Final = 16 * 1024 * 1024
#: batches of commits that one job prepares
_BATCHES_PER_JOB: Final = 4
#: databases that many processes can write to
_SHARED: Final = frozenset({"postgres"})


class SparkEngine:
    """Loads the first version's files by a Spark job; the driver writes the commits after it.

    If there are many of those, executors parse and encode them. Unless a job is ``always`` to run, the driver
    loads small tables alone.
    """

    name = "spark"

    def __init__(self, spark: SparkSession, *, always: bool = True) -> None:
        self._spark, self._always = spark, always

    def load(self, task: LoadTask) -> None:
        """Load every batch that has no receipt yet."""
        plan = task.plan
        if plan.base == "checkpoint" and (self._always or plan.base_rows > plan.batch_size):
            LocalEngine().open(task)
            try:
                self._base(task)
            except LogCorruptError as error:
                raise TornCheckpointError.of(error, plan.first_version) from error
        # the rest, after the base
        if plan.tail_bytes < _LONG_TAIL:
            LocalEngine().load(task)
            return
        LocalEngine().load(task, self._tails)

    def log_digest(
        self, reader: FileTxnLogReader, version: int, *, tick: Callable[[], None]
    ) -> FileDigest | None:
        """The digest of the log's live files, by a job over the checkpoint; None leaves it to the driver.

        The driver reads the commits after the checkpoint, as it does for an import.
        """
        config = get_config().import_
        memory = config.memory_mb * 1024 * 1024
        try:
            found = LogReplay(reader, version, memory_bytes=memory).base()
            if found is None or (checkpoint := found[0].checkpoint) is None:
                return None
            scan, tail = CheckpointScan(reader.store, checkpoint), found[1]
        except DeltaSqlError:
            return None  # the driver meets the same error, and reports it or reads an older checkpoint
        if not self._always and scan.rows < config.batch_size:
            return None
        ranges = split_rows(scan.rows, WINDOW, self._windows_per_task(scan.rows, WINDOW))
        touched = frozenset(tail.files.keys() | tail.tombstones.keys())

        def digest(number: int) -> Iterator[FileDigest]:
            """The digest of a range's files that no later commit touches."""
            found = FileDigest()
            for window in windows_of(scan, ranges[number], WINDOW):
                for part in window.parts:
                    add_part(found, part, touched)
            yield found

        made = FileDigest()
        made.add_rows(digest_row(add) for add in tail.files.values())
        try:
            for part in run_tasks(self._spark, len(ranges), digest, tick):
                made.merge(part)
        except (LogCorruptError, OperationError) as error:
            logger.info("the driver reads the log of %s: %s", reader.store.location, error.message)
            return None
        return made

    def row_digest(self, location: str, version: int) -> RowDigest | None:
        """The digest of a plain table's rows, read by delta-spark and summed by executors.

        Raises:
            SparkSetupError: The session has no Delta.
        """
        check_delta(self._spark)
        place = spark_path(location, get_config().storage_options_for(location))
        frame = self._spark.read.format("delta").option("versionAsOf", version).load(place)
        whole = RowDigest()
        for row in frame.mapInArrow(_summed, "count bigint, lane binary").collect():
            whole.join(row["count"], int.from_bytes(row["lane"], "big"))
        return whole

    def _base(self, task: LoadTask) -> None:
        scan = CheckpointScan(task.reader.store, base_checkpoint(list_log(task.reader.store), task.plan))
        done = imports.receipts(task.database, task.row.import_id)
        begun = {r.begins for r in done if r.kind == "base" and r.ends >= r.begins}
        address = task.database.address
        here = address.engine not in _SHARED or task.rate_limit > 0
        size = task.plan.batch_size
        windows = _WINDOWS_SENT if here else self._windows_per_task(scan.rows, size)
        ranges = split_rows(scan.rows, size, windows, begun)
        if not ranges:
            return
        layout, config = task.layout(), get_config()
        job = _Job(scan, ranges, task.plan, layout, address, config, task.row, task.lease, task.proves)
        rows = sum(r.ends - r.begins + 1 for r in done if r.kind == "base")
        total = task.plan.base_rows + task.plan.version - task.plan.first_version
        pace = Pace(task, total, rows, sum(r.actions for r in done))
        (self._through_driver if here else self._by_executors)(task, job, pace)

    def _windows_per_task(self, rows: int, size: int) -> int:
        """As many as give each core one task: one that begins inside a row group reads it from its start."""
        return min(_MOST_WINDOWS, ceil(rows / size / num_cores(self._spark)))

    def _by_executors(self, task: LoadTask, job: _Job, pace: Pace) -> None:
        """Executors write: each batch in a transaction with its receipt."""
        seen = {r.batch for r in imports.receipts(task.database, task.row.import_id)}

        def look() -> None:
            with task.database.read() as session:
                imports.check_lease(session, task.lease)
            for receipt in imports.receipts(task.database, task.row.import_id):
                if receipt.batch not in seen and receipt.kind == "base":
                    seen.add(receipt.batch)
                    pace.step(receipt.ends - receipt.begins + 1, receipt.actions)

        run_tasks(self._spark, len(job.ranges), job.write, look)
        look()

    def _through_driver(self, task: LoadTask, job: _Job, pace: Pace) -> None:
        """Executors encode, the driver writes; the next windows are encoded meanwhile."""

        def made() -> Iterator[list[PreparedWindow]]:
            at = 0
            for many in chain(_TASKS_PER_JOB, repeat(_TASKS_PER_JOB[-1])):
                some = min(many, len(job.ranges) - at)
                if not some:
                    return
                yield run_tasks(self._spark, some, partial(job.prepared, at))
                at += some

        for windows in ahead(made()):
            for window in sorted(windows, key=lambda w: w.begin):
                batch = task.write_window(window)
                pace.step(window.end - window.begin, batch.actions)

    def _tails(
        self, task: LoadTask, batches: Sequence[range], layout: Layout
    ) -> Iterator[ReadyTail | LargeCommit]:
        """Let executors parse and encode batches of commits, some at a time.

        The driver does so for a batch that failed there, to raise the error, and for large commits; it packs
        files again that were packed before the metadata changed.
        """
        store = task.reader.store
        commits = list_log(store).commits

        def jobs() -> Iterator[tuple[Layout, dict[int, ReadyTail]]]:
            for at in range(0, len(batches), _BATCHES_PER_JOB):
                before, some = layout, batches[at : at + _BATCHES_PER_JOB]
                small = [versions for versions in some if not is_large(commits.get(versions.start))]
                work = partial(_made_ready, store, small, before)
                yield before, dict(run_tasks(self._spark, len(small), work)) if small else {}

        coming = ahead(jobs())
        before = layout
        made: dict[int, ReadyTail] = {}
        for number, versions in enumerate(batches):
            if number % _BATCHES_PER_JOB == 0:
                before, made = next(coming)
            tail: ReadyTail | LargeCommit
            if (found := made.get(versions.start)) is None:
                tail = ready_tail(task, versions, layout)
            else:
                tail = found if before == layout else found.packed(layout)
            layout = layout.after(tail.metadata)
            yield tail


@dataclass(frozen=True, slots=True)
class _Job:
    """What tasks need; it is sent to the executors."""

    checkpoint: CheckpointScan
    ranges: list[range]
    plan: ImportPlan
    layout: Layout
    address: Address
    config: Config
    row: ImportRow
    lease: Lease
    proves: bool

    def prepared(self, first: int, number: int) -> Iterator[PreparedWindow]:
        """The windows of a range, counted from the first one of the job, as rows of the catalog."""
        for window in windows_of(self.checkpoint, self.ranges[first + number], self.plan.batch_size):
            yield prepare(window, self.plan.first_version, self.layout, proves=self.proves)

    def write(self, number: int) -> Iterator[int]:
        """Write the windows of a range, each once even if Spark runs the task twice."""
        # closed, since Spark may keep the worker for other jobs, and a server has few connections
        with use_config(self.config), closing(Database.open(self.address, self.config)) as database:
            for window in ahead(self.prepared(0, number)):
                self._write(database, window)
                yield window.begin

    def _write(self, database: Database, window: PreparedWindow) -> None:
        batch = Batch.of_window(self.plan, window)
        with database.write() as session:
            imports.check_lease(session, self.lease)
            if not imports.claim_batch(session, self.row.import_id, batch.number):
                return
            batch.counts, batch.actions = write_window(
                session, self.row.table_id, self.plan.first_version, window
            )
            receipt = batch.receipt(session)
            imports.write_claimed_receipt(session, self.row.import_id, receipt, batch.proof)
            failpoint("import.batch_written")
            imports.check_lease(session, self.lease)
        failpoint("import.batch_done")


def _made_ready(
    store: Store, batches: Sequence[range], layout: Layout, number: int
) -> Iterator[tuple[int, ReadyTail]]:
    versions = batches[number]
    commits = ((version, store.get(commit_path(version))) for version in versions)
    try:
        yield versions.start, prepare_tail(commits, layout)
    except DeltaSqlError as error:
        if error.transient:
            raise


def _summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    made = RowDigest().add(batches)
    yield pa.RecordBatch.from_pydict({"count": [made.count], "lane": [made.lane.to_bytes(8, "big")]})
