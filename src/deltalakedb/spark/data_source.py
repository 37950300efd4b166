"""``format("deltasql")``: tables as a Python data source, planned and committed on the driver."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import COMMITTER_FEATURES
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.spark.file_tasks import read_partition, require_folder, split_files
from deltalakedb.spark.scratch import not_shared_error
from deltalakedb.spark.sinks import other_query, query_id
from deltalakedb.spark.stream import OPTIONS, StreamReader
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.intent import WriteIntent, warn_nothing_written
from deltalakedb.table.read.scan import arrow_schema, known
from deltalakedb.table.roots import root_at, undo
from deltalakedb.table.scratch import in_partitions_of, removes
from deltalakedb.table.write.parquet import not_direct, write_files
from deltalakedb.table.write.plan import eligible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Action, Add, Metadata
    from deltalakedb.protocol.txn_log import Snapshot

#: options of reads
_OPTIONS: Final = frozenset({"path", "version", "timestamp", "where", "columns", *OPTIONS})
#: options of writes, by delta-spark's names
_WRITE_OPTIONS: Final = frozenset({"path", "partitionoverwritemode", "txnappid", "txnversion"})
#: options of a stream's sink: those of the query, which Spark passes on, and its name for the table
_SINK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname", "appid"})
#: columns of the change feed, as delta-spark has them
_FEED: Final = (
    ("_change_type", StringType()),
    ("_commit_version", LongType()),
    ("_commit_timestamp", TimestampType()),
)


class DeltaSqlSource(DataSource):
    """Reads and writes tables by their ``deltasql://`` addresses.

    Options: ``version``, ``timestamp``, ``where`` (a condition on rows, in the SQL of `DeltaTable.scan`,
    since delta-rs reads them), ``columns`` (names separated by commas). Each method runs in a Python process
    of its own and opens the table.

    Spark's filters are not used: Spark 4.2 keeps a reader with its filters for the next query on the same
    DataFrame, which would then miss rows.
    """

    _version: int | None = None
    _metadata: Metadata | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "deltasql"

    def schema(self) -> StructType:
        """The table's schema at the chosen version, with the columns of the change feed if it is read."""
        table = _open(self.options)
        # this object is kept for all queries on the DataFrame, which read the version of its schema
        self._version = table.version
        self._metadata = table.source.snapshot.metadata
        whole = StructType.fromJson(json.loads(self._metadata.schema_string))
        if self.options.get("readchangefeed", "false").lower() == "true":
            for name, kind in _FEED:
                whole = whole.add(name, kind)
        names = _columns(self.options, whole.names)
        if variant := next((name for name in names if _has_variant(whole[name].dataType)), None):
            raise UnsupportedOperationError(
                f"column {variant!r} holds variants, which do not pass through Python",
                table=table.name,
                suggestion="use deltalakedb.spark.read, or name other columns in the option columns",
            )
        # without the metadata of Delta's columns, which the batches do not have
        return StructType([StructField(n, whole[n].dataType, nullable=True) for n in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the schema's version."""
        options = {key.lower(): value for key, value in self.options.items()}
        if streams := sorted(OPTIONS & options.keys()):
            raise InvalidArgumentError(
                f"the option {streams[0]!r} is for streams, and this is a batch read",
                suggestion="use readStream, or leave it out; DeltaTable.load_cdf reads changes in one batch",
            )
        if self._version is not None:
            options |= {"version": str(self._version)}
            options.pop("timestamp", None)
        return _Reader(options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream of the table's new files, or of its changes."""
        if self._metadata is None or self._version is None:
            snapshot = _open(self.options).source.snapshot
            self._metadata, self._version = snapshot.metadata, snapshot.version
        return StreamReader(dict(self.options), schema.names, self._metadata, self._version)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        """A sink that commits every batch of a query once."""
        return StreamWriter(Writer.to(_write_options(self.options, _SINK_OPTIONS), overwrite=overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Arrow has it
        """A writer to an existing table."""
        return Writer.to(_write_options(self.options, _WRITE_OPTIONS), overwrite=overwrite)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._options = dict(options)
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may match, in groups for one task each."""
        table = _open(self._options)
        adds = table.source.adds(table.where(self._options.get("where")))
        return split_files(table.source.snapshot, adds, table.root)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, by delta-rs."""
        return read_partition(partition, self._columns, self._options.get("where"))


def _open(options: Mapping[str, str]) -> TableHandle:
    unknown = sorted(key for key in options if key.lower() not in _OPTIONS)
    if unknown:
        raise InvalidArgumentError(
            f"deltasql does not know the option {unknown[0]!r}",
            suggestion=f"use {', '.join(sorted(_OPTIONS))}; deltalakedb.spark.read and write have more",
        )
    if "path" not in options:
        raise InvalidArgumentError("deltasql needs a table's address", suggestion="load('deltasql://…')")
    version, timestamp = options.get("version"), options.get("timestamp")
    if version is not None and timestamp is not None:
        raise InvalidArgumentError("a version and a timestamp exclude each other", suggestion="give one")
    if version is not None and not version.isdecimal():
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")
    table = TableHandle.open(options["path"], version=None if version is None else int(version))
    if timestamp is not None:
        table.load_at(instant_ms(timestamp), strict=True)
    return table


def _has_variant(kind: DataType) -> bool:
    """Whether a type contains variants."""
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    return isinstance(kind, VariantType) or any(map(_has_variant, inner))


def _columns(options: Mapping[str, str], names: list[str]) -> list[str]:
    chosen = options.get("columns")
    if chosen is None:
        return names
    wanted = [name.strip() for name in chosen.split(",")]
    if twice := next((name for n, name in enumerate(wanted) if name in wanted[:n]), None):
        raise InvalidArgumentError(f"columns names {twice!r} twice", suggestion="name each column once")
    return known(wanted, pa.schema([(n, pa.null()) for n in names]))


# ---- writes ------------------------------------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):
    """The files that one task wrote."""

    adds: list[Add]


@dataclass
class Writer(DataSourceArrowWriter):
    """Appends to the table as it was when the job began, or overwrites it."""

    options: dict[str, str]
    overwrite: bool
    snapshot: Snapshot
    location: str
    storage_options: Mapping[str, str] | None
    fsync: bool

    @classmethod
    def to(cls, options: dict[str, str], *, overwrite: bool) -> Writer:
        """A writer to the table of the options, at its newest version.

        Raises:
            UnsupportedOperationError: Python alone cannot write to the table. No row has been read yet.
        """
        table = TableHandle.open(options["path"])
        snapshot, root = table.source.snapshot, table.root
        reason = eligible(snapshot, arrow_schema(snapshot.metadata.schema_string), also=COMMITTER_FEATURES)
        if reason is not None:
            raise not_direct(reason)
        table.require_folder()
        fsync = table.database.engine.config.publish.fsync
        return cls(options, overwrite, snapshot, root.location, root.options, fsync)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; if it fails, its files are deleted."""
        first = next(iterator, None)
        if first is None:
            return Written([])

        def batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from iterator

        require_folder(self.location)
        data = pa.RecordBatchReader.from_batches(first.schema, batches())
        root = root_at(self.location, self.storage_options)
        return Written(
            write_files(data, root=root, snapshot=self.snapshot, fsync=self.fsync, also=COMMITTER_FEATURES)
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks, on the driver."""
        app_id = self.options.get("txnappid")
        if app_id is None:
            self.commit_files(messages, "WRITE")
        else:
            self.commit_once(messages, "WRITE", app_id, int(self.options["txnversion"]), own=app_id)

    def commit_once(
        self,
        messages: list[WriterCommitMessage | None],
        operation: str,
        app_id: str,
        version: int,
        *,
        own: str | None,
    ) -> None:
        """Commit the files of all tasks, unless the same writer has committed this version of an application.

        Args:
            messages: The files of the tasks.
            operation: The operation's name in the history.
            app_id: The application.
            version: Its version, such as the number of a batch.
            own: An id that only this writer has, which may be the application's; None if it is not known.

        Raises:
            InvalidArgumentError: Another writer has committed that version of the application.
        """
        table = TableHandle.open(self.options["path"])
        recorded = table.source.txn_version(app_id)
        if recorded is not None and recorded >= version:
            self.delete_files(messages)
            mine = recorded if own in (None, app_id) else table.source.txn_version(own)
            # a query repeats only its last batch
            if mine is None or mine < version or (own is None and mine > version):
                raise other_query(app_id, version, recorded, table=table.name)
            if own is None:
                warn_nothing_written(
                    table.name,
                    f"batch {version} of application {app_id!r} was committed before; if the query has a new "
                    "checkpoint location, it needs a new appId",
                )
            return
        now = time.time_ns() // 1_000_000
        names = dict.fromkeys((app_id, own or app_id))
        notes = [Txn(app_id=name, version=version, last_updated=now) for name in names]
        self.commit_files(messages, operation, notes)

    def commit_files(
        self, messages: list[WriterCommitMessage | None], operation: str, notes: Sequence[Txn] = ()
    ) -> None:
        """Commit the files of all tasks, with records of the application's version."""
        adds = _written(messages)
        table = TableHandle.open(self.options["path"], version=self.snapshot.version)
        gone = self._replaced(table, adds)
        if not adds and not gone:
            return
        partitions = encode_json(list(self.snapshot.metadata.partition_columns))
        how = {"mode": "Overwrite" if self.overwrite else "Append", "partitionBy": partitions}
        info = CommitInfo(extra={"operation": operation, "operationParameters": how})
        reads = EVERYTHING if self.overwrite else NOTHING
        files = table.root.placed(a.path for a in adds)
        if any(isinstance(file, Path) and not file.exists() for file in files):
            raise not_shared_error(self.location, table=table.name)  # they are on disks of other machines
        actions = (info, *notes, *gone, *adds)
        table.submit(
            WriteIntent(table.row, actions, self.snapshot, reads, files, new_names=True, root=table.root)
        )

    def _replaced(self, table: TableHandle, adds: list[Add]) -> list[Action]:
        """Removes of the files that the new ones replace: none, all, or those of the same partitions."""
        if not self.overwrite:
            return []
        dynamic = self.options.get("partitionoverwritemode", "static").lower() == "dynamic"
        if not dynamic or not self.snapshot.metadata.partition_columns:
            return removes(table.source.adds())
        return removes(in_partitions_of(table.source, adds))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of a failed job.

        If every task has succeeded, the commit failed or crashed, and the database may have it. The files
        stay then; `gc` deletes them if no version references them.
        """
        if any(message is None for message in messages):
            self.delete_files(messages)

    def delete_files(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete files that will not be committed."""
        root = root_at(self.location, self.storage_options)
        undo(root.placed(a.path for a in _written(messages)))


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, and records its id and the batch's number in the same commit."""

    writer: Writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        return self.writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it was committed before Spark could record that."""
        app_id, own = query_id(self.writer.options)
        self.writer.commit_once(messages, "STREAMING UPDATE", app_id, batchId, own=own)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the files of a failed batch."""
        self.writer.abort(messages)


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Add]:
    return [add for message in messages if isinstance(message, Written) for add in message.adds]


def _write_options(options: Mapping[str, str], allowed: frozenset[str]) -> dict[str, str]:
    """The options of a write, with names in lower case; unknown ones are refused."""
    found = {key.lower(): value for key, value in options.items()}
    unknown = sorted(found.keys() - allowed)
    if unknown:
        raise InvalidArgumentError(
            f"a write with format('deltasql') has no option {unknown[0]!r}",
            suggestion="it appends, or replaces all rows or whole partitions; for more use "
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
