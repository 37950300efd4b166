"""Predicates from SQL and from lists of tuples; a condition that is not understood is `Unknown`, alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from deltalakedb.exceptions import PredicateError, ProtocolError
from deltalakedb.protocol import literals, partition
from deltalakedb.protocol.predicate import (
    NULL,
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
    no_column,
)
from deltalakedb.protocol.schema import DataType, PrimitiveType, StructField, StructType

if TYPE_CHECKING:
    from deltalakedb.protocol.literals import LiteralValue

_Condition: TypeAlias = tuple[str, str, Any]
Filters: TypeAlias = Sequence[_Condition] | Sequence[Sequence[_Condition]]

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<open>/\*)
  | (?P<bytes>[xX]'[^']*')
  | (?P<string>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<word>[^\W\d][\w$]*)
  | (?P<op><=>|<>|!=|<=|>=|==|::|\|\||->>?|!~\*?|~\*?|[=<>()+\-*/%,.\[\]&|^\#@])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMPARE: Final[dict[str, Op]] = {
    "=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>",
}  # fmt: skip
_FLIPPED: Final[dict[Op, Op]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: operators whose results are not computed
_OPAQUE: Final = ("+", "-", "*", "/", "%", "||", "&", "|", "^", "#", "->", "->>", "@", "~", "~*", "!~", "!~*")
_PATTERNS: Final = ("LIKE", "ILIKE", "SIMILAR", "RLIKE", "REGEXP")
_TESTS: Final = ("IS", "NOT", "IN", "BETWEEN", *_PATTERNS)
_RESERVED: Final = frozenset({"AND", "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE"})
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
#: words before a text that make it a value of a type; None for types that no column is compared with
_TYPED: Final = {
    "DATE": "DATE", "TIMESTAMP": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": None, "TIMESTAMP_LTZ": None, "INTERVAL": None, "TIME": None,
}  # fmt: skip
#: bits of each type; engines differ on what becomes of a value that does not fit
_INTEGERS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "INTEGER": 32, "BIGINT": 64, "LONG": 64}
_DECIMALS: Final = ("DECIMAL", "NUMERIC")
_FROM_TEXT: Final[dict[str, Callable[[str], LiteralValue]]] = {
    "DATE": lambda text: literals.parse_date(text.strip()),
    "TIMESTAMP": literals.parse_timestamp,
    **dict.fromkeys(("VARCHAR", "STRING", "TEXT"), str),
}
_STRING: Final = PrimitiveType("string")


def parse_predicate(text: str, schema: StructType, *, files_only: bool = False) -> Expr:
    """Parse a SQL predicate over the schema's columns, as in a WHERE clause.

    Unquoted names match without regard to case if no exact one exists. With ``files_only`` the predicate
    selects files and no engine applies it to rows: then a literal is read in the type of its column, as
    partition values are, such as a number as text if the column is of type string.

    Raises:
        PredicateError: The text is not SQL, or it names a column that the table does not have.

    Example:
        >>> parse_predicate("id > 5 AND upper(name) = 'X'", schema)  # doctest: +SKIP
        And(operands=(Compare(column=('id',), op='>', value=5), Unknown(text="upper(name) = 'X'")))
    """
    try:
        return _Parser(text, schema, files_only).predicate()
    except RecursionError:
        raise _error(text, 0, "the predicate is nested too deeply") from None


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int
    #: an operator, a word in capitals, or the quotation mark of a text or name
    key: str = ""


def _tokenize(text: str) -> list[_Token]:
    """The tokens of a predicate, with an end token last."""
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        if (match := _TOKEN.match(text, at)) is None:
            is_quote = text[at] in "'\"`"
            raise _error(text, at, "a quote that is never closed" if is_quote else "unexpected character")
        start, at, kind, piece, key = at, match.end(), match.lastgroup or "", match[0], match[0].upper()
        if kind == "open":
            raise _error(text, start, "a comment that is never closed")
        if kind in ("string", "quoted"):
            key = piece[0]
            piece = piece[1:-1].replace(key * 2, key)
        if kind != "space":
            tokens.append(_Token(kind, piece, start, at, key))
    return [*tokens, _Token("end", "", at, at)]


def _error(text: str, position: int, what: str, suggestion: str | None = None) -> PredicateError:
    shown = text[max(0, position - 30) : position] + "▸" + text[position : position + 30]
    return PredicateError(
        f"{what} at position {position}: {shown}",
        suggestion=suggestion or "write it as SQL, for example: id > 5 AND name = 'x'",
        position=position,
    )


@dataclass(frozen=True, slots=True)
class _Column:
    path: Path
    type: DataType


@dataclass(frozen=True, slots=True)
class _Literal:
    value: LiteralValue


#: what a piece of the text means; a value that is not understood is `Unknown`, as a condition is
_Node: TypeAlias = _Column | _Literal | Expr


class _Parser:
    """A recursive descent parser. ``start`` is the index of the token that a condition begins with."""

    def __init__(self, text: str, schema: StructType, files_only: bool) -> None:
        self.text, self.schema, self.files_only = text, schema, files_only
        self.tokens, self.at = _tokenize(text), 0

    # --- tokens

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.next
        self.at += token.kind != "end"
        return token

    def accept(self, *keys: str) -> str:
        """Take one of these words or operators if it comes next."""
        return self.take().key if self.next.key in keys else ""

    def expect(self, key: str) -> None:
        if not self.accept(key):
            raise self.error(f"expected {key!r}")

    def skip(self, start: int, opening: str = "(", closing: str = ")") -> Unknown:
        """Skip to the end of what is open; everything since a token is unknown then."""
        depth = 1
        while depth:
            if self.next.kind == "end":
                raise self.error(f"expected {closing!r}")
            depth += {opening: 1, closing: -1}.get(self.take().key, 0)
        return self.unknown(start)

    def error(self, what: str, token: _Token | None = None, suggestion: str | None = None) -> PredicateError:
        return _error(self.text, (token or self.next).start, what, suggestion)

    def unknown(self, start: int) -> Unknown:
        """Everything since a token, as a condition that cannot be judged."""
        return Unknown(self.text[self.tokens[start].start : self.tokens[self.at - 1].end])

    # --- logic

    def predicate(self) -> Expr:
        if self.next.kind == "end":
            raise self.error("the predicate is empty")
        expr = self.as_condition(self.any_of(), 0)
        if self.next.kind != "end":
            raise self.error("the predicate should end here")
        return expr

    def as_condition(self, node: _Node, start: int) -> Expr:
        match node:
            case _Column(path, PrimitiveType("boolean")):
                return Compare(path, "=", True)
            case _Literal(bool() | None as value):
                return Constant(value)
            case _Column() | _Literal():
                raise self.error("a condition is needed here, not a value", self.tokens[start])
        return node

    def any_of(self) -> _Node:
        return self.joined("OR", disjunction, partial(self.joined, "AND", conjunction, self.negation))

    def joined(self, word: str, join: Callable[[list[Expr]], Expr], operand: Callable[[], _Node]) -> _Node:
        start = self.at
        node = operand()
        operands: list[Expr] = []
        while self.next.key == word:
            operands.append(self.as_condition(node, start))
            self.take()
            start = self.at
            node = operand()
        return join([*operands, self.as_condition(node, start)]) if operands else node

    def negation(self) -> _Node:
        start = self.at + 1
        return Not(self.as_condition(self.negation(), start)) if self.accept("NOT") else self.comparison()

    # --- comparisons

    def comparison(self) -> _Node:
        start = self.at
        node = self.operand()
        while True:
            if op := self.accept(*_COMPARE):
                node = self.compare(node, _COMPARE[op], self.operand(), start)
            elif self.next.key in _TESTS:
                test = self.is_test if self.accept("IS") else self.membership
                negated = self.accept("NOT")
                found = test(node, start)
                node = Not(found) if negated else found
            else:
                return node

    def compare(self, left: _Node, op: Op, right: _Node, start: int) -> Expr:
        unknown = self.unknown(start)
        match left, right:
            case _Column(path, kind), _Literal(value):
                value = literals.coerce_to_column(kind, value) if self.files_only else value
                return literals.compare(path, kind, op, value, unknown.text)
            case _Literal(), _Column():
                return self.compare(right, _FLIPPED.get(op, op), left, start)
            case _Literal(a), _Literal(b) if a is None or b is None:
                return Constant(a is b) if op == "<=>" else NULL
            case _Literal(int() | str() as a), _Literal(b) if type(a) is type(b):
                if op in ("=", "<=>", "!="):
                    return Constant((a == b) == (op != "!="))
        return unknown

    def is_test(self, node: _Node, start: int) -> Expr:
        token = self.take()
        if token.key == "DISTINCT":
            self.expect("FROM")
            return Not(self.compare(node, "<=>", self.operand(), start))
        if token.key not in ("NULL", "UNKNOWN", "TRUE", "FALSE"):
            raise self.error("expected NULL, TRUE, FALSE or DISTINCT FROM", token)
        unknown, wanted = self.unknown(start), _CONSTANTS.get(token.key)
        match node, wanted:
            case _Literal(value), _:
                return Constant(value is wanted)
            case _Column(path, _), None:
                return IsNull(path)
            case _Column(path, PrimitiveType("boolean")), _:
                return Compare(path, "<=>", wanted)
            case (_Column() | Unknown(), _) | (_, None):
                return unknown
        # true for the same rows; the unknown part keeps a NOT around it from being judged
        condition = self.as_condition(node, start)
        return And((condition if wanted else Not(condition), unknown))

    def membership(self, node: _Node, start: int) -> Expr:
        match (token := self.take()).key:
            case "IN":
                return self.in_list(node, start)
            case "BETWEEN":
                symmetric = self.accept("SYMMETRIC")
                low = self.operand()
                self.expect("AND")
                high = self.operand()
                if symmetric:
                    return self.unknown(start)
                return And((self.compare(node, ">=", low, start), self.compare(node, "<=", high, start)))
            case word if word in _PATTERNS:
                if word == "SIMILAR":
                    self.expect("TO")
                pattern = self.operand()
                escape = self.operand() if self.accept("ESCAPE") else _Literal(None)
                unknown = self.unknown(start)
                if word == "LIKE" and isinstance(node, _Column) and node.type == _STRING:
                    match pattern, escape:
                        case _Literal(None), _:
                            return NULL
                        case _Literal(str() as text), _Literal(None | str() as mark):
                            return _like(node.path, text, mark, unknown)
                return unknown
        raise self.error("expected IN, BETWEEN or LIKE", token)

    def in_list(self, node: _Node, start: int) -> Expr:
        self.expect("(")
        if self.next.key in ("SELECT", "WITH"):
            return self.skip(start)
        items: list[_Node] = []
        while not self.accept(")"):
            if items:
                self.expect(",")
            items.append(self.operand())
        unknown = self.unknown(start)
        values = [i.value for i in items if isinstance(i, _Literal)]
        if not isinstance(node, _Column) or len(values) < len(items):
            return unknown
        if self.files_only:
            values = [literals.coerce_to_column(node.type, v) for v in values]
        # all numbers are of one family, booleans of their own
        families = {Decimal if type(v) in (int, float) else type(v) for v in values if v is not None}
        if len(families) > 1:
            return unknown  # engines turn all values into one type, each in its own way
        found = literals.in_list(node.path, node.type, values, unknown.text)
        if node.type != _STRING and any(isinstance(v, str) for v in values):
            # some engines compare the texts: equal texts are equal values, but others may be equal too
            return And((found, unknown))
        return found

    # --- values: only a column or a literal that stands alone is understood

    def operand(self) -> _Node:
        start = self.at
        node = self.unary()
        while self.accept(*_OPAQUE):
            self.unary()
            node = self.unknown(start)
        return node

    def unary(self) -> _Node:
        """A value with signs, casts and subscripts."""
        start = self.at
        if sign := self.accept("-", "+"):
            match self.unary():
                case _Literal(Decimal() as value) if sign == "-":
                    return _Literal(value.copy_negate())  # Decimal's own minus rounds
                case _Literal(int() | float() | Decimal() as value):
                    return _Literal(value if sign == "+" else -value)
            return self.unknown(start)
        node = self.primary()
        while mark := self.accept("::", "["):
            node = self.cast(node, start) if mark == "::" else self.subscript(node, start)
        return node

    def primary(self) -> _Node:
        """A literal, a column, a function call or something in parentheses."""
        start = self.at
        token = self.take()
        match token.kind:
            case "number":
                with suppress(ArithmeticError):
                    number = Decimal(token.text)
                    if not literals.is_oversized(number):
                        return _Literal(int(token.text) if token.text.isdigit() else number)
                return self.unknown(start)
            case "string":
                return _Literal(token.text)
            case "bytes":
                try:
                    return _Literal(bytes.fromhex(token.text[2:-1]))
                except ValueError:
                    raise self.error("not hexadecimal", token) from None
            case "quoted":
                return self.column(token, start)
            case "word" if token.key not in _RESERVED:
                return self.named(token, start)
            case "op" if token.key == "(":
                if self.next.key not in ("SELECT", "WITH"):
                    node = self.any_of()
                    if not self.accept(","):
                        self.expect(")")
                        return node
                return self.skip(start)
        raise self.error("expected a column or a literal", token)

    def named(self, token: _Token, start: int) -> _Node:
        """What a bare word begins."""
        if token.key in _CONSTANTS:
            return _Literal(_CONSTANTS[token.key])
        if self.next.kind == "string" and token.key in _TYPED:
            text = self.take()
            kind = _TYPED[token.key]
            value = None if kind is None else _cast(kind, text.text)
            if kind is not None and value is None and not text.text[:1].isdigit():
                raise self.error(f"not a {token.key.lower()}", text, "write it as YYYY-MM-DD[ HH:MM:SS]")
            return self.unknown(start) if value is None else _Literal(value)
        if token.key == "CASE":
            return self.skip(start, "CASE", "END")
        if self.accept("("):
            return self.function(token, start)
        return self.column(token, start)

    def function(self, token: _Token, start: int) -> _Node:
        """What follows a function's name and its parenthesis."""
        inside = self.at
        if token.key in ("CAST", "TRY_CAST"):
            node = self.any_of()
            self.expect("AS")
            node = self.cast(node, start)
            self.expect(")")
            return node if isinstance(node, _Literal) else self.unknown(start)
        if token.key in ("STARTS_WITH", "STARTSWITH"):
            column = self.operand()
            prefix = self.operand() if self.accept(",") else None
            match column, prefix:
                case _Column(path, PrimitiveType("string")), _Literal(str() as text) if self.accept(")"):
                    return StartsWith(path, text)
            self.at = inside
        return self.skip(start)

    def cast(self, node: _Node, start: int) -> _Node:
        """A value cast to the type that comes next."""
        kind = self.take()
        if kind.kind != "word":
            raise self.error("expected a type", kind)
        plain, size = True, None
        if kind.key == "DOUBLE":
            self.accept("PRECISION")
        elif kind.key == "TIMESTAMP" and self.accept("WITH", "WITHOUT"):
            plain = False
            self.expect("TIME")
            self.expect("ZONE")
        if self.accept("("):
            first = self.at
            self.skip(start)
            inside = self.tokens[first : self.at - 1]
            plain = kind.key in _DECIMALS and [t.kind for t in inside] == ["number", "op", "number"]
            if plain and all(t.text.isdigit() and len(t.text) < 3 for t in inside[::2]):
                size = int(inside[0].text), int(inside[2].text)
        if not isinstance(node, _Literal) or not plain:
            return self.unknown(start)
        value = _cast(kind.key, node.value, size)
        return self.unknown(start) if value is None and node.value is not None else _Literal(value)

    def subscript(self, node: _Node, start: int) -> _Node:
        """A struct's field in brackets."""
        index = self.operand()
        self.expect("]")
        match node, index:
            case _Column(path, StructType() as kind), _Literal(str() as name):
                if (field := kind.field(name)) is not None:
                    return _Column((*path, field.name), field.type)
        return self.unknown(start)

    def column(self, token: _Token, start: int) -> _Node:
        """The column that a name and its dots mean."""
        parts = [token]
        while self.accept("."):
            part = self.take()
            if part.kind not in ("word", "quoted"):
                raise self.error("expected a field's name", part)
            parts.append(part)
        if len(parts) > 1 and self.accept("("):  # a method call
            return self.skip(start)
        names = [part.text for part in parts]
        fields = self.schema.fields_at(names)
        if any(p.key == '"' and f.name != p.text for p, f in zip(parts, fields, strict=False)):
            fields = ()
        if not fields and len(parts) > 1:  # a column whose own name has dots in it
            fields = self.schema.fields_at([".".join(names)])
        if fields:
            return _column(fields)
        error = no_column(".".join(names), self.schema)
        hint = "; text stands in single quotes" if token.key == '"' else ""
        raise self.error(error.message, token, f"{error.suggestion}{hint}")


