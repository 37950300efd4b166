"""The DeltaTable that users import: stock for plain paths and URLs, SQL for ``deltasql://``."""

from __future__ import annotations

import copy
import inspect
import warnings
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import deltalake
import deltalake.table
from deltalake._util import deprecate_positional_commit_args

from deltalakedb.address import is_deltasql, parse_address
from deltalakedb.table.arguments import instant_ms, whole_number
from deltalakedb.table.drop_in.raw_table import RawSqlTable, rows
from deltalakedb.table.handle import TableHandle, handle_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs
    from arro3.core.types import ArrowSchemaExportable

#: stock's default of an argument that older code gives by position
_NOT_GIVEN: bool = (
    inspect.signature(deltalake.DeltaTable.create).parameters["raise_if_key_not_exists"].default
)


class DeltaTable(deltalake.DeltaTable):
    """A Delta table: ``deltalake``'s own for plain addresses, SQL-backed for ``deltasql://`` ones.

    Stock's methods are a few lines of Python around ``self._table``; for a SQL-backed table that is a
    `RawSqlTable`, so they are inherited. Only what stock hands to Rust, or what can be answered better from
    SQL, is overridden.

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
            use_handle(self, TableHandle.open(table_uri, version, storage_options))
        else:
            super().__init__(table_uri, version, storage_options)

    @staticmethod
    def is_deltatable(
        table_uri: str | Path | os.PathLike[str], storage_options: dict[str, str] | None = None
    ) -> bool:
        """Whether there is a table at an address: with its name and, if it has one, at its location."""
        if not is_deltasql(table_uri):
            return deltalake.DeltaTable.is_deltatable(table_uri, storage_options)
        from deltalakedb.exceptions import CatalogNotFoundError, TableNotFoundError
        from deltalakedb.table.locations import normal_location

        address = parse_address(table_uri).absolute()
        try:
            found = TableHandle.open(replace(address, location=None), storage_options=storage_options)
        except (TableNotFoundError, CatalogNotFoundError):
            return False
        return not address.location or normal_location(address.location) == found.row.location

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
            mode: What to do if there is a table already.
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
        if len(args) > 3:
            raise TypeError("create() got unexpected positional arguments")
        if len(args) == 3:
            if raise_if_key_not_exists is not _NOT_GIVEN:
                raise TypeError("create() got multiple values for 'raise_if_key_not_exists'")
            raise_if_key_not_exists = args[2]
        commit_properties, post_commithook_properties = deprecate_positional_commit_args(
            "create", args[:2], commit_properties, post_commithook_properties
        )
        options: dict[str, Any] = {
            "mode": mode,
            "partition_by": partition_by,
            "name": name,
            "description": description,
            "configuration": configuration,
            "storage_options": storage_options,
            "commit_properties": commit_properties,
            "post_commithook_properties": post_commithook_properties,
        }
        if raise_if_key_not_exists is not _NOT_GIVEN:
            options["raise_if_key_not_exists"] = raise_if_key_not_exists
        if not is_deltasql(table_uri):
            return cast("Self", super().create(table_uri, schema, **options))
        from deltalakedb.table.write.create import create_table

        create_table(str(table_uri), schema, **options)
        return cls(table_uri, storage_options=storage_options)

    # ---- names of our own ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of a SQL-backed table in its catalog."""
        return _required(self, "name").name

    @property
    def address(self) -> str:
        """The ``deltasql://`` address of a SQL-backed table, without its password."""
        return _required(self, "address").address.to_uri()

    # ---- overrides of stock ----------------------------------------------------------------------------

    def load_as_version(self, version: int | str | datetime) -> None:
        """Move to a version, or to the newest version at a time.

        Args:
            version: A version number, a datetime (naive ones are UTC), or an ISO 8601 text.
        """
        if (handle := handle_of(self)) is None:
            super().load_as_version(version)
        elif isinstance(version, str | datetime):
            handle.load_at(instant_ms(version))
        elif (number := whole_number(version)) is not None:  # numpy's too
            handle.load(number)
        else:
            raise TypeError("Invalid datatype provided for version, only int, str or datetime are accepted.")

    def count(self) -> int:
        """The number of rows according to the files' statistics, without regard to deletion vectors."""
        handle = handle_of(self)
        return super().count() if handle is None else handle.source.num_records()

    def to_pyarrow_dataset(
        self,
        partitions: Any = None,
        filesystem: str | pafs.FileSystem | None = None,
        parquet_read_options: ds.ParquetReadOptions | None = None,
        schema: pa.Schema | None = None,
        as_large_types: bool = False,
        file_pruning_predicate: Any = None,
    ) -> ds.Dataset:
        """The rows as a pyarrow dataset over candidate files.

        Args:
            partitions: The older name of ``file_pruning_predicate``.
            filesystem: A pyarrow file system rooted at the table.
            parquet_read_options: How Parquet files are read.
            schema: The schema to read with instead of the table's.
            as_large_types: Use Arrow's large types.
            file_pruning_predicate: A SQL predicate or filters by which the database selects files.
        """
        predicate = deltalake.table._merge_deprecated_filters(  # noqa: SLF001
            "partitions", partitions, file_pruning_predicate
        )
        if (handle := handle_of(self)) is None:
            return super().to_pyarrow_dataset(
                None, filesystem, parquet_read_options, schema, as_large_types, predicate
            )
        from deltalakedb.table.read.dataset import dataset

        where = handle.where(predicate, files_only=True)
        with handle.reading():
            return dataset(
                handle.source,
                handle.root,
                where=where,
                schema=schema,
                filesystem=filesystem,
                read_options=parquet_read_options,
                large=as_large_types,
            )

    def to_pyarrow_table(
        self,
        partitions: Any = None,
        columns: list[str] | None = None,
        filesystem: str | pafs.FileSystem | None = None,
        filters: Any = None,
    ) -> pa.Table:
        """The rows as a pyarrow table; ``filters`` go to the database first, then to the files.

        Besides what stock takes, ``filters`` of a SQL-backed table may be a SQL predicate.
        """
        if partitions is not None:
            note = "`partitions` is deprecated; use `filters` instead"
            warnings.warn(note, DeprecationWarning, stacklevel=2)
        if (handle := handle_of(self)) is None:
            from pyarrow.parquet import filters_to_expression

            # as stock does it, but its warning would name this line
            expression = None if filters is None else filters_to_expression(filters)
            found = self.to_pyarrow_dataset(file_pruning_predicate=partitions, filesystem=filesystem)
            return found.to_table(columns=columns, filter=expression)
        return _to_pyarrow_table(handle, partitions, columns, filesystem, filters)

    def _encode_file_pruning_predicate(self, predicate: Any) -> Any:
        # the database takes values in their own types, and pyarrow expressions
        return predicate if handle_of(self) else super()._encode_file_pruning_predicate(predicate)

    # ---- as an object ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if (handle := handle_of(self)) is None:
            return super().__repr__()
        # a handle whose transaction is over would ask the database for its version
        version = "" if handle.is_ended else f", version={handle.version}"
        return f"DeltaTable({self.address!r}{version})"

    def __eq__(self, other: object) -> bool:
        mine = handle_of(self)
        theirs = handle_of(other) if isinstance(other, deltalake.DeltaTable) else None
        if mine is None and theirs is None:
            return super().__eq__(other)
        if mine is None or theirs is None:
            return NotImplemented
        catalogs = [handle.address.resolved().catalog for handle in (mine, theirs)]
        return catalogs[0] == catalogs[1] and (mine.name, mine.version) == (theirs.name, theirs.version)

    __hash__ = None  # type: ignore[assignment]  # a table moves between versions

    def __copy__(self) -> Self:
        state = dict(vars(self))
        if handle_of(self) is not None:
            state["_table"] = copy.copy(self._table)  # else both would move together
        made = object.__new__(type(self))
        vars(made).update(state)
        return made


