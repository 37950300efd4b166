"""Reading rows through delta-rs and listing files: only candidates are opened."""

from __future__ import annotations

import weakref
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import deltalake
import pyarrow as pa
from deltalake._internal import RawDeltaTable

from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    OperationError,
    PredicateError,
    ProtocolError,
    StorageError,
    UnsupportedFeatureError,
    engine_text,
)
from deltalakedb.metastore import outbox
from deltalakedb.protocol.actions import encode_commit
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.commit_rules import check_locations
from deltalakedb.protocol.features import SCAN_DROPS, without_features
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.partition import parse as parse_partition
from deltalakedb.protocol.partition import partition_columns
from deltalakedb.protocol.properties import mapping_mode
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.stats import float_paths, stats_leaves
from deltalakedb.protocol.stats_columns import Group, LeafColumns, StatsColumns, nested, stats_columns
from deltalakedb.storage.local import translated
from deltalakedb.table.arguments import names_of, sql_text
from deltalakedb.table.roots import Root, ScratchFolder, reading
from deltalakedb.table.scratch import ErrorContext, translate_errors, with_safe_stats
from deltalakedb.table.sources import Source, SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Add, Metadata
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.handle import TableHandle

#: with one of these features, a file may have shredded variants
_SHREDDING: Final = frozenset({"variantShredding", "variantShredding-preview"})
#: table features with which a data file's rows are not exactly the table's rows
_NEEDS_DELTA_RS = {"columnMapping", "deletionVectors", "typeWidening", "typeWidening-preview"}
_NEEDS_DELTA_RS |= {"variantType", "variantType-preview", *_SHREDDING}


def needs_delta_rs(snapshot: Snapshot) -> bool:
    """Whether only delta-rs can read the rows: deletion vectors, mapped or widened columns, variants."""
    protocol, metadata = snapshot.protocol, snapshot.metadata
    if set(protocol.reader_features or ()) & _NEEDS_DELTA_RS:
        return True
    return protocol.min_reader_version >= 2 and mapping_mode(metadata) != "none"


def raw_table(snapshot: Snapshot, adds: Iterable[Add], root: Root) -> RawTable:
    """delta-rs's own table over some files of a snapshot.

    It is loaded from a log into memory, so the log is gone when this returns; fetched files stay as long as
    the returned object. Never vacuum such a table.
    """
    adds = list(adds)
    refuse_shredded(snapshot, adds, root)
    work = root.scratch_folder(reading=True)
    protocol = without_features(snapshot.protocol, SCAN_DROPS)
    try:
        path = work.path / commit_path(snapshot.version)
        floats = float_paths(parse_schema(snapshot.metadata.schema_string))
        files = work.provide([with_safe_stats(add, floats) for add in adds])
        with translated("write", path):
            path.parent.mkdir()
            path.write_bytes(encode_commit([protocol, snapshot.metadata, *files]))
        raw = _opened(snapshot, str(work.path))
    except BaseException:
        work.close()
        raise
    if work.copies:
        return RawTable(raw, work)
    work.close()
    return RawTable(raw)


def raw_of(table: TableHandle) -> RawDeltaTable:
    if table.raw is None:
        found = _published_table(table) if _is_published(table) else None
        table.raw = found or raw_table(table.snapshot, table.source.adds(), table.root)
    return table.raw.raw


def _is_published(table: TableHandle) -> bool:
    """Whether a remote table's log has the open version and all versions before it."""
    if table.root.is_local or not isinstance(table.source, SqlSource) or table.row.state != "active":
        return False
    waiting = outbox.waiting_versions(table.database, table.row.table_id)
    return table.version < min(waiting, default=table.version + 1)


def _published_table(table: TableHandle) -> RawTable | None:
    """delta-rs's table over the published log, so that nothing is fetched; None if it cannot read that."""
    check_files(table.source, table.root)
    snapshot, root = table.snapshot, table.root
    if set(snapshot.protocol.writer_features or ()) & SCAN_DROPS:
        return None
    try:
        return RawTable(_opened(snapshot, root.location, version=snapshot.version, options=root.options))
    except UnsupportedFeatureError:
        return None  # the log is gone, or is not for delta-rs


class RawTable:
    """A raw table of delta-rs, and what it needs to be there while it is read."""

    def __init__(self, raw: RawDeltaTable, work: ScratchFolder | None = None) -> None:
        self.raw = raw
        if work is not None:
            weakref.finalize(self, work.close)


