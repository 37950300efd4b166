"""The values inside SQL predicates: a lone column or literal is understood, all else is opaque."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

from deltalakedb.protocol import literals
from deltalakedb.protocol.predicate import Expr, Path, StartsWith, Unknown
from deltalakedb.protocol.predicate_tokens import Token, fail, tokenize
from deltalakedb.protocol.schema import DataType, PrimitiveType, StructType

if TYPE_CHECKING:
    from deltalakedb.exceptions import PredicateError
    from deltalakedb.protocol.literals import LiteralValue

__all__ = ["OPAQUE", "Column", "Literal", "Node", "Opaque", "OperandParser"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its path, as the schema spells it."""

    path: Path
    type: DataType


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that the query spells out."""

    value: LiteralValue


@dataclass(frozen=True, slots=True)
class Opaque:
    """An expression whose value nobody here can tell."""


Node: TypeAlias = Column | Literal | Opaque | Expr
OPAQUE: Final = Opaque()
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "||", "&", "|", "^", "#", "->", "->>", "@"})
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
_INTEGERS: Final = frozenset({"INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "LONG"})
_DECIMALS: Final = frozenset({"DECIMAL", "NUMERIC"})
_TEXTS: Final = frozenset({"VARCHAR", "STRING", "TEXT"})
#: digits before or after the point that numbers of any column have at most: doubles reach 1e-324
_MOST_DIGITS: Final = 400


class OperandParser:
    """Reads tokens and values; conditions are read by the class built on it."""

    def __init__(self, text: str, schema: StructType) -> None:
        self.text = text
        self.schema = schema
        self.tokens = tokenize(text)
        self.at = 0

    def disjunction(self) -> Node:
        """A whole condition or value, as in parentheses."""
        raise NotImplementedError

    # --- tokens

    def peek(self) -> Token:
        """The token that comes next."""
        return self.tokens[self.at]

    def at_word(self, *words: str) -> bool:
        """Whether one of these words comes next."""
        token = self.peek()
        return token.kind == "word" and token.upper in words

    def advance(self) -> Token:
        """Take the next token."""
        token = self.peek()
        self.at += token.kind != "end"
        return token

    def word(self, *words: str) -> bool:
        """Take these words if they come next."""
        following = self.tokens[self.at : self.at + len(words)]
        if len(following) == len(words) and all(
            t.kind == "word" and t.upper == w for t, w in zip(following, words, strict=True)
        ):
            self.at += len(words)
            return True
        return False

    def op(self, *ops: str) -> str | None:
        """Take one of these operators if it comes next."""
        if self.peek().kind == "op" and self.peek().text in ops:
            return self.advance().text
        return None

    def expect(self, op: str) -> None:
        """Take this operator, or fail."""
        if self.op(op) is None:
            raise self.error(f"expected {op!r}")

    def error(self, what: str, token: Token | None = None, suggestion: str | None = None) -> PredicateError:
        """The error for what stands here."""
        return fail(self.text, (token or self.peek()).start, what, suggestion)

    def unknown(self, start: Token) -> Unknown:
        """Everything since a token, as a condition that cannot be judged."""
        return Unknown(self.text[start.start : self.tokens[self.at - 1].end])

    # --- values

    def operand(self) -> Node:
        """A value with arithmetic, of which nothing but a lone column or literal is understood."""
        node = self.unary()
        while self.op(*_ARITHMETIC):
            self.unary()
            node = OPAQUE
        return node

    def unary(self) -> Node:
        """A value with signs, casts and subscripts."""
        if sign := self.op("-", "+"):
            node = self.unary()
            if isinstance(node, Literal) and isinstance(node.value, int | float | Decimal):
                return node if sign == "+" else Literal(_minus(node.value))
            return OPAQUE
        node = self.primary()
        while True:
            if self.op("::"):
                node = self.cast(node)
            elif self.op("["):
                node = self.subscript(node)
            else:
                return node

    def primary(self) -> Node:
        """A literal, a column, a function call or something in parentheses."""
        token = self.advance()
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "string":
            return Literal(token.text)
        if token.kind == "bytes":
            try:
                return Literal(bytes.fromhex(token.text))
            except ValueError:
                raise self.error("not hexadecimal", token) from None
        if token.kind == "op" and token.text == "(":
            return self.parenthesis()
        if token.kind == "quoted":
            return self.column(token)
        if token.kind == "word" and token.upper not in _RESERVED:
            return self.named(token)
        raise self.error("a column or a value is needed here", token)

    def parenthesis(self) -> Node:
        """What follows an opening parenthesis."""
        if self.at_word("SELECT", "WITH"):
            self.skip_to_close()
            return OPAQUE
        node = self.disjunction()
        if self.op(","):
            self.skip_to_close()
            return OPAQUE
        self.expect(")")
        return node

    def named(self, token: Token) -> Node:
        """What a bare word begins."""
        if token.upper in ("TRUE", "FALSE", "NULL"):
            return Literal({"TRUE": True, "FALSE": False}.get(token.upper))
        if self.peek().kind == "string" and token.upper in _TYPED:
            text = self.advance()
            if (kind := _TYPED[token.upper]) is None:
                return OPAQUE
            value = _cast(kind, text.text)
            if value is None and not text.text[:1].isdigit():
                raise self.error(f"not a {token.upper.lower()}", text, "write it as YYYY-MM-DD[ HH:MM:SS]")
            return OPAQUE if value is None else Literal(value)
        if token.upper == "CASE":
            return self.case(token)
        if self.op("("):
            return self.function(token)
        return self.column(token)

    def function(self, token: Token) -> Node:
        """What follows a function's name and its parenthesis."""
        start = self.at
        if token.upper in ("CAST", "TRY_CAST"):
            node = self.disjunction()
            if not self.word("AS"):
                raise self.error("expected AS")
            node = self.cast(node)
            self.expect(")")
            return node
        if token.upper in ("STARTS_WITH", "STARTSWITH"):
            node = self.operand()
            if self.op(",") and isinstance(prefix := self.operand(), Literal) and self.op(")"):
                if (
                    isinstance(node, Column)
                    and node.type == PrimitiveType("string")
                    and isinstance(prefix.value, str)
                ):
                    return StartsWith(node.path, prefix.value)
                return OPAQUE
            self.at = start
        self.skip_to_close()
        return OPAQUE

    def case(self, token: Token) -> Node:
        """The rest of a CASE expression."""
        depth = 1
        while depth:
            following = self.advance()
            if following.kind == "end":
                raise self.error("CASE without END", token)
            if following.kind == "word":
                depth += {"CASE": 1, "END": -1}.get(following.upper, 0)
        return OPAQUE

    def skip_to_close(self) -> None:
        """Leave the parenthesis that is open."""
        depth = 1
        while depth:
            token = self.advance()
            if token.kind == "end":
                raise self.error("expected ')'", token)
            if token.kind == "op":
                depth += {"(": 1, ")": -1}.get(token.text, 0)

    def cast(self, node: Node) -> Node:
        """A value cast to the type that comes next."""
        kind = self.advance()
        if kind.kind != "word":
            raise self.error("expected a type", kind)
        plain = True
        if kind.upper == "DOUBLE":
            self.word("PRECISION")
        elif kind.upper == "TIMESTAMP" and (self.word("WITH") or self.word("WITHOUT")):
            plain = False
            self.word("TIME", "ZONE")
        scale = None
        if self.op("("):
            first = self.at
            self.skip_to_close()
            inside = self.tokens[first : self.at - 1]
            plain = kind.upper in _DECIMALS and [t.kind for t in inside] == ["number", "op", "number"]
            scale = (
                int(inside[2].text)
                if plain and inside[2].text.isdigit() and len(inside[2].text) < 4
                else None
            )
        if not isinstance(node, Literal) or not plain:
            return OPAQUE
        value = _cast(kind.upper, node.value, scale)
        return OPAQUE if value is None and node.value is not None else Literal(value)

    def subscript(self, node: Node) -> Node:
        """A struct's field in brackets."""
        index = self.operand()
        self.expect("]")
        if isinstance(node, Column) and isinstance(node.type, StructType) and isinstance(index, Literal):
            field = node.type.field(index.value) if isinstance(index.value, str) else None
            if field is not None:
                return Column((*node.path, field.name), field.type)
        return OPAQUE

    def column(self, token: Token) -> Node:
        """The column that a name and its dots mean."""
        parts = [token]
        while self.op("."):
            part = self.advance()
            if part.kind not in ("word", "quoted"):
                raise self.error("expected a field's name", part)
            parts.append(part)
        if len(parts) > 1 and self.op("("):  # a method call
            self.skip_to_close()
            return OPAQUE
        path: list[str] = []
        kind: DataType = self.schema
        for part in parts:
            field = kind.field(part.text) if isinstance(kind, StructType) else None
            if field is not None and part.upper == '"' and field.name != part.text:
                field = None
            if field is None:
                return self.dotted(parts)
            path.append(field.name)
            kind = field.type
        return Column(tuple(path), kind)

    def dotted(self, parts: list[Token]) -> Node:
        """A column whose own name has dots in it, or none at all."""
        name = ".".join(p.text for p in parts)
        field = self.schema.field(name) if len(parts) > 1 else None
        if field is not None:
            return Column((field.name,), field.type)
        hint = f"the columns are: {', '.join(self.schema.names)}"
        if parts[0].upper == '"':
            hint += "; text stands in single quotes"
        raise self.error(f"the table has no column {name!r}", parts[0], hint)


def _minus(value: float | Decimal) -> LiteralValue:
    # Decimal's own minus rounds to the context's precision
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _number(text: str) -> Literal | Opaque:
    """A number; one that no column can hold is opaque, since computing with it may take forever."""
    if len(text) > _MOST_DIGITS:
        return OPAQUE
    number = Decimal(text)
    if abs(number.adjusted()) > _MOST_DIGITS:
        return OPAQUE
    return Literal(int(text) if text.isdigit() else number)


def _cast(kind: str, value: LiteralValue, scale: int | None = None) -> LiteralValue:
    """A literal as another type, or None where that is not plain."""
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
        if abs(number.adjusted()) > _MOST_DIGITS:
            return None
        if kind in _INTEGERS and number == int(number):
            return int(number)
        if kind in _DECIMALS and scale is not None and number == round(number, scale):
            return number
    except (ValueError, ArithmeticError):
        return None
    return None
