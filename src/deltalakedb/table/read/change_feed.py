"""``load_cdf``: the rows that a range of versions changed, read by delta-rs from the files that hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake._internal import PyQueryBuilder
from pyroaring import BitMap64

from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, LogError, ProtocolError, VersionMissingError
from deltalakedb.metastore import commits, registry, snapshots
from deltalakedb.protocol.actions import Add, Cdc, CommitInfo, Metadata, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.dv import inline_dv
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import MAPPING_MODE, is_on, mapping_mode
from deltalakedb.protocol.schema import FIELD_ID, PHYSICAL_NAME, PrimitiveType, StructField, parse_schema
from deltalakedb.table.arguments import epoch_ms
from deltalakedb.table.filters import names_of, sql_text
from deltalakedb.table.read.scan import Vectors, arrow_schema, conformed, guarded, known, raw_table
from deltalakedb.table.sources import check_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action, DeletionVector
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.read.scan import RawTable
    from deltalakedb.table.roots import Root

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

#: the feed's own columns, in the types that stock gives them
_OWN: Final = pa.schema(
    [
        (CHANGE_TYPE, pa.string_view()),
        (COMMIT_VERSION, pa.uint64()),
        (COMMIT_TIMESTAMP, pa.timestamp("ms")),
    ]
)


@dataclass(frozen=True, slots=True)
class Range:
    """Which versions are asked for, as the caller wrote it."""

    starting_version: int | None = 0
    ending_version: int | None = None
    starting_timestamp: str | datetime | None = None
    ending_timestamp: str | datetime | None = None
    allow_out_of_range: bool = False

    def __post_init__(self) -> None:
        for name in ("starting_version", "ending_version"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_version(value))
        if self.starting_version is None and self.starting_timestamp is None:
            raise InvalidArgumentError(
                "No starting version or timestamp provided for CDC",
                suggestion="give starting_version or starting_timestamp",
            )


def load_cdf(
    table: TableHandle, wanted: Range, *, columns: Sequence[str] | None, predicate: str | None
) -> pa.RecordBatchReader:
    """Changed rows as a stream, with the type, the version and the time of each change as columns.

    Raises:
        VersionMissingError: The range begins after the newest version, or where nothing is kept any more.
        ProtocolError: Changes were not recorded in the range.
    """
    predicate, columns = sql_text(predicate), names_of(columns)
    snapshot = table.source.snapshot
    schema = _feed_schema(snapshot.metadata)
    if columns:
        schema = pa.schema([schema.field(c) for c in known(columns, schema)])
    found = _changes(table, wanted)
    tables = _laid(snapshot, found, table.root)
    # planned here, so that a wrong predicate is an error of this call and not of the first batch
    reader = _query(tables, snapshot.metadata, schema.names, predicate)
    rows = guarded(conformed(reader, schema, *tables), [c.add for c in found], table.root, snapshot.version)
    return pa.RecordBatchReader.from_batches(schema, rows)


def read_changes(
    snapshot: Snapshot, changes: Iterable[Change], root: Root, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of some files of changes, in the types that the table and Spark give them."""
    own = pa.schema(
        [
            (CHANGE_TYPE, pa.string()),
            (COMMIT_VERSION, pa.int64()),
            (COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
        ]
    )
    whole = pa.schema([*arrow_schema(snapshot.metadata.schema_string), *own])
    schema = pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])
    changes = list(changes)
    tables = _laid(snapshot, changes, root)
    rows = conformed(_query(tables, snapshot.metadata, list(columns), None), schema, *tables)
    return guarded(rows, [c.add for c in changes], root, snapshot.version)


def _changes(table: TableHandle, wanted: Range) -> list[Change]:
    """The files that hold the changes of the range."""
    options = table.root.options
    head = table.source.snapshot.version
    row = table.row
    if table.is_live:
        row = registry.find(table.database, table.name)
        head = row.head.version
    after = None if wanted.starting_timestamp is None else epoch_ms(wanted.starting_timestamp)
    before = None if wanted.ending_timestamp is None else epoch_ms(wanted.ending_timestamp)
    log = ChangeLog(table.database, row, options)
    first = wanted.starting_version if wanted.starting_version is not None else row.head.first_version
    last = head if wanted.ending_version is None else min(wanted.ending_version, head)
    if (trouble := _outside(table.name, first, last, head, after, row.head.timestamp)) is not None:
        if wanted.allow_out_of_range:
            return []
        raise trouble
    if wanted.starting_version is not None:
        log.check_enabled(first)
    out: list[Change] = []
    vectors = Vectors(table.root)
    for version in log.versions(first, last):
        if (after is not None and version.timestamp < after) or (
            before is not None and version.timestamp > before
        ):
            continue
        if wanted.starting_version is None and not out:
            log.check_enabled(version.version)
        out.extend(log.changes(version, vectors))
    return out


