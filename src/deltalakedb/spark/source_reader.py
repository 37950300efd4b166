"""What ``format("deltasql")`` reads: files in tasks, and the files of a table's versions as a stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

from deltalakedb.exceptions import (
    InvalidArgumentError,
    SchemaError,
    StorageMissingError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.metastore import commits
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.features import check_readable
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.spark.scratch import not_shared_error
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.locations import is_local
from deltalakedb.table.read.change_feed import Change, ChangeLog, read_changes
from deltalakedb.table.read.scan import Vectors, arrow_schema, conformed, raw_table
from deltalakedb.table.restore import missing_files
from deltalakedb.table.roots import reading, root_at
from deltalakedb.table.scratch import ErrorContext, translate_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit

    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.read.change_feed import Version
    from deltalakedb.table.roots import Root

#: bytes of files that one task reads, as in Spark's own sources
_BYTES_PER_TASK: Final = 128 << 20
#: files in one micro-batch by default
FILES_PER_TRIGGER: Final = 1000
_FLAGS: Final = ("ignoreDeletes", "ignoreChanges", "skipChangeCommits", "readChangeFeed")
#: options of streams, in addition to those of batch reads
OPTIONS: Final = frozenset(
    {"startingversion", "startingtimestamp", "maxfilespertrigger", *(flag.lower() for flag in _FLAGS)}
)
#: versions whose files are kept in memory
_CACHE_SIZE: Final = 64
#: the offset that every query begins with. A restarted query asks for it again, so it does not depend on the
#: table: the end of the first batch, which Spark logs, has the position at which that batch began.
_START: Final = {"start": True}
_FIRST: Final = "first"


# ---- what tasks read, by delta-rs and without a database ---------------------------------------------------


class TablePartition(InputPartition):
    """The files that one task reads, or the changes, and what it needs to know of the table."""

    def __init__(self, snapshot: Snapshot, root: Root, files: Sequence[Add] | Sequence[Change]) -> None:
        super().__init__(None)
        self.snapshot, self.files = snapshot, files
        self.paths, self.storage_options = root.paths, root.options


def split_files(snapshot: Snapshot, adds: Iterable[Add], root: Root) -> list[TablePartition]:
    """Files in groups for one task each."""
    groups: list[list[Add]] = []
    size = 0
    for add in adds:
        if not groups or size + add.size > _BYTES_PER_TASK:
            groups.append([])
            size = 0
        groups[-1].append(add)
        size += add.size
    return [TablePartition(snapshot, root, group) for group in groups]


def read_partition(
    partition: InputPartition, columns: list[str], predicate: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, by delta-rs, of files only those that match a predicate.

    A partition of Spark's own has no files. Errors are typed: the table's folder is not on this machine, or a
    file is missing or cannot be read.
    """
    if not isinstance(partition, TablePartition):
        return
    paths, snapshot = partition.paths, partition.snapshot
    require_folder(paths.root)
    root = root_at(paths.root, partition.storage_options, table=paths.table, outside=paths.outside)
    changes = [file for file in partition.files if isinstance(file, Change)]
    adds = [file.add if isinstance(file, Change) else file for file in partition.files]
    try:
        with reading(root, lambda: [(add.path, add.size) for add in adds]):
            if changes:
                yield from read_changes(snapshot, changes, root, columns)
            else:
                yield from _read_files(snapshot, adds, root, columns, predicate)
    except Exception as error:
        vectors = (dv_path(add.deletion_vector) for add in adds if add.deletion_vector is not None)
        needed = [*(add.path for add in adds), *(path for path in vectors if path is not None)]
        if not (gone := missing_files(root, needed)):
            raise
        raise vacuumed_error(f"{gone[0]} under {root.location}") from error


