"""``readStream.format("deltasql")``: the files of a table's versions, in order, as a stream of batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

from deltalakedb.exceptions import (
    InvalidArgumentError,
    SchemaError,
    StorageMissingError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.features import check_readable
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.spark.sight import read_present, vacuumed
from deltalakedb.table.change_feed import read_changes
from deltalakedb.table.change_files import Change, ChangeLog
from deltalakedb.table.roots import root_at
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from deltalakedb.protocol.paths import TablePaths
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.change_files import Version

#: files of one micro-batch, unless the options say otherwise
FILES_PER_TRIGGER: Final = 1000
#: options of streams, beside those of batch reads
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
_KEPT: Final = 64
#: the offset that every query begins with, whatever the table holds. A restarted query asks for it again, so
#: it says nothing of the table: the end of the first batch, which Spark logs, says where that batch began.
_START: Final = {"start": True}
_FIRST: Final = "first"


@dataclass(frozen=True, slots=True)
class Position:
    """The next file to read: its number among those of a version.

    Attributes:
        version: The version.
        index: How many of its files are read.
        initial: Whether all files of the version are meant, not those that it added.
    """

    version: int
    index: int = 0
    initial: bool = False

    def to_offset(self, table: str, first: Position | None = None) -> dict[str, Any]:
        """As Spark keeps it, with the id of the table that it is in.

        Args:
            table: The id.
            first: Where the query begins, if this is the end of its first batch.
        """
        begun = {} if first is None else {_FIRST: asdict(first)}
        return {**asdict(self), "table": table, **begun}

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position:
        """From what Spark kept."""
        return cls(int(offset["version"]), int(offset["index"]), bool(offset["initial"]))


@dataclass(frozen=True, slots=True)
class Rules:
    """What a stream does about commits that are no appends.

    Attributes:
        ignore_deletes: Pass over commits that only remove.
        ignore_changes: Read the rewritten files of updates again, and pass over what only removes.
        skip_changes: Pass over every commit that removes.
        feed: Read the change data feed instead.
        limit: Files of one micro-batch.
    """

    ignore_deletes: bool = False
    ignore_changes: bool = False
    skip_changes: bool = False
    feed: bool = False
    limit: int = FILES_PER_TRIGGER

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Rules:
        """From the options of a stream."""
        limit = options.get("maxfilespertrigger", str(FILES_PER_TRIGGER))
        if not limit.isdecimal() or int(limit) < 1:
            raise InvalidArgumentError(f"maxFilesPerTrigger is a whole number from 1 on, not {limit!r}")

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


class Changes(InputPartition):
    """Changed rows that one task reads, so that it needs no database."""

    def __init__(
        self,
        snapshot: Snapshot,
        changes: list[Change],
        paths: TablePaths,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        super().__init__(None)
        self.snapshot, self.changes = snapshot, changes
        self.paths, self.storage_options = paths, storage_options


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table as a stream. Lives in one process of the driver for as long as the query runs.

    Args:
        options: The options, ``path`` among them, with names in lower case as Spark gives them.
        columns: The names of the stream's columns.
        metadata: The table's metadata when the stream was made: its schema is the stream's.
        version: The version that they were read from.
    """

    def __init__(
        self, options: Mapping[str, str], columns: list[str], metadata: Metadata, version: int
    ) -> None:
        self._options, self._columns = dict(options), columns
        self._shape, self._made = _columns(metadata), version
        self._begun = False
        self._rules = Rules.of(options)
        self._until: int | None = None
        self._units: dict[tuple[int, bool], list[Any]] = {}
        if "where" in options or "version" in options or "timestamp" in options:
            raise InvalidArgumentError(
                "a stream has no version, timestamp or where",
                suggestion="use startingVersion or startingTimestamp, and filter the DataFrame",
            )

    # ---- what Spark asks for ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The same for every query: a restart before the first batch is committed asks again."""
        return dict(_START)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Files of one micro-batch."""
        return ReadMaxFiles(self._rules.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the last version that the query reads."""
        self._until = self._table().version()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes; for the first one also where it begins.

        Spark logs the answer before the batch runs. So the beginning is fixed by the first request.
        """
        left = None if isinstance(limit, ReadAllAvailable) else self._most(limit)
        table = self._table()
        last = table.version() if self._until is None else min(self._until, table.version())
        first = self._first(table, last) if start == _START else None
        if first is None:
            _check_offset(table, start)
        begin = at = Position.of(start) if first is None else first
        while at.version <= last:
            try:
                files = len(self._files(table, at)) - at.index
            except SchemaError:
                if at == begin:
                    raise
                break  # what came before the change is read first
            if left is not None and files > left:
                if at.initial or not self._rules.feed:
                    return Position(at.version, at.index + left, at.initial).to_offset(_id(table), first)
                if at != begin:
                    break  # the changes of a commit belong together: they are the next batch
            at = Position(at.version + 1)
            left = None if left is None else left - files
            if left is not None and left <= 0:
                break
        return dict(start) if at == begin and first is None else at.to_offset(_id(table), first)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files of a micro-batch, in groups for one task each."""
        from deltalakedb.spark.source import files_partitions  # which knows this module

        table, stop = self._table(), Position.of(end)
        for offset in (start, end):
            if offset != _START:
                _check_offset(table, offset)
        at = Position.of(end[_FIRST] if start == _START else start)
        if at == stop:
            return []
        units, newest = list[Any](), at.version
        while (at.version, at.index) < (stop.version, stop.index):
            found = self._files(table, at)
            whole = at.version < stop.version
            units += found[at.index :] if whole else found[at.index : stop.index]
            newest = at.version
            at = Position(at.version + 1) if whole else stop
        # older files are read with the stream's schema: columns that they have not are null
        snapshot, root = self._at(max(newest, self._made))._source.snapshot, table._root
        if self._rules.feed:
            by = self._rules.limit
            return [
                Changes(snapshot, units[n : n + by], root.paths, root.options)
                for n in range(0, len(units), by)
            ]
        return files_partitions(snapshot, units, root.paths, root.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, by delta-rs."""
        from deltalakedb.spark.source import read_files  # which knows this module

        if isinstance(partition, Changes):
            paths = partition.paths
            root = root_at(paths.root, partition.storage_options, table=paths.table, outside=paths.outside)
            adds = [change.add for change in partition.changes]
            return read_present(
                lambda: read_changes(partition.snapshot, partition.changes, root, self._columns), root, adds
            )
        return read_files(partition, self._columns)

    # ---- how it is found ----

    def _most(self, limit: ReadLimit) -> int:
        return int(limit.max_files) if isinstance(limit, ReadMaxFiles) else self._rules.limit

    def _table(self) -> SqlDeltaTable:
        return SqlDeltaTable(self._options["path"])

    def _at(self, version: int) -> SqlDeltaTable:
        return SqlDeltaTable(self._options["path"], version=version)

    def _first(self, table: SqlDeltaTable, newest: int) -> Position:
        """Where a query begins whose newest version is this one."""
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
                    f"startingVersion is {version}, and the table's newest version is {newest}",
                    table=table.name,
                    suggestion="begin earlier, or with startingVersion=latest",
                )
            return Position(int(version))
        if moment is not None:
            return Position(_version_from(table, moment))
        return Position(newest, initial=True)

    def _files(self, table: SqlDeltaTable, at: Position) -> list[Any]:
        """What a version brings, always in the same order."""
        key = (at.version, at.initial)
        if key not in self._units:
            if len(self._units) >= _KEPT:
                self._units.clear()
            try:
                self._units[key] = self._whole(at.version) if at.initial else self._added(table, at.version)
            except StorageMissingError as error:  # a deletion vector that tells what a commit changed
                raise vacuumed(error.message, table=table.name, version=at.version) from error
        return self._units[key]

    def _whole(self, version: int) -> list[Any]:
        table = self._at(version)
        self._accept(table, table._source.snapshot.metadata, version)
        adds = sorted(table._source.adds(), key=lambda add: (add.modification_time, add.path))
        if not self._rules.feed:
            return adds
        when = table._source.snapshot.timestamp
        return [Change(version, when, "insert", add) for add in adds]

    def _added(self, table: SqlDeltaTable, version: int) -> list[Any]:
        log = ChangeLog(table._database, table._row, table._root.options)
        found = next(iter(log.versions(version, version)))
        self._check(table, log, found)
        if self._rules.feed:
            log.check_enabled(version)
            return list(log.changes(found, Vectors(table._root)))
        adds = [a for a in found.actions if isinstance(a, Add) and a.data_change]
        removes = [a for a in found.actions if isinstance(a, Remove) and a.data_change]
        if removes and self._rules.skip_changes:
            return []
        if removes and not self._rules.ignore_changes and (adds or not self._rules.ignore_deletes):
            raise _refused(table.name, found, rewrites=bool(adds))
        return adds

    def _check(self, table: SqlDeltaTable, log: ChangeLog, found: Version) -> None:
        """Stop before rows of another shape."""
        changed = [action for action in found.actions if isinstance(action, Metadata)]
        if not changed and not self._begun:
            changed.append(log.metadata(found.version))  # what an earlier version has set
        for action in found.actions:
            if isinstance(action, Protocol):
                check_readable(action, table=table.name)
        for metadata in changed:
            self._accept(table, metadata, found.version)
        self._begun = True

    def _accept(self, table: SqlDeltaTable, metadata: Metadata, version: int) -> None:
        """Refuse rows that cannot be read with the stream's schema."""
        theirs = _columns(metadata)
        if theirs == self._shape:
            return
        if version > self._made:
            raise SchemaError(
                f"the table's schema changed at version {version}, and the stream has another",
                table=table.name,
                version=version,
                suggestion="start the query again: it goes on from there with the new schema",
            )
        lost = next((column for column in theirs if column not in self._shape), None)
        if lost is not None:
            raise SchemaError(
                f"column {lost[0]!r} of version {version} is another in the stream's schema, or not there",
                table=table.name,
                version=version,
                suggestion="start with a new checkpoint, from the newest version or a later one on",
            )


def _id(table: SqlDeltaTable) -> str:
    return table._source.snapshot.metadata.id


def _check_offset(table: SqlDeltaTable, offset: Mapping[str, Any]) -> None:
    """Refuse an offset of another table that had the same name."""
    before, at, newest = offset["table"], int(offset["version"]), table.version()
    if before != _id(table):
        raise UnsupportedOperationError(
            f"the table was made anew: the stream's checkpoint is of the table with the id {before}",
            table=table.name,
            suggestion="start with a new checkpoint",
        )
    if at > newest + 1:
        raise VersionMissingError(
            f"the stream's checkpoint is at version {at}, and the table's newest version is {newest}",
            table=table.name,
            version=at,
            suggestion="the table was made anew or went back: start with a new checkpoint",
        )


def _columns(metadata: Metadata) -> list[tuple[str, str, str, bool]]:
    """Name, name in files, type, and whether the table is partitioned by it."""
    parts, text = metadata.partition_columns, metadata.schema_string
    fields = parse_schema(text).fields if text else ()
    return [(f.name, f.physical_name, str(f.type), f.name in parts) for f in fields]


def _version_from(table: SqlDeltaTable, moment: str) -> int:
    """The first version at or after a time."""
    from deltalakedb.metastore import commits
    from deltalakedb.table.shapes import instant_ms

    wanted = instant_ms(moment)
    rows = commits.history(table._database, table._row)
    later = [row.version for row in rows if row.timestamp >= wanted]
    if not later:
        raise InvalidArgumentError(
            f"the table has no version at or after {moment}",
            table=table.name,
            suggestion="begin earlier, or with startingVersion=latest",
        )
    return min(later)


def _refused(table: str, found: Version, *, rewrites: bool) -> UnsupportedOperationError:
    info = next((a.extra.get("operation") for a in found.actions if isinstance(a, CommitInfo)), None)
    what = "changed rows that were there already" if rewrites else "deleted rows"
    option = "ignoreChanges (rewritten rows come again)" if rewrites else "ignoreDeletes"
    return UnsupportedOperationError(
        f"version {found.version} {what} ({info or 'unknown operation'}), and a stream knows new rows only",
        table=table,
        version=found.version,
        suggestion=f"set {option}, skipChangeCommits, or read the change feed with readChangeFeed",
    )
