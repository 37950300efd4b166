"""Predicates from filters in disjunctive normal form: lists of ``(column, op, value)``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.exceptions import PredicateError, ProtocolError
from deltalakedb.protocol import literals, partition
from deltalakedb.protocol.predicate import (
    TRUE,
    Expr,
    IsNull,
    Not,
    Op,
    Or,
    Path,
    Unknown,
    conjunction,
    disjunction,
)
from deltalakedb.protocol.schema import PrimitiveType, StructType

if TYPE_CHECKING:
    from deltalakedb.protocol.schema import DataType

__all__ = ["Filters", "from_dnf"]

_Condition: TypeAlias = tuple[str, str, Any]
Filters: TypeAlias = Sequence[_Condition] | Sequence[Sequence[_Condition]]

_OPS: Final[dict[str, Op]] = {
    "=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip


def from_dnf(filters: Filters | None, schema: StructType) -> Expr:
    """A predicate from filters as pyarrow and deltalake take them.

    Args:
        filters: ``[(column, op, value), …]`` for conditions that must all hold, or a list of such lists of
            which one must. The operators are ``= == != < <= > >= in`` and ``not in``. A text may stand for a
            value of another type, as partition values do; None and an empty text stand for null.
        schema: The table's schema.

    Raises:
        PredicateError: A filter of another shape, an operator or a column that does not exist.

    Example:
        >>> from_dnf([("day", ">=", "2024-01-01"), ("id", "in", [1, 2])], schema)  # doctest: +SKIP
    """
    if filters is None:
        return TRUE
    given: Any = filters
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _bad_filter(given)
    if not filters:
        return TRUE
    if all(isinstance(f, list) for f in filters):
        return disjunction(
            conjunction(_condition(c, schema) for c in group) if group else TRUE for group in filters
        )
    return conjunction(_condition(c, schema) for c in filters)


def _bad_filter(found: object) -> PredicateError:
    return PredicateError(
        f"{found!r} is not a filter",
        suggestion='write (column, op, value), as ("id", ">", 5); op is one of = != < <= > >= in, not in',
    )


def _condition(found: Any, schema: StructType) -> Expr:
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != 3:
        raise _bad_filter(found)
    name, op, value = found
    if not isinstance(name, str) or not isinstance(op, str):
        raise _bad_filter(found)
    path, kind = _resolve(name, schema)
    op = " ".join(op.lower().split())
    if op in ("in", "not in"):
        if isinstance(value, str) or not isinstance(value, Collection):
            raise _bad_filter(found)
        member = disjunction(_compare(path, kind, "=", v) for v in value)
        # to pyarrow a null is in no list, and so it is not in every one
        return member if op == "in" else Or((Not(member), IsNull(path)))
    if op not in _OPS:
        raise _bad_filter(found)
    return _compare(path, kind, _OPS[op], value)


def _resolve(name: str, schema: StructType) -> tuple[Path, DataType]:
    parts = (name,) if schema.field(name) is not None else tuple(name.split("."))
    path: list[str] = []
    kind: DataType = schema
    for part in parts:
        field = kind.field(part) if isinstance(kind, StructType) else None
        if field is None:
            raise PredicateError(
                f"the table has no column {name!r}",
                suggestion=f"the columns are: {', '.join(schema.names)}",
            )
        path.append(field.name)
        kind = field.type
    return tuple(path), kind


def _compare(path: Path, kind: DataType, op: Op, value: Any) -> Expr:
    text = f"{'.'.join(path)} {op} {value!r}"
    if isinstance(value, str) and value and isinstance(kind, PrimitiveType) and kind.name != "string":
        try:
            value = partition.parse(value, kind)
        except ProtocolError:
            return Unknown(text)
    if value is None or value == "":
        # null by the rules of partition values; an empty text may also be meant as itself
        if op == "!=":
            return Not(IsNull(path))
        return (
            IsNull(path) if value is None else Or((IsNull(path), literals.compare(path, kind, op, "", text)))
        )
    if not isinstance(value, int | float | str | bytes | Decimal | date):
        return Unknown(text)
    return literals.compare(path, kind, op, value, text)
