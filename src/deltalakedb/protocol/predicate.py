"""Predicates as frozen values over column paths, and the normal form that pruning works on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.exceptions import PredicateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deltalakedb.protocol.schema import StructType

__all__ = [
    "FALSE",
    "NULL",
    "TRUE",
    "And",
    "Compare",
    "Constant",
    "Expr",
    "In",
    "IsNull",
    "Not",
    "Op",
    "Or",
    "Path",
    "StartsWith",
    "Unknown",
    "Value",
    "conjunction",
    "conjuncts",
    "disjunction",
    "map_columns",
    "normalize",
    "predicate_text",
    "referenced_columns",
    "to_physical",
]

Path: TypeAlias = tuple[str, ...]
Value: TypeAlias = int | float | Decimal | str | date | datetime | bool | bytes
Op: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "<=>"]


@dataclass(frozen=True, slots=True)
class And:
    """True where all operands are."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True where one operand is."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """SQL's three-valued NOT: null stays null."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Compare:
    """A column against a literal of the column's own type; ``<=>`` is equality that knows null."""

    column: Path
    op: Op
    value: Value | None


@dataclass(frozen=True, slots=True)
class In:
    """A column equals one of some values, none of them null."""

    column: Path
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column is null; never null itself."""

    column: Path


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A text column begins with a prefix."""

    column: Path
    prefix: str


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL, whatever the row."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that pruning cannot judge; a reader still applies it to the rows."""

    text: str


Expr: TypeAlias = And | Or | Not | Compare | In | IsNull | StartsWith | Constant | Unknown

TRUE = Constant(True)
FALSE = Constant(False)
NULL = Constant(None)

_COMPLEMENT: Mapping[Op, Op] = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def conjunction(operands: Iterable[Expr]) -> Expr:
    """All of some conditions; TRUE for none."""
    flat = tuple(_flat(operands, And))
    return TRUE if not flat else flat[0] if len(flat) == 1 else And(flat)


