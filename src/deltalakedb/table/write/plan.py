"""What a table's data files look like, and how data of another Arrow schema becomes that; worked out once."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from deltalakedb.exceptions import DeltaSqlError, UnsupportedOperationError
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.features import check_writable, reader_features, writer_features
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

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalake import WriterProperties

    from deltalakedb.protocol.txn_log import Snapshot

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
#: options without an effect on data files, and those that are read here
_SILENT: Final = frozenset({"commit_properties", "post_commithook_properties", "storage_options", "mode"})
_READ: Final = frozenset({"partition_by", "target_file_size", "writer_properties"})
#: the key of a cached check, since a protocol cannot be hashed
_FIELDS: Final = ("min_reader_version", "min_writer_version", "reader_features", "writer_features")
_PROTOCOL: Final = attrgetter(*_FIELDS)


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
    """A column of the table, as the data must bring it."""

    name: str
    type: pa.DataType
    nullable: bool
    #: its place in the data, and whether it must be cast
    place: int
    cast: bool


class WritePlan(NamedTuple):
    """The table as its writer sees it."""

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
    #: bytes of a string that statistics keep
    truncate: int

    def without(self, columns: Sequence[str], odd: frozenset[int]) -> dict[str, Any]:
        """The keyword arguments for a file whose ``odd`` columns have neither statistics nor a dictionary."""
        writer = dict(self.writer)
        if odd:
            rest = [name for number, name in enumerate(columns) if number not in odd]
            writer["write_statistics"] = rest
            writer["use_dictionary"] = rest if writer.get("use_dictionary", True) else False
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
    _check_protocol(_PROTOCOL(snapshot.protocol), frozenset(also))
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
        if value is not None and name not in _SILENT and name not in _READ:
            raise _not_direct(f"the option {name} is set")
    named = options.get("partition_by")
    if named is not None and ((named,) if isinstance(named, str) else tuple(named)) != partitioned_by:
        raise _not_direct("the option partition_by differs from the table")
    size = options.get("target_file_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise _not_direct(f"the option target_file_size is {size!r}")


@lru_cache(maxsize=128)
def _check_protocol(values: tuple[Any, ...], also: frozenset[str]) -> None:
    protocol = Protocol(**dict(zip(_FIELDS, values, strict=True)))
    needed = writer_features(protocol) | reader_features(protocol)
    if unknown := needed - _KNOWN - also:
        raise _not_direct(f"the table needs {', '.join(sorted(unknown))}")
    try:
        check_writable(protocol, also=also | {"identityColumns"})
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
#: properties that are positive numbers -> pyarrow's names
_NUMBERS: Final = {
    "data_page_size_limit": "data_page_size",
    "dictionary_page_size_limit": "dictionary_pagesize_limit",
    "write_batch_size": "write_batch_size",
    "max_row_group_size": None,
    "statistics_truncate_length": None,
}
_ROWS: Final = 1024 * 1024
_TRUNCATE: Final = 64
_COMMON: Final[Mapping[str, Any]] = {
    # the table's schema defines the columns; a copy in each file would only cost space
    "store_schema": False,
    # as Spark and delta-rs do: 4 or 8 bytes for short decimals
    "store_decimal_as_integer": True,
}
_DEFAULT: Final = ParquetOptions({**_COMMON, "compression": "snappy"}, ".snappy.parquet", _ROWS, _TRUNCATE)


def parquet_options(properties: WriterProperties | None) -> ParquetOptions:
    """The options for writer properties; UnsupportedOperationError if pyarrow has no such options."""
    if properties is None:
        return _DEFAULT
    # as in delta-rs, properties without a compression mean no compression
    match = _COMPRESSION.fullmatch(properties.compression or "UNCOMPRESSED")
    codec = _CODECS.get(match[1]) if match else None
    if match is None or codec is None or (match[2] is not None and int(match[2]) not in codec[2]):
        raise _unwritable(f"compression {properties.compression}")
    writer: dict[str, Any] = {**_COMMON, "compression": codec[0]}
    if match[2] is not None:
        writer["compression_level"] = int(match[2])
    for theirs, ours in _NUMBERS.items():
        if (number := getattr(properties, theirs)) is not None:
            if number < 1:
                raise _unwritable(f"{theirs} {number}")
            if ours is not None:
                writer[ours] = number
    for name in ("data_page_row_count_limit", "column_properties"):
        if getattr(properties, name) not in (None, {}):
            raise _unwritable(name)
    if (column := properties.default_column_properties) is not None:
        bloom = column.bloom_filter_properties
        if bloom is not None and bloom.set_bloom_filter_enabled is not False:
            raise _unwritable("bloom_filter_properties")
        if column.encoding is not None:
            raise _unwritable(f"encoding {column.encoding}")
        if column.statistics_enabled not in (None, "CHUNK", "PAGE"):
            raise _unwritable(f"statistics_enabled {column.statistics_enabled}")
        writer["write_page_index"] = column.statistics_enabled == "PAGE"
        if column.dictionary_enabled is not None:
            writer["use_dictionary"] = column.dictionary_enabled
    rows, truncate = properties.max_row_group_size, properties.statistics_truncate_length
    return ParquetOptions(writer, f"{codec[1]}.parquet", rows or _ROWS, truncate or _TRUNCATE)


def _unwritable(what: str) -> UnsupportedOperationError:
    return _not_direct(f"the writer properties ask for {what}")