def _read_files(
    snapshot: Snapshot, adds: Sequence[Add], root: Root, columns: list[str], predicate: str | None
) -> Iterator[pa.RecordBatch]:
    whole = arrow_schema(snapshot.metadata.schema_string)
    schema = pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])
    table = raw_table(snapshot, adds, root)
    about = ErrorContext(root.paths.table, root.location, snapshot.version, snapshot.metadata)
    with translate_errors(about):
        found = table.raw.scan(columns=columns, predicate=predicate)
    return conformed(pa.RecordBatchReader.from_stream(found), schema, table)


def require_folder(location: str) -> None:
    """Refuse, on an executor, a local folder that this machine does not have."""
    if is_local(location) and not Path(location).is_dir():
        raise not_shared_error(location)


def vacuumed_error(what: str, *, table: str | None = None, version: int | None = None) -> StorageMissingError:
    return StorageMissingError(
        f"a data file of the version to read was deleted, most likely by a vacuum: {what}",
        table=table,
        version=version,
        suggestion="read a newer version; a stream continues with a new checkpoint location and "
        "startingVersion=latest, or starts over without startingVersion; to give streams more time, raise "
        "the table's delta.deletedFileRetentionDuration",
    )


# ---- streams -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """The next file to read: its number among those of a version.

    Attributes:
        version: The version.
        index: How many of its files have been read.
        initial: Whether the files are all of the version, not those that it added.
    """

    version: int
    index: int = 0
    initial: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position:
        """From an offset that Spark has kept."""
        return cls(offset["version"], offset["index"], offset["initial"])


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table as a stream. It lives in one process on the driver while the query runs.

    Args:
        options: The options, with names in lower case as Spark passes them.
        columns: The names of the stream's columns.
        metadata: The table's metadata when the stream was defined: the stream has its schema.
        version: The version of the metadata.
    """

    def __init__(
        self, options: Mapping[str, str], columns: list[str], metadata: Metadata, version: int
    ) -> None:
        self._options, self._columns = dict(options), columns
        self._schema, self._schema_version = _schema_columns(metadata), version
        self._begun = False
        self._until: int | None = None
        self._cached_files: dict[tuple[int, bool], list[Any]] = {}
        limit = options.get("maxfilespertrigger", str(FILES_PER_TRIGGER))
        if not limit.isdecimal() or int(limit) < 1:
            raise InvalidArgumentError(f"maxFilesPerTrigger is a whole number above 0, not {limit!r}")
        self._limit = int(limit)
        flags = {flag: options.get(flag.lower(), "false").lower() for flag in _FLAGS}
        for flag, value in flags.items():
            if value not in ("true", "false"):
                raise InvalidArgumentError(f"{flag} is true or false, not {value!r}")
        self._ignore_deletes, self._ignore_changes, self._skip_changes, self._feed = (
            value == "true" for value in flags.values()
        )
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
        first = self._first(table, last) if start == _START else None
        if first is None:
            _check_offset(table, start)
        begin = at = Position.of(start) if first is None else first
        while at.version <= last and left > 0:
            try:
                files = len(self._files(table, at)) - at.index
            except SchemaError:
                if at == begin:
                    raise
                break  # the files before the change are read first
            if files > left:
                if at.initial or not self._feed:
                    at = Position(at.version, at.index + int(left), at.initial)
                    break
                if at != begin:
                    break  # the changes of a commit stay together: they are the next batch
            at = Position(at.version + 1)
            left -= files
        if at == begin and first is None:
            return dict(start)
        begun = {} if first is None else {_FIRST: asdict(first)}
        return {**asdict(at), "table": table.source.snapshot.metadata.id, **begun}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files of a micro-batch, in groups for one task each."""
        table, stop = self._table(), Position.of(end)
        for offset in (start, end):
            if offset != _START:
                _check_offset(table, offset)
        at = Position.of(end[_FIRST] if start == _START else start)
        if at == stop:
            return []
        found, newest = list[Any](), at.version
        while (at.version, at.index) < (stop.version, stop.index):
            files = self._files(table, at)
            whole = at.version < stop.version
            found += files[at.index :] if whole else files[at.index : stop.index]
            newest = at.version
            at = Position(at.version + 1) if whole else stop
        # older files are read with the stream's schema: missing columns are filled with nulls
        snapshot, root = self._table(max(newest, self._schema_version)).source.snapshot, table.root
        if not self._feed:
            return split_files(snapshot, found, root)
        groups = (found[n : n + self._limit] for n in range(0, len(found), self._limit))
        return [TablePartition(snapshot, root, group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._columns)

    # ---- files of versions ----

    def _table(self, version: int | None = None) -> TableHandle:
        return TableHandle.open(self._options["path"], version=version)

    def _first(self, table: TableHandle, newest: int) -> Position:
        """The position at which a query begins if this is the newest version."""
        version, moment = self._options.get("startingversion"), self._options.get("startingtimestamp")
        if version is not None and moment is not None:
            raise InvalidArgumentError(
                "startingVersion and startingTimestamp exclude each other", suggestion="give one"
            )
        why = None
        if version == "latest":
            return Position(newest + 1)
        if version is not None:
            if not version.isdecimal():
                raise InvalidArgumentError(f"startingVersion is a version or 'latest', not {version!r}")
            if int(version) <= newest + 1:
                return Position(int(version))
            why = f"startingVersion is {version}, but the table's newest version is {newest}"
        elif moment is not None:
            wanted = instant_ms(moment)
            rows = commits.history(table.database, table.row)
            if later := [row.version for row in rows if row.timestamp >= wanted]:
                return Position(min(later))
            why = f"the table has no version at or after {moment}"
        if why is None:
            return Position(newest, initial=True)
        hint = "start earlier, or with startingVersion=latest"
        raise InvalidArgumentError(why, table=table.name, suggestion=hint)

    def _files(self, table: TableHandle, at: Position) -> list[Any]:
        """The files of a version, always in the same order."""
        key = (at.version, at.initial)
        if key not in self._cached_files:
            if len(self._cached_files) >= _CACHE_SIZE:
                self._cached_files.clear()
            try:
                files = self._all_files(at.version) if at.initial else self._new_files(table, at.version)
            except StorageMissingError as error:  # a deletion vector of a commit
                raise vacuumed_error(error.message, table=table.name, version=at.version) from error
            self._cached_files[key] = files
        return self._cached_files[key]

    def _all_files(self, version: int) -> list[Any]:
        table = self._table(version)
        self._accept(table, table.source.snapshot.metadata, version)
        adds = sorted(table.source.adds(), key=lambda add: (add.modification_time, add.path))
        when = table.source.snapshot.timestamp
        return [Change(version, when, "insert", add) for add in adds] if self._feed else adds

    def _new_files(self, table: TableHandle, version: int) -> list[Any]:
        log = ChangeLog(table.database, table.row, table.root.options)
        found = next(iter(log.versions(version, version)))
        self._check(table, log, found)
        if self._feed:
            log.check_enabled(version)
            return list(log.changes(found, Vectors(table.root)))
        adds = [a for a in found.actions if isinstance(a, Add) and a.data_change]
        removes = any(isinstance(a, Remove) and a.data_change for a in found.actions)
        if removes and self._skip_changes:
            return []
        if removes and not self._ignore_changes and (adds or not self._ignore_deletes):
            raise _refused(table.name, found, rewrites=bool(adds))
        return adds

    def _check(self, table: TableHandle, log: ChangeLog, found: Version) -> None:
        """Stop before rows of another schema."""
        changed = [action for action in found.actions if isinstance(action, Metadata)]
        if not changed and not self._begun:
            changed.append(log.metadata(found.version))  # set by an earlier version
        for action in found.actions:
            if isinstance(action, Protocol):
                check_readable(action, table=table.name)
        for metadata in changed:
            self._accept(table, metadata, found.version)
        self._begun = True

    def _accept(self, table: TableHandle, metadata: Metadata, version: int) -> None:
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
    if before != table.source.snapshot.metadata.id:
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