def _outside(
    table: str, first: int, last: int, head: int, after: int | None, newest: int
) -> InvalidArgumentError | VersionMissingError | None:
    if first > head:
        return VersionMissingError(
            f"Invalid table version: {first}",
            table=table,
            suggestion=f"the newest version is {head}; allow_out_of_range=True gives no rows instead",
        )
    if last < first:
        return InvalidArgumentError(
            f"Invalid version. Start version {first} is greater than end version {last}",
            table=table,
            suggestion="swap them, or pass allow_out_of_range=True for no rows",
        )
    if after is not None and after > newest:
        return VersionMissingError(
            "the starting timestamp is greater than latest commit timestamp",
            table=table,
            suggestion="begin earlier; allow_out_of_range=True gives no rows instead",
        )
    return None


def _laid(snapshot: Snapshot, changes: Iterable[Change], root: Root) -> list[RawTable]:
    """Scratch tables over the files, where the feed's columns are partition columns: delta-rs does the rest.

    A log has each file once, and a file may be added in one version and removed in another: then it lies in
    another scratch table. Change data files have their type in a column of their own, and their own tables.
    """
    data: list[dict[str, Change]] = [{}]
    written: list[dict[str, Change]] = []
    for change in changes:
        groups = written if change.kind is None else data
        path = canonical_path(change.add.path)
        free = next((g for g in groups if path not in g), None)
        if free is None:
            groups.append(free := {})
        free[path] = change
    return [
        raw_table(_as_feed(snapshot, typed=typed), map(_stamped, group.values()), root)
        for typed, groups in ((True, data), (False, written))
        for group in groups
    ]


def _as_feed(snapshot: Snapshot, *, typed: bool) -> Snapshot:
    """The table with the feed's columns; ``typed`` where the type of change is the same for a whole file."""
    metadata = snapshot.metadata
    schema = parse_schema(metadata.schema_string)
    mapped = mapping_mode(metadata)
    fields = list(schema.fields)
    highest = max((leaf.field.field_id or 0 for leaf in schema.leaves()), default=0)
    highest = max([highest, *(f.field_id or 0 for f in fields)], default=0)
    for name, kind in ((CHANGE_TYPE, "string"), (COMMIT_VERSION, "long"), (COMMIT_TIMESTAMP, "long")):
        highest += 1
        notes = {} if mapped == "none" else {FIELD_ID: highest, PHYSICAL_NAME: name}
        fields.append(StructField(name, PrimitiveType(kind), metadata=notes))
    configuration = dict(metadata.configuration)
    if mapped == "id":
        # writers keep physical names in both modes, and the column of change data files has no id
        configuration[MAPPING_MODE] = "name"
    constant = (
        (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP) if typed else (COMMIT_VERSION, COMMIT_TIMESTAMP)
    )
    return replace(
        snapshot,
        metadata=replace(
            metadata,
            schema_string=replace(schema, fields=tuple(fields)).to_json(),
            partition_columns=(*metadata.partition_columns, *constant),
            configuration=configuration,
        ),
    )


def _stamped(change: Change) -> Any:
    values = {
        **change.add.partition_values,
        COMMIT_VERSION: str(change.version),
        COMMIT_TIMESTAMP: str(change.timestamp),
    }
    if change.kind is not None:
        values[CHANGE_TYPE] = change.kind
    return replace(change.add, partition_values=values, data_change=True)


