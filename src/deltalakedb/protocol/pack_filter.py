"""Predicates over packs: masks of the packs, and of the files in a pack, that may hold rows that match.

A condition on a column becomes spans of values. Their limits are moved into the domain of a pack's numbers
and compared there, so nothing is unpacked. Pruning is that of `skipping.FileFilter`, at most less sharp.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from deltalakedb.protocol.bounds import (
    day_number,
    encoding_of,
    fits,
    literal_bounds,
    microseconds,
    successor,
    text_bytes,
)
from deltalakedb.protocol.packs import (
    TAG_BITS,
    ColumnData,
    Form,
    Mask,
    Numbers,
    column_name,
    domain_of,
    float_image,
    tag_of,
    text_image,
    zone_image,
)
from deltalakedb.protocol.partition import to_float32
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
from deltalakedb.protocol.schema import PrimitiveType, StructType, column_types
from deltalakedb.protocol.skipping import without_nan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MILLISECOND: Final = 999
#: decimals of more digits may have been rounded to doubles
_ROUNDED_DIGITS: Final = 15
#: beyond all decimal fractions that are stored as such
_HUGE: Final = 1e30
#: sides of a span
_LOW, _HIGH = -1, 1


class Zones(NamedTuple):
    """The zones of one column in many packs; not known if a pack lacks the column or its zone."""

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    known: Mask


class PackFilter:
    """A predicate over physical column paths, ready for zones and packs.

    Args:
        expr: The predicate.
        schema: The table's schema.
        partition_columns: The physical names of the partition columns.

    Attributes:
        names: Every pack column that the predicate may need.
        zone_names: Those whose zones it needs.
    """

    def __init__(self, expr: Expr, schema: StructType, partition_columns: Iterable[str]) -> None:
        self._types = column_types(schema)
        self._parts = frozenset(partition_columns)
        self._node = self._compile(normalize(expr), frozenset())
        self.names: frozenset[str] = frozenset().union(*(n.names for n in _leaves(self._node)))
        self.zone_names: frozenset[str] = frozenset().union(*(n.zone_names for n in _leaves(self._node)))

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:
        """A mask over packs: false only if no file of the pack can match.

        Args:
            zones: The zones of `zone_names`, as far as there are any.
            count: The number of packs.
        """
        return _mask(self._node, _ZoneView(zones, count))

    def files(self, columns: Mapping[str, bytes], count: int) -> Mask:
        """A mask over the files of one pack: false only if no row of the file can match.

        Args:
            columns: The data of those of `names` that the pack has.
            count: The number of files.
        """
        return _mask(self._node, _FileView(columns, count))

    def _compile(self, expr: Expr, no_nan: frozenset[Path]) -> _Node:
        match expr:
            case And(operands):
                no_nan |= without_nan(operands)
                return _Joined([self._compile(o, no_nan) for o in operands], every=True)
            case Or(operands):
                return _Joined([self._compile(o, no_nan) for o in operands], every=False)
            case Constant(value):
                return value is True
            case (
                IsNull(column)
                | Not(IsNull(column))
                | Compare(column)
                | In(column)
                | StartsWith(column)
                | Not(StartsWith(column))
            ):
                return self._leaf(expr, column, column in no_nan)
        return True

    def _leaf(self, expr: Expr, column: Path, no_nan: bool) -> _Node:
        kind = self._types.get(column)
        is_part = len(column) == 1 and column[0] in self._parts
        if not isinstance(kind, PrimitiveType) or (not is_part and encoding_of(kind) is None):
            return True
        if isinstance(expr, IsNull):
            return _Null(column_name("part" if is_part else "nulls", column), is_part)
        low, high = (column_name("part" if is_part else side, column) for side in ("low", "high"))
        domain = domain_of(kind.name)

        def within(spans: Sequence[_Span | None]) -> _Within:
            known = [span for span in spans if span is not None]
            if domain is None or len(known) < len(spans):  # any value may do
                return _Within(low, high, domain)
            if len(known) > 1:
                known.sort(key=lambda span: (span.high, span.low))
            lasts = [span.high for span in known if span.high is not None]
            firsts = [span.low for span in known if span.low is not None]
            return _Within(low, high, domain, lasts, firsts, known[0].strict)

        def span(op: str, value: Any) -> _Span | None:
            return _span(op, value, kind, no_nan, is_part=is_part)

        match expr:
            case Compare(_, "!=", value):
                return _Joined([within([span(op, value)]) for op in ("<", ">")], every=False)
            case Compare(_, op, value):
                return within([span(op, value)])
            case In(_, values):
                return within([span("=", value) for value in values])
            case StartsWith(_, prefix) if domain == "string":
                return within([_Span(text_bytes(prefix), successor(prefix))])
            case Not(StartsWith(_, prefix)) if domain == "string":
                ends = _Span(None, text_bytes(prefix), strict=True), _Span(successor(prefix), None)
                return _Joined([within([end]) for end in ends], every=False)
        return within([None])


# ---- conditions ----


class _Span(NamedTuple):
    """The values that a condition allows; None for an open end. ``strict`` leaves a text at an end out."""

    low: Any
    high: Any
    strict: bool = False


class _Null(NamedTuple):
    """A column is null."""

    name: str
    is_part: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.name})

    @property
    def zone_names(self) -> frozenset[str]:
        return frozenset() if self.is_part else self.names


class _Within(NamedTuple):
    """A column has a value, in one of some spans if there are any; all spans have the same ends."""

    low: str
    high: str
    domain: str | None
    #: of each span, what a minimum must not exceed and what a maximum must reach
    lasts: Sequence[Any] = ()
    firsts: Sequence[Any] = ()
    strict: bool = False

    @property
    def names(self) -> frozenset[str]:
        return self.zone_names or frozenset({self.low})

    @property
    def zone_names(self) -> frozenset[str]:
        return frozenset(n for n, ends in ((self.low, self.lasts), (self.high, self.firsts)) if ends)


@dataclass(frozen=True, slots=True)
class _Joined:
    """All or any of some conditions."""

    nodes: Sequence[_Node]
    every: bool


#: a condition; a bool is one that is always or never true
_Node: TypeAlias = "_Joined | _Null | _Within | bool"


def _leaves(node: _Node) -> list[_Null | _Within]:
    if isinstance(node, _Joined):
        return [leaf for inner in node.nodes for leaf in _leaves(inner)]
    return [] if isinstance(node, bool) else [node]


def _mask(node: _Node, view: _ZoneView | _FileView) -> Mask:
    """False only where a condition cannot be true."""
    match node:
        case bool():
            return np.full(view.count, node)
        case _Null():
            return view.nulls(node)
        case _Within():
            return view.values(node)
    mask = _mask(node.nodes[0], view)
    for inner in node.nodes[1:]:
        if not mask.any() if node.every else mask.all():
            break
        found = _mask(inner, view)
        mask = mask & found if node.every else mask | found
    return mask


class _Side(NamedTuple):
    """Lower or upper bounds as numbers, which of them are not known, and the limit of each span for them."""

    numbers: Numbers
    unknown: Mask | None
    limits: Sequence[int]


class _ZoneView:
    """The packs of a table, by their zones."""

    def __init__(self, zones: Mapping[str, Zones], count: int) -> None:
        self._zones, self.count = zones, count

    def nulls(self, node: _Null) -> Mask:
        zone = None if node.is_part else self._zones.get(node.name)
        return np.ones(self.count, bool) if zone is None else ~zone.known | (zone.high != 0)

    def values(self, node: _Within) -> Mask:
        low = self._side(node.low, node.lasts, node.domain, 0)
        return _meet(low, self._side(node.high, node.firsts, node.domain, 1), self.count)

    def _side(self, name: str, limits: Sequence[Any], domain: str | None, end: int) -> _Side | None:
        zone = self._zones.get(name)
        if zone is None or domain is None or not limits:
            return None
        known = zone.known & ((zone[end] & ((1 << TAG_BITS) - 1)) == tag_of(domain))
        return _Side(zone[end] >> TAG_BITS, ~known, [zone_image(limit) for limit in limits])


class _FileView:
    """The files of a pack, by its columns."""

    def __init__(self, columns: Mapping[str, bytes], count: int) -> None:
        self._columns, self.count = columns, count
        self._loaded: dict[str, ColumnData] = {}

    def _load(self, name: str) -> ColumnData | None:
        if name not in self._loaded:
            if name not in self._columns:
                return None
            self._loaded[name] = ColumnData(self._columns[name])
        return self._loaded[name]

    def nulls(self, node: _Null) -> Mask:
        column = self._load(node.name)
        if column is None or (column.unusable and not node.is_part):
            return np.ones(self.count, bool)
        if not node.is_part:
            return _within(column.u, _limit(column, 1, _LOW), _LOW, column.missing)
        return np.zeros(self.count, bool) if column.missing is None else column.missing

    def values(self, node: _Within) -> Mask:
        low = self._side(node.low, node.lasts, node, _HIGH)
        mask = _meet(low, self._side(node.high, node.firsts, node, _LOW), self.count)
        # both columns of bounds know which files hold nothing but nulls
        column = (self._load(node.low) if node.lasts or not node.firsts else None) or self._load(node.high)
        empty = None if column is None else column.empty
        return mask if empty is None else mask & ~empty

    def _side(self, name: str, limits: Sequence[Any], node: _Within, side: int) -> _Side | None:
        column = self._load(name) if limits else None
        if column is None or column.unusable or column.form == Form.NOTHING:
            return None
        if domain_of(column.kind) != node.domain:
            return None
        return _Side(column.u, column.missing, [_limit(column, x, side, node.strict) for x in limits])


def _limit(column: ColumnData, limit: Any, side: int, strict: bool = False) -> int:
    """The greatest u whose value may be at or below a limit, or the least one that may be at or above it.

    Args:
        column: The column.
        limit: A value of its domain.
        side: `_HIGH` for the greatest, `_LOW` for the least.
        strict: A text at the limit itself does not count.
    """
    image: int
    match column.form:
        case Form.LIST:
            find = bisect_right if strict is (side == _LOW) else bisect_left
            return find(column.texts, limit) - (side == _HIGH)
        case Form.FRACTIONS:
            exact = Fraction(min(max(limit, -_HUGE), _HUGE)) * 10**column.exponent
            image = math.floor(exact) if side == _HIGH else math.ceil(exact)
            beyond = (image + side) / 10.0**column.exponent
            beyond = to_float32(beyond) if column.kind == "float" else beyond
            if beyond <= limit if side == _HIGH else beyond >= limit:  # it was rounded
                image += side
        case Form.BITS:
            image = float_image(limit or side * 0.0)
        case Form.TEXTS:
            if not limit.startswith(column.prefix):
                return 1 << 64 if limit > column.prefix else -1
            rest = limit[len(column.prefix) :]
            image, plain = text_image(rest), not rest.endswith(b"\0")
            if side == _HIGH:
                image -= strict and plain and len(rest) <= 8
            elif column.is_whole:
                image += len(rest) > 8 or (strict and plain)
        case _:
            image = int(limit)
    if side == _HIGH:
        return (image - column.base) // column.scale
    return -((column.base - image) // column.scale)


def _meet(low: _Side | None, high: _Side | None, count: int) -> Mask:
    """Whether bounds meet a span: low at or below its last number, high at or above its first."""
    below = None if low is None else _within(low.numbers, max(low.limits), _HIGH, low.unknown)
    above = None if high is None else _within(high.numbers, min(high.limits), _LOW, high.unknown)
    if low is None or high is None or below is None or above is None:
        return np.ones(count, bool) if below is above else cast(Mask, above if below is None else below)
    mask = below & above
    if len(low.limits) == 1 or not mask.any():
        return mask
    # of the spans that are not below a file, the first one has the least limit for its upper bound
    ends = np.iinfo(low.numbers.dtype), np.iinfo(high.numbers.dtype)
    spans = zip(low.limits, high.limits, strict=True)
    kept = [(last, first) for last, first in spans if last >= ends[0].min and first <= ends[1].max]
    lasts = np.array([min(last, ends[0].max) for last, _ in kept], low.numbers.dtype)
    firsts = np.array([max(first, ends[1].min) for _, first in kept], high.numbers.dtype)
    met = np.zeros(count, bool)
    if kept:
        at = np.searchsorted(lasts, low.numbers, "left")
        met = (at < len(kept)) & (firsts[np.minimum(at, len(kept) - 1)] <= high.numbers)
    for unknown in (low.unknown, high.unknown):
        met = met if unknown is None else met | unknown
    return mask & met


def _within(numbers: Numbers, limit: int, side: int, unknown: Mask | None) -> Mask:
    """Numbers up to a limit (`_HIGH`) or from it on (`_LOW`), which may be any integer, and unknown ones."""
    ends = np.iinfo(numbers.dtype)
    if limit >= ends.max if side == _HIGH else limit <= ends.min:
        return np.ones(len(numbers), bool)
    if not ends.min <= limit <= ends.max:
        mask: Mask = np.zeros(len(numbers), bool)
    else:
        mask = numbers <= limit if side == _HIGH else numbers >= limit
    return mask if unknown is None else mask | unknown


# ---- limits ----


def _span(op: str, value: Any, kind: PrimitiveType, no_nan: bool, *, is_part: bool) -> _Span | None:
    """The values that a comparison allows; None if it may allow any."""
    limits = _limits(value, kind, is_part=is_part)
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


def _limits(value: Any, kind: PrimitiveType, *, is_part: bool) -> tuple[Any, Any, bool] | None:
    """What a stated maximum must reach and a stated minimum must not exceed for a file to hold a literal.

    What writers may have rounded is counted in; partition values are exact. The third value says whether the
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
            if is_part:
                return point, point, True
            # cutting milliseconds off moves a time before 1970 up
            return point - _MILLISECOND, point if point >= 0 else point + _MILLISECOND, True
        case "double":
            bounds = literal_bounds(value, "double")
            if bounds is None:
                return None
            # two zeros are equal to one engine and ordered to another
            return _next_single(bounds[0], -math.inf), _next_single(bounds[1], math.inf), False
        case "decimal":
            return _decimal_limits(value, kind, is_part=is_part)
        case _:
            text = text_bytes(value)
            return text, text, True


def _next_single(value: float, towards: float) -> float:
    """A bound beyond every double that is written as the same 32-bit float."""
    with np.errstate(over="ignore"):
        found = float(np.nextafter(np.float32(value), np.float32(towards)))
    return min(value, found) if towards < 0 else max(value, found)


def _decimal_limits(
    value: Decimal | int, kind: PrimitiveType, *, is_part: bool
) -> tuple[int, int, bool] | None:
    if isinstance(value, Decimal) and (not value.is_finite() or abs(value.adjusted()) > 1000):
        return None
    precision, scale = kind.decimal or (0, 0)
    exact = Fraction(value) * 10**scale
    slack = 0 if is_part else 1  # more digits than the scale has are rounded
    if slack and precision > _ROUNDED_DIGITS:
        slack += 1 + math.ceil(abs(exact) / 2**49)
    return math.ceil(exact) - slack, math.floor(exact) + slack, exact.denominator == 1
