"""Predicates as SQL conditions over slots: each is true for every file that may hold a matching row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol import partition
from deltalakedb.protocol.images import IMAX, IMIN, encode, fits, literal_bounds, successor
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
    Value,
)
from deltalakedb.protocol.skipping import without_nan
from deltalakedb.protocol.slots import Slot, slot_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


__all__ = ["NEVER", "Condition", "Conditions", "both", "either"]

#: so many values of a list are compared one by one; a longer list becomes one range around all of them
MAX_ALTERNATIVES: Final = 16
MAX_TEXTS: Final = 500
#: so large a condition may become: databases take neither trees of any depth nor any number of parameters
MAX_WEIGHT: Final = 600
_NO_COLUMNS: Final[frozenset[Path]] = frozenset()
#: encodings under which different values have different images
_EXACT: Final = frozenset({"int", "date", "timestamp", "boolean"})
#: types whose canonical text sorts as the values do
_SORTED_TEXT: Final = frozenset({"string", "date"})


class Condition(NamedTuple):
    """A piece of SQL and its parameters."""

    sql: str
    params: tuple[Any, ...] = ()

    @property
    def weight(self) -> int:
        """How much a database has to take in."""
        return len(self.params) + self.sql.count(" OR ") + self.sql.count(" AND ")


NEVER: Final = Condition("1 = 0")


def both(conditions: Iterable[Condition | None]) -> Condition | None:
    """All of some conditions; None, which restricts nothing, where there are none."""
    found = [c for c in conditions if c is not None]
    if not found:
        return None
    return Condition(" AND ".join(c.sql for c in found), tuple(p for c in found for p in c.params))


def either(conditions: Iterable[Condition | None]) -> Condition | None:
    """One of some conditions; None if one of them restricts nothing."""
    found = []
    for condition in conditions:
        if condition is None:
            return None
        found.append(condition)
    if not found:
        return NEVER
    if len(found) == 1:
        return found[0]
    return Condition(
        f"({' OR '.join(f'({c.sql})' for c in found)})", tuple(p for c in found for p in c.params)
    )


class Conditions:
    """Builds conditions for one table's slots.

    Args:
        slots: The slots in use.
        texts_drive: False keeps databases from taking an index on partition values for these conditions.
    """

    def __init__(self, slots: Sequence[Slot], *, texts_drive: bool = True) -> None:
        self.images = {s.field: s for s in slots if s.kind == "s" and s.dropped is None}
        self.texts = {s.field: s for s in slots if s.kind == "p" and s.dropped is None}
        self._texts_drive = texts_drive

    def of(self, expr: Expr, no_nan: frozenset[Path] = _NO_COLUMNS) -> Condition | None:
        """The condition of a normalized predicate; None if it rules out no file."""
        match expr:
            case And(operands):
                no_nan |= without_nan(operands)
                return both(_bearable(self.of(o, no_nan) for o in operands))
            case Or(operands):
                found = either(self.of(o, no_nan) for o in operands)
                return None if found is None or found.weight > MAX_WEIGHT else found
            case Constant(value):
                return None if value else NEVER
            case Compare(column) | In(column) | StartsWith(column) | IsNull(column) | Not(IsNull(column)):
                return both((self.on_text(expr, column), self.on_images(expr, column, no_nan)))
            case _:
                return None

    # --- canonical texts of partition values

    def on_text(self, expr: Expr, column: Path) -> Condition | None:
        """The condition on a partition value's text."""
        slot = self.texts.get(column)
        if slot is None:
            return None
        name = f"f.p{slot.slot}" if self._texts_drive else f"(f.p{slot.slot} || '')"
        found = self._text(expr, slot, name)
        return None if found is None else _since(found, slot)

    def _text(self, expr: Expr, slot: Slot, name: str) -> Condition | None:
        match expr:
            case IsNull():
                return Condition(f"{name} IS NULL")
            case Not(IsNull()):
                return Condition(f"{name} IS NOT NULL")
            case Compare(_, "=", value):
                text = _canonical(value, slot)
                return None if text is None else Condition(f"{name} = ?", (text,))
            case In(_, values):
                return _text_list(values, slot, name)
            case Compare(_, "!=", value) if not isinstance(value, float):
                text = _canonical(value, slot)
                return None if text is None or not _is_plain(text) else Condition(f"{name} <> ?", (text,))
            case Compare(_, ("<" | "<=" | ">" | ">=") as op, value) if slot.encoding in _SORTED_TEXT:
                text = _canonical(value, slot)
                if text is None or not _is_plain(text):
                    return None
                found = Condition(f"{name} {op} ?", (text,))
                # years that a date cannot hold are kept before the digits
                return found if slot.encoding == "string" else either((found, Condition(f"{name} < '0'")))
            case _:
                return None

    def settles(self, expr: Expr) -> bool:
        """Whether the text's condition alone says exactly which files match, and nothing is left to check."""
        match expr:
            case Compare(column, op, value):
                exact = op in ("=", "!=") and not isinstance(value, float)
            case In(column, values):
                exact = len(values) <= MAX_TEXTS and not isinstance(values[0], float)
            case IsNull(column) | Not(IsNull(column)):
                exact = True
            case _:
                return False
        slot = self.texts.get(column)
        if not exact or slot is None or slot.since:
            return False
        found = self._text(expr, slot, "")
        return found is not None and all(_is_plain(text) for text in found.params)

    # --- images

    def on_images(self, expr: Expr, column: Path, no_nan: frozenset[Path]) -> Condition | None:
        """The condition on the images of a column's bounds."""
        slot = self.images.get(column)
        if slot is None:
            return None
        found: Condition | None
        match expr:
            case IsNull():
                found = Condition("(f.no_nulls & ?) = 0", (1 << slot.slot,))
            case Not(IsNull()):
                found = Condition("(f.all_nulls & ?) = 0", (1 << slot.slot,))
            case In(_, values) if len(values) <= MAX_ALTERNATIVES:
                found = either(
                    self.within(slot, interval(Compare(column, "=", v), slot, no_nan)) for v in values
                )
            case Compare(_, "!=", value) if slot.encoding in _EXACT and fits(value, slot.encoding):
                low, high = f"f.s{slot.slot}_min", f"f.s{slot.slot}_max"
                image = encode(value, slot.encoding, slot.arg)
                found = Condition(
                    f"({low} IS NULL OR {high} IS NULL OR {low} <> ? OR {high} <> ?)", (image, image)
                )
            case _:
                found = self.within(slot, interval(expr, slot, no_nan))
        return None if found is None else _since(found, slot)

    def within(self, slot: Slot, span: tuple[int, int] | None) -> Condition | None:
        """Bounds that reach into an interval, or are not known."""
        if span is None:
            return None
        low, high = f"f.s{slot.slot}_min", f"f.s{slot.slot}_max"
        return both(
            (
                Condition(f"({high} IS NULL OR {high} >= ?)", (span[0],)) if span[0] > IMIN else None,
                Condition(f"({low} IS NULL OR {low} <= ?)", (span[1],)) if span[1] < IMAX else None,
            )
        )


