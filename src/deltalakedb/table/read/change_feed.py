"""``load_cdf``: the rows that a range of versions changed, read by delta-rs from the files that hold them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from deltalake._internal import PyQueryBuilder
from pyroaring import BitMap64

from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import InvalidArgumentError, LogError, ProtocolError, VersionMissingError
from deltalakedb.metastore import commits, registry, snapshots
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    Metadata,
    Remove,
    decode_commit,
)
from deltalakedb.protocol.dv import inline_dv
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import CHANGE_DATA_FEED, MAPPING_MODE, is_on, mapping_mode
from deltalakedb.protocol.schema import FIELD_ID, PHYSICAL_NAME, PrimitiveType, StructField, parse_schema
from deltalakedb.table.arguments import checked_number, epoch_ms, names_of, sql_text
from deltalakedb.table.read.scan import RawTable, arrow_schema, conformed, guarded, known, raw_table
from deltalakedb.table.sources import Source, open_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.roots import Root

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

_NAMES: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
#: the feed's own columns, in the types that stock and Spark give them
_STOCK: Final = pa.schema(zip(_NAMES, (pa.string_view(), pa.uint64(), pa.timestamp("ms")), strict=True))
_SPARK: Final = pa.schema(zip(_NAMES, (pa.string(), pa.int64(), pa.timestamp("us", "UTC")), strict=True))


def load_cdf(
    table: TableHandle, *, columns: Sequence[str] | None, predicate: str | None, **wanted: Any
) -> pa.RecordBatchReader:
    """The changed rows of a range of versions; arguments as in stock."""
    predicate, columns = sql_text(predicate), names_of(columns)
    snapshot = table.snapshot
    schema = _feed_schema(snapshot.metadata)
    if columns:
        schema = pa.schema([schema.field(c) for c in known(columns, schema)])
    rows = _rows(snapshot, _changes(table, **wanted), table.root, schema, predicate)
    return pa.RecordBatchReader.from_batches(schema, rows)


def read_changes(
    snapshot: Snapshot, changes: Iterable[Change], root: Root, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of some files of changes, in the types that the table and Spark give them."""
    whole = pa.schema([*arrow_schema(snapshot.metadata.schema_string), *_SPARK])
    schema = pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])
    return _rows(snapshot, list(changes), root, schema, None)


def _rows(
    snapshot: Snapshot, changes: Sequence[Change], root: Root, schema: pa.Schema, predicate: str | None
) -> Iterator[pa.RecordBatch]:
    tables = _laid(snapshot, changes, root)
    # planned here, so that a wrong predicate is an error of this call and not of the first batch
    reader = _query(tables, snapshot.metadata, schema.names, predicate)
    return guarded(conformed(reader, schema, *tables), [c.add for c in changes], root, snapshot.version)


def _changes(
    table: TableHandle,
    *,
    starting_version: int | None,
    ending_version: int | None,
    starting_timestamp: str | datetime | None,
    ending_timestamp: str | datetime | None,
    allow_out_of_range: bool,
) -> list[Change]:
    begin, end = (
        None if v is None else checked_number(v, "version") for v in (starting_version, ending_version)
    )
    if begin is None and starting_timestamp is None:
        raise InvalidArgumentError(
            "No starting version or timestamp provided for CDC",
            suggestion="give starting_version or starting_timestamp",
        )
    row, head = table.row, table.version
    if table.is_live:
        row = registry.find(table.database, table.name)
        head = row.head.version
    after = None if starting_timestamp is None else epoch_ms(starting_timestamp)
    before = math.inf if ending_timestamp is None else epoch_ms(ending_timestamp)
    log = ChangeLog(table.database, row, table.root)
    first = row.head.first_version if begin is None else begin
    last = head if end is None else min(end, head)
    if (trouble := _outside(table.name, first, last, head, after, row.head.timestamp)) is not None:
        if allow_out_of_range:
            return []
        raise trouble
    if begin is not None:
        log.check_enabled(first)
    out: list[Change] = []
    for version in log.versions(first, last):
        if not (after or 0) <= version.timestamp <= before:
            continue
        if begin is None and not out:
            log.check_enabled(version.version)
        out.extend(log.changes(version))
    return out