def disjunction(operands: Iterable[Expr]) -> Expr:
    """One of some conditions; FALSE for none."""
    flat = tuple(_flat(operands, Or))
    return FALSE if not flat else flat[0] if len(flat) == 1 else Or(flat)


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The conditions that must all hold."""
    return expr.operands if isinstance(expr, And) else (expr,)


def _flat(operands: Iterable[Expr], kind: type[And | Or]) -> Iterator[Expr]:
    for operand in operands:
        if isinstance(operand, kind):
            yield from _flat(operand.operands, kind)
        else:
            yield operand


def referenced_columns(expr: Expr) -> frozenset[Path]:
    """The columns that an expression names, as far as it is understood."""
    match expr:
        case And(operands) | Or(operands):
            return frozenset().union(*map(referenced_columns, operands))
        case Not(operand):
            return referenced_columns(operand)
        case Compare() | In() | IsNull() | StartsWith():
            return frozenset({expr.column})
        case _:
            return frozenset()


def map_columns(expr: Expr, rename: Callable[[Path], Path]) -> Expr:
    """The same expression over other column paths."""
    match expr:
        case And(operands):
            return And(tuple(map_columns(o, rename) for o in operands))
        case Or(operands):
            return Or(tuple(map_columns(o, rename) for o in operands))
        case Not(operand):
            return Not(map_columns(operand, rename))
        case Compare(column, op, value):
            return Compare(rename(column), op, value)
        case In(column, values):
            return In(rename(column), values)
        case IsNull(column):
            return IsNull(rename(column))
        case StartsWith(column, prefix):
            return StartsWith(rename(column), prefix)
        case _:
            return expr


def to_physical(expr: Expr, schema: StructType) -> Expr:
    """An expression over logical columns as one over the names in data files and statistics.

    Raises:
        PredicateError: A column is not in the schema.
    """

    def rename(path: Path) -> Path:
        physical = []
        for depth in range(1, len(path) + 1):
            if (found := schema.find(path[:depth])) is None:
                raise PredicateError(
                    f"the table has no column {'.'.join(path)!r}",
                    suggestion=f"the columns are: {', '.join(schema.names)}",
                )
            physical.append(found.physical_name)
        return tuple(physical)

    return map_columns(expr, rename)


def normalize(expr: Expr) -> Expr:
    """An expression that is TRUE for the same rows, with NOT pushed down to its leaves.

    Null and false are not told apart any more: only what may be true matters to a filter. NOT is left
    on `IsNull` and `StartsWith` alone. A negated ``>`` on floating point becomes `Unknown`, since engines
    differ on whether NaN is the greatest value or incomparable.
    """
    return _positive(expr)


def _positive(expr: Expr) -> Expr:
    match expr:
        case And(operands):
            return _all(_positive(o) for o in operands)
        case Or(operands):
            return _any(_positive(o) for o in operands)
        case Not(operand):
            return _negative(operand)
        case Compare(column, "<=>", None):
            return IsNull(column)
        case Compare(_, _, None):
            return FALSE
        case Compare(column, "<=>", value):
            return Compare(column, "=", value)
        case In(_, ()):
            return FALSE
        case In(column, (value,)):
            return Compare(column, "=", value)
        case Constant(value):
            return TRUE if value else FALSE
        case _:
            return expr


def _negative(expr: Expr) -> Expr:
    match expr:
        case And(operands):
            return _any(_negative(o) for o in operands)
        case Or(operands):
            return _all(_negative(o) for o in operands)
        case Not(operand):
            return _positive(operand)
        case Compare(column, "<=>", None):
            return Not(IsNull(column))
        case Compare(_, _, None):
            return FALSE
        case Compare(column, "<=>", value):
            return Or((Compare(column, "!=", value), IsNull(column)))
        case Compare(column, op, value):
            if isinstance(value, float) and op in (">", ">="):
                return Unknown(f"NOT {'.'.join(column)} {op} {value!r}")
            return Compare(column, _COMPLEMENT[op], value)
        case In(column, values):
            return _all(Compare(column, "!=", v) for v in values)
        case Constant(value):
            return TRUE if value is False else FALSE
        case Unknown(text):
            return Unknown(f"NOT ({text})")
        case _:
            return Not(expr)


def _all(operands: Iterable[Expr]) -> Expr:
    kept = [o for o in _flat(operands, And) if o != TRUE]
    return FALSE if FALSE in kept else conjunction(kept)


def _any(operands: Iterable[Expr]) -> Expr:
    kept = [o for o in _flat(operands, Or) if o != FALSE]
    return TRUE if TRUE in kept else disjunction(_lists(kept))


def _lists(alternatives: Iterable[Expr]) -> Iterator[Expr]:
    """The same alternatives, with values that one column may equal as one list."""
    values: dict[Path, dict[tuple[type, Value], None]] = {}
    for expr in alternatives:
        match expr:
            case Compare(column, "=", value) if value is not None:
                values.setdefault(column, {})[type(value), value] = None
            case In(column, several):
                values.setdefault(column, {}).update(dict.fromkeys((type(v), v) for v in several))
            case _:
                yield expr
    for column, found in values.items():
        known = tuple(value for _, value in found)
        yield Compare(column, "=", known[0]) if len(known) == 1 else In(column, known)


#: values of an IN list that are shown
_SHOWN = 5


def predicate_text(expr: Expr) -> str:
    """A predicate as SQL would write it; long lists of values are cut.

    Example:
        >>> predicate_text(Compare(("id",), ">=", 5))
        'id >= 5'
    """
    match expr:
        case And(operands):
            return " AND ".join(_inner(o) for o in operands)
        case Or(operands):
            return " OR ".join(_inner(o) for o in operands)
        case Not(IsNull(column)):
            return f"{_name(column)} IS NOT NULL"
        case Not(operand):
            return f"NOT ({predicate_text(operand)})"
        case Compare(column, op, value):
            return f"{_name(column)} {op} {_literal(value)}"
        case In(column, values):
            more = ", …" if len(values) > _SHOWN else ""
            return f"{_name(column)} IN ({', '.join(map(_literal, values[:_SHOWN]))}{more})"
        case IsNull(column):
            return f"{_name(column)} IS NULL"
        case StartsWith(column, prefix):
            return f"{_name(column)} LIKE {_literal(prefix + '%')}"
        case Constant(value):
            return _literal(value)
        case Unknown(text):
            return text


def _inner(expr: Expr) -> str:
    text = predicate_text(expr)
    return f"({text})" if isinstance(expr, And | Or | Unknown) else text


def _name(column: Path) -> str:
    return ".".join(part if part.isidentifier() else f"`{part.replace('`', '``')}`" for part in column)


def _literal(value: Value | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, str | date | datetime):
        return "'" + str(value).replace("'", "''") + "'"
    return str(value)
