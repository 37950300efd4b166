"""Rows as Postgres's binary COPY wants them, made by column: the server parses no text for numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from deltalakedb.metastore.engines.byte_rows import ByteRows, big_endian, in_order, integers, lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: before the first row, and after the last
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
#: bytes of the types that rows are made for
WIDTHS = {"bigint": 8, "integer": 4, "smallint": 2, "boolean": 1, "text": 0}
_NULL = b"\xff\xff\xff\xff"
#: rows that are made at once
_ROWS = 16_384


def copy_pieces(
    data: pa.Table, constants: Mapping[str, int | bool | str], types: Mapping[str, str]
) -> Iterator[Any]:
    """All that is sent for some rows: the columns of the table, then the constants.

    Args:
        data: The rows.
        constants: Columns that are the same for all of them.
        types: The types of the columns, all of them in `WIDTHS`.
    """
    yield SIGNATURE
    for start in range(0, data.num_rows, _ROWS):
        yield _rows(data.slice(start, _ROWS), constants, types)
    yield TRAILER


def _rows(data: pa.Table, constants: Mapping[str, int | bool | str], types: Mapping[str, str]) -> Any:
    rows = ByteRows(data.num_rows)
    rows.constant((data.num_columns + len(constants)).to_bytes(2, "big"))
    for name, array in zip(data.column_names, in_order(data, data.column_names), strict=True):
        assert array is not None  # noqa: S101 - its names are the table's own
        width = WIDTHS[types[name]]
        if width:
            _numbers(rows, array, width)
        else:
            _texts(rows, array.cast(pa.string()))
    for name, value in constants.items():
        raw = (
            value.encode()
            if isinstance(value, str)
            else int(value).to_bytes(WIDTHS[types[name]], "big", signed=True)
        )
        rows.constant(len(raw).to_bytes(4, "big") + raw)
    joined = rows.join()
    return memoryview(joined.buffers()[2])[: int(rows.sizes.sum())]


def _numbers(rows: ByteRows, array: pa.Array, width: int) -> None:
    values, valid = integers(array)
    if valid is None:
        rows.constant(width.to_bytes(4, "big"))
        rows.fixed(big_endian(values, width))
        return
    cells = np.empty((len(values), 4 + width), np.uint8)
    cells[:, :4] = np.frombuffer(width.to_bytes(4, "big"), np.uint8)
    cells[:, 4:] = big_endian(values, width)
    cells[~valid, :4] = np.frombuffer(_NULL, np.uint8)
    kept = np.ones(cells.shape, bool)
    kept[~valid, 4:] = False
    rows.cut(cells, kept)


def _texts(rows: ByteRows, array: pa.Array) -> None:
    sizes = lengths(array)
    marked = sizes
    if array.null_count:
        marked = np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, -1)
        array = array.fill_null("")
    rows.fixed(big_endian(marked, 4))
    rows.ragged(array.cast(pa.binary()), sizes)
