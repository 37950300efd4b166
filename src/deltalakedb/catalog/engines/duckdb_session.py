"""A session on DuckDB: a cursor of the process's one connection."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.catalog.engines.base import literal
from deltalakedb.catalog.engines.gathered import GatheredSession
from deltalakedb.exceptions import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb

    from deltalakedb.catalog.engines.duckdb import DuckdbEngine
    from deltalakedb.catalog.statements import Statement

#: from here on an Arrow scan beats prepared INSERTs
_ARROW_FROM = 32


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

    def _check_query(self, sql: str) -> None:
        """DuckDB would run a second statement after a COMMIT of the first."""
        super()._check_query(sql)
        try:
            count = len(self.engine.driver.extract_statements(sql))
        except self.engine.driver.Error as error:
            raise self.engine.translate(error) from error
        if count != 1:
            raise CatalogError("one query at a time", suggestion="ask the queries one after the other")

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