def _feed_schema(metadata: Metadata) -> pa.Schema:
    """What stock answers with: partition columns last, texts and bytes of the top level as views."""
    whole = arrow_schema(metadata.schema_string)
    fields = []
    for field in [
        *(f for f in whole if f.name not in metadata.partition_columns),
        *(whole.field(name) for name in metadata.partition_columns),
    ]:
        kind = field.type
        if pa.types.is_string(kind):
            field = field.with_type(pa.string_view())
        elif pa.types.is_binary(kind):
            field = field.with_type(pa.binary_view())
        fields.append(field)
    return pa.schema([*fields, *_OWN])


def _query(
    tables: Sequence[RawTable], metadata: Metadata, columns: Sequence[str], predicate: str | None
) -> pa.RecordBatchReader:
    names = [f.name for f in parse_schema(metadata.schema_string).fields]
    # as in stock, names may be written in any case; where case tells columns apart they are taken as written
    fold = all(n == n.lower() for n in names)
    builder = PyQueryBuilder({"datafusion.sql_parser.enable_ident_normalization": str(fold).lower()})
    parts = []
    every = ", ".join([*map(quoted, names), quoted(CHANGE_TYPE), *_CASTS])
    for number, table in enumerate(tables):
        builder.register(f"changes_{number}", table.raw)
        parts.append(f"SELECT {every} FROM changes_{number}")  # noqa: S608 - our own scratch tables
    wanted, union = ", ".join(map(quoted, columns)), " UNION ALL ".join(parts)
    sql = f"SELECT {wanted} FROM ({union}) AS source"  # noqa: S608
    if predicate is not None:
        sql += f" WHERE ({predicate})"
    return pa.RecordBatchReader.from_stream(builder.execute(sql))


def quoted(name: str) -> str:
    """A name as SQL takes it literally."""
    return '"' + name.replace('"', '""') + '"'


_CASTS: Final = (
    f"arrow_cast({quoted(COMMIT_VERSION)}, 'UInt64') AS {quoted(COMMIT_VERSION)}",
    f"arrow_cast({quoted(COMMIT_TIMESTAMP)}, 'Timestamp(Millisecond, None)') AS {quoted(COMMIT_TIMESTAMP)}",
)


ENABLED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Version:
    """One commit of the range: when it was made, and its actions."""

    version: int
    timestamp: int
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class Change:
    """A file whose rows are changes of one version.

    Attributes:
        version: The version.
        timestamp: Its time in epoch milliseconds.
        kind: ``insert`` or ``delete``; None for a change data file, which says so row by row.
        add: The file as an add action; a deletion vector in it takes the other rows out.
    """

    version: int
    timestamp: int
    kind: str | None
    add: Add


