"""Many rows as bytes at once: their pieces are made by column and joined, no Python object for any value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

#: a matrix of bytes, or numbers, by row
Numbers = np.ndarray[Any, Any]


class ByteRows:
    """Gathers the pieces of some rows, from left to right.

    Args:
        rows: How many there are.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        #: what the pieces so far add up to, in each row
        self.sizes = np.zeros(rows, np.int64)
        self._same: list[Numbers] = []
        self._pieces: list[pa.Array] = []

    def fixed(self, matrix: Numbers) -> None:
        """Add a piece of the same length in every row: a matrix of bytes."""
        if matrix.shape[1]:
            self._same.append(matrix)
            self.sizes += matrix.shape[1]

    def constant(self, data: bytes) -> None:
        """Add the same bytes to every row."""
        self.fixed(np.broadcast_to(np.frombuffer(data, np.uint8), (self.rows, len(data))))

    def ragged(self, array: pa.Array, sizes: Numbers) -> None:
        """Add a piece of its own length in every row: binary values without nulls."""
        self._close()
        self._pieces.append(array)
        self.sizes += sizes

    def cut(self, matrix: Numbers, kept: Numbers) -> None:
        """Add a piece of which only some bytes are kept: two matrices, of bytes and of flags."""
        sizes = kept.sum(axis=1)
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        raw = pa.py_buffer(np.ascontiguousarray(matrix[kept]))
        self.ragged(pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(offsets), raw]), sizes)

    def extend(self, other: ByteRows) -> None:
        """Add all pieces of the same rows."""
        self._close()
        other._close()
        self._pieces += other._pieces
        self.sizes += other.sizes

    def join(self) -> pa.Array:
        """The rows."""
        self._close()
        if len(self._pieces) == 1:
            return self._pieces[0]
        return pc.binary_join_element_wise(*self._pieces, b"")

    def _close(self) -> None:
        """Make one piece of the matrices that follow each other."""
        if self._same:
            whole = np.ascontiguousarray(np.concatenate(self._same, axis=1))
            self._same = []
            self._pieces.append(_binary(whole))


def _binary(matrix: Numbers) -> pa.Array:
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def big_endian(values: Numbers, width: int = 8) -> Numbers:
    """Whole numbers as a matrix of bytes, the highest first."""
    wide = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    return wide[:, 8 - width :]


def lengths(texts: pa.Array) -> Numbers:
    """The bytes of each text; 0 for a null."""
    found: Numbers = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def integers(array: pa.Array) -> tuple[Numbers, Numbers | None]:
    """Whole numbers and booleans as numbers, and which of them are there: None for all."""
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    filled = array.fill_null(0) if array.null_count else array
    return filled.to_numpy(zero_copy_only=False).astype(np.int64), valid


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def in_order(data: pa.Table, names: Sequence[str]) -> list[pa.Array | None]:
    """The columns of some names; None for those that are not there."""
    have = set(data.column_names)
    return [one_array(data.column(n)) if n in have else None for n in names]
