"""Predicates as SQL text, for people to read."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

from deltalakedb.protocol.predicate import And, Compare, Constant, In, IsNull, Not, Or, StartsWith, Unknown

if TYPE_CHECKING:
    from deltalakedb.protocol.predicate import Expr, Path, Value

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