def _outside(
    table: str, first: int, last: int, head: int, after: int | None, newest: int
) -> InvalidArgumentError | VersionMissingError | None:
    instead = "allow_out_of_range=True gives no rows instead"
    if first > head:
        suggestion = f"the newest version is {head}; {instead}"
        return VersionMissingError(f"Invalid table version: {first}", table=table, suggestion=suggestion)
    if last < first:
        text = f"Invalid version. Start version {first} is greater than end version {last}"
        return InvalidArgumentError(text, table=table, suggestion=f"swap them; {instead}")
    if after is not None and after > newest:
        text = "the starting timestamp is greater than latest commit timestamp"
        return VersionMissingError(text, table=table, suggestion=f"begin earlier; {instead}")
    return None


def _laid(snapshot: Snapshot, changes: Iterable[Change], root: Root) -> list[RawTable]:
    """Scratch tables over the files that have the feed's columns as partition columns, for delta-rs to read.

    A log has each file once, and a file may be added in one version and removed in another: then it is in
    another scratch table. Change data files have the type of change in a column, and their own tables.
    """
    groups: dict[bool, list[dict[str, Change]]] = {True: [{}], False: []}
    for change in changes:
        same = groups[change.kind is not None]
        path = canonical_path(change.add.path)
        if (free := next((g for g in same if path not in g), None)) is None:
            same.append(free := {})
        free[path] = change
    return [
        raw_table(_as_feed(snapshot, typed=typed), map(_stamped, group.values()), root)
        for typed, same in groups.items()
        for group in same
    ]


def _as_feed(snapshot: Snapshot, *, typed: bool) -> Snapshot:
    """The table with the feed's columns; ``typed`` if the type of change is the same for a whole file."""
    metadata = snapshot.metadata
    schema = parse_schema(metadata.schema_string)
    mapped = mapping_mode(metadata)
    fields = list(schema.fields)
    known = (*fields, *(leaf.field for leaf in schema.leaves()))
    highest = max((field.field_id or 0 for field in known), default=0)
    for number, (name, kind) in enumerate(zip(_NAMES, ("string", "long", "long"), strict=True), highest + 1):
        notes = {} if mapped == "none" else {FIELD_ID: number, PHYSICAL_NAME: name}
        fields.append(StructField(name, PrimitiveType(kind), metadata=notes))
    configuration = dict(metadata.configuration)
    if mapped == "id":
        # writers keep physical names in both modes, and the column of change data files has no id
        configuration[MAPPING_MODE] = "name"
    metadata = replace(
        metadata,
        schema_string=replace(schema, fields=tuple(fields)).to_json(),
        partition_columns=(*metadata.partition_columns, *(_NAMES if typed else _NAMES[1:])),
        configuration=configuration,
    )
    return replace(snapshot, metadata=metadata)


def _stamped(change: Change) -> Add:
    own = (change.kind, str(change.version), str(change.timestamp))
    values = {name: value for name, value in zip(_NAMES, own, strict=True) if value is not None}
    return replace(change.add, partition_values={**change.add.partition_values, **values}, data_change=True)


def _feed_schema(metadata: Metadata) -> pa.Schema:
    """What stock returns: partition columns last, texts and bytes of the top level as views."""
    whole = arrow_schema(metadata.schema_string)
    names = [n for n in whole.names if n not in metadata.partition_columns]
    views = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    found = (whole.field(name) for name in (*names, *metadata.partition_columns))
    fields = [field.with_type(views.get(field.type, field.type)) for field in found]
    return pa.schema([*fields, *_STOCK])


def _query(
    tables: Sequence[RawTable], metadata: Metadata, columns: Sequence[str], predicate: str | None
) -> pa.RecordBatchReader:
    names = [f.name for f in parse_schema(metadata.schema_string).fields]
    # as in stock, names may be written in any case; if case distinguishes columns they are taken as written
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
    return '"' + name.replace('"', '""') + '"'


_CASTS: Final = (
    f"arrow_cast({quoted(COMMIT_VERSION)}, 'UInt64') AS {quoted(COMMIT_VERSION)}",
    f"arrow_cast({quoted(COMMIT_TIMESTAMP)}, 'Timestamp(Millisecond, None)') AS {quoted(COMMIT_TIMESTAMP)}",
)


class Version(NamedTuple):
    """One commit of the range, with its time."""

    version: int
    timestamp: int
    actions: Sequence[Action]


class Change(NamedTuple):
    """A file whose rows are changes of one version."""

    version: int
    timestamp: int
    #: ``insert`` or ``delete``; None for a change data file, which has it row by row
    kind: str | None
    #: the file as an add action; its deletion vector excludes all other rows
    add: Add


