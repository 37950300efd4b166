"""Rows by partition: the values as the log writes them, and the rows that have them, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.exceptions import SchemaError
from deltalakedb.protocol.partition import serialize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.protocol.schema import PrimitiveType
    from deltalakedb.table.write_plan import Column

__all__ = ["Key", "split"]

#: a partition's values, in the order of the partition columns
Key: TypeAlias = tuple[str | None, ...]


def split(
    rows: pa.RecordBatch,
    values: Sequence[pa.Array],
    columns: Sequence[Column],
    types: Sequence[PrimitiveType],
) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each partition; one partition may come more than once.

    Args:
        rows: The data columns.
        values: The partition columns, in their table types.
        columns: What the partition columns are.
        types: Their Delta types.

    Raises:
        SchemaError: A value cannot be a partition value, or is null where null is refused.
    """
    if rows.num_rows == 1:
        yield _key([column[0] for column in values], columns, types), rows
        return
    codes = _codes(values)
    order = pc.array_sort_indices(codes)  # stable, so rows keep their order
    runs = pc.run_end_encode(codes.take(order))
    start = 0
    for end in runs.run_ends.to_pylist():
        first = order[start].as_py()
        key = _key([column[first] for column in values], columns, types)
        whole = start == 0 and end == rows.num_rows
        yield key, rows if whole else rows.take(order.slice(start, end - start))
        start = end


def _codes(values: Sequence[pa.Array]) -> pa.Array:
    """One number for each combination of values."""
    codes: pa.Array | None = None
    for column in values:
        encoded = column.dictionary_encode(null_encoding="encode")
        numbers = encoded.indices.cast(pa.int64())
        if codes is None:
            codes = numbers
            continue
        mixed = pc.add(pc.multiply(codes, len(encoded.dictionary)), numbers)
        # numbered anew, so that many columns cannot overflow
        codes = mixed.dictionary_encode().indices.cast(pa.int64())
    return codes


def _key(scalars: Sequence[pa.Scalar], columns: Sequence[Column], types: Sequence[PrimitiveType]) -> Key:
    key = []
    for scalar, column, type_ in zip(scalars, columns, types, strict=True):
        try:
            text = serialize(scalar.as_py(), type_)
        except (ValueError, OverflowError) as e:
            raise SchemaError(
                f"a value of the partition column {column.name!r} cannot be written: {e}",
                suggestion="dates and times must lie in the years 1 to 9999",
            ) from e
        if text is None and not column.nullable:
            raise SchemaError(
                f"Invalid data found: the partition column {column.name!r} is NOT NULL and gets a null",
                suggestion="an empty string counts as null in a partition column",
            )
        key.append(text)
    return tuple(key)
