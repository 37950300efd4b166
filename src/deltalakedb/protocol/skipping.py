"""Data skipping: may a file with these statistics and partition values hold a row that matches?"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.bounds import encoding_of, literal_bounds, lowest, open_end, successor, text_bytes
from deltalakedb.protocol.predicate import (
    And,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Not,
    Or,
    Path,
    StartsWith,
    normalize,
)
from deltalakedb.protocol.schema import DataType, PrimitiveType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from deltalakedb.protocol.stats import FileStats


class _Range(NamedTuple):
    """What a column may hold in one file; a bound that is None is open."""

    low: Any
    high: Any
    may_be_null: bool
    may_be_value: bool


_ANYTHING: Final = _Range(None, None, True, True)


def without_nan(operands: Iterable[Expr]) -> frozenset[Path]:
    """The columns whose value cannot be NaN if all the operands are true.

    Many writers leave NaN out of statistics, and to some engines it is the greatest value, so a maximum alone
    does not disprove ``x > 5``. Together with ``x < 9`` it does.
    """
    found = set()
    for operand in operands:
        match operand:
            case Compare(column, "=" | "<" | "<=", value) if value == value:
                found.add(column)
            case In(column, values) if all(v == v for v in values):
                found.add(column)
    return frozenset(found)


class FileFilter:
    """A predicate over physical column paths, ready for many files; ``types`` has the type of each leaf."""

    __slots__ = ("_expr", "_types")

    def __init__(self, expr: Expr, types: Mapping[Path, DataType]) -> None:
        self._expr = normalize(expr)
        self._types = types

    def may_match(self, stats: FileStats | None, partition_values: Mapping[str, str | None]) -> bool:
        """False only if no row of the file can make the predicate true; partitions by physical name."""
        return self._may(self._expr, partial(self._range, stats, partition_values), frozenset())

    def _may(self, expr: Expr, range_of: Callable[[Path], _Range], no_nan: frozenset[Path]) -> bool:
        match expr:
            case And(operands):
                no_nan |= without_nan(operands)
                return all(self._may(o, range_of, no_nan) for o in operands)
            case Or(operands):
                return any(self._may(o, range_of, no_nan) for o in operands)
            case Constant(value):
                return value is True
            case IsNull(column):
                return range_of(column).may_be_null
            case Not(IsNull(column)):
                return range_of(column).may_be_value
            case Compare(column) | In(column) | StartsWith(column) | Not(StartsWith(column)):
                held = range_of(column)
                try:
                    return held.may_be_value and self._leaf(expr, held, column in no_nan)
                except (TypeError, AttributeError, struct.error):
                    # a literal of another type than the column's decides nothing
                    return True
        return True

    def _leaf(self, expr: Expr, held: _Range, no_nan: bool) -> bool:
        low, high = held.low, held.high
        match expr:
            case Compare(column, op, value):
                return self._compare(column, op, value, held, no_nan)
            case In(column, values):
                return any(self._compare(column, "=", v, held, no_nan) for v in values)
            case StartsWith(_, prefix):
                return (low is None or low < successor(prefix)) and (
                    high is None or high >= text_bytes(prefix)
                )
            case Not(StartsWith(_, prefix)):
                start = text_bytes(prefix)
                return low is None or high is None or low < start or high >= successor(prefix)
        return True

    def _compare(self, column: Path, op: str, value: Any, held: _Range, no_nan: bool) -> bool:
        kind = self._types.get(column)
        encoding = None if kind is None else encoding_of(kind)
        bounds = None if encoding is None else literal_bounds(value, encoding)
        if bounds is None:
            return True
        least, most = bounds
        low, high = held.low, held.high
        # two zeros are equal to one engine and ordered to another: floats are never compared strictly
        floating = isinstance(value, float)
        match op:
            case "=":
                return (low is None or low <= most) and (high is None or high >= least)
            case "<":
                return low is None or low < most or (floating and low == most)
            case "<=":
                return low is None or bool(low <= most)
            case ">" | ">=":
                if high is None or (floating and not no_nan):
                    return True
                return bool(high > least or ((op == ">=" or floating) and high == least))
            case "!=":
                return floating or low is None or high is None or low < most or high > least
        return True

    def _range(
        self, stats: FileStats | None, partition_values: Mapping[str, str | None], column: Path
    ) -> _Range:
        kind = self._types.get(column)
        if not isinstance(kind, PrimitiveType):
            return _ANYTHING
        if len(column) == 1 and column[0] in partition_values:
            return _partition_range(partition_values[column[0]], kind)
        encoding = encoding_of(kind)
        if stats is None or encoding is None:
            return _ANYTHING
        low, high, nulls = stats.bounds(column, kind)
        rows = stats.num_records
        only_null = nulls is not None and rows is not None and nulls >= rows and low is high is None
        least = None if low is None else lowest(low, encoding)
        most = None if high is None else open_end(high, encoding)
        return _Range(least, most, nulls != 0, not only_null)


def _partition_range(text: str | None, kind: PrimitiveType) -> _Range:
    try:
        value: Any = partition.parse(text, kind)
    except ProtocolError:
        return _ANYTHING
    if value is None:
        return _Range(None, None, may_be_null=True, may_be_value=False)
    if isinstance(value, str):
        value = text_bytes(value)
    bound = value if value == value else None
    return _Range(bound, bound, may_be_null=False, may_be_value=True)
