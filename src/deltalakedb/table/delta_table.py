"""The DeltaTable that users import: stock for plain paths and URLs, SQL for ``deltasql://``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import deltalake

from deltalakedb.uri import is_deltasql

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path


class DeltaTable(deltalake.DeltaTable):
    """A Delta table: ``deltalake``'s own for plain addresses, SQL-backed for ``deltasql://`` ones.

    Example:
        >>> DeltaTable("deltasql://sqlite//lake/meta.db?table=sales.orders").to_pandas()
    """

    def __new__(cls, table_uri: str | Path | os.PathLike[str] = "", *_: Any, **__: Any) -> Self:
        """Choose the implementation by the address."""
        from deltalakedb.table.sql_table import SqlDeltaTable

        if is_deltasql(table_uri) and not issubclass(cls, SqlDeltaTable):
            # a user's own subclass keeps its methods in front of ours
            sql = SqlDeltaTable if cls is DeltaTable else type(cls.__name__, (cls, SqlDeltaTable), {})
            return cast("Self", super().__new__(sql))
        return super().__new__(cls)

    @staticmethod
    def is_deltatable(
        table_uri: str | Path | os.PathLike[str], storage_options: dict[str, str] | None = None
    ) -> bool:
        """Whether there is a table at an address."""
        if not is_deltasql(table_uri):
            return deltalake.DeltaTable.is_deltatable(table_uri, storage_options)
        from deltalakedb.exceptions import CatalogNotFoundError, TableNotFoundError

        try:
            DeltaTable(table_uri, storage_options=storage_options)
        except (TableNotFoundError, CatalogNotFoundError):
            return False
        return True

    @classmethod
    def create(
        cls,
        table_uri: str | Path,
        schema: Any,
        mode: str = "error",
        partition_by: list[str] | str | None = None,
        name: str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        storage_options: dict[str, str] | None = None,
        *args: Any,
        **options: Any,
    ) -> Self:
        """Create an empty table, or replace one with ``mode="overwrite"``."""
        if not is_deltasql(table_uri):
            made = super().create(
                table_uri,
                schema,
                cast("Any", mode),
                partition_by,
                name,
                description,
                configuration,
                storage_options,
                *args,
                **options,
            )
            return cast("Self", made)
        from deltalakedb.table.writer import create_table

        create_table(
            str(table_uri),
            schema,
            mode=mode,
            partition_by=partition_by,
            name=name,
            description=description,
            configuration=configuration,
            storage_options=storage_options,
            **options,
        )
        return cls(str(table_uri), storage_options=storage_options)
