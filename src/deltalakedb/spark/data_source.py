"""``format("deltasql")``: tables as a Python data source.

The driver plans and commits; tasks read and write files by delta-rs, without a database. A stream reads the
files that a table's versions add, or its change feed.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from deltalakedb.commit.request import Write
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    SchemaError,
    StorageMissingError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.metastore import commits
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import COMMITTER_FEATURES, check_readable
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.spark.scratch import not_shared_error, open_at, other_query, replaced_files
from deltalakedb.storage.store import is_local, open_store
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle, warn_nothing_written
from deltalakedb.table.read.change_feed import Change, ChangeLog, Version, read_changes
from deltalakedb.table.read.scan import arrow_schema, known, scan_files
from deltalakedb.table.restore import missing_files
from deltalakedb.table.roots import Root, delete_new_files, groups_of, reading, root_at
from deltalakedb.table.write.parquet import plan_append, write_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit

    from deltalakedb.protocol.txn_log import Snapshot

    _Messages = list[WriterCommitMessage | None]

_FLAGS: Final = ("ignoreDeletes", "ignoreChanges", "skipChangeCommits", "readChangeFeed")
#: options of streams, in addition to those of batch reads
_STREAM_OPTIONS: Final = frozenset(
    {"startingversion", "startingtimestamp", "maxfilespertrigger", *(flag.lower() for flag in _FLAGS)}
)
_READ_OPTIONS: Final = frozenset({"path", "version", "timestamp", "where", "columns", *_STREAM_OPTIONS})
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
#: bytes of files that one task reads, as in Spark's own sources
_BYTES_PER_TASK: Final = 128 << 20
#: files in one micro-batch by default
_FILES_PER_TRIGGER: Final = "1000"
#: versions whose files are kept in memory
_CACHE_SIZE: Final = 64
#: the offset that every query begins with. A restarted query asks for it again, so it does not depend on the
#: table: the end of the first batch, which Spark logs, has the position at which that batch began.
_START: Final = {"start": True}
_FIRST: Final = "first"


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
        self._metadata = table.snapshot.metadata
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
        if streams := sorted(_STREAM_OPTIONS & options.keys()):
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
        return _StreamReader(dict(self.options), schema.names, self._metadata, self._version)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        """A sink that commits every batch of a query once."""
        return _StreamWriter(_Writer.to(_write_options(self.options, _SINK_OPTIONS), overwrite=overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Arrow has it
        return _Writer.to(_write_options(self.options, _WRITE_OPTIONS), overwrite=overwrite)


def _open(options: Mapping[str, str]) -> TableHandle:
    hint = f"use {', '.join(sorted(_READ_OPTIONS))}; deltalakedb.spark.read and write have more"
    _refuse_unknown(options, _READ_OPTIONS, hint)
    if "path" not in options:
        raise InvalidArgumentError("deltasql needs a table's address", suggestion="load('deltasql://…')")
    version, timestamp = options.get("version"), options.get("timestamp")
    if version is not None and not version.isdecimal():
        raise InvalidArgumentError(f"a version is a whole number, not {version!r}")
    return open_at(options["path"], None if version is None else int(version), timestamp)


def _write_options(options: Mapping[str, str], allowed: frozenset[str]) -> dict[str, str]:
    """The options of a write, with names in lower case."""
    _refuse_unknown(
        options,
        allowed,
        "a write appends, or replaces all rows or whole partitions; for more use "
        "deltalakedb.spark.write(replace_where=…, schema_mode=…, options=…)",
    )
    found = {key.lower(): value for key, value in options.items()}
    if ("txnappid" in found) != ("txnversion" in found) or not found.get("txnversion", "0").isdecimal():
        raise InvalidArgumentError(
            "txnAppId and txnVersion go together, and the version is a whole number",
            suggestion="give both or neither",
        )
    if found.get("partitionoverwritemode", "static").lower() not in ("static", "dynamic"):
        raise InvalidArgumentError("partitionOverwriteMode is static or dynamic")
    return found


def _refuse_unknown(options: Iterable[str], allowed: frozenset[str], hint: str) -> None:
    if unknown := sorted(key for key in options if key.lower() not in allowed):
        raise InvalidArgumentError(f"format('deltasql') has no option {unknown[0]!r} here", suggestion=hint)


def _columns(options: Mapping[str, str], names: list[str]) -> list[str]:
    chosen = options.get("columns")
    if chosen is None:
        return names
    wanted = [name.strip() for name in chosen.split(",")]
    if twice := next((name for n, name in enumerate(wanted) if name in wanted[:n]), None):
        raise InvalidArgumentError(f"columns names {twice!r} twice", suggestion="name each column once")
    return known(wanted, pa.schema([(n, pa.null()) for n in names]))


# ---- reads -------------------------------------------------------------------------------------------------


@dataclass
class _Reader(DataSourceReader):
    options: dict[str, str]
    columns: list[str]

    def partitions(self) -> Sequence[InputPartition]:
        table = _open(self.options)
        adds = table.source.adds(table.where(self.options.get("where")))
        return _split_files(table.snapshot, adds, table.root)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_partition(partition, self.columns, self.options.get("where"))


class _Partition(InputPartition):
    """The files that one task reads, or the changes, and what it needs to know of the table."""

    def __init__(self, snapshot: Snapshot, root: Root, files: Sequence[Add] | Sequence[Change]) -> None:
        super().__init__(None)
        self.snapshot, self.files = snapshot, files
        self.paths, self.storage_options = root.paths, root.options


def _split_files(snapshot: Snapshot, adds: Iterable[Add], root: Root) -> list[_Partition]:
    """Files in groups for one task each."""
    return [_Partition(snapshot, root, group) for group in groups_of(adds, _BYTES_PER_TASK) if group]


def _read_partition(
    partition: InputPartition, columns: list[str], predicate: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, of files only those that match a predicate. A partition of Spark's has no files."""
    if not isinstance(partition, _Partition):
        return
    paths, snapshot = partition.paths, partition.snapshot
    _require_folder(paths.root)
    root = root_at(paths.root, partition.storage_options, table=paths.table, outside=paths.outside)
    changes = [file for file in partition.files if isinstance(file, Change)]
    adds = [file.add if isinstance(file, Change) else file for file in partition.files]
    try:
        with reading(root, lambda: [(add.path, add.size) for add in adds]):
            if changes:
                yield from read_changes(snapshot, changes, root, columns)
            else:
                whole = arrow_schema(snapshot.metadata.schema_string)
                fields = [whole.field(name).with_nullable(True).remove_metadata() for name in columns]
                yield from scan_files(snapshot, adds, root, pa.schema(fields), predicate)
    except Exception as error:
        vectors = (dv_path(add.deletion_vector) for add in adds if add.deletion_vector is not None)
        needed = [*(add.path for add in adds), *(path for path in vectors if path is not None)]
        if not (gone := missing_files(root, needed)):
            raise
        raise _vacuumed_error(f"{gone[0]} under {root.location}") from error


