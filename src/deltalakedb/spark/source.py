"""``format("deltasql")``: SQL-backed tables as a Python data source, planned and committed on the driver."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
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
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.reads import EVERYTHING, NOTHING
from deltalakedb.protocol.rules import OURS
from deltalakedb.spark.sinks import query_id
from deltalakedb.spark.streaming import OPTIONS, StreamReader
from deltalakedb.table.arrow_schemas import arrow_schema
from deltalakedb.table.operations import removes
from deltalakedb.table.parquet import write_files
from deltalakedb.table.roots import root_at, undo
from deltalakedb.table.scan import conformed, known, raw_table
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Add, Metadata
    from deltalakedb.protocol.log import Snapshot

#: bytes of files that one task reads, as Spark's own sources have it
_TASK_BYTES: Final = 128 << 20
_OPTIONS: Final = frozenset({"path", "version", "timestamp", "where", "columns", *OPTIONS})
#: what a sink may be given: the query's own options, which Spark hands on, and its name for the table
_SINK: Final = frozenset({"path", "checkpointlocation", "queryname", "appid"})
#: columns of the change feed, as delta-spark has them
_FEED: Final = (
    ("_change_type", StringType()),
    ("_commit_version", LongType()),
    ("_commit_timestamp", TimestampType()),
)


class DeltaSqlSource(DataSource):
    """Reads and writes tables by their ``deltasql://`` addresses.

    Options: ``version``, ``timestamp``, ``where`` (a condition that picks files), ``columns`` (names with
    commas between them). Each method runs in a Python process of its own, so each opens the table anew.

    Spark's filters are not taken: Spark 4.2 keeps a reader with its filters for the next query on the same
    DataFrame, which would then miss rows.
    """

    _version: int | None = None

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return "deltasql"

    _metadata: Metadata | None = None

    def schema(self) -> StructType:
        """The table's schema at the version that is asked for, with the feed's columns where it is."""
        table = _open(self.options)
        # this object is kept for all queries on the DataFrame: they read the version that its schema is of
        self._version = table.version()
        self._metadata = table._source.snapshot.metadata
        whole = StructType.fromJson(json.loads(self._metadata.schema_string))
        if self.options.get("readchangefeed", "false").lower() == "true":
            for name, kind in _FEED:
                whole = whole.add(name, kind)
        names = _columns(self.options, whole.names)
        # what Delta keeps beside a column says nothing to Spark, and must not differ from what is read
        return StructType([StructField(n, whole[n].dataType, nullable=True) for n in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the version that the schema is of."""
        options = {key.lower(): value for key, value in self.options.items()}
        if streams := sorted(OPTIONS & options.keys()):
            raise InvalidArgumentError(
                f"the option {streams[0]!r} is one of streams, and this is a batch read",
                suggestion="use readStream, or leave it out; DeltaTable.load_cdf reads changes at once",
            )
        if self._version is not None:
            options |= {"version": str(self._version)}
            options.pop("timestamp", None)
        return _Reader(options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream of the table's new files, or of its changes."""
        if self._metadata is None or self._version is None:
            snapshot = _open(self.options)._source.snapshot
            self._metadata, self._version = snapshot.metadata, snapshot.version
        return StreamReader(dict(self.options), schema.names, self._metadata, self._version)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        """A sink that has every batch of a query once."""
        return _StreamWriter.of(_settings(self.options, _SINK), overwrite=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Arrow has it
        """A writer to an existing table."""
        return _Writer.to(_settings(self.options, frozenset({"path"})), overwrite=overwrite)


@dataclass
class _Files(InputPartition):
    """What one task reads, so that it needs no database."""

    snapshot: Snapshot
    adds: list[Add]
    location: str
    storage_options: Mapping[str, str] | None

    def __init__(
        self, snapshot: Snapshot, adds: list[Add], location: str, storage_options: Mapping[str, str] | None
    ) -> None:
        super().__init__(None)
        self.snapshot, self.adds = snapshot, adds
        self.location, self.storage_options = location, storage_options


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._options = dict(options)
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may match, in groups for one task each."""
        table = _open(self._options)
        adds = table._source.adds(table._where(self._options.get("where")))
        root = table._root
        return files_partitions(table._source.snapshot, adds, root.location, root.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, by delta-rs."""
        return read_files(partition, self._columns)


def files_partitions(
    snapshot: Snapshot, adds: Iterable[Add], location: str, storage_options: Mapping[str, str] | None
) -> list[_Files]:
    """Files in groups for one task each."""
    return [_Files(snapshot, group, location, storage_options) for group in _groups(adds, _TASK_BYTES)]


def read_files(partition: InputPartition, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some files, by delta-rs."""
    if not isinstance(partition, _Files):
        return iter(())  # Spark asks for one where there are none
    whole = arrow_schema(partition.snapshot.metadata.schema_string)
    schema = pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])
    root = root_at(partition.location, partition.storage_options)
    table = raw_table(partition.snapshot, partition.adds, root)
    reader = pa.RecordBatchReader.from_stream(table.raw.scan(columns=columns, predicate=None))
    return conformed(reader, schema, table)


@dataclass
class _Written(WriterCommitMessage):
    """What one task wrote."""

    adds: list[Add]


@dataclass
class _Writer(DataSourceArrowWriter):
    """Writes an append, or an overwrite of all rows, to the table as it was when the job began."""

    options: dict[str, str]
    overwrite: bool
    snapshot: Snapshot
    location: str
    storage_options: Mapping[str, str] | None
    fsync: bool

    @classmethod
    def to(cls, options: dict[str, str], *, overwrite: bool) -> _Writer:
        table = _open({key: value for key, value in options.items() if key == "path"})
        root = table._root
        fsync = table._database.engine.config.publish.fsync
        return cls(options, overwrite, table._source.snapshot, root.location, root.options, fsync)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Written:
        """Write the rows of one task; where it fails, its files are gone."""
        first = next(iterator, None)
        if first is None:
            return _Written([])

        def batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from iterator

        data = pa.RecordBatchReader.from_batches(first.schema, batches())
        root = root_at(self.location, self.storage_options)
        return _Written(write_files(data, root=root, snapshot=self.snapshot, fsync=self.fsync, also=OURS))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks wrote, by the driver."""
        self.settle(messages)

    def settle(self, messages: list[WriterCommitMessage | None], txn: Txn | None = None) -> None:
        """Commit what all tasks wrote, with a note of the batch that it is."""
        adds = _written(messages)
        table = SqlDeltaTable(self.options["path"], version=self.snapshot.version)
        gone = removes(table._source.adds()) if self.overwrite else []
        if not adds and not gone:
            return
        partitions = encode_json(list(self.snapshot.metadata.partition_columns))
        how = {"mode": "Overwrite" if self.overwrite else "Append", "partitionBy": partitions}
        operation = "WRITE" if txn is None else "STREAMING UPDATE"
        info = CommitInfo(extra={"operation": operation, "operationParameters": how})
        reads = EVERYTHING if self.overwrite else NOTHING
        files = table._root.placed(a.path for a in adds)
        actions = (info, *(() if txn is None else (txn,)), *gone, *adds)
        table._hand_on(Work(table._row, actions, self.snapshot, reads, files, fresh=True, root=table._root))

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
class _StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query: its id and the batch's number are noted in the same transaction."""

    writer: _Writer

    @classmethod
    def of(cls, options: dict[str, str], *, overwrite: bool) -> _StreamWriter:
        return cls(_Writer.to(options, overwrite=overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Written:
        """Write the rows of one task."""
        return self.writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it was committed before Spark could note that."""
        app_id = query_id(self.writer.options)
        table = SqlDeltaTable(self.writer.options["path"])
        recorded = table.transaction_version(app_id)
        if recorded is not None and recorded >= batchId:
            self.writer.drop(messages)
            return
        now = time.time_ns() // 1_000_000
        self.writer.settle(messages, Txn(app_id=app_id, version=batchId, last_updated=now))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the tasks of a failed batch wrote."""
        self.writer.abort(messages)


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Add]:
    return [add for message in messages if isinstance(message, _Written) for add in message.adds]


def _settings(options: Mapping[str, str], allowed: frozenset[str]) -> dict[str, str]:
    """The options of a write, with names in lower case; what would be ignored is refused."""
    found = {key.lower(): value for key, value in options.items()}
    unknown = sorted(found.keys() - allowed)
    if unknown:
        raise InvalidArgumentError(
            f"a write with format('deltasql') has no option {unknown[0]!r}",
            suggestion="it appends, or replaces all rows; for more there is "
            "deltalakedb.spark.write(replace_where=…, dynamic=…, app_id=…, schema_mode=…, options=…)",
        )
    return found


def _open(options: Mapping[str, str]) -> SqlDeltaTable:
    unknown = sorted(key for key in options if key.lower() not in _OPTIONS)
    if unknown:
        raise InvalidArgumentError(
            f"deltasql does not know the option {unknown[0]!r}",
            suggestion=f"it knows {', '.join(sorted(_OPTIONS))}; deltalakedb.spark.read and write know more",
        )
    if "path" not in options:
        raise InvalidArgumentError("deltasql needs a table's address", suggestion="load('deltasql://…')")
    version, timestamp = options.get("version"), options.get("timestamp")
    if version is not None and timestamp is not None:
        raise InvalidArgumentError("a version and a timestamp exclude each other", suggestion="give one")
    if version is not None and not version.isdecimal():
        raise InvalidArgumentError(f"a version is a whole number from 0 on, not {version!r}")
    table = SqlDeltaTable(options["path"], version=None if version is None else int(version))
    if timestamp is not None:
        table.load_as_version(timestamp)
    return table


def _columns(options: Mapping[str, str], names: list[str]) -> list[str]:
    chosen = options.get("columns")
    if chosen is None:
        return names
    wanted = [name.strip() for name in chosen.split(",")]
    if twice := next((name for n, name in enumerate(wanted) if name in wanted[:n]), None):
        raise InvalidArgumentError(f"columns names {twice!r} twice", suggestion="name each column once")
    return known(wanted, pa.schema([(n, pa.null()) for n in names]))


def _groups(adds: Iterable[Add], limit: int) -> Iterator[list[Add]]:
    group: list[Add] = []
    size = 0
    for add in adds:
        if group and size + add.size > limit:
            yield group
            group, size = [], 0
        group.append(add)
        size += add.size
    if group:
        yield group
