"""Predicates over packs: masks of the packs, and of the files in a pack, that may hold rows that match.

The limits of a condition's spans are moved into the domain of a pack's numbers and compared there, so nothing
is unpacked. Pruning is that of `skipping.FileFilter`, at most less sharp.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

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
from deltalakedb.protocol.schema import StructType, column_types
from deltalakedb.protocol.skipping import Condition, Joined, Null, Within, conditions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.predicate import Expr

#: beyond all decimal fractions that are stored as such
_HUGE: Final = 1e30
#: sides of a span
_LOW, _HIGH = -1, 1
#: the least and the greatest number of each width
_ENDS: Final = {
    np.dtype(kind): (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64, np.int64)
}


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
        parts = frozenset(partition_columns)
        self._condition = conditions(expr, column_types(schema), parts, stated=True)
        self._leaves = list(_leaves(self._condition))
        self.names = frozenset(name for leaf in self._leaves for name in _names(leaf))
        self.zone_names = frozenset(name for leaf in self._leaves for name in _zone_names(leaf))

    def packs(self, zones: Mapping[str, Zones], count: int) -> Mask:
        """A mask over packs: false only if no file of the pack can match.

        Args:
            zones: The zones of `zone_names`, as far as there are any.
            count: The number of packs.
        """
        return _mask(self._condition, _ZoneView(zones, count))

    def needless(self, zones: Mapping[str, Zones]) -> dict[str, Mask]:
        """For columns of upper or lower bounds, masks over packs: true if all of the column meet the spans.

        Files that hold nothing but nulls are known by either column, so only one of the two is needless.
        """
        needed: set[str] = set()
        found: dict[str, Mask] = {}
        for leaf in self._leaves:
            low, high = _bound_names(leaf) if isinstance(leaf, Within) else ("", "")
            zone = zones.get(high)
            domain = domain_of(leaf.kind.name)
            if (
                isinstance(leaf, Null)
                or low == high
                or not (leaf.lasts and leaf.firsts)
                or not (zone and domain)
            ):
                needed.update(_names(leaf))
                continue
            known = _known(zone, zone.low, domain)
            above = known & (zone.low >> TAG_BITS > zone_image(max(leaf.firsts)))
            found[high] = found[high] & above if high in found else above
            needed.add(low)
        return {name: mask for name, mask in found.items() if name not in needed}

    def files(self, packs: Sequence[tuple[Mapping[str, bytes], int]]) -> list[Mask]:
        """Masks over the files of some packs: false only if no row of the file can match.

        Packs whose numbers have one meaning are compared together, as those of partition columns often have.

        Args:
            packs: Of each pack, the data of those of `names` that it has, and the number of files.
        """
        alike: dict[frozenset[Any], list[int]] = {}
        loaded = [{name: ColumnData(data) for name, data in columns.items()} for columns, _ in packs]
        for number, columns in enumerate(loaded):
            alike.setdefault(frozenset((n, c.meaning) for n, c in columns.items()), []).append(number)
        found: list[Mask] = [np.zeros(0, bool)] * len(packs)
        for numbers in alike.values():
            joined = {n: ColumnData.joined([loaded[at][n] for at in numbers]) for n in loaded[numbers[0]]}
            ends = np.cumsum([packs[at][1] for at in numbers])
            mask = _mask(self._condition, _FileView(joined, int(ends[-1])))
            for at, part in zip(numbers, np.split(mask, ends[:-1]), strict=True):
                found[at] = part
        return found


# ---- conditions ----


def _leaves(node: Condition) -> Iterator[Null | Within]:
    if isinstance(node, Joined):
        for inner in node.nodes:
            yield from _leaves(inner)
    elif not isinstance(node, bool):
        yield node


def _null_name(node: Null) -> str:
    return column_name("part" if node.is_part else "nulls", node.column)


def _bound_names(node: Within) -> tuple[str, str]:
    """The columns of minima and maxima, which are one for a partition column."""
    if node.is_part:
        return (column_name("part", node.column),) * 2
    return column_name("low", node.column), column_name("high", node.column)


def _zone_names(node: Null | Within) -> list[str]:
    if isinstance(node, Null):
        return [] if node.is_part else [_null_name(node)]
    if domain_of(node.kind.name) is None:
        return []
    return [name for name, ends in zip(_bound_names(node), (node.lasts, node.firsts), strict=True) if ends]


def _names(node: Null | Within) -> list[str]:
    if isinstance(node, Null):
        return [_null_name(node)]
    return _zone_names(node) or [_bound_names(node)[0]]


def _mask(node: Condition, view: _ZoneView | _FileView) -> Mask:
    """False only where a condition cannot be true."""
    match node:
        case bool():
            return np.full(view.count, node)
        case Null():
            return view.nulls(node)
        case Within():
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

    def is_equal_to(self, other: _Side) -> bool:
        """Whether these are values rather than bounds, and one number is asked for."""
        return self.numbers is other.numbers and len(self.limits) == 1 and self.limits == other.limits


class _ZoneView:
    """The packs of a table, by their zones."""

    def __init__(self, zones: Mapping[str, Zones], count: int) -> None:
        self._zones, self.count = zones, count

    def nulls(self, node: Null) -> Mask:
        zone = None if node.is_part else self._zones.get(_null_name(node))
        return np.ones(self.count, bool) if zone is None else ~zone.known | (zone.high != 0)

    def values(self, node: Within) -> Mask:
        names, domain = _bound_names(node), domain_of(node.kind.name)
        low = self._side(names[0], node.lasts, domain, _LOW)
        return _meet(low, self._side(names[1], node.firsts, domain, _HIGH), self.count)

    def _side(self, name: str, limits: Sequence[Any], domain: str | None, end: int) -> _Side | None:
        zone = self._zones.get(name)
        if zone is None or domain is None or not limits:
            return None
        images = zone.low if end == _LOW else zone.high
        known = _known(zone, images, domain)
        return _Side(images >> TAG_BITS, ~known, [zone_image(limit) for limit in limits])


def _known(zone: Zones, images: npt.NDArray[np.int64], domain: str) -> Mask:
    """The packs whose zone is of a domain."""
    return cast(Mask, zone.known & ((images & ((1 << TAG_BITS) - 1)) == tag_of(domain)))


class _FileView:
    """The files of packs, by their columns."""

    def __init__(self, columns: Mapping[str, ColumnData], count: int) -> None:
        self._columns, self.count = columns, count

    def nulls(self, node: Null) -> Mask:
        column = self._columns.get(_null_name(node))
        if column is None or (column.unusable and not node.is_part):
            return np.ones(self.count, bool)
        if not node.is_part:
            return _within(column.u, _limit(column, 1, _LOW), _LOW, column.missing)
        return np.zeros(self.count, bool) if column.missing is None else column.missing

    def values(self, node: Within) -> Mask:
        low, high = map(self._columns.get, _bound_names(node))
        sides = self._side(low, node, _HIGH), self._side(high, node, _LOW)
        mask = _meet(*sides, self.count)
        # both columns of bounds know which files hold nothing but nulls
        column = low or high
        empty = None if column is None else column.empty
        return mask if empty is None else mask & ~empty

    def _side(self, column: ColumnData | None, node: Within, side: int) -> _Side | None:
        limits = node.lasts if side == _HIGH else node.firsts
        if column is None or not limits or column.unusable or column.form == Form.NOTHING:
            return None
        if domain_of(column.kind) != domain_of(node.kind.name):
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
            image = _fraction_image(limit, side, column.exponent, column.kind)
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


@lru_cache(maxsize=256)
def _fraction_image(limit: float, side: int, exponent: int, kind: str) -> int:
    """The same for decimal fractions, before they are moved into the domain of u."""
    exact = Fraction(min(max(limit, -_HUGE), _HUGE)) * 10**exponent
    image: int = math.floor(exact) if side == _HIGH else math.ceil(exact)
    beyond = (image + side) / 10.0**exponent
    beyond = to_float32(beyond) if kind == "float" else beyond
    rounded = beyond <= limit if side == _HIGH else beyond >= limit
    return image + side if rounded else image


def _meet(low: _Side | None, high: _Side | None, count: int) -> Mask:
    """Whether bounds meet a span: low at or below its last number, high at or above its first."""
    if low is not None and high is not None and low.is_equal_to(high):
        return _equal(low.numbers, low.limits[0], low.unknown)
    below = None if low is None else _within(low.numbers, max(low.limits), _HIGH, low.unknown)
    above = None if high is None else _within(high.numbers, min(high.limits), _LOW, high.unknown)
    if low is None or high is None or below is None or above is None:
        return np.ones(count, bool) if below is above else cast(Mask, above if below is None else below)
    mask = below & above
    if len(low.limits) == 1 or not mask.any():
        return mask
    # of the spans that are not below a file, the first one has the least limit for its upper bound
    least, greatest = _ENDS[low.numbers.dtype][0], _ENDS[high.numbers.dtype][1]
    spans = zip(low.limits, high.limits, strict=True)
    kept = [(last, first) for last, first in spans if last >= least and first <= greatest]
    lasts = np.array([min(last, _ENDS[low.numbers.dtype][1]) for last, _ in kept], low.numbers.dtype)
    firsts = np.array([max(first, _ENDS[high.numbers.dtype][0]) for _, first in kept], high.numbers.dtype)
    met = np.zeros(count, bool)
    if kept:
        at = np.searchsorted(lasts, low.numbers, "left")
        met = (at < len(kept)) & (firsts[np.minimum(at, len(kept) - 1)] <= high.numbers)
    for unknown in (low.unknown, high.unknown):
        met = met if unknown is None else met | unknown
    return mask & met


def _within(numbers: Numbers, limit: int, side: int, unknown: Mask | None) -> Mask:
    """Numbers up to a limit (`_HIGH`) or from it on (`_LOW`), which may be any integer, and unknown ones."""
    least, greatest = _ENDS[numbers.dtype]
    if limit >= greatest if side == _HIGH else limit <= least:
        return np.ones(len(numbers), bool)
    if not least <= limit <= greatest:
        mask: Mask = np.zeros(len(numbers), bool)
    else:
        mask = numbers <= limit if side == _HIGH else numbers >= limit
    return mask if unknown is None else mask | unknown


def _equal(numbers: Numbers, limit: int, unknown: Mask | None) -> Mask:
    """Numbers that are the limit, which may be any integer, and unknown ones."""
    least, greatest = _ENDS[numbers.dtype]
    mask = numbers == limit if least <= limit <= greatest else np.zeros(len(numbers), bool)
    return mask if unknown is None else mask | unknown
