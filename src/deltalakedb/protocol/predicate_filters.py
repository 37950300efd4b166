"""Predicates from Python: filters in disjunctive normal form and pyarrow expressions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from deltalakedb.exceptions import PredicateError, ProtocolError
from deltalakedb.protocol import literals, partition, substrait
from deltalakedb.protocol.predicate import (
    TRUE,
    And,
    Compare,
    Constant,
    Expr,
    IsNull,
    Not,
    Op,
    Or,
    Path,
    StartsWith,
    Unknown,
    conjunction,
    disjunction,
)
from deltalakedb.protocol.schema import PrimitiveType, StructType
from deltalakedb.protocol.substrait import Call, FieldRef, ListTest, Node, Scalar

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from deltalakedb.protocol.literals import LiteralValue
    from deltalakedb.protocol.schema import DataType

__all__ = ["Filters", "from_arrow_expression", "from_dnf"]

_Condition: TypeAlias = tuple[str, str, Any]
Filters: TypeAlias = Sequence[_Condition] | Sequence[Sequence[_Condition]]

_OPS: Final[dict[str, Op]] = {
    "=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_CALLS: Final[dict[str, Op]] = {
    "equal": "=", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">=",
}  # fmt: skip
#: pyarrow's Substrait doubles in size with each level
_MOST_NESTED: Final = 12
_FLIPPED: Final[dict[Op, Op]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


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


def from_arrow_expression(expr: pc.Expression, arrow_schema: pa.Schema, schema: StructType) -> Expr:
    """A predicate from a pyarrow expression, read through Substrait.

    Args:
        expr: The expression, over the columns of ``arrow_schema``.
        arrow_schema: The Arrow schema that the expression is meant for.
        schema: The table's schema.

    Returns:
        The predicate; what Substrait or this reader cannot express is `Unknown`.
    """
    text = str(expr)
    if _depth(text) > _MOST_NESTED:
        return Unknown(text)
    # Substrait has no safe casts: against doubles, 32-bit columns need none
    for candidate in (arrow_schema, _with_doubles(arrow_schema)):
        try:
            node = substrait.read_expression(bytes(expr.to_substrait(candidate)))
        except (pa.ArrowException, ValueError, TypeError, RecursionError):
            continue
        return _ArrowReader(arrow_schema, schema, text).condition(node)
    return Unknown(text)


def _depth(text: str) -> int:
    """How deeply an expression is nested at most, going by its text."""
    depth = deepest = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    return deepest


def _with_doubles(arrow_schema: pa.Schema) -> pa.Schema:
    single, double = pa.float32(), pa.float64()
    return pa.schema([f.with_type(double) if f.type == single else f for f in arrow_schema])


class _ArrowReader:
    """Turns Substrait's nodes into expressions; columns are found by name in the table's schema."""

    def __init__(self, arrow_schema: pa.Schema, schema: StructType, text: str) -> None:
        self.arrow_schema = arrow_schema
        self.schema = schema
        self.text = text

    def condition(self, node: Node) -> Expr:
        match node:
            case Call("and", arguments):
                return conjunction(self.condition(a) for a in arguments)
            case Call("or", arguments):
                return disjunction(self.condition(a) for a in arguments)
            case Call("not", (argument,)):
                return Not(self.condition(argument))
            case Call(("is_null" | "is_not_null") as name, (FieldRef() as ref,)):
                found = self.column(ref)
                null = Unknown(self.text) if found is None else IsNull(found[0])
                return null if name == "is_null" else Not(null)
            case Call("starts_with", (FieldRef() as ref, Scalar(str() as prefix)), options):
                found = self.column(ref)
                plain = found is not None and found[1] == PrimitiveType("string")
                if found is None or not plain or "CASE_INSENSITIVE" in (value for _, value in options):
                    return Unknown(self.text)
                return StartsWith(found[0], prefix)
            case Call(name, (FieldRef() as ref, Scalar(value))) if name in _CALLS:
                return self.compare(ref, _CALLS[name], value)
            case Call(name, (Scalar(value), FieldRef() as ref)) if name in _CALLS:
                return self.compare(ref, _FLIPPED.get(_CALLS[name], _CALLS[name]), value)
            case ListTest(FieldRef() as ref, options):
                return self.member(ref, options)
            case FieldRef():
                found = self.column(node)
                boolean = found is not None and found[1] == PrimitiveType("boolean")
                return Compare(found[0], "=", True) if found is not None and boolean else Unknown(self.text)
            case Scalar(True | False | None as value):
                return Constant(value)
            case _:
                return Unknown(self.text)

    def column(self, ref: FieldRef) -> tuple[Path, DataType] | None:
        """The table's column that a reference means, if it has the same name and place there."""
        names: list[str] = []
        here: Any = self.arrow_schema
        for index in ref.indices:
            if not 0 <= index < (len(here) if isinstance(here, pa.Schema) else here.num_fields):
                return None
            field = here.field(index)
            names.append(field.name)
            here = field.type
        path: list[str] = []
        kind: DataType = self.schema
        for name in names:
            found = kind.field(name) if isinstance(kind, StructType) else None
            if found is None or found.name != name:
                return None
            path.append(name)
            kind = found.type
        return tuple(path), kind

    def compare(self, ref: FieldRef, op: Op, value: LiteralValue) -> Expr:
        found = self.column(ref)
        return Unknown(self.text) if found is None else literals.compare(*found, op, value, self.text)

    def member(self, ref: FieldRef, options: Sequence[Node]) -> Expr:
        found = self.column(ref)
        values = [o.value for o in options if isinstance(o, Scalar)]
        if found is None or len(values) != len(options):
            return Unknown(self.text)
        path, kind = found
        test = literals.member(path, kind, [v for v in values if v is not None], self.text)
        # Arrow's is_in is never null: a null is in a list only where the list names it
        inside: Expr = And((test, Not(IsNull(path))))
        if None in values:
            # and options that Substrait drops may keep it out even then
            inside = Or((inside, And((IsNull(path), Unknown(self.text)))))
        return inside
