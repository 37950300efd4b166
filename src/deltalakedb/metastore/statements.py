"""Named SQL statements, read once from ``sql/*.sql``; a file in ``sql/<engine>/`` overrides by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"^-- name: (?P<name>.+)$", re.MULTILINE)
_ONLY = re.compile(r"^-- only: (?P<only>.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement, its name and the engines it is limited to (empty: all)."""

    name: str
    sql: str
    only: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.sql

    def expand(self, count: int) -> Statement:
        """The statement with as many placeholders as needed where it says ``(??)``."""
        return Statement(self.name, self.sql.replace("(??)", f"({', '.join('?' * count)})"), self.only)

    def rows(self, count: int, width: int) -> Statement:
        """The statement with so many rows of placeholders where it says ``{rows}``."""
        row = f"({', '.join('?' * width)})"
        return Statement(self.name, self.sql.replace("{rows}", ", ".join([row] * count)), self.only)

    def then(self, suffix: str) -> Statement:
        """The statement with a dialect's suffix, such as a lock clause."""
        return Statement(self.name, self.sql + suffix, self.only)


def parse_statements(text: str) -> Iterator[Statement]:
    """The statements of one file: each begins with ``-- name: …`` and ends before the next."""
    marks = list(_HEADER.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : after.start() if after else len(text)]
        only = _ONLY.search(body)
        engines = frozenset(w.strip() for w in only["only"].split(",")) if only else frozenset()
        yield Statement(mark["name"].strip(), _COMMENT.sub("", body).strip().rstrip(";"), engines)


def sql_folder() -> Path:
    """Where the package keeps its SQL."""
    return Path(__file__).with_name("sql")


@cache
def statements(noun: str, engine: str) -> Mapping[str, Statement]:
    """The statements about one noun, with the engine's overrides in place."""
    found = {s.name: s for s in parse_statements((sql_folder() / f"{noun}.sql").read_text("utf-8"))}
    override = sql_folder() / engine / f"{noun}.sql"
    if override.is_file():
        for statement in parse_statements(override.read_text("utf-8")):
            if statement.name not in found:
                raise LookupError(f"{engine}/{noun}.sql overrides nothing: {statement.name}")
            found[statement.name] = statement
    return {name: Statement(f"{noun}.{name}", s.sql, s.only) for name, s in found.items()}
