"""``format("deltasql")``: tables as a Python data source, planned and committed on the driver."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from itertools import chain
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
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError, UnsupportedOperationError
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import decode_json, encode_json
from deltalakedb.protocol.features import COMMITTER_FEATURES
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.spark.scratch import not_shared_error, open_at, other_query, replaced_files
from deltalakedb.spark.source_reader import (
    OPTIONS,
    StreamReader,
    read_partition,
    require_folder,
    split_files,
)
from deltalakedb.storage.store import open_store
from deltalakedb.table.handle import TableHandle, warn_nothing_written
from deltalakedb.table.read.scan import arrow_schema, known
from deltalakedb.table.roots import root_at, undo
from deltalakedb.table.write.parquet import write_files
from deltalakedb.table.write.plan import plan_append

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Add, Metadata
    from deltalakedb.protocol.txn_log import Snapshot

    _Messages = list[WriterCommitMessage | None]

#: options of reads
_OPTIONS: Final = frozenset({"path", "version", "timestamp", "where", "columns", *OPTIONS})
#: options of writes, by delta-spark's names
_WRITE_OPTIONS: Final = frozenset({"path", "partitionoverwritemode", "txnappid", "txnversion"})
#: options of a stream's sink: those of the query, which Spark passes on, and its name for the table
_SINK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname", "appid"})
#: a variant, alone or as the type of a field, an element, a key or a value
_VARIANT: Final = re.compile(r'(?:^|[tT]ype":)"variant"')
#: columns of the change feed, as delta-spark has them
_FEED: Final = (
    StructField("_change_type", StringType()),
    StructField("_commit_version", LongType()),
    StructField("_commit_timestamp", TimestampType()),
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
        return "deltasql"

    def schema(self) -> StructType:
        """The table's schema at the chosen version, with the columns of the change feed if it is read."""
        table = _open(self.options)
        # this object is kept for all queries on the DataFrame, which read the version of its schema
        self._version = table.version
        self._metadata = table.source.snapshot.metadata
        whole = StructType.fromJson(json.loads(self._metadata.schema_string))
        if self.options.get("readchangefeed", "false").lower() == "true":
            whole = StructType([*whole.fields, *_FEED])
        names = _columns(self.options, whole.names)
        if variant := next((n for n in names if _VARIANT.search(whole[n].dataType.json())), None):
            raise UnsupportedOperationError(
                f"column {variant!r} holds variants, which do not pass through Python",
                table=table.name,
                suggestion="use deltalakedb.spark.read, or name other columns in the option columns",
            )
        # without the metadata of Delta's columns, which the batches do not have
        return StructType([StructField(n, whole[n].dataType, nullable=True) for n in names])

    def reader(self, schema: StructType) -> DataSourceReader:
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
        return Writer.to(_write_options(self.options, _WRITE_OPTIONS), overwrite=overwrite)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._options = dict(options)
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        table = _open(self._options)
        adds = table.source.adds(table.where(self._options.get("where")))
        return split_files(table.source.snapshot, adds, table.root)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
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
    if version is not None and not version.isdecimal():
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")
    return open_at(options["path"], None if version is None else int(version), timestamp)


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
        """A writer to the table of the options, at its newest version, unless Python cannot write to it."""
        table = TableHandle.open(options["path"])
        snapshot, root = table.source.snapshot, table.root
        plan_append(snapshot, arrow_schema(snapshot.metadata.schema_string), also=COMMITTER_FEATURES)
        table.require_folder()
        fsync = table.database.engine.config.publish.fsync
        return cls(options, overwrite, snapshot, root.location, root.options, fsync)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; if it fails, its files are deleted."""
        first = next(iterator, None)
        if first is None:
            return Written([])
        require_folder(self.location)
        data = pa.RecordBatchReader.from_batches(first.schema, chain((first,), iterator))
        root = root_at(self.location, self.storage_options)
        plan = plan_append(self.snapshot, data.schema, also=COMMITTER_FEATURES)
        return Written(write_files(data, plan, root, fsync=self.fsync))

    def commit(self, messages: _Messages) -> None:
        app_id = self.options.get("txnappid")
        if app_id is None:
            self.commit_files(messages, "WRITE")
        else:
            self.commit_once(messages, "WRITE", app_id, int(self.options["txnversion"]), own=app_id)

    def commit_once(
        self, messages: _Messages, operation: str, app_id: str, version: int, *, own: str | None
    ) -> None:
        """Commit the files of all tasks, unless the same writer has committed this version of an application.

        ``own`` is an id that only this writer has, which may be the application's; None if it is not known.
        If another writer has committed that version, this is an InvalidArgumentError.
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

    def commit_files(self, messages: _Messages, operation: str, notes: Sequence[Txn] = ()) -> None:
        adds = _written(messages)
        table = TableHandle.open(self.options["path"], version=self.snapshot.version)
        dynamic = self.options.get("partitionoverwritemode", "static").lower() == "dynamic"
        gone = replaced_files(table, adds, dynamic=dynamic) if self.overwrite else []
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
        table.submit([actions], reads, files, new_names=True, read=self.snapshot)

    def abort(self, messages: _Messages) -> None:
        """Delete the files of a failed job.

        If every task has succeeded, the commit failed or crashed, and the database may have it. The files
        stay then; `gc` deletes them if no version references them.
        """
        if any(message is None for message in messages):
            self.delete_files(messages)

    def delete_files(self, messages: _Messages) -> None:
        root = root_at(self.location, self.storage_options)
        undo(root.placed(a.path for a in _written(messages)))


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, and records its id and the batch's number in the same commit."""

    writer: Writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.writer.write(iterator)

    def commit(self, messages: _Messages, batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it was committed before Spark could record that."""
        app_id, own = query_id(self.writer.options)
        self.writer.commit_once(messages, "STREAMING UPDATE", app_id, batchId, own=own)

    def abort(self, messages: _Messages, batchId: int) -> None:  # noqa: ARG002, N803
        self.writer.abort(messages)


def _written(messages: _Messages) -> list[Add]:
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


# ---- queries ----------------------------------------------------------------------------------------------


def query_id(options: Mapping[str, str]) -> tuple[str, str | None]:
    """The application id under which a query records its batches, and an id that no other query has.

    The first is the option ``appId``, or else the query's id in its checkpoint. The second comes from the
    checkpoint, so a query that starts with a new checkpoint has a new one; it is None if the checkpoint
    cannot be read from Python. Names of options are in lower case, as Spark passes them.
    """
    named, own = options.get("appid"), _checkpoint_id(options.get("checkpointlocation"))
    if named:
        return named, None if own is None else f"{named}@{own}"
    if own is not None:
        return own, own
    raise InvalidArgumentError(
        "the query's id cannot be read from its checkpoint",
        suggestion="name the query for the table: .option('appId', 'a name that no other query has')",
    )


def _checkpoint_id(place: str | None) -> str | None:
    """The id of the query in a checkpoint; None if it can never be read here."""
    if place is None:
        return None
    try:
        return str(decode_json(open_store(place.replace("s3a://", "s3://", 1)).get("metadata"))["id"])
    except DeltaSqlError as error:
        if error.transient:
            raise  # the batch is repeated, as the same query
        return None
    except (KeyError, TypeError):
        return None
