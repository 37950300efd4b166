"""Delta's primitive types in Arrow, and columns of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.protocol.schema import DataType, PrimitiveType

if TYPE_CHECKING:
    from collections.abc import Sequence


_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(kind: DataType) -> pa.DataType | None:
    """The Arrow type of a primitive Delta type; None for what has no simple one."""
    if not isinstance(kind, PrimitiveType):
        return None
    if (decimal := kind.decimal) is not None:
        return pa.decimal128(*decimal)
    return _PRIMITIVES.get(kind.name)


def arrow_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as a column; one that the type cannot hold is null."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([v if _fits(v, kind) else None for v in values], kind)


def int_array(values: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """Numbers as an array. ``pa.array`` would first import pandas, which takes a second."""
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    )


def int_values(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers of a column of 64-bit integers without nulls; ``to_numpy`` would import pandas too."""
    parts = [
        np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), 8 * chunk.offset)
        for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def joined_lines(texts: pa.Array) -> pa.Buffer:
    """Texts without nulls as one, with line feeds between them."""
    ends = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(np.array([0, len(texts)], np.int32))])
    return pc.binary_join(pa.ListArray.from_arrays(ends, texts), text_scalar("\n"))[0].as_buffer()


def text_scalar(text: str) -> pa.StringScalar:
    """A text for functions of Arrow; given as it is, it would import pandas too."""
    data = text.encode()
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(data)])[0]


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True
