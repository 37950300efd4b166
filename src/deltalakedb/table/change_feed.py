"""``load_cdf``: the rows that a range of versions changed, read by delta-rs from the files that hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake._internal import PyQueryBuilder

from deltalakedb.exceptions import InvalidArgumentError, VersionMissingError
from deltalakedb.metastore import registry
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.properties import MAPPING_MODE, mapping_mode
from deltalakedb.protocol.schema import FIELD_ID, PHYSICAL_NAME, PrimitiveType, StructField, parse_schema
from deltalakedb.table.arrow_schemas import arrow_schema
from deltalakedb.table.change_files import ChangeLog
from deltalakedb.table.filters import names_of, sql_text
from deltalakedb.table.scan import conformed, guarded, known, raw_table
from deltalakedb.table.shapes import epoch_ms
from deltalakedb.table.source import check_version
from deltalakedb.table.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.change_files import Change
    from deltalakedb.table.roots import Root
    from deltalakedb.table.scan import RawTable
    from deltalakedb.table.sql_reads import SqlReads

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
    table: SqlReads, wanted: Range, *, columns: Sequence[str] | None, predicate: str | None
) -> pa.RecordBatchReader:
    """Changed rows as a stream, with the type, the version and the time of each change as columns.

    Raises:
        VersionMissingError: The range begins after the newest version, or where nothing is kept any more.
        ProtocolError: Changes were not recorded in the range.
    """
    predicate, columns = sql_text(predicate), names_of(columns)
    snapshot = table._source.snapshot
    schema = _feed_schema(snapshot.metadata)
    if columns:
        schema = pa.schema([schema.field(c) for c in known(columns, schema)])
    found = _changes(table, wanted)
    tables = _laid(snapshot, found, table._root)
    # planned here, so that a wrong predicate is an error of this call and not of the first batch
    reader = _query(tables, snapshot.metadata, schema.names, predicate)
    rows = guarded(conformed(reader, schema, *tables), [c.add for c in found], table._root, snapshot.version)
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


def _changes(table: SqlReads, wanted: Range) -> list[Change]:
    """The files that hold the changes of the range."""
    options = table._root.options
    head = table._source.snapshot.version
    row = table._row
    if table._moves:
        row = registry.find(table._database, table.name)
        head = row.head.version
    after = None if wanted.starting_timestamp is None else epoch_ms(wanted.starting_timestamp)
    before = None if wanted.ending_timestamp is None else epoch_ms(wanted.ending_timestamp)
    log = ChangeLog(table._database, row, options)
    first = wanted.starting_version if wanted.starting_version is not None else row.head.first_version
    last = head if wanted.ending_version is None else min(wanted.ending_version, head)
    if (trouble := _outside(table.name, first, last, head, after, row.head.timestamp)) is not None:
        if wanted.allow_out_of_range:
            return []
        raise trouble
    if wanted.starting_version is not None:
        log.check_enabled(first)
    out: list[Change] = []
    vectors = Vectors(table._root)
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
