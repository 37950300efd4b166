"""The direct writer: data into Parquet files under a table's root, and the add actions that name them."""

from __future__ import annotations

import contextlib
import math
import re
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltalakedb.exceptions import (
    DeltaError,
    DeltaSqlError,
    InvalidArgumentError,
    OperationError,
    SchemaError,
    UnsupportedOperationError,
)
from deltalakedb.protocol.actions import Add, Metadata, Protocol, StringMap
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.features import check_writable, reader_features, writer_features
from deltalakedb.protocol.json_text import ExactFloat, encode_json
from deltalakedb.protocol.partition import partition_path, serialize
from deltalakedb.protocol.paths import encode_path
from deltalakedb.protocol.properties import INDEXED_COLUMNS, MAPPING_MODE, STATS_COLUMNS, number_or
from deltalakedb.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    parse_schema,
)
from deltalakedb.protocol.stats import stats_leaves
from deltalakedb.protocol.stats_columns import day_text, moment_text
from deltalakedb.storage.local import Flushes, translated

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltalake import WriterProperties

    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.table.roots import NewFiles, Root

TARGET_FILE_SIZE: Final = "delta.targetFileSize"
_DEFAULT_TARGET: Final = 100 * 1024 * 1024
#: Arrow's types of the same values
_SAME: Final = {
    "string": (pa.string(), pa.large_string(), pa.string_view()),
    "binary": (pa.binary(), pa.large_binary(), pa.binary_view()),
}
#: features that require nothing of an append, or only what is checked below
_KNOWN: Final = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "identityColumns", "invariants", "timestampNtz", "v2Checkpoint"),
}
#: what a writer must compute or check by itself
_RULES: Final = ("delta.constraints.", "delta.invariants")
_MAPPING: Final = "delta.columnMapping."
#: options without an effect on data files, and those that the direct writer follows
_IGNORED: Final = frozenset({"commit_properties", "post_commithook_properties", "storage_options", "mode"})
_HANDLED: Final = frozenset({"partition_by", "target_file_size", "writer_properties"})


class StatLeaf(NamedTuple):
    """A column that statistics are kept of."""

    path: tuple[str, ...]
    #: its number among the leaf columns of a Parquet file
    column: int
    #: the way to it through an Arrow table: the column's place, then those in each struct
    steps: tuple[int, ...]
    kind: str
    scale: int


class Column(NamedTuple):
    """A column of the table, and where the data has it."""

    name: str
    type: pa.DataType
    nullable: bool
    #: its place in the data, and whether it must be cast
    place: int
    cast: bool


class WritePlan(NamedTuple):
    """How data of one schema becomes files of one table."""

    #: of a data file: without partition columns, all optional, so that every reader accepts it
    file_schema: pa.Schema
    data_columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...]
    partition_types: tuple[PrimitiveType, ...]
    leaves: tuple[StatLeaf, ...]
    #: columns of floating point outside of arrays and maps, with statistics or without
    floats: tuple[StatLeaf, ...]
    #: the leaf columns of a file in order, as Parquet names them
    parquet_columns: tuple[str, ...]


class ParquetOptions(NamedTuple):
    """How files are written."""

    #: keyword arguments of ``pyarrow.parquet.ParquetWriter``
    writer: Mapping[str, Any]
    #: how file names end
    suffix: str
    #: rows in a row group
    rows: int

    def without(self, columns: Sequence[str], unsafe: frozenset[int]) -> dict[str, Any]:
        """The keyword arguments for a file; ``unsafe`` columns get neither statistics nor a dictionary."""
        writer = dict(self.writer)
        if unsafe:
            rest = [name for number, name in enumerate(columns) if number not in unsafe]
            writer["write_statistics"] = rest
            writer["use_dictionary"] = rest
        return writer


class AppendPlan(NamedTuple):
    """All that the direct writer needs to know."""

    table: WritePlan
    parquet: ParquetOptions
    #: bytes of a file to aim at
    target: int


