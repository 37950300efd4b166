"""``deltalake.WriterProperties`` as options of pyarrow's Parquet writer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import ColumnProperties, WriterProperties

__all__ = ["ParquetOptions", "parquet_options"]

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
