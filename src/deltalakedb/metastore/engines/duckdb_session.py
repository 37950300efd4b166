"""A session on DuckDB: a cursor of the process's one connection."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.exceptions import CatalogError
from deltalakedb.metastore.engines.base import literal
from deltalakedb.metastore.engines.gathered import GatheredSession
from deltalakedb.metastore.user_sql import disturbing, is_ours, no_question, not_theirs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb

    from deltalakedb.metastore.engines.duckdb import DuckdbEngine
    from deltalakedb.metastore.statements import Statement

#: from here on an Arrow scan beats prepared INSERTs
_ARROW_FROM = 32
_EXPLAIN = re.compile(r"explain\b(?:\s+analyze\b)?(?:\s*\([^()]*\))?", re.IGNORECASE)
#: kinds of statements that users may run on tables of their own
_OWN = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "ALTER", "DROP"})
#: tokens after which a text is the name of a table
_BEFORE_NAMES = frozenset(
    {
        ".", "column", "exists", "from", "index", "into", "join", "on", "only", "schema", "sequence", "table",
        "temp", "temporary", "to", "truncate", "type", "update", "using", "view",
    }
)  # fmt: skip
#: a text without escapes that is not the name of a table of ours, whatever stands before it
_NOT_OURS = re.compile(r"'(?![^']*dl_)[^']*'", re.IGNORECASE)
#: what users may create, and the words that may stand before it
_CREATED = frozenset({"index", "schema", "sequence", "table", "type", "view"})
_MODIFIERS = frozenset({"create", "or", "recursive", "replace", "temp", "temporary", "unique"})
#: what names may be quoted by
_QUOTES = '"`'
#: functions that change a sequence
_COUNTING = frozenset({"nextval", "setval", "currval"})


def _calls(tokens: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    """The functions that are called, by name, each with the first token of its arguments."""
    for at, (text, _) in enumerate(tokens):
        if text.startswith("(") and at:
            argument = tokens[at + 1][0] if at + 1 < len(tokens) else ""
            yield tokens[at - 1][0].strip(_QUOTES).lower(), argument


class DuckdbSession(GatheredSession):
    """A cursor of the process's one connection."""

    engine: DuckdbEngine

    def __init__(self, engine: DuckdbEngine, cursor: duckdb.DuckDBPyConnection) -> None:
        super().__init__()
        self.engine = engine
        self.cursor = cursor

    def _execute(self, sql: str, params: Sequence[Any]) -> Any:
        try:
            return self.cursor.execute(sql, params or None)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error
        except RuntimeError as error:
            # DuckDB swallows the exception of a signal handler; after Ctrl-C that was this one
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from error

    def _check_query(self, sql: str) -> None:
        """Only what DuckDB itself takes for one SELECT: EXPLAIN ANALYZE would run anything, COMMIT too."""
        super()._check_query(sql)
        kind = self._kind(sql)
        if kind == "EXPLAIN":
            kind = self._kind(_EXPLAIN.sub("", sql, count=1))
        if kind != "SELECT":
            raise no_question()
        refused = self.engine.acting_functions()
        if any(name in refused for name, _ in _calls(self._tokens(sql))):
            raise no_question()

    def run_own(self, sql: str, params: Sequence[Any] = ()) -> None:
        """A user's statement, judged by the kind and the tokens that DuckDB itself sees in it."""
        if (kind := self._kind(sql)) not in _OWN:
            raise disturbing(kind.replace("_", " "))
        tokens = self._tokens(sql)
        words = [text.lower() for text, is_text in tokens if not is_text]
        created = next((word for word in words if word not in _MODIFIERS), "")
        if kind == "CREATE" and created not in _CREATED:
            # functions and macros would stand in front of DuckDB's own in our statements
            raise disturbing(f"CREATE {created.upper()}")
        if any(is_ours(word.strip(_QUOTES)) for word in words):
            raise not_theirs()
        before = ""
        for text, is_text in tokens:
            # DuckDB takes a text for a table's name
            is_name = before in _BEFORE_NAMES or kind == "DROP"
            if is_text and is_name and not _NOT_OURS.fullmatch(text):
                raise not_theirs()
            before = text.lower()
        refused = self.engine.acting_functions() - _COUNTING
        for name, argument in _calls(tokens):
            if name in refused:
                raise disturbing(f"{name}()")
            if name in _COUNTING and (not argument.startswith("'") or "dl_" in argument.lower()):
                raise not_theirs()
        self.run(sql, params)

    def _kind(self, sql: str) -> str:
        """The type of the one statement in a text."""
        try:
            found = self.engine.driver.extract_statements(sql)
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error
        except ValueError as error:  # a kind of statement that the driver has no name for
            raise disturbing("this statement") from error
        if len(found) != 1:
            raise CatalogError("one statement at a time", suggestion="run them one after the other")
        name: str = found[0].type.name
        return name

    def _tokens(self, sql: str) -> list[tuple[str, bool]]:
        """The tokens of a text without its comments, and whether each is a text."""
        data, kinds = sql.encode(), self.engine.driver.token_type
        found = self.engine.driver.tokenize(sql)
        ends = [at for at, _ in found[1:]] + [len(data)]
        return [
            (data[at:end].decode("utf-8", "replace").strip(), kind == kinds.string_const)
            for (at, kind), end in zip(found, ends, strict=True)
            if kind != kinds.comment
        ]

    def run(self, statement: Statement | str, params: Sequence[Any] = ()) -> int:
        """Run a statement; DuckDB answers changes with their count as a row."""
        if self._depth:
            return super().run(statement, params)
        found = self._call(statement, params).fetchall()
        return int(found[0][0]) if found and isinstance(found[0][0], int) else -1

    def arrow(self, statement: Statement | str, params: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Arrow straight from the engine."""
        self._count(statement)
        self.barrier()
        try:
            relation = self.cursor.sql(str(statement), params=list(params) or None)
            table = relation.to_arrow_table()
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error
        return table.rename_columns(schema.names).cast(schema)

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """One INSERT of a few rows, a scan of an Arrow table for many.

        What costs is the planning, and of that every column: those that no row has a value for are left out.
        """
        used = [at for at, values in enumerate(zip(*rows, strict=True)) if values.count(None) < len(values)]
        names = ", ".join(columns[at] for at in used)
        if len(rows) < _ARROW_FROM:
            marks = ", ".join([f"({', '.join('?' * len(used))})"] * len(rows))
            values = [row[at] for row in rows for at in used]
            self._execute(f"INSERT INTO {table} ({names}) VALUES {marks}", values).fetchall()  # noqa: S608
            return
        with self._incoming([columns[at] for at in used], [[row[at] for at in used] for row in rows]):
            insert = f"INSERT INTO {table} ({names}) SELECT {names} FROM dl_incoming"  # noqa: S608
            self._execute(insert, ()).fetchall()

    def insert_arrow(self, table: str, data: pa.Table, constants: Mapping[str, int | bool | str]) -> None:
        """A scan of the Arrow table itself."""
        names = ", ".join([*data.column_names, *constants])
        values = ", ".join([*data.column_names, *(literal(v) for v in constants.values())])
        self.barrier()
        self.cursor.register("dl_incoming", data)
        try:
            self._call(f"INSERT INTO {table} ({names}) SELECT {values} FROM dl_incoming", ()).fetchall()  # noqa: S608
        finally:
            self.cursor.unregister("dl_incoming")

    def _update(self, table: str, columns: Sequence[str], key: str, rows: Sequence[Sequence[Any]]) -> None:
        """A join with an Arrow table: row by row DuckDB would scan the whole table each time."""
        if len(rows) == 1:
            super()._update(table, columns, key, rows)
            return
        changes = ", ".join(f"{c} = i.{c}" for c in columns)
        with self._incoming([*columns, key], rows):
            join = f"UPDATE {table} SET {changes} FROM dl_incoming i WHERE {table}.{key} = i.{key}"  # noqa: S608
            self._execute(join, ()).fetchall()

    def _run_many(self, sql: str, params: Iterable[Sequence[Any]]) -> None:
        """Again for every parameter set."""
        for one in params:
            self._execute(sql, one).fetchall()

    @contextmanager
    def _incoming(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[None]:
        arrow = pa.table([pa.array(c) for c in zip(*rows, strict=True)], names=list(columns))
        self.cursor.register("dl_incoming", arrow)
        try:
            yield
        finally:
            self.cursor.unregister("dl_incoming")