def _column(fields: Sequence[StructField]) -> _Column:
    return _Column(tuple(field.name for field in fields), fields[-1].type)


def _like(path: Path, pattern: str, escape: str | None, unknown: Unknown) -> Expr:
    prefix, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if escape and char == escape and at + 1 < len(pattern):
            at += 1
        elif char in "%_" or (char == "\\" and escape is None):  # engines disagree on a bare backslash
            starts = StartsWith(path, prefix)
            return And((starts, unknown)) if pattern[at:].strip("%") else starts
        prefix += pattern[at]
        at += 1
    return Compare(path, "=", prefix)


def _cast(kind: str, value: LiteralValue, size: tuple[int, int] | None = None) -> LiteralValue:
    """A literal as another type, or None if it does not fit there exactly."""
    if isinstance(value, bool | bytes | None):
        return None
    if isinstance(value, date):
        kept = kind == "TIMESTAMP" or (kind == "DATE" and not isinstance(value, datetime))
        return value if kept else None
    if kind in _FROM_TEXT:
        return _FROM_TEXT[kind](value) if isinstance(value, str) else None
    try:
        if kind == "DOUBLE":
            return float(value)
        number = Decimal(value)
        if literals.is_oversized(number):
            return None
        if kind in _INTEGERS and number == int(number):
            half = 1 << (_INTEGERS[kind] - 1)
            return int(number) if -half <= number < half else None
        if kind in _DECIMALS and size is not None and number == round(number, size[1]):
            return number if abs(number) < 10 ** (size[0] - size[1]) else None
    except (ValueError, ArithmeticError):
        return None
    return None