def _require_folder(location: str) -> None:
    """Refuse, on an executor, a local folder that this machine does not have."""
    if is_local(location) and not Path(location).is_dir():
        raise not_shared_error(location)


def _vacuumed_error(
    what: str, *, table: str | None = None, version: int | None = None
) -> StorageMissingError:
    return StorageMissingError(
        f"a data file of the version to read was deleted, most likely by a vacuum: {what}",
        table=table,
        version=version,
        suggestion="read a newer version; a stream continues with a new checkpoint location and "
        "startingVersion=latest, or starts over without startingVersion; to give streams more time, raise "
        "the table's delta.deletedFileRetentionDuration",
    )


# ---- streams -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class _Position:
    """The next file that a stream reads."""

    version: int
    #: how many files of the version have been read
    index: int = 0
    #: whether the files are all of the version, not those that it added
    initial: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> _Position:
        """From an offset that Spark has kept."""
        return cls(offset["version"], offset["index"], offset["initial"])


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table as a stream, with the schema that the table had when the stream was defined.

    It lives in one process on the driver while the query runs. Options have names in lower case, as Spark
    passes them.
    """

    def __init__(self, options: dict[str, str], columns: list[str], metadata: Metadata, version: int) -> None:
        self._options, self._columns = options, columns
        self._schema, self._schema_version = _schema_columns(metadata), version
        self._begun = False
        self._until: int | None = None
        self._cached_files: dict[tuple[int, bool], list[Any]] = {}
        limit = options.get("maxfilespertrigger", _FILES_PER_TRIGGER)
        if not limit.isdecimal() or int(limit) < 1:
            raise InvalidArgumentError(f"maxFilesPerTrigger is a whole number above 0, not {limit!r}")
        self._limit = int(limit)
        flags = {flag: options.get(flag.lower(), "false").lower() for flag in _FLAGS}
        for flag, value in flags.items():
            if value not in ("true", "false"):
                raise InvalidArgumentError(f"{flag} is true or false, not {value!r}")
        self._flags = {flag for flag, value in flags.items() if value == "true"}
        self._feed = "readChangeFeed" in self._flags
        if not options.keys().isdisjoint(("where", "version", "timestamp")):
            raise InvalidArgumentError(
                "a stream has no version, timestamp or where",
                suggestion="use startingVersion or startingTimestamp, and filter the DataFrame",
            )

    # ---- called by Spark ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The same for every query: a restart before the first commit asks again."""
        return dict(_START)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxFiles(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the last version that the query reads."""
        self._until = self._table().version

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch; for the first one also its beginning.

        Spark logs the result before the batch runs. So the beginning is fixed by the first request.
        """
        left: float = int(limit.max_files) if isinstance(limit, ReadMaxFiles) else self._limit
        if isinstance(limit, ReadAllAvailable):
            left = inf
        table = self._table()
        last = table.version if self._until is None else min(self._until, table.version)
        if start == _START:
            begin = self._first(table, last)
        else:
            _check_offset(table, start)
            begin = _Position.of(start)
        at = begin
        while at.version <= last and left > 0:
            try:
                files = len(self._files(table, at)) - at.index
            except SchemaError:
                if at == begin:
                    raise
                break  # the files before the change are read first
            if files > left:
                if at.initial or not self._feed:
                    at = replace(at, index=at.index + int(left))
                    break
                if at != begin:
                    break  # the changes of a commit stay together: they are the next batch
            at = _Position(at.version + 1)
            left -= files
        if start == _START:
            begun = {_FIRST: asdict(begin)}
        elif at == begin:
            return dict(start)
        else:
            begun = {}
        return {**asdict(at), "table": table.snapshot.metadata.id, **begun}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files of a micro-batch, in groups for one task each."""
        table, stop = self._table(), _Position.of(end)
        for offset in (start, end):
            if offset != _START:
                _check_offset(table, offset)
        at = _Position.of(end[_FIRST] if start == _START else start)
        found, newest = list[Any](), at.version
        while at < stop:
            files, newest = self._files(table, at), at.version
            whole = at.version < stop.version
            found += files[at.index :] if whole else files[at.index : stop.index]
            at = _Position(at.version + 1) if whole else stop
        if not found:
            return []
        # older files are read with the stream's schema: missing columns are filled with nulls
        snapshot, root = self._table(max(newest, self._schema_version)).source.snapshot, table.root
        if not self._feed:
            return _split_files(snapshot, found, root)
        groups = (found[n : n + self._limit] for n in range(0, len(found), self._limit))
        return [_Partition(snapshot, root, group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_partition(partition, self._columns)

    # ---- files of versions ----

    def _table(self, version: int | None = None) -> TableHandle:
        return TableHandle.open(self._options["path"], version=version)

    def _first(self, table: TableHandle, newest: int) -> _Position:
        """The position at which a query begins if this is the newest version."""
        version, moment = self._options.get("startingversion"), self._options.get("startingtimestamp")
        if version is None and moment is None:
            return _Position(newest, initial=True)
        if version is not None and moment is not None:
            raise InvalidArgumentError(
                "startingVersion and startingTimestamp exclude each other", suggestion="give one"
            )
        if version == "latest":
            return _Position(newest + 1)
        if moment is not None:
            rows, wanted = commits.history(table.database, table.row), instant_ms(moment)
            first = min((row.version for row in rows if row.timestamp >= wanted), default=None)
            why = f"the table has no version at or after {moment}"
        elif version is not None and version.isdecimal():
            first = int(version) if int(version) <= newest + 1 else None
            why = f"startingVersion is {version}, but the table's newest version is {newest}"
        else:
            raise InvalidArgumentError(f"startingVersion is a version or 'latest', not {version!r}")
        if first is None:
            hint = "start earlier, or with startingVersion=latest"
            raise InvalidArgumentError(why, table=table.name, suggestion=hint)
        return _Position(first)

    def _files(self, table: TableHandle, at: _Position) -> list[Any]:
        """The files of a version, always in the same order."""
        key = (at.version, at.initial)
        if key not in self._cached_files:
            if len(self._cached_files) >= _CACHE_SIZE:
                self._cached_files.clear()
            try:
                files = self._all_files(at.version) if at.initial else self._new_files(table, at.version)
            except StorageMissingError as error:  # a deletion vector of a commit
                raise _vacuumed_error(error.message, table=table.name, version=at.version) from error
            self._cached_files[key] = files
        return self._cached_files[key]

    def _all_files(self, version: int) -> list[Any]:
        table = self._table(version)
        self._check_schema(table, table.snapshot.metadata, version)
        adds = sorted(table.source.adds(), key=lambda add: (add.modification_time, add.path))
        when = table.snapshot.timestamp
        return [Change(version, when, "insert", add) for add in adds] if self._feed else adds

    def _new_files(self, table: TableHandle, version: int) -> list[Any]:
        log = ChangeLog(table.database, table.row, table.root)
        found = next(iter(log.versions(version, version)))
        for action in found.actions:
            if isinstance(action, Protocol):
                check_readable(action, table=table.name)
        changed = [action for action in found.actions if isinstance(action, Metadata)]
        if not changed and not self._begun:
            changed.append(log.metadata(version))  # set by an earlier version
        for metadata in changed:
            self._check_schema(table, metadata, version)
        self._begun = True
        if self._feed:
            log.check_enabled(version)
            return list(log.changes(found))
        adds = [a for a in found.actions if isinstance(a, Add) and a.data_change]
        removes = any(isinstance(a, Remove) and a.data_change for a in found.actions)
        if removes and "skipChangeCommits" in self._flags:
            return []
        ignored = {"ignoreChanges"} if adds else {"ignoreChanges", "ignoreDeletes"}
        if removes and ignored.isdisjoint(self._flags):
            raise _refused(table.name, found, rewrites=bool(adds))
        return adds

    def _check_schema(self, table: TableHandle, metadata: Metadata, version: int) -> None:
        """Refuse rows that cannot be read with the stream's schema."""
        columns = _schema_columns(metadata)
        if columns == self._schema:
            return
        lost = next((column for column in columns if column not in self._schema), None)
        if version > self._schema_version:
            what = f"the table's schema changed at version {version}, and the stream has the old one"
            hint = "restart the query: it continues from there with the new schema"
        elif lost is not None:
            what = f"column {lost[0]!r} of version {version} is different in the stream's schema, or missing"
            hint = "start with a new checkpoint, from the newest version or a later one"
        else:
            return
        raise SchemaError(what, table=table.name, version=version, suggestion=hint)


def _check_offset(table: TableHandle, offset: Mapping[str, Any]) -> None:
    """Refuse an offset of another table that had the same name, or of a later version."""
    before, at, newest = offset["table"], int(offset["version"]), table.version
    if before != table.snapshot.metadata.id:
        raise UnsupportedOperationError(
            f"the table was recreated: the stream's checkpoint belongs to the table with the id {before}",
            table=table.name,
            suggestion="start with a new checkpoint",
        )
    if at > newest + 1:
        raise VersionMissingError(
            f"the stream's checkpoint is at version {at}, but the table's newest version is {newest}",
            table=table.name,
            version=at,
            suggestion="the table was recreated or rolled back: start with a new checkpoint",
        )


def _schema_columns(metadata: Metadata) -> list[tuple[str, str, str, bool]]:
    """Of each column the name, the name in files, the type, and whether the table is partitioned by it."""
    parts, text = metadata.partition_columns, metadata.schema_string
    fields = parse_schema(text).fields if text else ()
    return [(f.name, f.physical_name, str(f.type), f.name in parts) for f in fields]


def _refused(table: str, found: Version, *, rewrites: bool) -> UnsupportedOperationError:
    info = next((a.extra.get("operation") for a in found.actions if isinstance(a, CommitInfo)), None)
    what = "changed existing rows" if rewrites else "deleted rows"
    option = "ignoreChanges (rewritten rows are read again)" if rewrites else "ignoreDeletes"
    return UnsupportedOperationError(
        f"version {found.version} {what} ({info or 'unknown operation'}), and a stream reads new rows only",
        table=table,
        version=found.version,
        suggestion=f"set {option}, skipChangeCommits, or read the change feed with readChangeFeed",
    )


# ---- writes ------------------------------------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):
    """The files that one task wrote."""

    adds: list[Add]


@dataclass
class _Writer(DataSourceArrowWriter):
    """Appends to the table as it was when the job began, or overwrites it."""

    options: dict[str, str]
    overwrite: bool
    snapshot: Snapshot
    location: str
    storage_options: Mapping[str, str] | None
    fsync: bool

    @classmethod
    def to(cls, options: dict[str, str], *, overwrite: bool) -> _Writer:
        """A writer to the table of the options, at its newest version, unless Python cannot write to it."""
        table = TableHandle.open(options["path"])
        snapshot, root = table.snapshot, table.root
        plan_append(snapshot, arrow_schema(snapshot.metadata.schema_string), also=COMMITTER_FEATURES)
        table.require_writable()
        fsync = table.database.engine.config.publish.fsync
        return cls(options, overwrite, snapshot, root.location, root.options, fsync)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; if it fails, its files are deleted."""
        first = next(iterator, None)
        if first is None:
            return Written([])
        _require_folder(self.location)
        data = pa.RecordBatchReader.from_batches(first.schema, chain((first,), iterator))
        plan = plan_append(self.snapshot, data.schema, also=COMMITTER_FEATURES)
        root = root_at(self.location, self.storage_options)
        return Written(write_files(data, plan, root, fsync=self.fsync))

    def commit(self, messages: _Messages) -> None:
        app_id = self.options.get("txnappid")
        if app_id is None:
            self._commit_files(messages, "WRITE")
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
        if recorded is None or recorded < version:
            now = time.time_ns() // 1_000_000
            names = dict.fromkeys((app_id, own or app_id))
            notes = [Txn(app_id=name, version=version, last_updated=now) for name in names]
            self._commit_files(messages, operation, notes)
            return
        self._delete_files(messages)
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

    def _commit_files(self, messages: _Messages, operation: str, notes: Sequence[Txn] = ()) -> None:
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
        table.submit(self.snapshot, [actions], reads, files, origin=Write(new_names=True))

    def abort(self, messages: _Messages) -> None:
        """Delete the files of a failed job.

        If every task has succeeded, the commit failed or crashed, and the database may have it. The files
        stay then; `gc` deletes them if no version references them.
        """
        if any(message is None for message in messages):
            self._delete_files(messages)

    def _delete_files(self, messages: _Messages) -> None:
        root = root_at(self.location, self.storage_options)
        delete_new_files(root.placed(a.path for a in _written(messages)))


def _written(messages: _Messages) -> list[Add]:
    return [add for message in messages if isinstance(message, Written) for add in message.adds]


@dataclass
class _StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, and records its id and the batch's number in the same commit."""

    writer: _Writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.writer.write(iterator)

    def commit(self, messages: _Messages, batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it was committed before Spark could record that."""
        app_id, own = _query_id(self.writer.options)
        self.writer.commit_once(messages, "STREAMING UPDATE", app_id, batchId, own=own)

    def abort(self, messages: _Messages, batchId: int) -> None:  # noqa: ARG002, N803
        self.writer.abort(messages)


def _query_id(options: Mapping[str, str]) -> tuple[str, str | None]:
    """The application id under which a query records its batches, and an id that no other query has.

    The first is the option ``appId``, or else the query's id in its checkpoint. The second comes from the
    checkpoint, so a query that starts with a new checkpoint has a new one; it is None if the checkpoint
    cannot be read from Python.
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
    except (KeyError, TypeError):
        pass
    return None
