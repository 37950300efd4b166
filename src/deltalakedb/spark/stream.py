"""``readStream.format("deltasql")``: the files of a table's versions, in order, as a stream of batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
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
from deltalakedb.protocol.features import check_readable
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.spark.file_tasks import ChangePartition, read_partition, split_files, vacuumed_error
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.read.change_feed import Change, ChangeLog
from deltalakedb.table.read.scan import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from deltalakedb.table.read.change_feed import Version

#: files in one micro-batch by default
FILES_PER_TRIGGER: Final = 1000
#: options of streams, in addition to those of batch reads
OPTIONS: Final = frozenset(
    {
        "startingversion",
        "startingtimestamp",
        "maxfilespertrigger",
        "ignoredeletes",
        "ignorechanges",
        "skipchangecommits",
        "readchangefeed",
    }
)
#: versions whose files are kept in memory
_CACHE_SIZE: Final = 64
#: the offset that every query begins with. A restarted query asks for it again, so it does not depend on the
#: table: the end of the first batch, which Spark logs, has the position at which that batch began.
_START: Final = {"start": True}
_FIRST: Final = "first"


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

    def to_offset(self, table: str, first: Position | None = None) -> dict[str, Any]:
        """The offset that Spark keeps.

        Args:
            table: The table's id.
            first: Where the query begins, if this is the end of its first batch.
        """
        begun = {} if first is None else {_FIRST: asdict(first)}
        return {**asdict(self), "table": table, **begun}

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position:
        """From an offset that Spark has kept."""
        return cls(offset["version"], offset["index"], offset["initial"])


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream handles commits that do not only append.

    Attributes:
        ignore_deletes: Skip commits that only remove files.
        ignore_changes: Read rewritten files again, and skip commits that only remove files.
        skip_changes: Skip every commit that removes files.
        feed: Read the change data feed instead.
        limit: Files in one micro-batch.
    """

    ignore_deletes: bool = False
    ignore_changes: bool = False
    skip_changes: bool = False
    feed: bool = False
    limit: int = FILES_PER_TRIGGER

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """From the options of a stream."""
        limit = options.get("maxfilespertrigger", str(FILES_PER_TRIGGER))
        if not limit.isdecimal() or int(limit) < 1:
            raise InvalidArgumentError(f"maxFilesPerTrigger is a whole number above 0, not {limit!r}")

        def on(name: str) -> bool:
            value = options.get(name.lower(), "false").lower()
            if value not in ("true", "false"):
                raise InvalidArgumentError(f"{name} is true or false, not {value!r}")
            return value == "true"

        return cls(
            on("ignoreDeletes"),
            on("ignoreChanges"),
            on("skipChangeCommits"),
            on("readChangeFeed"),
            int(limit),
        )


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
        self._rules = StreamOptions.of(options)
        self._until: int | None = None
        self._cached_files: dict[tuple[int, bool], list[Any]] = {}
        if "where" in options or "version" in options or "timestamp" in options:
            raise InvalidArgumentError(
                "a stream has no version, timestamp or where",
                suggestion="use startingVersion or startingTimestamp, and filter the DataFrame",
            )

    # ---- called by Spark ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The same for every query: a restart before the first commit asks again."""
        return dict(_START)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Files in one micro-batch."""
        return ReadMaxFiles(self._rules.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the last version that the query reads."""
        self._until = self._table().version

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch; for the first one also its beginning.

        Spark logs the result before the batch runs. So the beginning is fixed by the first request.
        """
        left = inf if isinstance(limit, ReadAllAvailable) else self._limit(limit)
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
                if at.initial or not self._rules.feed:
                    at = Position(at.version, at.index + int(left), at.initial)
                    break
                if at != begin:
                    break  # the changes of a commit stay together: they are the next batch
            at = Position(at.version + 1)
            left -= files
        return dict(start) if at == begin and first is None else at.to_offset(_id(table), first)

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
        snapshot, root = self._at(max(newest, self._schema_version)).source.snapshot, table.root
        if not self._rules.feed:
            return split_files(snapshot, found, root)
        size = self._rules.limit
        return [ChangePartition(snapshot, root, found[n : n + size]) for n in range(0, len(found), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, by delta-rs."""
        return read_partition(partition, self._columns)

    # ---- files of versions ----

    def _limit(self, limit: ReadLimit) -> int:
        return int(limit.max_files) if isinstance(limit, ReadMaxFiles) else self._rules.limit

    def _table(self) -> TableHandle:
        return TableHandle.open(self._options["path"])

    def _at(self, version: int) -> TableHandle:
        return TableHandle.open(self._options["path"], version=version)

    def _first(self, table: TableHandle, newest: int) -> Position:
        """The position at which a query begins if this is the newest version."""
        version, moment = self._options.get("startingversion"), self._options.get("startingtimestamp")
        if version is not None and moment is not None:
            raise InvalidArgumentError(
                "startingVersion and startingTimestamp exclude each other", suggestion="give one"
            )
        if version == "latest":
            return Position(newest + 1)
        if version is not None:
            if not version.isdecimal():
                raise InvalidArgumentError(f"startingVersion is a version or 'latest', not {version!r}")
            if int(version) > newest + 1:
                raise InvalidArgumentError(
                    f"startingVersion is {version}, but the table's newest version is {newest}",
                    table=table.name,
                    suggestion="start earlier, or with startingVersion=latest",
                )
            return Position(int(version))
        if moment is not None:
            return Position(_version_from(table, moment))
        return Position(newest, initial=True)

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
        table = self._at(version)
        self._accept(table, table.source.snapshot.metadata, version)
        adds = sorted(table.source.adds(), key=lambda add: (add.modification_time, add.path))
        if not self._rules.feed:
            return adds
        when = table.source.snapshot.timestamp
        return [Change(version, when, "insert", add) for add in adds]

    def _new_files(self, table: TableHandle, version: int) -> list[Any]:
        log = ChangeLog(table.database, table.row, table.root.options)
        found = next(iter(log.versions(version, version)))
        self._check(table, log, found)
        if self._rules.feed:
            log.check_enabled(version)
            return list(log.changes(found, Vectors(table.root)))
        adds = [a for a in found.actions if isinstance(a, Add) and a.data_change]
        removes = [a for a in found.actions if isinstance(a, Remove) and a.data_change]
        if removes and self._rules.skip_changes:
            return []
        if removes and not self._rules.ignore_changes and (adds or not self._rules.ignore_deletes):
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
        if version > self._schema_version:
            raise SchemaError(
                f"the table's schema changed at version {version}, and the stream has the old one",
                table=table.name,
                version=version,
                suggestion="restart the query: it continues from there with the new schema",
            )
        lost = next((column for column in columns if column not in self._schema), None)
        if lost is not None:
            raise SchemaError(
                f"column {lost[0]!r} of version {version} is different in the stream's schema, or missing",
                table=table.name,
                version=version,
                suggestion="start with a new checkpoint, from the newest version or a later one",
            )


def _id(table: TableHandle) -> str:
    return table.source.snapshot.metadata.id


def _check_offset(table: TableHandle, offset: Mapping[str, Any]) -> None:
    """Refuse an offset of another table that had the same name, or of a later version."""
    before, at, newest = offset["table"], int(offset["version"]), table.version
    if before != _id(table):
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


def _version_from(table: TableHandle, moment: str) -> int:
    """The first version at or after a time."""
    wanted = instant_ms(moment)
    rows = commits.history(table.database, table.row)
    later = [row.version for row in rows if row.timestamp >= wanted]
    if not later:
        raise InvalidArgumentError(
            f"the table has no version at or after {moment}",
            table=table.name,
            suggestion="start earlier, or with startingVersion=latest",
        )
    return min(later)


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