def plan_append(
    snapshot: Snapshot,
    arrow_schema: pa.Schema,
    options: Mapping[str, Any] | None = None,
    *,
    also: Collection[str] = (),
) -> AppendPlan:
    """Plan an append that is written directly; UnsupportedOperationError if delta-rs might do otherwise.

    Args:
        snapshot: The table.
        arrow_schema: The data's schema.
        options: The arguments of ``write_deltalake``, by name; those that are None do not count.
        also: Writer features that the caller takes care of in the commit, such as ``rowTracking``.
    """
    options, metadata = options or {}, snapshot.metadata
    _check_options(options, metadata.partition_columns)
    for key, value in metadata.configuration.items():
        if key.startswith(_RULES):
            raise _not_direct(f"the table has the rule {key}")
        if key == MAPPING_MODE and value not in (None, "none"):
            raise _not_direct("the table has column mapping")
    if metadata.format.provider != "parquet":
        raise _not_direct(f"the table's files are {metadata.format.provider}")
    _check_protocol(snapshot.protocol, also)
    indexed, named = (metadata.configuration.get(key) for key in (INDEXED_COLUMNS, STATS_COLUMNS))
    return AppendPlan(
        _plan(metadata.schema_string, metadata.partition_columns, indexed, named, arrow_schema),
        parquet_options(options.get("writer_properties")),
        options.get("target_file_size") or target_size(metadata),
    )


def _not_direct(reason: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"this append cannot be written directly: {reason}",
        suggestion="write it by deltalakedb.spark.write, or outside of Spark by write_deltalake",
    )


def target_size(metadata: Metadata) -> int:
    size = number_or(metadata.configuration.get(TARGET_FILE_SIZE), 0)
    return size if size > 0 else _DEFAULT_TARGET


def _check_options(options: Mapping[str, Any], partitioned_by: tuple[str, ...]) -> None:
    for name, value in options.items():
        if value is not None and name not in _IGNORED and name not in _HANDLED:
            raise _not_direct(f"the option {name} is set")
    named = options.get("partition_by")
    if named is not None and ((named,) if isinstance(named, str) else tuple(named)) != partitioned_by:
        raise _not_direct("the option partition_by differs from the table")
    size = options.get("target_file_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise _not_direct(f"the option target_file_size is {size!r}")


def _check_protocol(protocol: Protocol, also: Collection[str]) -> None:
    needed = writer_features(protocol) | reader_features(protocol)
    if unknown := needed - _KNOWN - set(also):
        raise _not_direct(f"the table needs {', '.join(sorted(unknown))}")
    try:
        check_writable(protocol, also={*also, "identityColumns"})
    except DeltaSqlError as e:
        raise _not_direct(e.message) from e


# ---- columns -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _plan(
    schema_string: str,
    partitioned_by: tuple[str, ...],
    indexed: str | None,
    named: str | None,
    source: pa.Schema,
) -> WritePlan:
    schema = parse_schema(schema_string)
    types = {f.name: _arrow_field(f, f.name) for f in schema.fields}
    by_name = {f.name: f for f in schema.fields}
    if len(by_name) != len(schema.fields) or not by_name.keys() >= set(partitioned_by):
        raise _not_direct("its schema contradicts itself")
    data_fields = tuple(f for f in schema.fields if f.name not in partitioned_by)
    if not data_fields:
        raise _not_direct("it has partition columns only")
    partition_types = []
    for name in partitioned_by:
        kind = by_name[name].type
        # engines spell binary values differently, and a nested one has no text at all
        if not isinstance(kind, PrimitiveType) or kind.name == "binary":
            raise _not_direct(f"the partition column {name!r} has a type that is not written here")
        partition_types.append(kind)
    if len(set(source.names)) != len(source.names):
        raise _not_direct("the data names a column twice")
    if set(source.names) != by_name.keys():
        raise _not_direct("the data has other columns than the table")
    column_of = {f.name: _column(f, types[f.name], source) for f in schema.fields}
    columns = list(_leaves(StructType(data_fields)))
    leaves = [
        StatLeaf(path, number, steps, "decimal" if kind.decimal else kind.name, (kind.decimal or (0, 0))[1])
        for number, (_, path, steps, kind) in enumerate(columns)
        if path is not None and kind.name != "binary"
    ]
    settings = {INDEXED_COLUMNS: indexed, STATS_COLUMNS: named}
    wanted = {leaf.path for leaf in stats_leaves(schema, partitioned_by, settings)}
    return WritePlan(
        pa.schema([pa.field(f.name, types[f.name]) for f in data_fields]),
        tuple(column_of[f.name] for f in data_fields),
        tuple(column_of[name] for name in partitioned_by),
        tuple(partition_types),
        tuple(leaf for leaf in leaves if leaf.path in wanted),
        tuple(leaf for leaf in leaves if leaf.kind in ("float", "double")),
        tuple(name for name, *_ in columns),
    )


