"""SQL predicates cut into tokens that remember where they stood."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from deltalakedb.exceptions import PredicateError

__all__ = ["Token", "fail", "tokenize"]

Kind: TypeAlias = Literal["word", "quoted", "number", "string", "bytes", "op", "end"]

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


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a predicate; words are also kept in capitals to be told from each other."""

    kind: Kind
    text: str
    start: int
    end: int
    upper: str = ""


def fail(text: str, position: int, what: str, suggestion: str | None = None) -> PredicateError:
    """The error for a predicate that goes wrong at a position; show where."""
    shown = text[max(0, position - 30) : position] + "▸" + text[position : position + 30]
    return PredicateError(
        f"{what} at position {position}: {shown}",
        suggestion=suggestion or "write it as SQL, for example: id > 5 AND name = 'x'",
        position=position,
    )


def tokenize(text: str) -> list[Token]:
    """The tokens of a predicate, with an end token last.

    Raises:
        PredicateError: A character that SQL does not have, or a quote or comment that is never closed.
    """
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        if (match := _TOKEN.match(text, at)) is None:
            open_quote = text[at] in "'\"`"
            raise fail(text, at, "a quote that is never closed" if open_quote else "unexpected character")
        kind, piece = match.lastgroup, match[0]
        if kind == "open":
            raise fail(text, at, "a comment that is never closed")
        if kind == "word":
            tokens.append(Token("word", piece, at, match.end(), piece.upper()))
        elif kind == "string":
            tokens.append(Token("string", piece[1:-1].replace("''", "'"), at, match.end()))
        elif kind == "quoted":
            name = piece[1:-1].replace(piece[0] * 2, piece[0])
            tokens.append(Token("quoted", name, at, match.end(), piece[0]))
        elif kind == "bytes":
            tokens.append(Token("bytes", piece[2:-1], at, match.end()))
        elif kind == "number":
            tokens.append(Token("number", piece, at, match.end()))
        elif kind == "op":
            tokens.append(Token("op", piece, at, match.end()))
        at = match.end()
    tokens.append(Token("end", "", len(text), len(text)))
    return tokens
