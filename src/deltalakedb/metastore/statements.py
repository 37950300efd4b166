"""Named SQL statements, read once from ``sql/*.sql``; a file in ``sql/<engine>/`` overrides by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"^-- name: (?P<name>.+)$", re.MULTILINE)
_ONLY = re.compile(r"^-- only: (?P<only>.+)$", re.MULTILINE)
_TOKEN = re.compile(r"\{\w+\}")
_JOINED = re.compile(r"\{joined: (\w+)\}")
#: how an engine joins the texts of a column by line feeds
_JOINS: Final = {"sqlite": r"group_concat(\1, '\n')"}
_JOIN: Final = r"string_agg(\1, chr(10) ORDER BY file_id)"
#: the clocks of servers, in epoch milliseconds: part of other queries, to save a round trip
_CLOCKS: Final = {"postgres": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"}
_COMMENT = re.compile(r"^--.*$", re.MULTILINE)

_REGISTERED: Final = """t.table_id, t.name, t.location, t.state, t.state_reason, t.comment, t.tags,
        t.settings, t.created_at"""
_HEAD: Final = """h.head_version, h.head_timestamp, h.first_version, h.num_files, h.size_bytes,
        h.num_records, h.files_without_count"""
#: lists of columns that several statements share: a row of each makes one value
_COLUMNS: Final = {
    # a Table: of dl_tables t, dl_heads h and dl_mirror m
    "{table}": f"""{_REGISTERED},
        CASE WHEN h.head_timestamp > t.updated_at THEN h.head_timestamp ELSE t.updated_at END,
        {_HEAD}, m.published_version""",
    # its parts, and the columns that only a locked table has
    "{registered}": f"{_REGISTERED}, t.updated_at",
    "{locked}": f"{_HEAD}, h.next_file_seq, h.metadata_version, h.protocol_version, h.frozen, h.head_sha256",
    "{tables}": """dl_tables t
        JOIN dl_heads h ON h.table_id = t.table_id JOIN dl_mirror m ON m.table_id = t.table_id""",
    # a CommitRow: of dl_commits c
    "{commit}": """c.version, c.timestamp, c.operation, c.is_blind_append, c.data_change, c.num_added,
        c.num_removed, c.info, c.origin, c.actor, c.sha256, c.size_bytes, c.txn_uuid""",
    # an ImportRow: of dl_imports
    "{import}": """import_id, table_id, name, location, engine, phase, plan, first_version, source_version,
        batches_total, files_expected, actor, started_at, updated_at, finished_at, digest,
        error, details""",
    # a Receipt: of dl_import_batches
    "{receipt}": """batch, kind, begins, ends, actions, num_files, size_bytes, num_records,
        files_without_count, next_file_seq, written_at, milliseconds, memory_bytes""",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement, its name and the engines it is limited to (empty: all)."""

    name: str
    sql: str
    only: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.sql

    def runs_on(self, engine: str) -> bool:
        return not self.only or engine in self.only

    def expand(self, count: int) -> Statement:
        """The statement with ``count`` placeholders for ``(??)``."""
        return replace(self, sql=self.sql.replace("(??)", f"({', '.join('?' * count)})"))

    def rows(self, count: int, width: int) -> Statement:
        """The statement with ``count`` rows of ``width`` placeholders for ``{rows}``."""
        row = f"({', '.join('?' * width)})"
        return replace(self, sql=self.sql.replace("{rows}", ", ".join([row] * count)))

    def then(self, suffix: str) -> Statement:
        return replace(self, sql=self.sql + suffix)


def parse_statements(text: str) -> Iterator[Statement]:
    """The statements of one file: each begins with ``-- name: …`` and ends before the next."""
    marks = list(_HEADER.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : after.start() if after else len(text)]
        only = _ONLY.search(body)
        engines = frozenset(w.strip() for w in only["only"].split(",")) if only else frozenset()
        yield Statement(mark["name"].strip(), _COMMENT.sub("", body).strip().rstrip(";"), engines)


def sql_folder() -> Path:
    return Path(__file__).with_name("sql")


@cache
def statements(noun: str, engine: str) -> Mapping[str, Statement]:
    """The statements about one noun that an engine has, its overrides in place of the common ones."""
    found = {s.name: s for s in parse_statements((sql_folder() / f"{noun}.sql").read_text("utf-8"))}
    override = sql_folder() / engine / f"{noun}.sql"
    if override.is_file():
        for statement in parse_statements(override.read_text("utf-8")):
            if statement.name not in found:
                raise LookupError(f"{engine}/{noun}.sql overrides nothing: {statement.name}")
            found[statement.name] = statement
    tokens = _COLUMNS | {
        "{clock}": _CLOCKS.get(engine, "NULL"),
        "{blob_length}": "octet_length(data)" if engine == "duckdb" else "length(data)",
    }
    return {
        name: Statement(f"{noun}.{name}", _TOKEN.sub(lambda m: tokens.get(m[0], m[0]), text), s.only)
        for name, s in found.items()
        for text in [_JOINED.sub(_JOINS.get(engine, _JOIN), s.sql)]
        if s.runs_on(engine)
    }
