"""Statements and queries that users write: what is allowed, by their text.

The text is only looked at to refuse the obvious early. What may happen is enforced by the database itself:
see ``run_user_sql`` and ``query`` of each engine's session.
"""

from __future__ import annotations

import re
from typing import Final

from deltalakedb.exceptions import CatalogError, InvalidArgumentError

#: string literals, quoted names and comments: what is inside them is not SQL
_QUOTED = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)",
    re.DOTALL,
)
_OUR_TABLE = re.compile(r"(?<!\w)[\"`\[]?dl_\w", re.IGNORECASE)
_CONTROL = {
    "abort", "attach", "begin", "checkpoint", "commit", "detach", "end", "lock", "pragma", "prepare",
    "release", "reset", "rollback", "savepoint", "set", "start", "use", "vacuum",
}  # fmt: skip
#: what a user's own query may begin with
QUERY_WORDS: Final = frozenset({"select", "with", "values", "explain", "from", "show", "describe", "table"})
_WORD = re.compile(r"[A-Za-z]+")
_SKIPPED = re.compile(r"[ \t\n\r\f\v(;]+|--[^\r\n]*|/\*")
_COMMENT_MARK = re.compile(r"/\*|\*/")


def first_word(sql: str) -> str:
    """The word that a statement begins with, in lower case; empty if it begins with something else.

    White space, parentheses, empty statements and comments before it do not count. Comments nest, as Postgres
    has it: the server takes only one statement at a time from us, so this word decides what it is.
    """
    at = 0
    while skipped := _SKIPPED.match(sql, at):
        at = _after_comment(sql, at) if skipped[0] == "/*" else skipped.end()
    word = _WORD.match(sql, at)
    return "" if word is None else word[0].lower()


def _after_comment(sql: str, at: int) -> int:
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(sql)


def is_ours(name: str | None) -> bool:
    return name is not None and name.lower().startswith("dl_")


def not_a_query() -> CatalogError:
    begin = f"begin with one of {', '.join(sorted(QUERY_WORDS)).upper()}"
    return CatalogError(
        "only queries are allowed: they cannot change data or settings, or read files",
        suggestion=f"{begin}; change tables of your own with execute() in a transaction",
        command=begin,
    )


def interferes(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} would interfere with the transaction",
        suggestion="leave the with block to commit, raise an exception to roll back; other statements "
        "belong on a connection of your own",
    )


def protected_table() -> InvalidArgumentError:
    return InvalidArgumentError(
        "the catalog's own tables (dl_…) change through its functions only",
        suggestion="read them with query(); the dl_v_… views are documented",
    )


def checked_statement(sql: str) -> str:
    """One statement of the user's own, without its trailing semicolon; InvalidArgumentError otherwise."""
    text = sql.strip().rstrip(";").rstrip()
    plain = _QUOTED.sub(_plain, text)
    if not (word := first_word(text)):
        raise InvalidArgumentError("the statement is empty")
    if ";" in plain:
        raise InvalidArgumentError("one statement at a time", suggestion="call execute once for each")
    if word in _CONTROL:
        raise interferes(word.upper())
    if _OUR_TABLE.search(plain):
        raise protected_table()
    return text


def _plain(found: re.Match[str]) -> str:
    """The replacement of a literal, a quoted name or a comment, for a statement that is inspected."""
    text = found[0]
    if text.startswith('"'):
        return text.replace(";", "")  # which table it is counts
    return "''" if text.startswith(("'", "$")) else " "