def _bearable(conditions: Iterable[Condition | None]) -> Iterator[Condition]:
    """As many of some conditions as a database bears; without the others more files remain."""
    left = MAX_WEIGHT
    for condition in conditions:
        if condition is not None and condition.weight < left:
            left -= condition.weight + 1
            yield condition


def interval(expr: Expr, slot: Slot, no_nan: frozenset[Path]) -> tuple[int, int] | None:
    """The images that a value may have if a condition is true; None if it may be any."""
    match expr:
        case Compare(column, op, value) if value is not None and fits(value, slot.encoding):
            bounds = literal_bounds(value, slot.encoding)
            if bounds is None:
                return None
            low, high = (encode(b, slot.encoding, slot.arg) for b in bounds)
            match op:
                case "=":
                    return low, high
                case "<" | "<=":
                    return IMIN, high - (op == "<" and _steps(value, slot, high))
                case ">" | ">=":
                    if isinstance(value, float) and column not in no_nan:
                        return None
                    return low + (op == ">" and _steps(value, slot, low)), IMAX
                case _:
                    return None
        case In(column, values):
            spans = [interval(Compare(column, "=", v), slot, no_nan) for v in values]
            if None in spans or not spans:
                return None
            known = cast("list[tuple[int, int]]", spans)
            return min(s[0] for s in known), max(s[1] for s in known)
        case StartsWith(_, prefix) if slot.encoding == "string":
            return encode(prefix, "string", slot.arg), encode(successor(prefix), "string", slot.arg)
        case _:
            return None


def _steps(value: Value, slot: Slot, image: int) -> bool:
    """Whether the next value has the next image, so that a strict comparison may leave this one out."""
    inside = IMIN < image < IMAX
    return inside and slot.encoding in ("int", "date", "timestamp") and not isinstance(value, bool)


def _since(condition: Condition, slot: Slot) -> Condition:
    if not slot.since:
        return condition
    return Condition(f"(+f.add_version < ? OR ({condition.sql}))", (slot.since, *condition.params))


def _canonical(value: Any, slot: Slot) -> str | None:
    try:
        text = partition.canonical(partition.serialize(value, slot.encoding), slot.encoding)
    except ProtocolError:
        return None
    return None if text is None else slot_text(text)


def _is_plain(text: str) -> bool:
    """Whether no other value shares this text in the database, and it sorts there as the value does."""
    return "\x01" not in text


def _text_list(values: Sequence[Value], slot: Slot, name: str) -> Condition | None:
    texts = [_canonical(v, slot) for v in values]
    if None in texts or not texts:
        return None
    known = sorted(set(cast("list[str]", texts)))
    if len(known) > MAX_TEXTS:
        # every text of the list lies between the first and the last, whatever the type's own order
        return Condition(f"{name} BETWEEN ? AND ?", (known[0], known[-1]))
    return Condition(f"{name} IN ({', '.join('?' * len(known))})", tuple(known))
