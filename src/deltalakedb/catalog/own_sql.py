"""Statements that users run beside ours, checked so that they cannot disturb the transaction."""

from __future__ import annotations

import re

from deltalakedb.exceptions import InvalidArgumentError

#: string literals, quoted names and comments: what is inside them is not SQL
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_FIRST_WORD = re.compile(r"\s*(\w+)")
_OUR_TABLE = re.compile(r"(?<!\w)[\"`\[]?dl_\w", re.IGNORECASE)
_CONTROL = {
    "abort", "attach", "begin", "checkpoint", "commit", "detach", "end", "lock", "pragma", "prepare",
    "release", "reset", "rollback", "savepoint", "set", "start", "use", "vacuum",
}  # fmt: skip


def checked_statement(sql: str) -> str:
    """One statement of the user's own, without its trailing semicolon; InvalidArgumentError otherwise."""
    text = sql.strip().rstrip(";").rstrip()
    plain = _QUOTED.sub(_plain, text)
    word = _FIRST_WORD.match(plain)
    if word is None:
        raise InvalidArgumentError("the statement is empty")
    if ";" in plain:
        raise InvalidArgumentError("one statement at a time", suggestion="call execute once for each")
    if word[1].lower() in _CONTROL:
        raise InvalidArgumentError(
            f"{word[1].upper()} would interfere with the transaction",
            suggestion="leave the with block to commit, raise an exception to roll back",
        )
    if _OUR_TABLE.search(plain):
        raise InvalidArgumentError(
            "the catalog's own tables (dl_…) change through its functions only",
            suggestion="read them with query(); the dl_v_… views are documented",
        )
    return text


def _plain(found: re.Match[str]) -> str:
    """What stands for a literal, a quoted name or a comment where statements are looked at."""
    text = found[0]
    if text.startswith('"'):
        return text.replace(";", "")  # which table it is counts
    return "''" if text.startswith("'") else " "
