"""SQL predicates as expressions; a condition that is not understood is `Unknown`, for that part alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from deltalakedb.exceptions import PredicateError
from deltalakedb.protocol import literals
from deltalakedb.protocol.predicate import (
    NULL,
    And,
    Compare,
    Constant,
    Expr,
    IsNull,
    Not,
    Op,
    Path,
    StartsWith,
    Unknown,
    conjunction,
    disjunction,
)
from deltalakedb.protocol.schema import DataType, PrimitiveType, StructType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltalakedb.protocol.literals import LiteralValue

__all__ = ["parse_predicate"]

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
_REGEX: Final = ("~", "~*", "!~", "!~*")
_ARITHMETIC: Final = ("+", "-", "*", "/", "%", "||", "&", "|", "^", "#", "->", "->>", "@")
_RESERVED: Final = frozenset({"AND", "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE"})
#: words before a text that make it a value of a type; None for types that no column is compared with
_TYPED: Final = {
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": None,
    "TIMESTAMP_LTZ": None,
    "INTERVAL": None,
    "TIME": None,
}
#: bits of each type; engines differ on what becomes of a value that does not fit
_INTEGERS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "INTEGER": 32, "BIGINT": 64, "LONG": 64}
_DECIMALS: Final = ("DECIMAL", "NUMERIC")
_TEXTS: Final = ("VARCHAR", "STRING", "TEXT")
_STRING: Final = PrimitiveType("string")


def parse_predicate(text: str, schema: StructType, *, files_only: bool = False) -> Expr:
    """Parse a SQL predicate over the schema's columns.

    Args:
        text: As in a WHERE clause: comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE.
        schema: The table's schema; unquoted names match without regard to case if no exact one exists.
        files_only: The predicate picks files and no engine applies it to rows. Then a literal is read in
            the type of its column, as partition values are: a number as text beside a column of texts.

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
    #: a word in capitals; the quotation mark of a quoted name
    mark: str = ""


def _tokenize(text: str) -> list[_Token]:
    """The tokens of a predicate, with an end token last."""
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        if (match := _TOKEN.match(text, at)) is None:
            is_quote = text[at] in "'\"`"
            raise _error(text, at, "a quote that is never closed" if is_quote else "unexpected character")
        kind, piece, at = match.lastgroup or "", match[0], match.end()
        if kind == "open":
            raise _error(text, match.start(), "a comment that is never closed")
        if kind == "bytes":
            piece = piece[2:-1]
        mark = piece.upper() if kind == "word" else piece[:1]
        if kind in ("string", "quoted"):
            piece = piece[1:-1].replace(mark * 2, mark)
        if kind != "space":
            tokens.append(_Token(kind, piece, match.start(), at, mark))
    tokens.append(_Token("end", "", at, at))
    return tokens


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


#: what a piece of the text stands for; a value that is not understood is `Unknown`, as a condition is
_Node: TypeAlias = _Column | _Literal | Expr


