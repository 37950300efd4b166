"""Literals meet columns: a comparison is kept exact, loosened to a sure superset, or left unknown.

Engines coerce differently (DataFusion compares a long with ``1.5`` as doubles, Spark as decimals, and a text
with a number in yet another way), so only what means the same everywhere is pruned on:

========================  =====================================================================
column                    literals that are understood
========================  =====================================================================
byte, short, integer,     integers; fractions become the neighbouring integers. Beyond what a
long                      double or 64 bits hold exactly: a slightly wider range, rows rechecked
float, double             every number, as the nearest double
decimal                   integers; fractions while column and literal have at most 15 digits,
                          else a slightly wider range, rows rechecked
string                    text
date                      dates, text ``YYYY-MM-DD``, timestamps at midnight
timestamp                 timestamps (without a zone: UTC), dates, ISO 8601 text
timestamp_ntz             the same without a zone
boolean                   TRUE and FALSE
binary                    bytes
========================  =====================================================================

Everything else (a text against a long, a number against a text) is `Unknown`.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeAlias

from deltalakedb.protocol.predicate import (
    NULL,
    And,
    Compare,
    Expr,
    In,
    IsNull,
    Op,
    Or,
    Path,
    Unknown,
    Value,
    disjunction,
)
from deltalakedb.protocol.schema import FLOATS, INTEGERS, DataType, PrimitiveType

if TYPE_CHECKING:
    from collections.abc import Sequence


#: what a query may say; typed by its own form, not yet by the column
LiteralValue: TypeAlias = Value | None

_EXACT_INT: Final = 2**53  # a double holds every integer up to here
_EXACT_DIGITS: Final = 15  # a double distinguishes all decimals of so many digits
_SLACK: Final = Fraction(1, 2**50)  # wider than any rounding of a double
_LONGEST: Final = 400  # digits and exponent of a number; exact arithmetic on larger ones takes unbounded time
_WHOLE: Final = re.compile(r"[+-]?\d{1,19}")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?)?\s?(Z|[+-]\d\d:?\d\d)?"
)


def compare(column: Path, kind: DataType, op: Op, value: LiteralValue, text: str) -> Expr:
    """A comparison of a column with a literal, in the column's own type; None is SQL's NULL.

    ``text`` is the condition's text, shown if it cannot be used.
    """
    unknown = Unknown(text)
    if value is None:
        return IsNull(column) if op == "<=>" else NULL
    if op == "<=>":
        equal = compare(column, kind, "=", value, text)
        if isinstance(equal, Compare):
            return Compare(column, "<=>", equal.value)
        # the unknown part keeps a negation from being judged by the comparison alone
        return equal if equal == unknown else And((equal, unknown))
    if not isinstance(kind, PrimitiveType) or isinstance(value, bool) != (kind.name == "boolean"):
        return unknown
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _compare_number(column, kind, op, value, unknown)
    typed = _typed(kind.name, value)
    return unknown if typed is None else Compare(column, op, typed)


def in_list(column: Path, kind: DataType, values: Sequence[LiteralValue], text: str) -> Expr:
    """``column IN (values)``; a NULL among the values makes everything else null."""
    equal = [compare(column, kind, "=", v, text) for v in values if v is not None]
    plain = [e.value for e in equal if isinstance(e, Compare) and e.value is not None]
    found = In(column, tuple(plain)) if plain and len(plain) == len(equal) else disjunction(equal)
    return Or((found, NULL)) if len(equal) < len(values) else found


def coerce_to_column(kind: DataType, value: LiteralValue) -> LiteralValue:
    """A literal in the type of its column, as partition values are read; what does not fit stays as it is."""
    name = kind.name if isinstance(kind, PrimitiveType) else ""
    if name == "string" and isinstance(value, int | Decimal):
        return str(value).lower()
    if name in INTEGERS and isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    return value


def is_oversized(value: Decimal) -> bool:
    """Whether a number has more digits, or a larger exponent, than any column can hold."""
    return abs(value.adjusted()) > _LONGEST or len(value.as_tuple().digits) > _LONGEST


def parse_timestamp(text: str) -> datetime | None:
    """A date or timestamp of ISO 8601, aware if it names a zone; None for other text or below µs."""
    if (found := _TIMESTAMP.fullmatch(text.strip())) is None:
        return None
    day, minute, second, fraction, zone = found.groups(default="")
    if len(fraction.rstrip("0")) > 6:
        return None
    try:
        return datetime.fromisoformat(f"{day}T{minute or '00:00'}{second or ':00'}.{fraction or '0'}{zone}")
    except ValueError:
        return None


def parse_date(text: str) -> date | None:
    """A date written as ``YYYY-MM-DD``; None for other text."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _typed(kind: str, value: Value) -> Value | None:
    match kind, value:
        case ("string", str()) | ("binary", bytes()) | ("boolean", bool()):
            return value
        case "date", datetime():
            return value.date() if value.tzinfo is None and value.time() == time() else None
        case "date", date():
            return value
        case "date", str():
            return parse_date(value)
        case (("timestamp" | "timestamp_ntz"), (str() | date())):
            moment = parse_timestamp(value) if isinstance(value, str) else value
            if isinstance(moment, date) and not isinstance(moment, datetime):
                moment = datetime.combine(moment, time())
            return None if moment is None else _timestamp(kind, moment)
    return None


def _timestamp(kind: str, moment: datetime) -> datetime | None:
    if kind == "timestamp_ntz":
        return moment if moment.tzinfo is None else None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        return None


def _compare_number(
    column: Path, kind: PrimitiveType, op: Op, value: float | Decimal, unknown: Unknown
) -> Expr:
    if isinstance(value, Decimal) and is_oversized(value):
        return unknown
    if kind.name in FLOATS:
        try:
            return Compare(column, op, float(value))
        except OverflowError:
            return unknown
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return unknown
    if kind.name in INTEGERS:
        if -_EXACT_INT < value < _EXACT_INT or (isinstance(value, int) and -(2**63) <= value < 2**63):
            return _beside_integers(column, op, Fraction(value))
        return _about(column, op, Fraction(value), unknown, integral=True)
    if (decimal := kind.decimal) is not None:
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        digits = max(decimal[0], len(exact.as_tuple().digits))
        if isinstance(value, int) or digits <= _EXACT_DIGITS:
            return Compare(column, op, exact)
        return _about(column, op, Fraction(exact), unknown, integral=False)
    return unknown


def _beside_integers(column: Path, op: Op, value: Fraction) -> Expr:
    below, above = math.floor(value), math.ceil(value)
    if below == above:
        return Compare(column, op, below)
    least, most = Compare(column, "<=", below), Compare(column, ">=", above)
    if op == "=":  # nothing is between the two, and null stays null
        return And((Compare(column, ">", below), Compare(column, "<", above)))
    return Or((least, most)) if op == "!=" else least if op in ("<", "<=") else most


def _about(column: Path, op: Op, value: Fraction, unknown: Unknown, *, integral: bool) -> Expr:
    def side(end: Fraction, rounding: str) -> int | Decimal:
        if integral:
            return math.floor(end) if rounding == ROUND_FLOOR else math.ceil(end)
        context = Context(prec=100, rounding=rounding)
        return context.divide(Decimal(end.numerator), Decimal(end.denominator))

    slack = abs(value) * _SLACK
    least = Compare(column, ">=", side(value - slack, ROUND_FLOOR))
    most = Compare(column, "<=", side(value + slack, ROUND_CEILING))
    sides = {"=": (least, most), "<": (most,), "<=": (most,), ">": (least,), ">=": (least,)}.get(op)
    return And((*sides, unknown)) if sides else unknown