def _column(field: StructField, kind: pa.DataType, source: pa.Schema) -> Column:
    place = source.names.index(field.name)
    have = source.field(place).type
    plain = have.value_type if pa.types.is_dictionary(have) else have
    if not (pa.types.is_null(have) or _fits(plain, field.type)):
        raise _not_direct(f"the column {field.name!r} comes as {have}")
    return Column(field.name, kind, field.nullable, place, have != kind)


def _arrow_field(field: StructField, column: str) -> pa.DataType:
    """The Arrow type of a field; refuses what asks more of a writer than values: rules, inner NOT NULLs."""
    for key in field.metadata:
        if key.startswith("delta.") and not key.startswith(_MAPPING):
            raise _not_direct(f"the column {field.name!r} has {key}")
    return _arrow(field.type, column)


def _arrow(kind: DataType, column: str) -> pa.DataType:
    if isinstance(kind, ArrayType):
        if not kind.contains_null:
            raise _not_direct("an array refuses nulls")
        return pa.list_(pa.field("element", _arrow(kind.element_type, column)))
    if isinstance(kind, MapType):
        if not kind.value_contains_null:
            raise _not_direct("a map refuses null values")
        return pa.map_(_arrow(kind.key_type, column), _arrow(kind.value_type, column))
    if isinstance(kind, StructType) and kind.fields:
        for field in kind.fields:
            if not field.nullable:
                raise _not_direct(f"the nested field {field.name!r} refuses nulls")
        return pa.struct([pa.field(f.name, _arrow_field(f, column)) for f in kind.fields])
    if isinstance(kind, PrimitiveType) and (made := arrow_type(kind)) is not None:
        return made
    raise _not_direct(f"the column {column!r} has a type that is not written here")


#: a leaf column of a file: Parquet's name; its path and steps, unless inside an array or a map; its type
_Leaf = tuple[str, tuple[str, ...] | None, tuple[int, ...], PrimitiveType]


def _leaves(
    kind: DataType,
    names: tuple[str, ...] = (),
    path: tuple[str, ...] | None = (),
    steps: tuple[int, ...] = (),
) -> Iterator[_Leaf]:
    if isinstance(kind, StructType):
        for place, f in enumerate(kind.fields):
            below = None if path is None else (*path, f.name)
            yield from _leaves(f.type, (*names, f.name), below, (*steps, place))
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.element_type, (*names, "list", "element"), None)
    elif isinstance(kind, MapType):
        yield from _leaves(kind.key_type, (*names, "key_value", "key"), None)
        yield from _leaves(kind.value_type, (*names, "key_value", "value"), None)
    else:
        yield ".".join(names), path, steps, kind


def _fits(source: pa.DataType, wanted: DataType) -> bool:
    """Whether every value of a type has exactly one counterpart, and delta-rs takes the same."""
    types = pa.types
    if isinstance(wanted, StructType):
        return (
            types.is_struct(source)
            and [f.name for f in source] == list(wanted.names)
            and all(_fits(have.type, f.type) for have, f in zip(source, wanted.fields, strict=True))
        )
    if isinstance(wanted, ArrayType):
        plain = types.is_list(source) or types.is_large_list(source)
        return plain and _fits(source.value_type, wanted.element_type)
    if isinstance(wanted, MapType):
        return (
            types.is_map(source)
            and _fits(source.key_type, wanted.key_type)
            and _fits(source.item_type, wanted.value_type)
        )
    return _fits_primitive(source, wanted)