def use_handle(table: deltalake.DeltaTable, handle: TableHandle) -> None:
    """Make a table object a SQL-backed one."""
    options = handle.storage_options
    table._storage_options = None if options is None else dict(options)  # noqa: SLF001
    table._table = RawSqlTable(handle)  # type: ignore[assignment]  # noqa: SLF001


def table_of(handle: TableHandle) -> DeltaTable:
    """What users hold of a handle."""
    made = object.__new__(DeltaTable)
    use_handle(made, handle)
    return made


def warn_ignored(without_files: bool, log_buffer_size: int | None, skip_stats: bool) -> None:
    """Warn the caller's caller of arguments that stock ignores too."""
    given = {
        "without_files": without_files,
        "log_buffer_size": log_buffer_size is not None,
        "skip_stats": skip_stats,
    }
    for name in (name for name, is_given in given.items() if is_given):
        warnings.warn(f"The {name!r} parameter is deprecated and ignored.", DeprecationWarning, stacklevel=3)


def _required(table: deltalake.DeltaTable, name: str) -> TableHandle:
    if (handle := handle_of(table)) is None:
        raise AttributeError(f"a plain table has no attribute {name!r}", name=name, obj=table)
    return handle


def _to_pyarrow_table(
    handle: TableHandle,
    partitions: Any,
    columns: list[str] | None,
    filesystem: str | pafs.FileSystem | None,
    filters: Any,
) -> pa.Table:
    import pyarrow.parquet as pq

    from deltalakedb.table.filters import both, typed_filtering
    from deltalakedb.table.read.dataset import dataset
    from deltalakedb.table.read.scan import known

    if isinstance(filters, str):
        return rows(handle, columns, filters).read_all()
    with typed_filtering():
        where = both(handle.where(partitions, files_only=True), handle.where(filters))
    with handle.reading():
        found = dataset(handle.source, handle.root, where=where, filesystem=filesystem)
    with typed_filtering():
        if isinstance(columns, list):
            known(columns, found.schema)
        expression = filters
        if isinstance(filters, list | tuple):
            expression = pq.filters_to_expression(filters) if filters else None
    # without filters it is the files that Arrow complains of
    filtering = typed_filtering() if expression is not None else nullcontext()
    with handle.reading(), filtering:
        return found.to_table(columns=columns, filter=expression)
