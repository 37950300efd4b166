"""What a table's data files look like, and how data of another Arrow schema becomes that; worked out once."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.arrow_values import arrow_type
from deltalakedb.protocol.features import check_writable, reader_features, writer_features
from deltalakedb.protocol.properties import INDEXED_COLUMNS, MAPPING_MODE, STATS_COLUMNS
from deltalakedb.protocol.schema import (
    ArrayType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    parse_schema,
)
from deltalakedb.protocol.stats import stats_leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltalake import ColumnProperties, WriterProperties

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.protocol.schema import DataType
    from deltalakedb.protocol.txn_log import Snapshot


_STRINGS: Final = (pa.string(), pa.large_string(), pa.string_view())
_BINARIES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())


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


class WritePlan(NamedTuple):
    """The table as its writer sees it."""

    schema: StructType
    #: of a data file: without partition columns, everything optional so that every reader takes it
    file_schema: pa.Schema
    data_columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...]
    partition_types: tuple[PrimitiveType, ...]
    leaves: tuple[StatLeaf, ...]
    #: columns of floating point outside of arrays and maps, with statistics or without
    floats: tuple[StatLeaf, ...]
    #: the leaf columns of a file in order, as Parquet names them
    parquet_columns: tuple[str, ...]


class Casts(NamedTuple):
    """Where each column of the plan lies in the data, and the type to cast it to where it differs."""

    data: tuple[tuple[int, pa.DataType | None], ...]
    partition: tuple[tuple[int, pa.DataType | None], ...]


def plan_for(metadata: Metadata) -> WritePlan | str:
    """The plan of a table, or why there is none."""
    settings = metadata.configuration
    return _plan(
        metadata.schema_string,
        metadata.partition_columns,
        settings.get(INDEXED_COLUMNS),
        settings.get(STATS_COLUMNS),
    )


@lru_cache(maxsize=256)
def _plan(
    schema_string: str, partitioned_by: tuple[str, ...], indexed: str | None, named: str | None
) -> WritePlan | str:
    schema = parse_schema(schema_string)
    settings = {INDEXED_COLUMNS: indexed, STATS_COLUMNS: named}
    by_name = {f.name: f for f in schema.fields}
    missing = [name for name in partitioned_by if name not in by_name]
    if missing or len(by_name) != len(schema.fields):
        return "its schema contradicts itself"
    data_fields = [f for f in schema.fields if f.name not in partitioned_by]
    if not data_fields:
        return "it has partition columns only"
    columns = []
    for f in schema.fields:
        if (made := _arrow(f.type)) is None:
            return f"the column {f.name!r} has a type that is not written here"
        columns.append(Column(f.name, made, f.nullable))
    column_of = {c.name: c for c in columns}
    partition_types = []
    for name in partitioned_by:
        kind = by_name[name].type
        # engines spell binary values differently, and a nested one has no text at all
        if not isinstance(kind, PrimitiveType) or kind.name == "binary":
            return f"the partition column {name!r} has a type that is not written here"
        partition_types.append(kind)
    data_columns = tuple(column_of[f.name] for f in data_fields)
    leaves = tuple(_leaves(data_fields))
    wanted = {leaf.path for leaf in stats_leaves(schema, partitioned_by, settings)}
    return WritePlan(
        schema,
        pa.schema([pa.field(c.name, c.type) for c in data_columns]),
        data_columns,
        tuple(column_of[name] for name in partitioned_by),
        tuple(partition_types),
        tuple(leaf for leaf in leaves if leaf.path in wanted),
        tuple(leaf for leaf in leaves if leaf.kind in ("float", "double")),
        tuple(name for f in data_fields for name in _parquet_columns(f.name, f.type)),
    )


def _arrow(kind: DataType) -> pa.DataType | None:
    if isinstance(kind, PrimitiveType):
        return arrow_type(kind)
    if isinstance(kind, StructType):
        fields = [(f.name, _arrow(f.type)) for f in kind.fields]
        if not fields or any(made is None for _, made in fields):
            return None
        return pa.struct([pa.field(name, made) for name, made in fields])
    if isinstance(kind, ArrayType):
        element = _arrow(kind.element_type)
        return None if element is None else pa.list_(pa.field("element", element))
    key, value = _arrow(kind.key_type), _arrow(kind.value_type)
    return None if key is None or value is None else pa.map_(key, value)


def _leaves(fields: list[StructField]) -> Iterator[StatLeaf]:
    """The columns that statistics can be kept of, with their places in a file."""
    column = 0
    for place, f in enumerate(fields):
        for leaf, number in _below(f, (f.name,), (place,), column):
            if leaf.kind != "":
                yield leaf
            column = number + 1


def _parquet_columns(path: str, kind: DataType) -> Iterator[str]:
    if isinstance(kind, StructType):
        for f in kind.fields:
            yield from _parquet_columns(f"{path}.{f.name}", f.type)
    elif isinstance(kind, ArrayType):
        yield from _parquet_columns(f"{path}.list.element", kind.element_type)
    elif isinstance(kind, MapType):
        yield from _parquet_columns(f"{path}.key_value.key", kind.key_type)
        yield from _parquet_columns(f"{path}.key_value.value", kind.value_type)
    else:
        yield path


def _below(
    f: StructField, path: tuple[str, ...], steps: tuple[int, ...], column: int
) -> Iterator[tuple[StatLeaf, int]]:
    """The leaves of a field, each with the number of the last Parquet column that it fills."""
    kind = f.type
    if isinstance(kind, StructType):
        for place, child in enumerate(kind.fields):
            for leaf, last in _below(child, (*path, child.name), (*steps, place), column):
                yield leaf, last
                column = last + 1
    elif isinstance(kind, PrimitiveType):
        decimal = kind.decimal
        name = "decimal" if decimal else "" if kind.name == "binary" else kind.name
        yield StatLeaf(path, column, steps, name, decimal[1] if decimal else 0), column
    else:
        yield StatLeaf(path, column, steps, "", 0), column + _width(kind) - 1


def _width(kind: DataType) -> int:
    """How many Parquet columns a type fills."""
    if isinstance(kind, StructType):
        return sum(_width(f.type) for f in kind.fields)
    if isinstance(kind, ArrayType):
        return _width(kind.element_type)
    if isinstance(kind, MapType):
        return _width(kind.key_type) + _width(kind.value_type)
    return 1


@lru_cache(maxsize=512)
def _casts(schema_string: str, partitioned_by: tuple[str, ...], source: pa.Schema) -> Casts | str:
    plan = _plan(schema_string, partitioned_by, None, None)
    if isinstance(plan, str):
        return plan
    names = source.names
    if len(set(names)) != len(names):
        return "the data names a column twice"
    wanted = {f.name: f for f in plan.schema.fields}
    if set(names) != wanted.keys():
        return "the data has other columns than the table"
    made: dict[str, tuple[int, pa.DataType | None]] = {}
    for column in (*plan.data_columns, *plan.partition_columns):
        index = names.index(column.name)
        kind = source.field(index).type
        if not (pa.types.is_null(kind) or _fits(_decoded(kind), wanted[column.name].type)):
            return f"the column {column.name!r} comes as {kind}"
        made[column.name] = index, None if kind == column.type else column.type
    return Casts(
        tuple(made[c.name] for c in plan.data_columns), tuple(made[c.name] for c in plan.partition_columns)
    )


def casts_for(metadata: Metadata, source: pa.Schema) -> Casts | str:
    """How data of a schema becomes the table's, or why that is not certain to be what delta-rs would do."""
    return _casts(metadata.schema_string, metadata.partition_columns, source)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


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
    if name == "string":
        return source in _STRINGS
    if name == "binary":
        return source in _BINARIES
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