def _fits_primitive(source: pa.DataType, wanted: PrimitiveType) -> bool:
    types, name = pa.types, wanted.name
    target = arrow_type(wanted)
    if source == target:
        return True
    if name in _SAME:
        return source in _SAME[name]
    if name in ("timestamp", "timestamp_ntz"):
        # finer units are cut towards zero, as delta-rs cuts them
        return types.is_timestamp(source) and (source.tz is not None) == (name == "timestamp")
    if types.is_signed_integer(source) and target is not None and types.is_signed_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if name == "double":
        return bool(types.is_float32(source))
    if (decimal := wanted.decimal) is not None and types.is_decimal128(source):
        precision, scale = decimal
        whole = source.precision - source.scale
        return bool(0 <= source.scale <= scale and whole <= precision - scale)
    return False


# ---- Parquet -----------------------------------------------------------------------------------------------

_COMPRESSION: Final = re.compile(r"([A-Z0-9_]+)(?:\((\d+)\))?")
#: the name in the properties -> pyarrow's, the file name's part, and the levels that both sides know
_CODECS: Final[Mapping[str, tuple[str, str, range]]] = {
    "UNCOMPRESSED": ("none", "", range(0)),
    "SNAPPY": ("snappy", ".snappy", range(0)),
    "GZIP": ("gzip", ".gz", range(1, 10)),
    "BROTLI": ("brotli", ".br", range(12)),
    "ZSTD": ("zstd", ".zstd", range(1, 23)),
    "LZ4_RAW": ("lz4", ".lz4raw", range(0)),
}
_ROWS: Final = 1024 * 1024
#: bytes of a string that statistics keep, as in delta-rs
_TRUNCATE: Final = 64
_COMMON: Final[Mapping[str, Any]] = {
    # the table's schema defines the columns; a copy in each file would only cost space
    "store_schema": False,
    # as Spark and delta-rs do: 4 or 8 bytes for short decimals
    "store_decimal_as_integer": True,
}
_DEFAULT: Final = ParquetOptions({**_COMMON, "compression": "snappy"}, ".snappy.parquet", _ROWS)


def parquet_options(properties: WriterProperties | None) -> ParquetOptions:
    """The options for writer properties; UnsupportedOperationError for those that are left to delta-rs."""
    if properties is None:
        return _DEFAULT
    others = [name for name, value in vars(properties).items() if value not in (None, {})]
    if others := sorted({*others} - {"compression", "max_row_group_size"}):
        raise _unwritable(", ".join(others))
    # as in delta-rs, properties without a compression mean no compression
    match = _COMPRESSION.fullmatch(properties.compression or "UNCOMPRESSED")
    codec = _CODECS.get(match[1]) if match else None
    if match is None or codec is None or (match[2] is not None and int(match[2]) not in codec[2]):
        raise _unwritable(f"compression {properties.compression}")
    writer: dict[str, Any] = {**_COMMON, "compression": codec[0]}
    if match[2] is not None:
        writer["compression_level"] = int(match[2])
    rows = properties.max_row_group_size
    if rows is not None and rows < 1:
        raise _unwritable(f"max_row_group_size {rows}")
    return ParquetOptions(writer, f"{codec[1]}.parquet", rows or _ROWS)


def _unwritable(what: str) -> UnsupportedOperationError:
    return _not_direct(f"the writer properties ask for {what}")


_MIB: Final = 1024 * 1024
#: data that is cast and split at a time
_PIECE_BYTES: Final = 32 * _MIB
#: data in memory that becomes a row group, even if the rows are fewer than allowed
GROUP_BYTES: Final = 64 * _MIB
#: data in memory that waits for its row groups, over all partitions
PENDING_BYTES: Final = 256 * _MIB
#: a file this near to its target is full
_NEARLY: Final = 0.9
#: Parquet writers drop the bounds of longer values
_LONGEST: Final = 4096

#: data with a schema to look at
Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
#: a partition's values, in the order of the partition columns
Key: TypeAlias = tuple[str | None, ...]
_Pair: TypeAlias = tuple[Any, Any]