def _opened(
    snapshot: Snapshot, place: str, *, version: int | None = None, options: Mapping[str, str] | None = None
) -> RawDeltaTable:
    try:
        return RawDeltaTable(
            place, version=version, storage_options=None if options is None else dict(options)
        )
    except (DeltaSqlError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        features = ", ".join(snapshot.protocol.reader_features or ()) or "none"
        raise UnsupportedFeatureError(
            f"delta-rs cannot read this table: {' '.join(str(error).split())[:300]}",
            version=snapshot.version,
            suggestion=f"the table's reader features are: {features}",
        ) from error


def known(columns: list[str], schema: pa.Schema) -> list[str]:
    """The columns, or InvalidArgumentError for one that the table does not have."""
    for column in columns:
        if column not in schema.names:
            raise InvalidArgumentError(
                f"the table has no column {column!r}",
                suggestion=f"its columns are {', '.join(schema.names[:20])}",
            )
    return columns


def scan(
    source: Source,
    root: Root,
    *,
    where: Expr | None,
    columns: list[str] | None,
    predicate: str | None,
    large: bool = False,
    few: bool = False,
    adds: Iterable[Add] | None = None,
) -> pa.RecordBatchReader:
    """Rows through delta-rs: right for every feature that delta-rs reads.

    ``few``: only some rows will be read, so delta-rs gets the files in groups, the first one small.
    ``adds``: only the rows of these files.
    """
    whole = arrow_schema(source.snapshot.metadata.schema_string, large=large)
    schema = whole if columns is None else pa.schema([whole.field(c) for c in known(columns, whole)])
    found = source.adds(where) if adds is None else iter(adds)
    groups = _growing_groups(found) if few else root.groups(found)
    snapshot = source.snapshot

    def rows(adds: list[Add]) -> Iterator[pa.RecordBatch]:
        return guarded(scan_files(snapshot, adds, root, schema, predicate), adds, root, snapshot.version)

    # planned here, so that a wrong predicate is an error of this call and not of the first batch
    first = rows(next(groups))
    rest = (batch for adds in groups for batch in rows(adds))
    return pa.RecordBatchReader.from_batches(schema, chain(first, rest))


def scan_files(
    snapshot: Snapshot, adds: Iterable[Add], root: Root, schema: pa.Schema, predicate: str | None
) -> Iterator[pa.RecordBatch]:
    """The rows of some files that match a predicate, in the types of a schema."""
    table = raw_table(snapshot, adds, root)
    with translate_errors(ErrorContext(root.table, root.location, snapshot.version, snapshot.metadata)):
        found = table.raw.scan(columns=schema.names, predicate=predicate)
    return conformed(pa.RecordBatchReader.from_stream(found), schema, table)


def _growing_groups(adds: Iterator[Add]) -> Iterator[list[Add]]:
    """Files in groups, the first of one file and each of eight times as many; at least one, perhaps empty."""
    size = 1
    yield list(islice(adds, size))
    while group := list(islice(adds, size := 8 * size)):
        yield group


def first_rows(
    table: TableHandle, limit: int, *, columns: list[str] | None, predicate: str | None
) -> pa.Table:
    """At most so many rows that meet a predicate, from as few files as possible."""
    names, where = names_of(columns), table.where(sql_text(predicate))
    found: list[pa.RecordBatch] = []
    try:
        rows = scan(table.source, table.root, where=where, columns=names, predicate=predicate, few=True)
        while (left := limit - sum(b.num_rows for b in found)) > 0:
            try:
                found.append(rows.read_next_batch().slice(0, left))
            except StopIteration:
                break
    except StorageError:
        raise
    except (OperationError, pa.ArrowException) as error:
        if predicate is None:
            raise
        raise PredicateError(
            f"the condition cannot be evaluated: {engine_text(error.args[0])}",
            table=table.name,
            suggestion=f"compare columns with values of their type: see `deltasql schema {table.name}`",
        ) from error
    return pa.Table.from_batches(found, rows.schema)


def conformed(reader: pa.RecordBatchReader, schema: pa.Schema, *held: RawTable) -> Iterator[pa.RecordBatch]:
    """The batches in the table's own types, not delta-rs's views; tables being read stay until the last."""
    for batch in reader:
        if not schema.names:
            yield batch  # without columns only the number of rows is left
            continue
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    del held


def guarded(
    batches: Iterator[pa.RecordBatch], adds: Iterable[Add], root: Root, version: int
) -> Iterator[pa.RecordBatch]:
    """The batches; if reading fails for a file that cannot be read, the error is about that file."""
    with reading(root, lambda: [(add.path, add.size) for add in adds], version=version):
        yield from batches


def check_files(source: Source, root: Root) -> None:
    """Raise OutsidePathError for a file outside of the root; for readers that open the log's paths."""
    if root.paths.outside:
        return
    found = source.scan(("path", "dv_id"))
    root.paths.resolve_all(found.column("path").to_pylist())
    if any(found.column("dv_id").to_pylist()):
        check_locations(source.adds(), root.paths)


def partitions(source: Source, where: Expr | None) -> Sequence[dict[str, str | None]]:
    if not (columns := partition_columns(source.snapshot.metadata)):
        return []
    seen: dict[tuple[str | None, ...], dict[str, str | None]] = {}
    for text in source.scan(("partition_values",), where).column("partition_values").to_pylist():
        values = decode_json(text)
        row = {name: values.get(physical, values.get(name)) for name, physical, _ in columns}
        seen.setdefault(tuple(row.values()), row)
    return list(seen.values())


_ADD_COLUMNS: Final = ("path", "size", "modification_time", "partition_values")


def add_actions(source: Source, *, flatten: bool) -> pa.Table:
    """One row a live file, with statistics and partition values, as stock's ``get_add_actions`` has them."""
    metadata = source.snapshot.metadata
    schema = parse_schema(metadata.schema_string)
    leaves = stats_leaves(schema, metadata.partition_columns, metadata.configuration)
    stats: StatsColumns | LeafColumns
    if flatten:
        found, stats = source.statistics(_ADD_COLUMNS, leaves)
        masks: tuple[Group, Group, Group] = {}, {}, {}
    else:
        found = source.scan((*_ADD_COLUMNS, "stats"))
        stats = stats_columns(found.column("stats"), leaves)
        masks = stats.no_nulls, stats.no_lows, stats.no_highs
    columns: dict[str, Any] = {
        "path": found.column("path"),
        "size_bytes": found.column("size"),
        "modification_time": found.column("modification_time"),
        "num_records": stats.num_records,
    }
    groups: dict[str, tuple[Group, Group]] = {
        "null_count": (stats.nulls, masks[0]),
        "min": (stats.lows, masks[1]),
        "max": (stats.highs, masks[2]),
        "partition": (_partitions(found, metadata), {}),
    }
    for name, (group, lacking) in groups.items():
        if flatten:
            columns.update({f"{name}.{'.'.join(path)}": array for path, array in group.items()})
        elif group:
            columns[name] = nested(group, lacking)
    fixed = {"path", "size_bytes", "modification_time"}
    fields = [pa.field(k, v.type, nullable=k not in fixed) for k, v in columns.items()]
    made = pa.table(list(columns.values()), schema=pa.schema(fields))
    # one chunk in every column: arro3 panics if it has to cut structs
    return made.combine_chunks()


def _partitions(found: pa.Table, metadata: Metadata) -> Group:
    # many files share their values: each distinct text is read once
    encoded = found.column("partition_values").combine_chunks().dictionary_encode()
    values = [decode_json(v) for v in encoded.dictionary.to_pylist()]
    out: Group = {}
    for name, physical, kind in partition_columns(metadata):
        parsed = [parse_partition(v.get(physical, v.get(name)), kind) for v in values]
        out[(name,)] = pa.array(parsed, arrow_type(kind)).take(encoded.indices)
    return out


def refuse_shredded(snapshot: Snapshot, adds: Sequence[Add], root: Root) -> None:
    """Raise UnsupportedFeatureError if a file really holds variants in pieces."""
    named = sorted(_SHREDDING.intersection(snapshot.protocol.reader_features or ()))
    if not named:
        return
    import pyarrow.parquet as pq

    for add in adds:
        path = root.arrow_path(add.path)
        try:
            schema = pq.read_schema(path, filesystem=root.arrow({path: add.size}))
        except FileNotFoundError:
            continue  # reading it will report that
        if any(_in_pieces(field.type) for field in schema):
            raise UnsupportedFeatureError(
                f"{add.path} holds variants in pieces ({', '.join(named)}), and delta-rs cannot join them",
                version=snapshot.version,
                suggestion="read the table with Spark 4, or rewrite its files there without shredding",
            )


def _in_pieces(kind: pa.DataType) -> bool:
    children = [kind.field(i) for i in range(kind.num_fields)]
    names = {c.name for c in children}
    return {"metadata", "typed_value"} <= names or any(_in_pieces(c.type) for c in children)


#: as stock gives it
VECTOR_SCHEMA = pa.schema(
    [
        pa.field("filepath", pa.large_string(), nullable=False),
        pa.field("selection_vector", pa.list_(pa.field("item", pa.bool_(), nullable=False)), nullable=False),
    ]
)


def selection_vectors(adds: Iterable[Add], root: Root) -> Iterator[pa.RecordBatch]:
    """For each file with a deletion vector, which of its rows stay (``True``)."""
    for add in adds:
        if add.deletion_vector is None:
            continue
        mask = [True] * root.num_rows(add)
        for row in root.deleted_rows(add.deletion_vector):
            mask[row] = False
        where = root.paths.resolve(add.path)
        # not URL-encoded: readers join it with file_uris()
        uri = where if "://" in where else f"file://{where}"
        yield pa.RecordBatch.from_arrays(
            [pa.array([uri], pa.large_string()), pa.array([mask], VECTOR_SCHEMA.field(1).type)],
            schema=VECTOR_SCHEMA,
        )


def stock_schema(schema_string: str) -> deltalake.Schema:
    """A table's schema as delta-rs has it; ProtocolError if delta-rs does not know a type of it."""
    try:
        return deltalake.Schema.from_json(schema_string)
    except ValueError as error:
        raise ProtocolError(
            f"delta-rs cannot read the table's schema: {str(error)[:300]}",
            suggestion="read an older version of the table, or have its writer correct the schema",
        ) from error


def arrow_schema(schema_string: str, *, large: bool = False) -> pa.Schema:
    return pa.schema(stock_schema(schema_string).to_arrow(as_large_types=large))