#: features that ask nothing of an append, or only what is checked below
_KNOWN: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
#: what a writer must compute or check by itself
_RULES: Final = ("delta.constraints.", "delta.invariants")
_MAPPING: Final = "delta.columnMapping."
#: options that say nothing about data files, and those that are looked at here
_SILENT: Final = frozenset({"commit_properties", "post_commithook_properties", "storage_options", "mode"})
_READ: Final = frozenset({"partition_by", "target_file_size", "writer_properties"})


def eligible(
    snapshot: Snapshot,
    arrow_schema: pa.Schema,
    options: Mapping[str, Any] | None = None,
    *,
    also: Collection[str] = (),
) -> str | None:
    """Why an append cannot be written directly, or None where it can.

    Args:
        snapshot: The table.
        arrow_schema: The data's schema.
        options: The arguments of ``write_deltalake``, by name; those that are None do not count.
        also: Writer features that the caller takes care of in the commit, such as ``rowTracking``.

    Example:
        >>> eligible(snapshot, data.schema, {"schema_mode": "merge"})  # doctest: +SKIP
        'the option schema_mode is set'
    """
    metadata, protocol = snapshot.metadata, snapshot.protocol
    if options and (reason := _options(options, metadata.partition_columns)) is not None:
        return reason
    for key, value in metadata.configuration.items():
        if key.startswith(_RULES):
            return f"the table has the rule {key}"
        if key == MAPPING_MODE and value not in (None, "none"):
            return "the table has column mapping"
    if metadata.format.provider != "parquet":
        return f"the table's files are {metadata.format.provider}"
    reason = _protocol(
        protocol.min_reader_version,
        protocol.min_writer_version,
        protocol.reader_features,
        protocol.writer_features,
        frozenset(also),
    ) or _schema(metadata.schema_string)
    if reason is not None:
        return reason
    plan = plan_for(metadata)
    if isinstance(plan, str):
        return plan
    casts = casts_for(metadata, arrow_schema)
    return casts if isinstance(casts, str) else None