def arrow_source(data: Any) -> Rows:
    """Data of any kind as Arrow with a schema to look at; a stream is not read yet."""
    if isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.record_batch(data)
    if isinstance(data, list | tuple) and data and all(hasattr(part, "__arrow_c_array__") for part in data):
        return pa.Table.from_batches([pa.record_batch(part) for part in data])
    if isinstance(data, Sequence) and not isinstance(data, list | tuple | str | bytes):
        # a sequence of the user's may produce its batches one by one, without knowing how many
        return pa.RecordBatchReader.from_batches(
            pa.schema(data[0].schema), (pa.record_batch(part) for part in data)
        )
    raise InvalidArgumentError(
        f"data of type {type(data).__name__} cannot be read",
        suggestion="pass a pyarrow, pandas or polars table, or anything with __arrow_c_stream__",
    )


def write_files(
    data: Rows, plan: AppendPlan, root: Root, *, fsync: bool = True, flushes: Flushes | None = None
) -> list[Add]:
    """Write data for an append, and commit nothing; return an add action for each file.

    Files have a hidden name until they are whole. Data streams: what waits in memory is bounded. If anything
    fails, every file written so far is removed again.

    Args:
        data: The rows.
        plan: What was planned for the table and the data's schema.
        root: The table's root.
        fsync: Have files and folders on disk before returning.
        flushes: Flushes files and folders later, if the caller waits for it before the commit.
    """
    table, files = plan.table, _FileSet(root.new_files(fsync=fsync, flushes=flushes), plan)
    try:
        for batch in _pieces(data):
            rows = pa.RecordBatch.from_arrays(_cast(batch, table.data_columns), schema=table.file_schema)
            if not table.partition_columns:
                files.put((), rows)
                continue
            for key, part in _split(rows, _cast(batch, table.partition_columns), table):
                files.put(key, part)
        return files.finish()
    except BaseException:
        files.discard()
        raise


