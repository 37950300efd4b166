"""SQL by DataFusion over SQL-backed and plain tables, as in ``deltalake.query``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import deltalake
import pyarrow as pa
from arro3.core import RecordBatchReader

from deltalakedb._stock import stock_getattr
from deltalakedb.exceptions import ArgumentTypeError
from deltalakedb.table.handle import handle_of
from deltalakedb.table.read.scan import raw_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
else:
    __getattr__ = stock_getattr(__name__, "deltalake.query")


class QueryBuilder(deltalake.QueryBuilder):
    """Queries one or more tables in SQL with the DataFusion that ``deltalake`` brings.

    A table is registered at the version that is open; later commits are not visible.

    Example:
        >>> QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT count(*) FROM t").read_all()
    """

    def register(self, table_name: str, delta_table: deltalake.DeltaTable) -> Self:
        """Give a table a name in queries.

        Args:
            table_name: The name.
            delta_table: An open table, of this package or of ``deltalake``.
        """
        if not isinstance(delta_table, deltalake.DeltaTable):
            raise ArgumentTypeError(
                f"a table is needed, not {type(delta_table).__name__}",
                suggestion="open it: register(name, DeltaTable(uri))",
            )
        if not isinstance(table_name, str):
            raise ArgumentTypeError(f"a table's name is a text, not {table_name!r}")
        register_table(self, table_name, delta_table)
        # files that a table had to fetch live as long as the table
        self._registered = [*getattr(self, "_registered", ()), delta_table]
        return self

    def execute(self, sql: str) -> RecordBatchReader:
        """Run a query; return its rows as a stream of Arrow batches. An error names the data file at fault.

        Args:
            sql: The query.
        """
        found = pa.RecordBatchReader.from_stream(super().execute(sql))
        return RecordBatchReader.from_arrow(
            pa.RecordBatchReader.from_batches(found.schema, self._guarded(found))
        )

    def _guarded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            for table in getattr(self, "_registered", ()):
                if (handle := handle_of(table)) is not None:
                    stack.enter_context(handle.reading())
            yield from batches


def register_table(
    builder: deltalake.QueryBuilder, table_name: str, delta_table: deltalake.DeltaTable
) -> deltalake.QueryBuilder:
    """``QueryBuilder.register`` for both kinds of tables: Rust only takes its own tables."""
    handle = handle_of(delta_table)
    raw = delta_table._table if handle is None else raw_of(handle)  # noqa: SLF001
    builder._query_builder.register(table_name=table_name, delta_table=raw)  # noqa: SLF001
    return builder
