"""What ``format("deltasql")`` writes: files by tasks, in one commit by the driver."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import OURS
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.spark.sight import check_here, unseen
from deltalakedb.spark.sinks import other_query, query_id
from deltalakedb.table.arrow_schemas import arrow_schema
from deltalakedb.table.eligibility import eligible
from deltalakedb.table.operations import in_partitions_of, removes
from deltalakedb.table.parquet import not_direct, write_files
from deltalakedb.table.roots import root_at, undo
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.work import Work, tell_nothing_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Action, Add
    from deltalakedb.protocol.txn_log import Snapshot

#: what a write may be given, by delta-spark's names
BATCH: Final = frozenset({"path", "partitionoverwritemode", "txnappid", "txnversion"})
#: what a sink may be given: the query's own options, which Spark hands on, and its name for the table
SINK: Final = frozenset({"path", "checkpointlocation", "queryname", "appid"})


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    adds: list[Add]


@dataclass
class Writer(DataSourceArrowWriter):
    """Writes an append or an overwrite to the table as it was when the job began."""

    options: dict[str, str]
    overwrite: bool
    snapshot: Snapshot
    location: str
    storage_options: Mapping[str, str] | None
    fsync: bool

    @classmethod
    def to(cls, options: dict[str, str], *, overwrite: bool) -> Writer:
        """A writer to the table that the options name, as it is now.

        Raises:
            UnsupportedOperationError: The table is none that Python alone writes; no row has been read then.
        """
        table = SqlDeltaTable(options["path"])
        snapshot, root = table._source.snapshot, table._root
        reason = eligible(snapshot, arrow_schema(snapshot.metadata.schema_string), also=OURS)
        if reason is not None:
            raise not_direct(reason)
        table._require_folder()
        fsync = table._database.engine.config.publish.fsync
        return cls(options, overwrite, snapshot, root.location, root.options, fsync)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; where it fails, its files are gone."""
        first = next(iterator, None)
        if first is None:
            return Written([])

        def batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from iterator

        check_here(self.location)
        data = pa.RecordBatchReader.from_batches(first.schema, batches())
        root = root_at(self.location, self.storage_options)
        return Written(write_files(data, root=root, snapshot=self.snapshot, fsync=self.fsync, also=OURS))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks wrote, by the driver."""
        app_id = self.options.get("txnappid")
        if app_id is None:
            self.settle(messages, "WRITE")
        else:
            self.settle_once(messages, "WRITE", app_id, int(self.options["txnversion"]), own=app_id)

    def settle_once(
        self,
        messages: list[WriterCommitMessage | None],
        operation: str,
        app_id: str,
        version: int,
        *,
        own: str | None,
    ) -> None:
        """Commit what all tasks wrote, unless the same writer has committed an application's version before.

        Args:
            messages: What the tasks wrote.
            operation: What the history calls it.
            app_id: The application.
            version: Its version, such as the number of a batch.
            own: The id of this writer alone, which may be the application's; None if it is not known.

        Raises:
            InvalidArgumentError: Another writer has committed that version of the application.
        """
        table = SqlDeltaTable(self.options["path"])
        recorded = table.transaction_version(app_id)
        if recorded is not None and recorded >= version:
            self.drop(messages)
            mine = recorded if own in (None, app_id) else table.transaction_version(own)
            # a query replays its last batch, and none before it
            if mine is None or mine < version or (own is None and mine > version):
                raise other_query(app_id, version, recorded, table=table.name)
            if own is None:
                tell_nothing_written(
                    table.name,
                    f"batch {version} of application {app_id!r} was committed before; if the query has a new "
                    "checkpoint location, it needs a new appId",
                )
            return
        now = time.time_ns() // 1_000_000
        names = dict.fromkeys((app_id, own or app_id))
        notes = [Txn(app_id=name, version=version, last_updated=now) for name in names]
        self.settle(messages, operation, notes)

    def settle(
        self, messages: list[WriterCommitMessage | None], operation: str, notes: Sequence[Txn] = ()
    ) -> None:
        """Commit what all tasks wrote, with notes of the application's version that it is."""
        adds = _written(messages)
        table = SqlDeltaTable(self.options["path"], version=self.snapshot.version)
        gone = self._replaced(table, adds)
        if not adds and not gone:
            return
        partitions = encode_json(list(self.snapshot.metadata.partition_columns))
        how = {"mode": "Overwrite" if self.overwrite else "Append", "partitionBy": partitions}
        info = CommitInfo(extra={"operation": operation, "operationParameters": how})
        reads = EVERYTHING if self.overwrite else NOTHING
        files = table._root.placed(a.path for a in adds)
        if any(isinstance(file, Path) and not file.exists() for file in files):
            raise unseen(self.location, table=table.name)  # written on disks of other machines
        actions = (info, *notes, *gone, *adds)
        table._hand_on(Work(table._row, actions, self.snapshot, reads, files, fresh=True, root=table._root))

    def _replaced(self, table: SqlDeltaTable, adds: list[Add]) -> list[Action]:
        """What the new files take the place of: nothing, everything, or the partitions that they are in."""
        if not self.overwrite:
            return []
        dynamic = self.options.get("partitionoverwritemode", "static").lower() == "dynamic"
        if not dynamic or not self.snapshot.metadata.partition_columns:
            return removes(table._source.adds())
        return removes(in_partitions_of(table._source, adds))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks of a failed job wrote.

        Where every task has ended well it was the commit that failed, or died: the database may have it. Its
        files stay then, for `gc` to find where nobody knows them.
        """
        if any(message is None for message in messages):
            self.drop(messages)

    def drop(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what tasks wrote and nobody will commit."""
        root = root_at(self.location, self.storage_options)
        undo(root.placed(a.path for a in _written(messages)))


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query: its id and the batch's number are noted in the same transaction."""

    writer: Writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        return self.writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it was committed before Spark could note that."""
        app_id, own = query_id(self.writer.options)
        self.writer.settle_once(messages, "STREAMING UPDATE", app_id, batchId, own=own)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the tasks of a failed batch wrote."""
        self.writer.abort(messages)


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Add]:
    return [add for message in messages if isinstance(message, Written) for add in message.adds]


def write_options(options: Mapping[str, str], allowed: frozenset[str]) -> dict[str, str]:
    """The options of a write, with names in lower case; what would be ignored is refused."""
    found = {key.lower(): value for key, value in options.items()}
    unknown = sorted(found.keys() - allowed)
    if unknown:
        raise InvalidArgumentError(
            f"a write with format('deltasql') has no option {unknown[0]!r}",
            suggestion="it appends, or replaces all rows or whole partitions; for more there is "
            "deltalakedb.spark.write(replace_where=…, schema_mode=…, options=…)",
        )
    if ("txnappid" in found) != ("txnversion" in found) or not found.get("txnversion", "0").isdecimal():
        raise InvalidArgumentError(
            "txnAppId and txnVersion go together, and the version is a whole number",
            suggestion="give both or neither",
        )
    if found.get("partitionoverwritemode", "static").lower() not in ("static", "dynamic"):
        raise InvalidArgumentError("partitionOverwriteMode is static or dynamic")
    return found
