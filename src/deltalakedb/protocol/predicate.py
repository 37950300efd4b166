"""Predicates as frozen values over column paths, and the normal form that pruning works on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.exceptions import PredicateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deltalakedb.protocol.schema import StructType

Path: TypeAlias = tuple[str, ...]
Value: TypeAlias = int | float | Decimal | str | date | datetime | bool | bytes
Op: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "<=>"]


@dataclass(frozen=True, slots=True)
class And:
    """True if all operands are."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if one operand is."""

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
        case And(operands) | Or(operands):
            return type(expr)(tuple(map_columns(o, rename) for o in operands))
        case Not(operand):
            return Not(map_columns(operand, rename))
        case Compare() | In() | IsNull() | StartsWith():
            return replace(expr, column=rename(expr.column))
        case _:
            return expr


def part_about(expr: Expr, alias: str) -> Expr | None:
    """Of a condition over two aliased tables, the part that concerns one of them alone; None for no part.

    Only rows of that table for which it is true can match.
    """
    mine = [
        map_columns(part, lambda path: path[1:])
        for part in conjuncts(expr)
        if not isinstance(part, Unknown)
        and (columns := referenced_columns(part))
        and all(len(c) > 1 and c[0] == alias for c in columns)
    ]
    return conjunction(mine) if mine else None


def no_column(name: str, schema: StructType) -> PredicateError:
    return PredicateError(
        f"the table has no column {name!r}", suggestion=f"the columns are: {', '.join(schema.names)}"
    )


def to_physical(expr: Expr, schema: StructType) -> Expr:
    """An expression over logical columns as one over the names in data files and statistics.

    Raises:
        PredicateError: A column is not in the schema.
    """

    def rename(path: Path) -> Path:
        if not (fields := schema.fields_at(path)):
            raise no_column(".".join(path), schema)
        return tuple(field.physical_name for field in fields)

    return map_columns(expr, rename)


def normalize(expr: Expr, *, negated: bool = False) -> Expr:
    """An expression that is TRUE for the same rows, with NOT pushed down to its leaves.

    Null and false are no longer distinguished: only what may be true matters to a filter. NOT is left
    on `IsNull` and `StartsWith` alone. A negated ``>`` on floating point becomes `Unknown`, since engines
    differ on whether NaN is the greatest value or incomparable.
    """
    match expr:
        case And(operands) | Or(operands):
            join = _all if isinstance(expr, And) != negated else _any
            return join(normalize(o, negated=negated) for o in operands)
        case Not(operand):
            return normalize(operand, negated=not negated)
        case Compare(column, "<=>", None):
            return Not(IsNull(column)) if negated else IsNull(column)
        case Compare(_, _, None):
            return FALSE
        case Constant(value):
            return TRUE if value is not negated and value is not None else FALSE
    return _negated(expr) if negated else _positive(expr)


def _positive(expr: Expr) -> Expr:
    match expr:
        case Compare(column, "<=>", value) | In(column, (value,)):
            return Compare(column, "=", value)
        case In(_, ()):
            return FALSE
    return expr


def _negated(expr: Expr) -> Expr:
    match expr:
        case Compare(column, "<=>", value):
            return Or((Compare(column, "!=", value), IsNull(column)))
        case Compare(column, ">" | ">=" as op, float() as value):
            return Unknown(f"NOT {'.'.join(column)} {op} {value!r}")
        case Compare(column, op, value):
            return Compare(column, _COMPLEMENT[op], value)
        case In(column, values):
            return _all(Compare(column, "!=", v) for v in values)
        case Unknown(text):
            return Unknown(f"NOT ({text})")
    return Not(expr)


def _all(operands: Iterable[Expr]) -> Expr:
    kept = [o for o in _flat(operands, And) if o != TRUE]
    return FALSE if FALSE in kept else conjunction(kept)


def _any(operands: Iterable[Expr]) -> Expr:
    kept = [o for o in _flat(operands, Or) if o != FALSE]
    return TRUE if TRUE in kept else disjunction(_merge_equalities(kept))


def _merge_equalities(alternatives: Iterable[Expr]) -> Iterator[Expr]:
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
        yield _positive(In(column, tuple(value for _, value in found)))


#: values of an IN list that are shown
_SHOWN = 5


def predicate_text(expr: Expr) -> str:
    """A predicate as SQL would write it; long lists of values are cut.

    Example:
        >>> predicate_text(Compare(("id",), ">=", 5))
        'id >= 5'
    """
    match expr:
        case And(operands) | Or(operands):
            return f" {type(expr).__name__.upper()} ".join(_inner(o) for o in operands)
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