class _Parser:
    """A recursive descent parser. ``start`` is the index of the token that a condition begins with."""

    def __init__(self, text: str, schema: StructType, files_only: bool) -> None:
        self.text = text
        self.schema = schema
        self.files_only = files_only
        self.tokens = _tokenize(text)
        self.at = 0

    # --- tokens

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.next
        self.at += token.kind != "end"
        return token

    def at_word(self, *words: str) -> bool:
        return self.next.kind == "word" and self.next.mark in words

    def word(self, *words: str) -> bool:
        """Take these words if they come next."""
        following = self.tokens[self.at : self.at + len(words)]
        found = tuple(t.mark for t in following if t.kind == "word") == words
        self.at += len(words) if found else 0
        return found

    def op(self, *ops: str) -> str | None:
        """Take one of these operators if it comes next."""
        return self.take().text if self.next.kind == "op" and self.next.text in ops else None

    def expect(self, op: str) -> None:
        if self.op(op) is None:
            raise self.error(f"expected {op!r}")

    def skip_to_close(self) -> None:
        """Leave the parenthesis that is open."""
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise self.error("expected ')'", token)
            if token.kind == "op":
                depth += {"(": 1, ")": -1}.get(token.text, 0)

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
        return self.joined("OR", self.all_of, disjunction)

    def all_of(self) -> _Node:
        return self.joined("AND", self.negation, conjunction)

    def joined(
        self, word: str, operand: Callable[[], _Node], join: Callable[[Iterable[Expr]], Expr]
    ) -> _Node:
        start = self.at
        node = operand()
        if not self.at_word(word):
            return node
        operands = [self.as_condition(node, start)]
        while self.word(word):
            start = self.at
            operands.append(self.as_condition(operand(), start))
        return join(operands)

    def negation(self) -> _Node:
        if self.word("NOT"):
            start = self.at
            return Not(self.as_condition(self.negation(), start))
        return self.comparison()

    # --- comparisons

    def comparison(self) -> _Node:
        start = self.at
        node = self.operand()
        while True:
            if op := self.op(*_COMPARE):
                node = self.compare(node, _COMPARE[op], self.operand(), start)
            elif self.op(*_REGEX) or self.word("RLIKE") or self.word("REGEXP"):
                self.operand()
                node = self.unknown(start)
            elif self.word("IS"):
                node = self.is_test(node, start)
            elif (negated := self.word("NOT")) or self.at_word("IN", "BETWEEN", "LIKE", "ILIKE", "SIMILAR"):
                found = self.membership(node, start)
                node = Not(found) if negated else found
            else:
                return node

    def compare(self, left: _Node, op: Op, right: _Node, start: int) -> Expr:
        unknown = self.unknown(start)
        match left, right:
            case _Column(path, kind), _Literal(value):
                return literals.compare(path, kind, op, self.fitted(kind, value), unknown.text)
            case _Literal(), _Column():
                return self.compare(right, _FLIPPED.get(op, op), left, start)
            case _Literal(a), _Literal(b):
                return _constant(a, op, b, unknown)
        return unknown

    def fitted(self, kind: DataType, value: LiteralValue) -> LiteralValue:
        return literals.as_partition_value(kind, value) if self.files_only else value

    def is_test(self, node: _Node, start: int) -> Expr:
        negated = self.word("NOT")
        found: Expr
        if self.word("NULL") or self.word("UNKNOWN"):
            found = self.is_null(node, start)
        elif self.word("TRUE"):
            found = self.is_bool(node, True, start)
        elif self.word("FALSE"):
            found = self.is_bool(node, False, start)
        elif self.word("DISTINCT", "FROM"):
            found = Not(self.compare(node, "<=>", self.operand(), start))
        else:
            raise self.error("expected NULL, TRUE, FALSE or DISTINCT FROM")
        return Not(found) if negated else found

    def is_null(self, node: _Node, start: int) -> Expr:
        match node:
            case _Column(path, _):
                return IsNull(path)
            case _Literal(value):
                return Constant(value is None)
        return self.unknown(start)

    def is_bool(self, node: _Node, wanted: bool, start: int) -> Expr:
        match node:
            case _Column(path, PrimitiveType("boolean")):
                return Compare(path, "<=>", wanted)
            case _Literal(value):
                return Constant(value is wanted)
            case _Column() | Unknown():
                return self.unknown(start)
        # true for the same rows; the unknown part keeps a NOT around it from being judged
        return And((node if wanted else Not(node), self.unknown(start)))

    def membership(self, node: _Node, start: int) -> Expr:
        if self.word("IN"):
            return self.in_list(node, start)
        if self.word("BETWEEN"):
            symmetric = self.word("SYMMETRIC")
            low = self.operand()
            if not self.word("AND"):
                raise self.error("expected AND")
            high = self.operand()
            if symmetric:
                return self.unknown(start)
            return And((self.compare(node, ">=", low, start), self.compare(node, "<=", high, start)))
        if self.word("LIKE"):
            return self.like(node, start)
        if self.word("ILIKE") or self.word("SIMILAR", "TO"):
            self.operand()
            if self.word("ESCAPE"):
                self.operand()
            return self.unknown(start)
        raise self.error("expected IN, BETWEEN or LIKE")

    def in_list(self, node: _Node, start: int) -> Expr:
        self.expect("(")
        if self.at_word("SELECT", "WITH"):
            self.skip_to_close()
            return self.unknown(start)
        items: list[_Node] = []
        while not self.op(")"):
            if items:
                self.expect(",")
            items.append(self.operand())
        unknown = self.unknown(start)
        values = [i.value for i in items if isinstance(i, _Literal)]
        if not isinstance(node, _Column) or len(values) < len(items):
            return unknown
        values = [self.fitted(node.type, v) for v in values]
        if len({_family(v) for v in values if v is not None}) > 1:
            return unknown  # engines turn all values into one type, each in its own way
        found = literals.member(node.path, node.type, values, unknown.text)
        if node.type != _STRING and any(isinstance(v, str) for v in values):
            # some engines compare the texts: equal texts are equal values, but others may be equal too
            return And((found, unknown))
        return found

    def like(self, node: _Node, start: int) -> Expr:
        pattern = self.operand()
        escape: _Node = self.operand() if self.word("ESCAPE") else _Literal(None)
        unknown = self.unknown(start)
        match node, pattern, escape:
            case _Column(_, PrimitiveType("string")), _Literal(None), _:
                return NULL
            case _Column(path, PrimitiveType("string")), _Literal(str() as text), _Literal(
                None | str() as mark
            ):
                return _like(path, text, mark, unknown)
        return unknown

    # --- values: only a column or a literal that stands alone is understood

    def operand(self) -> _Node:
        start = self.at
        node = self.unary()
        while self.op(*_ARITHMETIC):
            self.unary()
            node = self.unknown(start)
        return node

    def unary(self) -> _Node:
        """A value with signs, casts and subscripts."""
        start = self.at
        if sign := self.op("-", "+"):
            node = self.unary()
            if isinstance(node, _Literal) and isinstance(node.value, int | float | Decimal):
                return node if sign == "+" else _Literal(_minus(node.value))
            return self.unknown(start)
        node = self.primary()
        while True:
            if self.op("::"):
                node = self.cast(node, start)
            elif self.op("["):
                node = self.subscript(node, start)
            else:
                return node

    def primary(self) -> _Node:
        """A literal, a column, a function call or something in parentheses."""
        start = self.at
        token = self.take()
        if token.kind == "number":
            return self.number(token.text, start)
        if token.kind == "string":
            return _Literal(token.text)
        if token.kind == "bytes":
            try:
                return _Literal(bytes.fromhex(token.text))
            except ValueError:
                raise self.error("not hexadecimal", token) from None
        if token.kind == "op" and token.text == "(":
            return self.parenthesis(start)
        if token.kind == "quoted":
            return self.column(token, start)
        if token.kind == "word" and token.mark not in _RESERVED:
            return self.named(token, start)
        raise self.error("expected a column or a literal", token)

    def number(self, text: str, start: int) -> _Node:
        try:
            number = Decimal(text)
        except ArithmeticError:
            return self.unknown(start)
        if literals.is_oversized(number):
            return self.unknown(start)
        return _Literal(int(text) if text.isdigit() else number)

    def parenthesis(self, start: int) -> _Node:
        if not self.at_word("SELECT", "WITH"):
            node = self.any_of()
            if not self.op(","):
                self.expect(")")
                return node
        self.skip_to_close()
        return self.unknown(start)

    def named(self, token: _Token, start: int) -> _Node:
        """What a bare word begins."""
        if token.mark in ("TRUE", "FALSE", "NULL"):
            return _Literal({"TRUE": True, "FALSE": False}.get(token.mark))
        if self.next.kind == "string" and token.mark in _TYPED:
            text = self.take()
            kind = _TYPED[token.mark]
            value = None if kind is None else _cast(kind, text.text)
            if kind is not None and value is None and not text.text[:1].isdigit():
                raise self.error(f"not a {token.mark.lower()}", text, "write it as YYYY-MM-DD[ HH:MM:SS]")
            return self.unknown(start) if value is None else _Literal(value)
        if token.mark == "CASE":
            return self.case(token, start)
        if self.op("("):
            return self.function(token, start)
        return self.column(token, start)

    def function(self, token: _Token, start: int) -> _Node:
        """What follows a function's name and its parenthesis."""
        inside = self.at
        if token.mark in ("CAST", "TRY_CAST"):
            node = self.any_of()
            if not self.word("AS"):
                raise self.error("expected AS")
            node = self.cast(node, start)
            self.expect(")")
            return node if isinstance(node, _Literal) else self.unknown(start)
        if token.mark in ("STARTS_WITH", "STARTSWITH"):
            node = self.operand()
            if self.op(",") and isinstance(prefix := self.operand(), _Literal) and self.op(")"):
                match node, prefix.value:
                    case _Column(path, PrimitiveType("string")), str() as text:
                        return StartsWith(path, text)
                return self.unknown(start)
            self.at = inside
        self.skip_to_close()
        return self.unknown(start)

    def case(self, token: _Token, start: int) -> _Node:
        depth = 1
        while depth:
            following = self.take()
            if following.kind == "end":
                raise self.error("CASE without END", token)
            if following.kind == "word":
                depth += {"CASE": 1, "END": -1}.get(following.mark, 0)
        return self.unknown(start)

    def cast(self, node: _Node, start: int) -> _Node:
        """A value cast to the type that comes next."""
        kind = self.take()
        if kind.kind != "word":
            raise self.error("expected a type", kind)
        plain = True
        if kind.mark == "DOUBLE":
            self.word("PRECISION")
        elif kind.mark == "TIMESTAMP" and (self.word("WITH") or self.word("WITHOUT")):
            plain = False
            self.word("TIME", "ZONE")
        size = None
        if self.op("("):
            first = self.at
            self.skip_to_close()
            inside = self.tokens[first : self.at - 1]
            plain = kind.mark in _DECIMALS and [t.kind for t in inside] == ["number", "op", "number"]
            if plain and all(t.text.isdigit() and len(t.text) < 3 for t in (inside[0], inside[2])):
                size = int(inside[0].text), int(inside[2].text)
        if not isinstance(node, _Literal) or not plain:
            return self.unknown(start)
        value = _cast(kind.mark, node.value, size)
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
        while self.op("."):
            part = self.take()
            if part.kind not in ("word", "quoted"):
                raise self.error("expected a field's name", part)
            parts.append(part)
        if len(parts) > 1 and self.op("("):  # a method call
            self.skip_to_close()
            return self.unknown(start)
        path: list[str] = []
        kind: DataType = self.schema
        for part in parts:
            field = kind.field(part.text) if isinstance(kind, StructType) else None
            if field is None or (part.mark == '"' and field.name != part.text):
                return self.dotted(parts)
            path.append(field.name)
            kind = field.type
        return _Column(tuple(path), kind)

    def dotted(self, parts: list[_Token]) -> _Column:
        """A column whose own name has dots in it."""
        name = ".".join(p.text for p in parts)
        if len(parts) > 1 and (field := self.schema.field(name)) is not None:
            return _Column((field.name,), field.type)
        hint = f"the columns are: {', '.join(self.schema.names)}"
        if parts[0].mark == '"':
            hint += "; text stands in single quotes"
        raise self.error(f"the table has no column {name!r}", parts[0], hint)


