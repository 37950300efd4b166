"""A small parser for SQL predicates; what it does not understand becomes `Unknown`, for that part alone."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

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
from deltalakedb.protocol.predicate_operands import Column, Literal, Node, Opaque, OperandParser
from deltalakedb.protocol.predicate_tokens import Token, fail
from deltalakedb.protocol.schema import PrimitiveType, StructType

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.protocol.literals import LiteralValue
    from deltalakedb.protocol.schema import DataType

__all__ = ["parse_predicate"]

_COMPARE: Final[dict[str, Op]] = {
    "=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>",
}  # fmt: skip
_FLIPPED: Final[dict[Op, Op]] = {
    "<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!=", "<=>": "<=>",
}  # fmt: skip
_REGEX: Final = frozenset({"~", "~*", "!~", "!~*"})


def parse_predicate(text: str, schema: StructType, *, files_only: bool = False) -> Expr:
    """A SQL predicate as an expression over the schema's columns.

    Args:
        text: As in a WHERE clause: comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE.
        schema: The table's schema; unquoted names match without regard to case where no exact one exists.
        files_only: The predicate picks files and no engine will judge rows by it. Then a literal is read in
            the type of its column, as partition values are: a number as text beside a column of texts.

    Raises:
        PredicateError: The text is not SQL, or it names a column that the table does not have.

    Example:
        >>> parse_predicate("id > 5 AND upper(name) = 'X'", schema)  # doctest: +SKIP
        And(operands=(Compare(column=('id',), op='>', value=5), Unknown(text="upper(name) = 'X'")))
    """
    try:
        parser = _Parser(text, schema)
        parser.files_only = files_only
        return parser.whole()
    except RecursionError:
        raise fail(text, 0, "the predicate is nested too deeply") from None


class _Parser(OperandParser):
    files_only = False

    def fitted(self, kind: DataType, value: LiteralValue) -> LiteralValue:
        """A literal beside a column."""
        return literals.as_partition_value(kind, value) if self.files_only else value

    # --- logic

    def whole(self) -> Expr:
        if self.peek().kind == "end":
            raise self.error("the predicate is empty")
        start = self.peek()
        expr = self.as_condition(self.disjunction(), start)
        if self.peek().kind != "end":
            raise self.error("the predicate should end here")
        return expr

    def as_condition(self, node: Node, start: Token) -> Expr:
        """A node as something that is true, false or null."""
        if isinstance(node, Opaque):
            return self.unknown(start)
        if isinstance(node, Column):
            if node.type == PrimitiveType("boolean"):
                return Compare(node.path, "=", True)
        elif not isinstance(node, Literal):
            return node
        elif isinstance(node.value, bool | None):
            return Constant(node.value)
        raise self.error("a condition is needed here, not a value", start)

    def disjunction(self) -> Node:
        return self.joined(self.conjunction, "OR")

    def conjunction(self) -> Node:
        return self.joined(self.negation, "AND")

    def joined(self, parse: Callable[[], Node], word: str) -> Node:
        start = self.peek()
        node = parse()
        if not self.at_word(word):
            return node
        operands = [self.as_condition(node, start)]
        while self.word(word):
            start = self.peek()
            operands.append(self.as_condition(parse(), start))
        return conjunction(operands) if word == "AND" else disjunction(operands)

    def negation(self) -> Node:
        if self.word("NOT"):
            start = self.peek()
            return Not(self.as_condition(self.negation(), start))
        return self.predicate()

    # --- comparisons

    def predicate(self) -> Node:
        start = self.peek()
        node: Node = self.operand()
        while True:
            if op := self.op(*_COMPARE):
                right = self.operand()
                node = self.compare(node, _COMPARE[op], right, start)
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

    def compare(self, left: Node, op: Op, right: Node, start: Token) -> Expr:
        unknown = self.unknown(start)
        match left, right:
            case Column(path, kind), Literal(value):
                return literals.compare(path, kind, op, self.fitted(kind, value), unknown.text)
            case Literal(value), Column(path, kind):
                return literals.compare(path, kind, _FLIPPED[op], self.fitted(kind, value), unknown.text)
            case Literal(a), Literal(b):
                return _constant(a, op, b, unknown)
        return unknown

    def is_test(self, node: Node, start: Token) -> Expr:
        negated = self.word("NOT")
        found: Expr
        if self.word("NULL") or self.word("UNKNOWN"):
            found = self.is_null(node, start)
        elif self.word("TRUE") or self.word("FALSE"):
            wanted = self.tokens[self.at - 1].upper == "TRUE"
            found = self.is_bool(node, wanted, start)
        elif self.word("DISTINCT", "FROM"):
            found = Not(self.compare(node, "<=>", self.operand(), start))
        else:
            raise self.error("expected NULL, TRUE, FALSE or DISTINCT FROM")
        return Not(found) if negated else found

    def is_null(self, node: Node, start: Token) -> Expr:
        match node:
            case Column(path, _):
                return IsNull(path)
            case Literal(value):
                return Constant(value is None)
        return self.unknown(start)

    def is_bool(self, node: Node, wanted: bool, start: Token) -> Expr:
        match node:
            case Column(path, PrimitiveType("boolean")):
                return Compare(path, "<=>", wanted)
            case Literal(value):
                return Constant(value is wanted)
            case Column() | Opaque():
                return self.unknown(start)
        # true for the same rows; the unknown part keeps a NOT around it from being judged
        return And((node if wanted else Not(node), self.unknown(start)))

    def membership(self, node: Node, start: Token) -> Expr:
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

    def in_list(self, node: Node, start: Token) -> Expr:
        self.expect("(")
        if self.at_word("SELECT", "WITH"):
            self.skip_to_close()
            return self.unknown(start)
        items: list[Node] = []
        while not self.op(")"):
            if items:
                self.expect(",")
            items.append(self.operand())
        values = [i.value for i in items if isinstance(i, Literal)]
        if isinstance(node, Column) and len(values) == len(items):
            values = [self.fitted(node.type, v) for v in values]
            if len({_family(v) for v in values if v is not None}) > 1:
                return self.unknown(start)  # engines turn all values into one type, each in its own way
            found = literals.member(node.path, node.type, values, self.unknown(start).text)
            if node.type != PrimitiveType("string") and any(isinstance(v, str) for v in values):
                # some engines compare the texts: equal texts are equal values, but others may be equal too
                return And((found, self.unknown(start)))
            return found
        return self.unknown(start)

    def like(self, node: Node, start: Token) -> Expr:
        pattern = self.operand()
        escape: Node = self.operand() if self.word("ESCAPE") else Literal(None)
        unknown = self.unknown(start)
        if not isinstance(node, Column) or node.type != PrimitiveType("string"):
            return unknown
        match pattern, escape:
            case Literal(None), _:
                return NULL
            case Literal(str() as text), Literal(None | str() as mark):
                return _like(node.path, text, mark, unknown)
        return unknown


def _family(value: LiteralValue) -> type:
    """What literals of a list must have in common, so that it means the same everywhere."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Decimal
    return type(value)


def _constant(left: LiteralValue, op: Op, right: LiteralValue, unknown: Unknown) -> Expr:
    if op == "<=>" and (left is None or right is None):
        return Constant(left is right)
    if left is None or right is None:
        return NULL
    if type(left) is not type(right) or not isinstance(left, int | str):
        return unknown
    equal = left == right
    match op:
        case "=" | "<=>":
            return Constant(equal)
        case "!=":
            return Constant(not equal)
        case _:
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