class ChangeLog:
    """The commits of a table as changes of rows.

    Args:
        database: The catalog.
        table: The table.
        storage_options: Options for the table's store, for versions older than SQL's first.
    """

    def __init__(
        self, database: Database, table: Table, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._database = database
        self._table = table
        self._log = FileTxnLogReader(table.location, storage_options)

    def versions(self, first: int, last: int) -> Iterator[Version]:
        """The commits from a version to another, oldest first.

        Raises:
            VersionMissingError: Neither SQL nor the log has one of them.
        """
        for version in range(first, min(last + 1, self._table.head.first_version)):
            yield self._logged(version)
        for row, data in commits.between(self._database, self._table, first, last):
            if data is None:
                # what was published may be pruned here: its bytes are in the log
                yield self._logged(row.version, row.timestamp)
                continue
            actions = decode_commit(data, source=f"{self._table.name} version {row.version}")
            yield Version(row.version, _moment(actions, row.timestamp), actions)

    def _logged(self, version: int, timestamp: int = 0) -> Version:
        try:
            actions = self._log.actions(version)
        except (LogError, VersionMissingError) as error:
            raise self._lost(version) from error
        return Version(version, _moment(actions, timestamp), actions)

    def _lost(self, version: int) -> VersionMissingError:
        """The error for a version whose commit neither SQL nor the log has."""
        if version < self._table.head.first_version:
            return snapshots.missing_version(self._table, version)
        try:
            logged = set(self._log.commit_versions())
        except LogError:
            logged = set()
        gone = (v for v in commits.without_bytes(self._database, self._table) if v not in logged)
        return VersionMissingError(
            f"the changes of version {version} are no longer kept: its commit was pruned from the catalog "
            "and deleted from _delta_log by log cleanup",
            table=self._table.name,
            version=version,
            suggestion=f"begin at version {next(gone, version) + 1} or later; to keep changes for longer, "
            "raise the table's delta.logRetentionDuration",
        )

    def metadata(self, version: int) -> Metadata:
        """The metadata that hold at a version.

        Raises:
            VersionMissingError: Neither SQL nor the log has it.
        """
        try:
            return snapshots.open_table(self._database, self._table.name, version).snapshot.metadata
        except VersionMissingError as error:
            try:
                return self._log.snapshot(version).metadata
            except (LogError, VersionMissingError):
                raise error from None

    def check_enabled(self, first: int) -> None:
        """Refuse a range that begins where changes were not recorded.

        Raises:
            ProtocolError: The change data feed was off at the first version.
        """
        if not is_on(self.metadata(first), ENABLED):
            raise _not_recorded(self._table.name, first)

    def changes(self, version: Version, vectors: Vectors) -> Iterator[Change]:
        """The files that hold what one version changed.

        Raises:
            ProtocolError: The version switched the change data feed off.
        """
        for action in version.actions:
            if isinstance(action, Metadata) and not is_on(action, ENABLED):
                raise _not_recorded(self._table.name, version.version)
        written = [a for a in version.actions if isinstance(a, Cdc)]
        if written:
            # they are the whole truth: rows that were only copied stand in the data files too
            yield from (_change(version, None, _of_cdc(c)) for c in written)
            return
        removed = {
            canonical_path(a.path): a for a in version.actions if isinstance(a, Remove) and a.data_change
        }
        for add in version.actions:
            if not isinstance(add, Add) or not add.data_change:
                continue
            before = removed.pop(canonical_path(add.path), None)
            if before is None:
                yield _change(version, "insert", add)
            else:
                yield from _between(version, before.deletion_vector, add, vectors)
        gone = list(removed.values())
        known = self._known(version.version, gone)
        for remove in gone:
            yield _change(version, "delete", known.get(remove.key) or _of_remove(remove))

    def _known(self, version: int, removed: Sequence[Remove]) -> dict[tuple[str, str], Add]:
        """The adds of removes that do not describe their files, as the protocol lets them."""
        poor = {r.key for r in removed if r.partition_values is None or r.size is None}
        if not poor or version == 0:
            return {}
        from deltalakedb.table.sources import SqlSource

        try:
            before = SqlSource(
                self._database, snapshots.open_table(self._database, self._table.name, version - 1)
            ).adds()
        except VersionMissingError:
            before = self._log.files(version - 1)
        return {a.key: a for a in before if a.key in poor}


def _between(version: Version, before: DeletionVector | None, add: Add, vectors: Vectors) -> Iterator[Change]:
    """A file that stayed and got another deletion vector: the rows that vanished or came back."""
    old = BitMap64() if before is None else vectors.rows(before)
    new = BitMap64() if add.deletion_vector is None else vectors.rows(add.deletion_vector)
    for kind, rows in (("delete", new - old), ("insert", old - new)):
        if rows:
            others = BitMap64(range(vectors.num_rows(add))) - rows
            others.run_optimize()
            yield _change(version, kind, replace(add, deletion_vector=inline_dv(others) if others else None))


def _change(version: Version, kind: str | None, add: Add) -> Change:
    return Change(version.version, version.timestamp, kind, add)


def _of_cdc(cdc: Cdc) -> Add:
    return Add(
        path=cdc.path,
        partition_values=cdc.partition_values,
        size=cdc.size,
        modification_time=0,
        data_change=False,
    )


def _of_remove(remove: Remove) -> Add:
    return Add(
        path=remove.path,
        partition_values=remove.partition_values or {},
        size=remove.size or 0,
        modification_time=0,
        data_change=True,
        stats=remove.stats,
        deletion_vector=remove.deletion_vector,
    )


def _moment(actions: Sequence[Action], fallback: int) -> int:
    """A commit's time as its writer gave it, which is what other readers of the feed show."""
    for action in actions:
        if isinstance(action, CommitInfo):
            return action.in_commit_timestamp or action.timestamp or fallback
    return fallback


def _not_recorded(table: str, version: int) -> ProtocolError:
    return ProtocolError(
        f"Change Data not enabled for version: {version}",
        table=table,
        version=version,
        suggestion=f"begin at a version since which {ENABLED} is 'true'",
    )