# ---- filters in disjunctive normal form ----


def from_dnf(filters: Filters | None, schema: StructType) -> Expr:
    """A predicate from filters as pyarrow and deltalake take them.

    Args:
        filters: ``[(column, op, value), …]`` for conditions that must all hold, or a list of such lists of
            which one must. The operators are ``= == != < <= > >= in`` and ``not in``. A text may be a
            value of another type, as partition values are; None and an empty text mean null.
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
    groups: Any = filters if filters and all(isinstance(f, list) for f in filters) else [filters]
    return disjunction(conjunction(_condition(c, schema) for c in group) for group in groups)


def _bad_filter(found: object) -> PredicateError:
    return PredicateError(
        f"{found!r} is not a filter",
        suggestion='write (column, op, value), as ("id", ">", 5); op is one of = != < <= > >= in, not in',
    )


def _condition(found: Any, schema: StructType) -> Expr:
    match found:
        case (str() as name, str() as op, value):
            op = " ".join(op.lower().split())
        case _:
            raise _bad_filter(found)
    if not (fields := schema.fields_at(name)):
        raise no_column(name, schema)
    column = _column(fields)
    if op in ("in", "not in") and isinstance(value, Collection) and not isinstance(value, str):
        member = disjunction(_compare(column, "=", v) for v in value)
        # to pyarrow a null is in no list, and so it is not in every one
        return member if op == "in" else Or((Not(member), IsNull(column.path)))
    if op not in _COMPARE or op in ("<>", "<=>"):
        raise _bad_filter(found)
    return _compare(column, _COMPARE[op], value)


def _compare(column: _Column, op: Op, value: Any) -> Expr:
    path, kind = column.path, column.type
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
        null = IsNull(path)
        return null if value is None else Or((null, literals.compare(path, kind, op, "", text)))
    if not isinstance(value, int | float | str | bytes | Decimal | date):
        return Unknown(text)
    return literals.compare(path, kind, op, value, text)
