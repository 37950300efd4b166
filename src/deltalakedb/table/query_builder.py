"""``QueryBuilder``: SQL by DataFusion over SQL-backed and plain tables alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake

from deltalakedb.exceptions import ArgumentTypeError

if TYPE_CHECKING:
    from typing import Self


class QueryBuilder(deltalake.QueryBuilder):
    """Questions in SQL over one or more tables, answered by the DataFusion that ``deltalake`` brings.

    A table is registered at the version that is open; later commits do not show.

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
        super().register(table_name, delta_table)
        # what a table had to fetch lives as long as the table
        self._registered = [*getattr(self, "_registered", ()), delta_table]
        return self