def _options(options: Mapping[str, Any], partitioned_by: tuple[str, ...]) -> str | None:
    for name, value in options.items():
        if value is not None and name not in _SILENT and name not in _READ:
            return f"the option {name} is set"
    named = options.get("partition_by")
    if named is not None and ((named,) if isinstance(named, str) else tuple(named)) != partitioned_by:
        return "the option partition_by differs from the table"
    size = options.get("target_file_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        return f"the option target_file_size is {size!r}"
    made = parquet_options(options.get("writer_properties"))
    return f"the writer properties ask for {made}" if isinstance(made, str) else None


@lru_cache(maxsize=128)
def _protocol(
    reader: int,
    writer: int,
    readers: tuple[str, ...] | None,
    writers: tuple[str, ...] | None,
    also: frozenset[str],
) -> str | None:
    protocol = Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=readers,
        writer_features=writers,
    )
    needed = writer_features(protocol) | reader_features(protocol)
    if unknown := needed - _KNOWN - also:
        return f"the table needs {', '.join(sorted(unknown))}"
    try:
        check_writable(protocol, also=also | {"identityColumns"})
    except DeltaSqlError as e:
        return e.message
    return None


@lru_cache(maxsize=256)
def _schema(schema_string: str) -> str | None:
    return _rules(parse_schema(schema_string), top=True)


def _rules(kind: DataType, *, top: bool = False) -> str | None:
    """What a type asks of its writer beyond its values: generated or identity columns, inner NOT NULLs."""
    if isinstance(kind, ArrayType):
        return "an array refuses nulls" if not kind.contains_null else _rules(kind.element_type)
    if isinstance(kind, MapType):
        if not kind.value_contains_null:
            return "a map refuses null values"
        return _rules(kind.key_type) or _rules(kind.value_type)
    if not isinstance(kind, StructType):
        return None
    for f in kind.fields:
        if not f.nullable and not top:
            return f"the nested field {f.name!r} refuses nulls"
        for key in f.metadata:
            if key.startswith("delta.") and not key.startswith(_MAPPING):
                return f"the column {f.name!r} has {key}"
        if (reason := _rules(f.type)) is not None:
            return reason
    return None


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
_TRUNCATE: Final = 64


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
        """The keyword arguments for a file of which some columns have neither statistics nor a dictionary.

        Args:
            columns: The file's leaf columns by Parquet's names.
            odd: The numbers of those.
        """
        writer = dict(self.writer)
        if odd:
            rest = [name for number, name in enumerate(columns) if number not in odd]
            writer["write_statistics"] = rest
            writer["use_dictionary"] = rest if writer.get("use_dictionary", True) else False
        return writer


_COMMON: Final[Mapping[str, Any]] = {
    # the table's schema says what the columns are; a second one in each file would only cost
    "store_schema": False,
    # as Spark and delta-rs do: 4 or 8 bytes for short decimals
    "store_decimal_as_integer": True,
}
_DEFAULT: Final = ParquetOptions({**_COMMON, "compression": "snappy"}, ".snappy.parquet", _ROWS, _TRUNCATE)


def parquet_options(properties: WriterProperties | None) -> ParquetOptions | str:
    """The options for the properties given, or what in them cannot be said to pyarrow."""
    if properties is None:
        return _DEFAULT
    # properties without a compression mean none: what delta-rs makes of them
    match = _COMPRESSION.fullmatch(properties.compression or "UNCOMPRESSED")
    codec = _CODECS.get(match[1]) if match else None
    if match is None or codec is None:
        return f"compression {properties.compression}"
    name, part, levels = codec
    writer: dict[str, Any] = {**_COMMON, "compression": name}
    if match[2] is not None:
        if int(match[2]) not in levels:
            return f"compression {properties.compression}"
        writer["compression_level"] = int(match[2])
    for theirs, ours in (
        ("data_page_size_limit", "data_page_size"),
        ("dictionary_page_size_limit", "dictionary_pagesize_limit"),
        ("write_batch_size", "write_batch_size"),
    ):
        if (number := getattr(properties, theirs)) is not None:
            if number < 1:
                return f"{theirs} {number}"
            writer[ours] = number
    if properties.data_page_row_count_limit is not None:
        return "data_page_row_count_limit"
    if properties.column_properties:
        return "column_properties"
    if (reason := _column(properties.default_column_properties, writer)) is not None:
        return reason
    rows, truncate = properties.max_row_group_size, properties.statistics_truncate_length
    if rows is not None and rows < 1:
        return f"max_row_group_size {rows}"
    if truncate is not None and truncate < 1:
        return f"statistics_truncate_length {truncate}"
    return ParquetOptions(writer, f"{part}.parquet", rows or _ROWS, truncate or _TRUNCATE)


def _column(column: ColumnProperties | None, writer: dict[str, Any]) -> str | None:
    if column is None:
        return None
    bloom = column.bloom_filter_properties
    if bloom is not None and bloom.set_bloom_filter_enabled is not False:
        return "bloom_filter_properties"
    if column.encoding is not None:
        return f"encoding {column.encoding}"
    if column.statistics_enabled not in (None, "CHUNK", "PAGE"):
        return f"statistics_enabled {column.statistics_enabled}"
    writer["write_page_index"] = column.statistics_enabled == "PAGE"
    if column.dictionary_enabled is not None:
        writer["use_dictionary"] = column.dictionary_enabled
    return None