def _family(value: LiteralValue) -> type:
    """What literals of a list must have in common, so that it means the same everywhere."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Decimal
    return type(value)


def _constant(left: LiteralValue, op: Op, right: LiteralValue, unknown: Unknown) -> Expr:
    if left is None or right is None:
        return Constant(left is right) if op == "<=>" else NULL
    if type(left) is not type(right) or not isinstance(left, int | str):
        return unknown
    if op in ("=", "<=>", "!="):
        return Constant((left == right) == (op != "!="))
    return unknown


def _like(path: Path, pattern: str, escape: str | None, unknown: Unknown) -> Expr:
    prefix, rest = [], ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if escape and char == escape and at + 1 < len(pattern):
            at += 1
            char = pattern[at]
        elif char in "%_" or (char == "\\" and escape is None):  # engines disagree on a bare backslash
            rest = pattern[at:]
            break
        prefix.append(char)
        at += 1
    start = "".join(prefix)
    if not rest:
        return Compare(path, "=", start)
    if rest.strip("%") == "":
        return StartsWith(path, start)
    return And((StartsWith(path, start), unknown))


def _minus(value: float | Decimal) -> LiteralValue:
    # Decimal's own minus rounds to the context's precision
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _cast(kind: str, value: LiteralValue, size: tuple[int, int] | None = None) -> LiteralValue:
    """A literal as another type, or None if it does not fit there exactly."""
    if isinstance(value, bool | bytes | None):
        return None
    if isinstance(value, date):
        kept = kind == "TIMESTAMP" or (kind == "DATE" and not isinstance(value, datetime))
        return value if kept else None
    if kind in _TEXTS:
        return value if isinstance(value, str) else None
    if kind == "DATE":
        return literals.parse_date(value.strip()) if isinstance(value, str) else None
    if kind == "TIMESTAMP":
        return literals.parse_timestamp(value) if isinstance(value, str) else None
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
