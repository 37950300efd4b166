"""The DeltaTable that users import: stock for plain paths and URLs, SQL for ``deltasql://``."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import deltalake

from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from arro3.core.types import ArrowSchemaExportable

    from deltalakedb.table.sql_table import SqlDeltaTable

#: what stock takes for "not given", so that a positional value and a default can be told apart
_NOT_GIVEN: bool = (
    inspect.signature(deltalake.DeltaTable.create).parameters["raise_if_key_not_exists"].default
)


class DeltaTable(deltalake.DeltaTable):
    """A Delta table: ``deltalake``'s own for plain addresses, SQL-backed for ``deltasql://`` ones.

    Args:
        table_uri: A path, URL or ``deltasql://`` address.
        version: The version to open; by default the newest.
        storage_options: Options for the object store.
        without_files: Deprecated and ignored.
        log_buffer_size: Deprecated and ignored.
        skip_stats: Deprecated and ignored.

    Example:
        >>> DeltaTable("deltasql://sqlite//lake/meta.db?table=sales.orders").to_pandas()
    """

    def __init__(
        self,
        table_uri: str | Path | os.PathLike[str],
        version: int | None = None,
        storage_options: dict[str, str] | None = None,
        without_files: bool = False,
        log_buffer_size: int | None = None,
        skip_stats: bool = False,
    ) -> None:
        warn_ignored(without_files, log_buffer_size, skip_stats)
        if is_deltasql(table_uri):
            open_sql(self, table_uri, version, storage_options)
        else:
            super().__init__(table_uri, version, storage_options)

    @staticmethod
    def is_deltatable(
        table_uri: str | Path | os.PathLike[str], storage_options: dict[str, str] | None = None
    ) -> bool:
        """Whether there is a table at an address: under its name and, where it names one, at its location."""
        if not is_deltasql(table_uri):
            return deltalake.DeltaTable.is_deltatable(table_uri, storage_options)
        from deltalakedb.exceptions import CatalogNotFoundError, TableNotFoundError
        from deltalakedb.table.places import normal_location

        address = parse_uri(table_uri).absolute()
        named = replace(address, location=None).to_uri(redact=False)
        try:
            found = cast("SqlDeltaTable", DeltaTable(named, storage_options=storage_options))
        except (TableNotFoundError, CatalogNotFoundError):
            return False
        return not address.location or normal_location(address.location) == found._row.location

    @classmethod
    def create(
        cls,
        table_uri: str | Path,
        schema: deltalake.Schema | ArrowSchemaExportable,
        mode: Literal["error", "append", "overwrite", "ignore"] = "error",
        partition_by: list[str] | str | None = None,
        name: str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        storage_options: dict[str, str] | None = None,
        *args: Any,
        commit_properties: deltalake.CommitProperties | None = None,
        post_commithook_properties: deltalake.PostCommitHookProperties | None = None,
        raise_if_key_not_exists: bool = _NOT_GIVEN,
    ) -> Self:
        """Create an empty table, or replace one with ``mode="overwrite"``.

        Args:
            table_uri: A path, URL or ``deltasql://`` address.
            schema: A Delta schema or anything that exports an Arrow schema.
            mode: What to do where there is a table already.
            partition_by: Partition columns.
            name: The table's name in its metadata.
            description: The table's description.
            configuration: The table's properties.
            storage_options: Options for the object store.
            *args: The three arguments below, by position, as older code gives them.
            commit_properties: Custom metadata and application transactions.
            post_commithook_properties: For plain tables; the mirror does these jobs for SQL-backed ones.
            raise_if_key_not_exists: Refuse properties that Delta does not know.
        """
        given = {
            "commit_properties": (commit_properties, None),
            "post_commithook_properties": (post_commithook_properties, None),
            "raise_if_key_not_exists": (raise_if_key_not_exists, _NOT_GIVEN),
        }
        options: dict[str, Any] = {
            "mode": mode,
            "partition_by": partition_by,
            "name": name,
            "description": description,
            "configuration": configuration,
            "storage_options": storage_options,
            **by_position("create", args, given),
        }
        if not is_deltasql(table_uri):
            return cast("Self", super().create(table_uri, schema, **options))
        from deltalakedb.table.writer import create_table

        create_table(str(table_uri), schema, **options)
        return cls(table_uri, storage_options=storage_options)


def open_sql(
    table: deltalake.DeltaTable,
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    storage_options: dict[str, str] | None = None,
) -> None:
    """Make a table object, under construction, a SQL-backed one: its class is chosen by its address.

    This is done while it is made, not before, so that subclasses may have constructors of their own.
    """
    from deltalakedb.table.sql_table import SqlDeltaTable

    if not isinstance(table, SqlDeltaTable):
        table.__class__ = _sql_class(type(table))
    SqlDeltaTable.__init__(cast("SqlDeltaTable", table), table_uri, version, storage_options)


#: class of plain tables -> class of SQL-backed ones
_SQL_CLASSES: dict[type, type] = {}


def _sql_class(kind: type) -> type:
    from deltalakedb.table.sql_table import SqlDeltaTable

    if issubclass(SqlDeltaTable, kind):
        return SqlDeltaTable
    if kind not in _SQL_CLASSES:
        # a user's own subclass keeps its methods in front of ours
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _SQL_CLASSES.setdefault(kind, type(kind.__name__, (kind, SqlDeltaTable), names))
    return _SQL_CLASSES[kind]


def warn_ignored(without_files: bool, log_buffer_size: int | None, skip_stats: bool) -> None:
    """Warn the caller's caller of arguments that stock ignores too."""
    given = {
        "without_files": without_files,
        "log_buffer_size": log_buffer_size is not None,
        "skip_stats": skip_stats,
    }
    for name in (name for name, is_given in given.items() if is_given):
        warnings.warn(f"The {name!r} parameter is deprecated and ignored.", DeprecationWarning, stacklevel=3)


def by_position(method: str, args: tuple[Any, ...], given: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Keyword arguments, some of which older code gives by position.

    Args:
        method: The method, for messages.
        args: What was given by position.
        given: Argument -> what was given by keyword, and what means that nothing was.
    """
    if len(args) > len(given):
        raise TypeError(f"{method}() got unexpected positional arguments")
    if args:
        warnings.warn(
            f"Arguments about the commit were passed positionally to {method}(), which is deprecated: give"
            " them as keywords.",
            DeprecationWarning,
            stacklevel=3,
        )
    found = {name: value for name, (value, nothing) in given.items() if value is not nothing}
    for name, value in zip(given, args, strict=False):
        if name in found:
            raise TypeError(f"{method}() got multiple values for {name!r}")
        found[name] = value
    return found