class ChangeLog:
    """The commits of a table as changes of rows; those older than SQL's first come from its log."""

    def __init__(self, database: Database, table: Table, root: Root) -> None:
        self._database, self._table, self._root = database, table, root
        self._log = FileTxnLogReader(table.location, root.options)

    def versions(self, first: int, last: int) -> Iterator[Version]:
        for version in range(first, min(last + 1, self._table.head.first_version)):
            yield self._logged(version)
        for row, data in commits.between(self._database, self._table, first, last):
            if data is None:
                # what was published may be pruned here: its bytes are in the log
                yield self._logged(row.version, row.timestamp)
            else:
                actions = decode_commit(data, source=f"{self._table.name} version {row.version}")
                yield Version(row.version, _moment(actions, row.timestamp), actions)

    def _logged(self, version: int, timestamp: int = 0) -> Version:
        try:
            actions = self._log.actions(version)
        except (LogError, VersionMissingError) as error:
            raise self._lost(version) from error
        return Version(version, _moment(actions, timestamp), actions)

    def _lost(self, version: int) -> VersionMissingError:
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
        return self._source(version).snapshot.metadata

    def _source(self, version: int) -> Source:
        return open_source(self._database, self._table.name, version, self._root.options)[1]

    def check_enabled(self, first: int) -> None:
        """Raise ProtocolError if the change data feed was off at the first version of a range."""
        if not is_on(self.metadata(first), CHANGE_DATA_FEED):
            raise _not_recorded(self._table.name, first)

    def changes(self, version: Version) -> Iterator[Change]:
        """The files that hold what one version changed; ProtocolError if it switched the feed off."""
        for action in version.actions:
            if isinstance(action, Metadata) and not is_on(action, CHANGE_DATA_FEED):
                raise _not_recorded(self._table.name, version.version)
        if written := [a for a in version.actions if isinstance(a, Cdc)]:
            # nothing else counts: the data files also hold rows that were only copied
            yield from (_change(version, None, _as_add(c)) for c in written)
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
                yield from _between(version, before.deletion_vector, add, self._root)
        gone = list(removed.values())
        known = self._known(version.version, gone)
        for remove in gone:
            yield _change(version, "delete", known.get(remove.key) or _as_add(remove))

    def _known(self, version: int, removed: Sequence[Remove]) -> dict[tuple[str, str], Add]:
        """The adds of removes that do not describe their files, as the protocol lets them."""
        poor = {r.key for r in removed if r.partition_values is None or r.size is None}
        if not poor or version == 0:
            return {}
        return {a.key: a for a in self._source(version - 1).adds() if a.key in poor}


def _between(version: Version, before: DeletionVector | None, add: Add, root: Root) -> Iterator[Change]:
    """The rows that were deleted or came back in a file that got another deletion vector."""
    old = BitMap64() if before is None else root.deleted_rows(before)
    new = BitMap64() if add.deletion_vector is None else root.deleted_rows(add.deletion_vector)
    for kind, rows in (("delete", new - old), ("insert", old - new)):
        if rows:
            others = BitMap64(range(root.num_rows(add))) - rows
            others.run_optimize()
            yield _change(version, kind, replace(add, deletion_vector=inline_dv(others) if others else None))


def _change(version: Version, kind: str | None, add: Add) -> Change:
    return Change(version.version, version.timestamp, kind, add)


def _as_add(file: Cdc | Remove) -> Add:
    return Add(
        path=file.path,
        partition_values=file.partition_values or {},
        size=file.size or 0,
        modification_time=0,
        data_change=isinstance(file, Remove),
        stats=file.stats if isinstance(file, Remove) else None,
        deletion_vector=file.deletion_vector if isinstance(file, Remove) else None,
    )


def _moment(actions: Sequence[Action], fallback: int) -> int:
    """A commit's time as its writer gave it, which is what other readers of the feed show."""
    info = next((a for a in actions if isinstance(a, CommitInfo)), CommitInfo())
    return info.in_commit_timestamp or info.timestamp or fallback


def _not_recorded(table: str, version: int) -> ProtocolError:
    return ProtocolError(
        f"Change Data not enabled for version: {version}",
        table=table,
        version=version,
        suggestion=f"begin at a version since which {CHANGE_DATA_FEED} is 'true'",
    )