def _pieces(source: Rows) -> Iterator[pa.RecordBatch]:
    """The data in batches that are small enough to be copied; errors of its source are as in stock."""
    batches = [source] if isinstance(source, pa.RecordBatch) else source
    try:
        for batch in source.to_batches() if isinstance(source, pa.Table) else batches:
            count, size = batch.num_rows, batch.nbytes
            step = count if size <= _PIECE_BYTES else max(1, count * _PIECE_BYTES // size)
            for start in range(0, count, step or 1):
                yield batch.slice(start, step)
    except DeltaError:
        raise
    except Exception as error:
        raise OperationError(
            f"the data could not be read: {type(error).__name__}: {error}",
            suggestion="nothing was written; look at what makes the batches",
        ) from error


def _cast(batch: pa.RecordBatch, columns: Sequence[Column]) -> list[pa.Array]:
    """The columns in their table types; finer time units are cut, every other cast is exact."""
    made = []
    for column in columns:
        values = batch.column(column.place)
        if column.cast:
            try:
                values = values.cast(column.type, safe=not _cuts(values.type))
            except pa.ArrowInvalid as e:
                raise SchemaError(f"a value of the column {column.name!r} does not fit: {e}") from e
        if values.null_count and not column.nullable:
            raise SchemaError(
                f"Invalid data found: {values.null_count} rows failed validation check: "
                f"the column {column.name!r} is NOT NULL",
                suggestion="fill the nulls, or drop the column's NOT NULL",
            )
        made.append(values)
    return made


def _cuts(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(_cuts(kind.field(place).type) for place in range(kind.num_fields))


# ---- partitions --------------------------------------------------------------------------------------------


def _split(
    rows: pa.RecordBatch, values: Sequence[pa.Array], table: WritePlan
) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each partition, by the partition columns' values; one partition may come more than once."""
    if rows.num_rows == 1:
        yield _key([column[0] for column in values], table), rows
        return
    codes = _codes(values)
    order = pc.array_sort_indices(codes)  # stable, so rows keep their order
    start = 0
    for end in pc.run_end_encode(codes.take(order)).run_ends.to_pylist():
        first = order[start].as_py()
        whole = start == 0 and end == rows.num_rows
        part = rows if whole else rows.take(order.slice(start, end - start))
        yield _key([column[first] for column in values], table), part
        start = end


def _codes(values: Sequence[pa.Array]) -> pa.Array:
    codes: pa.Array | None = None
    for column in values:
        encoded = column.dictionary_encode(null_encoding="encode")
        numbers = encoded.indices.cast(pa.int64())
        if codes is None:
            codes = numbers
            continue
        mixed = pc.add(pc.multiply(codes, len(encoded.dictionary)), numbers)
        # numbered again, so that many columns cannot overflow
        codes = mixed.dictionary_encode().indices.cast(pa.int64())
    return codes


def _key(scalars: Sequence[pa.Scalar], table: WritePlan) -> Key:
    key = []
    for scalar, column, type_ in zip(scalars, table.partition_columns, table.partition_types, strict=True):
        try:
            text = serialize(scalar.as_py(), type_)
        except (ValueError, OverflowError) as e:
            raise SchemaError(
                f"a value of the partition column {column.name!r} cannot be written: {e}",
                suggestion="dates and times must be in the years 1 to 9999",
            ) from e
        if text is None and not column.nullable:
            raise SchemaError(
                f"Invalid data found: the partition column {column.name!r} is NOT NULL and gets a null",
                suggestion="an empty string counts as null in a partition column",
            )
        key.append(text)
    return tuple(key)


# ---- files -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Partition:
    """What is known of one partition: rows that wait to become a row group, and its files."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    files: int = 0
    #: columns that are written without statistics and dictionary
    unsafe: frozenset[int] = frozenset()


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self, path: str, files: NewFiles, values: StringMap, plan: AppendPlan, unsafe: frozenset[int]
    ) -> None:
        self.path, self.values, self.unsafe = path, values, unsafe
        #: bounds of strings that are too long for a footer, and what columns of floating point hold
        self.long: dict[int, _Pair] = {}
        self.floats: dict[int, FloatColumn] = {}
        self.footers: list[pq.FileMetaData] = []
        self._files, self.file = files, files.begin(path)
        try:
            self.writer = pq.ParquetWriter(
                self.file,
                plan.table.file_schema,
                metadata_collector=self.footers,
                **plan.parquet.without(plan.table.parquet_columns, unsafe),
            )
        except BaseException:
            files.discard(path, self.file)
            raise

    def finish(self) -> tuple[int, int]:
        self.writer.close()
        return self._files.finish(self.path, self.file)

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self.writer.close()
        # else a writer that could not close tries again when it is collected, and reports an error
        self.writer.is_open = False
        self._files.discard(self.path, self.file)


class _FileSet:
    """The files of one write, by partition."""

    def __init__(self, files: NewFiles, plan: AppendPlan) -> None:
        self._files = files
        self._plan = plan
        self._names = [column.name for column in plan.table.partition_columns]
        self._partitions: defaultdict[Key, _Partition] = defaultdict(_Partition)
        self._waiting = 0
        self._open: OrderedDict[Key, _OpenFile] = OrderedDict()
        self._written: list[str] = []
        self._adds: list[Add] = []
        #: bytes in memory for each byte in a file, as measured so far
        self._ratio = 1.0

    def put(self, key: Key, rows: pa.RecordBatch) -> None:
        pending, size = self._partitions[key], rows.nbytes
        pending.batches.append(rows)
        pending.rows += rows.num_rows
        pending.size += size
        self._waiting += size
        while pending.rows and (full := self._full(key, pending)):
            self._flush(key, pending, full)
        while self._waiting > PENDING_BYTES:
            largest = max(self._partitions, key=lambda k: self._partitions[k].size)
            self._flush(largest, self._partitions[largest], self._partitions[largest].rows)

    def finish(self) -> list[Add]:
        for key, pending in self._partitions.items():
            if pending.rows:
                self._flush(key, pending, pending.rows)
            if key in self._open:
                self._close(key)
        self._files.settle()
        return self._adds

    def discard(self) -> None:
        for opened in self._open.values():
            opened.discard()
        self._files.remove(self._written)

    def _full(self, key: Key, pending: _Partition) -> int:
        """How many of the rows that wait fill a row group or a file; 0 while they do not."""
        opened, most = self._open.get(key), self._plan.parquet.rows
        left = self._plan.target - (opened.file.tell() if opened is not None else 0)
        limit = max(min(GROUP_BYTES, int(left * self._ratio)), 1)
        if pending.size >= limit:
            return min(most, max(1, pending.rows * limit // pending.size))
        return pending.rows - pending.rows % most

    def _flush(self, key: Key, pending: _Partition, count: int) -> None:
        whole = pa.Table.from_batches(pending.batches)
        table, rest = whole.slice(0, count), whole.slice(count)
        self._waiting -= pending.size
        pending.rows = rest.num_rows
        pending.batches, pending.size = (rest.to_batches(), rest.nbytes) if pending.rows else ([], 0)
        self._waiting += pending.size
        floats = float_columns(table, self._plan.table.floats)
        pending.unsafe = pending.unsafe.union(column for column, f in floats.items() if f.unsafe)
        if key in self._open and not pending.unsafe <= self._open[key].unsafe:
            self._close(key)
        opened = self._open.get(key) or self._begin(key, pending)
        opened.floats = {c: opened.floats[c] | f if c in opened.floats else f for c, f in floats.items()}
        with self._translated(opened.path):
            before = opened.file.tell()
            _widen_long(opened.long, table, self._plan.table.leaves)
            opened.writer.write_table(table, row_group_size=self._plan.parquet.rows)
            made = opened.file.tell()
        self._ratio = min(max(table.nbytes / max(made - before, 1), 0.5), 64.0)
        self._open.move_to_end(key)
        if made >= self._plan.target * _NEARLY:
            self._close(key)

    def _begin(self, key: Key, partition: _Partition) -> _OpenFile:
        # a partition whose file is closed here begins a second one later
        while len(self._open) >= self._files.most_open:
            self._close(next(iter(self._open)))
        values = dict(zip(self._names, key, strict=True))
        name = f"part-{partition.files:05d}-{uuid.uuid4()}-c000{self._plan.parquet.suffix}"
        partition.files += 1
        path = f"{partition_path(values)}/{name}" if key else name
        with self._translated(path):
            opened = _OpenFile(path, self._files, values, self._plan, partition.unsafe)
        self._open[key] = opened
        return opened

    def _close(self, key: Key) -> None:
        opened = self._open[key]
        with self._translated(opened.path):
            size, modified = opened.finish()
        self._written.append(opened.path)
        del self._open[key]
        floats = {column: opened.floats[column] for column in opened.unsafe}
        stats = _file_stats(opened.footers[0], self._plan.table, opened.long, floats)
        path = encode_path(opened.path)
        self._adds.append(
            Add(path=path, partition_values=opened.values, size=size, modification_time=modified, stats=stats)
        )

    def _translated(self, path: str) -> contextlib.AbstractContextManager[None]:
        return translated("write", f"{self._files.location}/{path}")


# ---- statistics --------------------------------------------------------------------------------------------


def _values(table: pa.Table, leaf: StatLeaf) -> pa.ChunkedArray:
    values = table.column(leaf.steps[0])
    return values if len(leaf.steps) == 1 else pc.struct_field(values, leaf.steps[1:])


def _widen_long(bounds: dict[int, _Pair], table: pa.Table, leaves: Sequence[StatLeaf]) -> None:
    """Gather the bounds of strings that are too long for a footer."""
    for leaf in leaves:
        if leaf.kind != "string" or table.column(leaf.steps[0]).nbytes <= _LONGEST:
            continue
        values = _values(table, leaf)
        longest = pc.max(pc.binary_length(values)).as_py()
        if longest is not None and longest > _LONGEST:
            found = pc.min_max(values).as_py()
            pair = found["min"].encode(), found["max"].encode()
            bounds[leaf.column] = _wider(bounds.get(leaf.column), pair)


class FloatColumn(NamedTuple):
    """What a column of floating point holds in a file."""

    nulls: int
    bounds: _Pair | None
    nan: bool
    #: whether statistics and a dictionary would mislead Spark: the first leave out NaN, the second tells
    #: negative zero from zero, so Spark would skip row groups with rows for ``x > 5`` or ``x = 0``
    unsafe: bool

    def __or__(self, other: FloatColumn) -> FloatColumn:
        bounds = self.bounds if other.bounds is None else _wider(self.bounds, other.bounds)
        nan, unsafe = self.nan or other.nan, self.unsafe or other.unsafe
        return FloatColumn(self.nulls + other.nulls, bounds, nan, unsafe)


def float_columns(table: pa.Table, leaves: Sequence[StatLeaf]) -> dict[int, FloatColumn]:
    """What the columns of floating point hold in some rows, by Parquet column."""
    found = {}
    for leaf in leaves:
        values = _values(table, leaf)
        nan = bool(pc.any(pc.is_nan(values)).as_py())
        ends = pc.min_max(values).as_py()
        low, high = ends["min"], ends["max"]
        minus = False
        if low is not None and low <= 0 <= high:
            inverse = pc.divide(pa.scalar(1, values.type), values)
            minus = bool(pc.any(pc.equal(inverse, pa.scalar(-math.inf, values.type))).as_py())
        pair = None if low is None else (low or -0.0, high or 0.0)
        found[leaf.column] = FloatColumn(values.null_count, pair, nan, nan or minus)
    return found


def _file_stats(
    footer: pq.FileMetaData, table: WritePlan, long: Mapping[int, _Pair], floats: Mapping[int, FloatColumn]
) -> str:
    """The ``stats`` of an add action, by a footer without ``long`` bounds and ``floats``."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for leaf in table.leaves:
        pair = long.get(leaf.column)
        missing = 0
        if (known := floats.get(leaf.column)) is not None:
            missing, pair = known.nulls, known.bounds
        for group in groups if known is None else ():
            found = group.column(leaf.column).statistics
            missing += found.null_count
            if found.has_min_max:
                pair = _wider(pair, _plain(leaf, found.min_raw, found.max_raw))
        _put(nulls, leaf.path, missing)
        if pair is not None:
            low, high = _json_bounds(leaf, pair)
            if low is not None:
                _put(lowest, leaf.path, low)
            if high is not None and not (known is not None and known.nan):
                _put(highest, leaf.path, high)
    return encode_json(
        {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    )


def _wider(one: _Pair | None, other: _Pair) -> _Pair:
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))


def _plain(leaf: StatLeaf, low: Any, high: Any) -> _Pair:
    """Bounds in an order that Python knows: long decimals come as bytes."""
    if leaf.kind == "decimal" and isinstance(low, bytes):
        return int.from_bytes(low, "big", signed=True), int.from_bytes(high, "big", signed=True)
    return low, high


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _json_bounds(leaf: StatLeaf, pair: _Pair) -> _Pair:
    """A pair of bounds as JSON values, None for one that cannot be written."""
    match leaf.kind:
        case "string":
            return _cut(pair[0]), _cut_up(pair[1])
        case "float" | "double":
            low, high = (bound if math.isfinite(bound) else None for bound in pair)
        case "date":
            low, high = map(day_text, pair)
        case "timestamp" | "timestamp_ntz":
            instant = leaf.kind == "timestamp"
            between = "T" if instant else " "
            low, high = (moment_text(bound, instant=instant, separator=between) for bound in pair)
        case "decimal":
            low, high = (_decimal(bound, leaf.scale) for bound in pair)
        case _:
            return pair
    return low, high


def _decimal(unscaled: int, scale: int) -> Any:
    if scale <= 0:
        return unscaled * 10**-scale
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return ExactFloat(f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}")


def _cut(value: bytes) -> str:
    """The longest whole characters that statistics keep: never more than the value itself."""
    text = value[:_TRUNCATE].decode("utf-8", "ignore")
    # the first character alone may be longer
    return text if text or not value else value.decode()


def _cut_up(value: bytes) -> str:
    """A text that statistics keep and that is not less than the value; the value itself if there is none."""
    if len(value) <= _TRUNCATE:
        return value.decode()
    text = value[:_TRUNCATE].decode("utf-8", "ignore")
    for end in range(len(text), 0, -1):
        with contextlib.suppress(ValueError):  # the next code point may be no character
            letter, following = text[end - 1], chr(ord(text[end - 1]) + 1)
            if len(following.encode()) == len(letter.encode()):
                return text[: end - 1] + following
    return value.decode()
