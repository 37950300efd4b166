"""Data skipping: a predicate becomes conditions on columns, which bounds of files or of whole packs decide.

This module decides about one file at a time, by its exact statistics and partition values; `pack_filter`
decides about many by the columns of their packs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.bounds import (
    day_number,
    encoding_of,
    fits,
    literal_bounds,
    lowest,
    microseconds,
    open_end,
    successor,
    text_bytes,
)
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
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.protocol.stats import FileStats

_MILLISECOND: Final = 999
#: decimals of more digits may have been rounded to doubles
_ROUNDED_DIGITS: Final = 15
_WIDE: Final = Context(prec=80)


# ---- conditions ----


class Null(NamedTuple):
    """A column is null."""

    column: Path
    is_part: bool
    kind: PrimitiveType


class Within(NamedTuple):
    """A column has a value, in one of some spans if there are any; all spans have the same ends.

    Attributes:
        column: Its physical path.
        is_part: It is a partition column.
        kind: Its type.
        lasts: Of each span, what a minimum must not exceed; empty if spans have no upper end.
        firsts: Of each span, what a maximum must reach; empty if spans have no lower end.
        strict: A text at the end itself does not count.
    """

    column: Path
    is_part: bool
    kind: PrimitiveType
    lasts: Sequence[Any] = ()
    firsts: Sequence[Any] = ()
    strict: bool = False

    def meets(self, low: Any, high: Any) -> bool:
        """Whether a value between two bounds may be in a span; a bound that is None is open."""
        # of the spans that are not below the bounds, the first one has the least lower end
        at = 0
        if self.lasts and low is not None:
            at = (bisect_right if self.strict else bisect_left)(self.lasts, low)
            if at == len(self.lasts):
                return False
        if not self.firsts or high is None:
            return True
        return bool(high > self.firsts[at] if self.strict else high >= self.firsts[at])


@dataclass(frozen=True, slots=True)
class Joined:
    """All or any of some conditions."""

    nodes: Sequence[Condition]
    every: bool


#: a bool is a condition that is always or never true
Condition: TypeAlias = "Joined | Null | Within | bool"


def conditions(
    expr: Expr, types: Mapping[Path, DataType], parts: frozenset[str] = frozenset(), *, stated: bool = False
) -> Condition:
    """The conditions that a predicate over physical column paths makes.

    Args:
        expr: The predicate.
        types: The type of each leaf column.
        parts: The physical names of the partition columns, whose values are exact.
        stated: The other columns will be compared with bounds as writers state them, which may be rounded;
            otherwise with bounds that are wide enough.
    """
    return _Compiler(types, parts, stated).compile(normalize(expr), frozenset())


@dataclass(frozen=True, slots=True)
class _Compiler:
    types: Mapping[Path, DataType]
    parts: frozenset[str]
    stated: bool

    def compile(self, expr: Expr, no_nan: frozenset[Path]) -> Condition:
        match expr:
            case And(operands):
                no_nan |= _without_nan(operands)
                return Joined([self.compile(o, no_nan) for o in operands], every=True)
            case Or(operands):
                return Joined([self.compile(o, no_nan) for o in operands], every=False)
            case Constant(value):
                return value is True
            case IsNull(column) | Compare(column) | In(column) | StartsWith(column):
                return self._leaf(expr, column, column in no_nan)
            case Not(IsNull(column) | StartsWith(column)):
                return self._leaf(expr, column, column in no_nan)
        return True

    def _leaf(self, expr: Expr, column: Path, no_nan: bool) -> Condition:
        kind = self.types.get(column)
        is_part = len(column) == 1 and column[0] in self.parts
        if not isinstance(kind, PrimitiveType):
            return True
        if self.stated and not is_part and encoding_of(kind) is None:
            return True
        if isinstance(expr, IsNull):
            return Null(column, is_part, kind)
        rounded = self.stated and not is_part

        def within(spans: Sequence[_Span | None]) -> Within:
            known = [span for span in spans if span is not None]
            if len(known) < len(spans):  # any value may do
                return Within(column, is_part, kind)
            if len(known) > 1:
                known.sort(key=lambda span: (span.high, span.low))
            lasts = [span.high for span in known if span.high is not None]
            firsts = [span.low for span in known if span.low is not None]
            return Within(column, is_part, kind, lasts, firsts, known[0].strict)

        def span(op: str, value: Any) -> _Span | None:
            return _span(op, value, kind, no_nan=no_nan, rounded=rounded)

        match expr:
            case Compare(_, "!=", value):
                return Joined([within([span(op, value)]) for op in ("<", ">")], every=False)
            case Compare(_, op, value):
                return within([span(op, value)])
            case In(_, values):
                return within([span("=", value) for value in values])
            case StartsWith(_, prefix) if kind.name == "string":
                return within([_Span(text_bytes(prefix), successor(prefix))])
            case Not(StartsWith(_, prefix)) if kind.name == "string":
                ends = _Span(None, text_bytes(prefix), strict=True), _Span(successor(prefix), None)
                return Joined([within([end]) for end in ends], every=False)
        return within([None])


def _without_nan(operands: Iterable[Expr]) -> frozenset[Path]:
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


# ---- spans of values ----


class _Span(NamedTuple):
    """The values that a condition allows; None for an open end. ``strict`` leaves a text at an end out."""

    low: Any
    high: Any
    strict: bool = False


def _span(op: str, value: Any, kind: PrimitiveType, *, no_nan: bool, rounded: bool) -> _Span | None:
    """The values that a comparison allows; None if it may allow any."""
    limits = _limits(value, kind, rounded=rounded)
    # NaN may be the greatest value, and is in no statistics
    if limits is None or (op in (">", ">=") and isinstance(value, float) and not no_nan):
        return None
    least, most, exclusive = limits
    texts = isinstance(least, bytes)
    step = int(exclusive and not texts)
    match op:
        case "=":
            return _Span(least, most)
        case "<":
            return _Span(None, most if texts else most - step, strict=texts)
        case "<=":
            return _Span(None, most)
        case ">":
            return _Span(least if texts else least + step, None, strict=texts)
        case ">=":
            return _Span(least, None)
    return None


def _limits(value: Any, kind: PrimitiveType, *, rounded: bool) -> tuple[Any, Any, bool] | None:
    """What a maximum must reach and a minimum must not exceed for a file to hold a literal.

    If bounds may be rounded, what writers may have taken away is counted in. The third value says whether the
    next value may be taken instead if the literal itself does not count.
    """
    encoding = encoding_of(kind)
    if encoding is None or not fits(value, encoding):
        return None
    match encoding:
        case "int" | "boolean" | "date":
            point = day_number(value) if encoding == "date" else int(value)
            return point, point, True
        case "timestamp":
            if (value.tzinfo is None) is (kind.name == "timestamp"):
                return None
            point = microseconds(value)
            if not rounded:
                return point, point, True
            # cutting milliseconds off moves a time before 1970 up
            return point - _MILLISECOND, point if point >= 0 else point + _MILLISECOND, True
        case "double":
            bounds = literal_bounds(value, "double")
            if bounds is None:
                return None
            # two zeros are equal to one engine and ordered to another: floats are never compared strictly
            least, most = bounds
            if rounded:
                least, most = _next_single(least, -math.inf), _next_single(most, math.inf)
            return least, most, False
        case "decimal":
            return _decimal_limits(value, kind, rounded=rounded)
        case _:
            text = text_bytes(value)
            return text, text, True


def _next_single(value: float, towards: float) -> float:
    """A bound beyond every double that is written as the same 32-bit float."""
    with np.errstate(over="ignore"):
        found = float(np.nextafter(np.float32(value), np.float32(towards)))
    return min(value, found) if towards < 0 else max(value, found)


def _decimal_limits(
    value: Decimal | int, kind: PrimitiveType, *, rounded: bool
) -> tuple[int, int, bool] | None:
    if isinstance(value, Decimal) and (not value.is_finite() or abs(value.adjusted()) > 1000):
        return None
    precision, scale = kind.decimal or (0, 0)
    exact = Fraction(value) * Fraction(10) ** scale
    slack = int(rounded)  # more digits than the scale has are rounded
    if slack and precision > _ROUNDED_DIGITS:
        slack += 1 + math.ceil(abs(exact) / 2**49)
    return math.ceil(exact) - slack, math.floor(exact) + slack, exact.denominator == 1


# ---- one file ----


class _Held(NamedTuple):
    """What a column may hold in one file; a bound that is None is open."""

    low: Any
    high: Any
    may_be_null: bool
    may_be_value: bool


_ANYTHING: Final = _Held(None, None, True, True)


class FileFilter:
    """A predicate over physical column paths, ready for many files; ``types`` has the type of each leaf."""

    __slots__ = ("_condition",)

    def __init__(self, expr: Expr, types: Mapping[Path, DataType]) -> None:
        self._condition = conditions(expr, types)

    def may_match(self, stats: FileStats | None, partition_values: Mapping[str, str | None]) -> bool:
        """False only if no row of the file can make the predicate true; partitions by physical name."""
        return self._may(self._condition, stats, partition_values)

    def _may(self, node: Condition, stats: FileStats | None, parts: Mapping[str, str | None]) -> bool:
        if isinstance(node, bool):
            return node
        if isinstance(node, Joined):
            may = (self._may(inner, stats, parts) for inner in node.nodes)
            return all(may) if node.every else any(may)
        column, kind = node.column, node.kind
        if len(column) == 1 and column[0] in parts:
            held = _held_value(parts[column[0]], kind)
        else:
            held = _held_by_stats(stats, column, kind)
        if isinstance(node, Null):
            return held.may_be_null
        return held.may_be_value and node.meets(held.low, held.high)


def _held_by_stats(stats: FileStats | None, column: Path, kind: PrimitiveType) -> _Held:
    encoding = encoding_of(kind)
    if stats is None or encoding is None:
        return _ANYTHING
    low, high, nulls = stats.bounds(column, kind)
    rows = stats.num_records
    only_null = nulls is not None and rows is not None and nulls >= rows and low is high is None
    least = None if low is None else _ordered(lowest(low, encoding), kind)
    most = None if high is None else _ordered(open_end(high, encoding), kind)
    return _Held(least, most, nulls != 0, not only_null)


def _held_value(text: str | None, kind: PrimitiveType) -> _Held:
    """What a partition column holds in a file with this value."""
    try:
        value: Any = partition.parse(text, kind)
    except ProtocolError:
        return _ANYTHING
    if value is None:
        return _Held(None, None, may_be_null=True, may_be_value=False)
    bound = _ordered(value, kind) if value == value else None
    return _Held(bound, bound, may_be_null=False, may_be_value=True)


def _ordered(value: Any, kind: PrimitiveType) -> Any:
    """A value in the form of the limits of spans."""
    match value:
        case datetime():
            return microseconds(value)
        case date():
            return day_number(value)
        case Decimal():
            return int(value.scaleb((kind.decimal or (0, 0))[1], context=_WIDE))
        case str():
            return text_bytes(value)
    return value
