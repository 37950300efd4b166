"""``DeltaTable`` and ``write_deltalake``: stock for plain paths and URLs, SQL for ``deltasql://``.

Arrow, pydantic and the database come with the first SQL-backed table, so that importing these names is cheap.
"""

from __future__ import annotations

import copy
import functools
import warnings
from contextlib import nullcontext
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, cast

import deltalake
import deltalake.table
from deltalake._internal import RawDeltaTable

F = TypeVar("F", bound="Callable[..., Any]")
P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

    from deltalakedb.protocol.txn_log import Committed
    from deltalakedb.table.handle import TableHandle

    class Constructor(Generic[P]):
        """A class method with the parameters of stock's that returns an object of our class."""

        def __init__(self, stock: Callable[P, object]) -> None: ...
        def __get__(self, instance: object, owner: type[T]) -> Callable[P, T]: ...


#: `register()` replaces these by ours
_stock_init, _stock_load = deltalake.DeltaTable.__init__, deltalake.DeltaTable.load_as_version
_stock_write = deltalake.write_deltalake
_CREATE: tuple[str, ...] = ("partition_by", "mode", "raise_if_key_not_exists", "name", "description")
_CREATE += ("configuration", "storage_options", "commit_properties", "post_commithook_properties")


def rebound(function: F, module: str, note: str, **instead: Any) -> F:
    """A copy of one of stock's Python functions that finds our objects under some of its global names.

    So stock's own code checks and converts the arguments, and only Rust's side is ours.

    Args:
        function: Stock's function.
        module: The name of the module that has the copy.
        note: The first paragraph of its docstring, before stock's.
        **instead: Our objects, by the names that the function uses.
    """
    made = FunctionType(function.__code__, {**function.__globals__, **instead}, function.__name__)
    functools.update_wrapper(made, function)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__module__, made.__doc__ = module, f"{note}\n{function.__doc__ or ''}"
    return cast("F", made)


def _is_deltasql(address: Any) -> bool:
    from deltalakedb.address import is_deltasql  # its patterns take a third of the time of this import

    return is_deltasql(address)


def by_address(stock: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls ours if its first argument is a ``deltasql://`` address, else stock's."""

    @functools.wraps(stock)
    def call(*args: Any, **options: Any) -> Any:
        address = args[0] if args else options.get("table_uri", options.get("uri"))
        return (ours if _is_deltasql(address) else stock)(*args, **options)

    return call


def create_by_position(table_uri: str, schema: Any, *args: Any) -> None:
    """Rust's side of ``DeltaTable.create``."""
    from deltalakedb.table.write.write import create_table

    create_table(table_uri, schema, **dict(zip(_CREATE, args, strict=True)))


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
        names = ("without_files", "log_buffer_size", "skip_stats")
        for name, given in zip(names, (without_files, log_buffer_size is not None, skip_stats), strict=True):
            if given:
                note = f"The {name!r} parameter is deprecated and ignored."
                warnings.warn(note, DeprecationWarning, stacklevel=2)
        # the `table_uri` of a SQL-backed table opens that table again, and not its log
        table_uri = getattr(table_uri, "address", table_uri)
        if _is_deltasql(table_uri):
            from deltalakedb.table.handle import TableHandle

            use_handle(self, TableHandle.open(table_uri, version, storage_options))
        else:
            _stock_init(self, table_uri, version, storage_options)

    @staticmethod
    def is_deltatable(
        table_uri: str | Path | os.PathLike[str], storage_options: dict[str, str] | None = None
    ) -> bool:
        """Whether there is a table at an address: with its name and, if it has one, at its location."""
        if not _is_deltasql(table_uri):
            return deltalake.DeltaTable.is_deltatable(table_uri, storage_options)
        from deltalakedb.address import parse_address
        from deltalakedb.exceptions import CatalogNotFoundError, TableNotFoundError
        from deltalakedb.table.handle import TableHandle
        from deltalakedb.table.locations import normal_location

        address = parse_address(table_uri).absolute()
        try:
            found = TableHandle.open(replace(address, location=None), storage_options=storage_options)
        except (TableNotFoundError, CatalogNotFoundError):
            return False
        return not address.location or normal_location(address.location) == found.row.location

    if TYPE_CHECKING:
        create = Constructor(deltalake.DeltaTable.create)
    else:
        create = classmethod(
            rebound(
                deltalake.DeltaTable.create.__func__,
                __name__,
                "Create an empty table at a path, URL or ``deltasql://`` address.",
                _create_deltalake=by_address(deltalake.table._create_deltalake, create_by_position),  # noqa: SLF001
            )
        )

    @property
    def name(self) -> str:
        """The name of a SQL-backed table in its catalog."""
        return _required(self, "name").name

    @property
    def address(self) -> str:
        """The ``deltasql://`` address of a SQL-backed table, without its password."""
        return _required(self, "address").address.to_uri()

    def load_as_version(self, version: int | str | datetime) -> None:
        """Move to a version, or to the newest version at a time.

        Args:
            version: A version number, a datetime (naive ones are UTC), or an ISO 8601 text.
        """
        if _handle_of(self) is not None:
            from deltalakedb.table.arguments import whole_number

            number = whole_number(version)  # numpy's too
            version = version if number is None else number
        _stock_load(self, version)

    def count(self) -> int:
        """The number of rows according to the files' statistics, without regard to deletion vectors."""
        handle = _handle_of(self)
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
        if (handle := _handle_of(self)) is None:
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
        import pyarrow.parquet as pq

        if (handle := _handle_of(self)) is None:
            # as stock does it, but its warning would name this line
            expression = None if filters is None else pq.filters_to_expression(filters)
            found = self.to_pyarrow_dataset(file_pruning_predicate=partitions, filesystem=filesystem)
            return found.to_table(columns=columns, filter=expression)
        from deltalakedb.protocol.predicate import conjunction
        from deltalakedb.table.arguments import typed_filtering
        from deltalakedb.table.drop_in.raw_table import rows
        from deltalakedb.table.read.dataset import dataset
        from deltalakedb.table.read.scan import known

        if isinstance(filters, str):
            return rows(handle, columns, filters).read_all()
        with typed_filtering():
            wanted = (handle.where(partitions, files_only=True), handle.where(filters))
            parts = [where for where in wanted if where is not None]
        with handle.reading():
            where = conjunction(parts) if parts else None
            found = dataset(handle.source, handle.root, where=where, filesystem=filesystem)
        with typed_filtering():
            if isinstance(columns, list):
                known(columns, found.schema)
            expression = filters
            if isinstance(filters, list | tuple):
                expression = pq.filters_to_expression(filters) if filters else None
        # without filters, an error of Arrow is about the files
        filtering = typed_filtering() if expression is not None else nullcontext()
        with handle.reading(), filtering:
            return found.to_table(columns=columns, filter=expression)

    def _encode_file_pruning_predicate(self, predicate: Any) -> Any:
        # the database takes values in their own types, and pyarrow expressions
        return predicate if _handle_of(self) else super()._encode_file_pruning_predicate(predicate)

    def __repr__(self) -> str:
        if (handle := _handle_of(self)) is None:
            return super().__repr__()
        # a handle whose transaction is over would query the database for its version
        version = "" if handle.is_ended else f", version={handle.version}"
        return f"DeltaTable({self.address!r}{version})"

    def __eq__(self, other: object) -> bool:
        mine = _handle_of(self)
        theirs = _handle_of(other) if isinstance(other, deltalake.DeltaTable) else None
        if mine is None and theirs is None:
            return super().__eq__(other)
        if mine is None or theirs is None:
            return NotImplemented
        catalogs = [handle.address.resolved().catalog for handle in (mine, theirs)]
        return catalogs[0] == catalogs[1] and (mine.name, mine.version) == (theirs.name, theirs.version)

    __hash__ = None  # type: ignore[assignment]  # a table moves between versions

    def __copy__(self) -> Self:
        state = dict(vars(self))
        if _handle_of(self) is not None:
            state["_table"] = copy.copy(self._table)  # else both would move together
        made = object.__new__(type(self))
        vars(made).update(state)
        return made


def write_deltalake(
    table_or_uri: str | Path | deltalake.DeltaTable,
    data: Any,
    *,
    partition_by: list[str] | str | None = None,
    mode: Literal["error", "append", "overwrite", "ignore"] = "error",
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    schema_mode: Literal["merge", "overwrite"] | None = None,
    storage_options: dict[str, str] | None = None,
    predicate: str | None = None,
    target_file_size: int | None = None,
    writer_properties: deltalake.WriterProperties | None = None,
    commit_properties: deltalake.CommitProperties | None = None,
    post_commithook_properties: deltalake.PostCommitHookProperties | None = None,
) -> Committed | None:
    """Write data to a Delta table, creating it if it does not exist.

    Plain paths and URLs go to ``deltalake`` untouched; ``deltasql://`` addresses are committed in SQL and
    published to `_delta_log` at once.

    Args:
        table_or_uri: An address or an open table.
        data: Anything that speaks the Arrow PyCapsule interface.
        partition_by: Columns to partition a new table by.
        mode: What to do with an existing table.
        name: The new table's name in its metadata.
        description: The new table's description.
        configuration: The new table's properties.
        schema_mode: How the data may change the schema.
        storage_options: Options for the object store.
        predicate: With ``mode="overwrite"``, replace only what matches; every new row must match.
        target_file_size: The size of data files to aim at.
        writer_properties: How Parquet is written.
        commit_properties: Custom metadata and application transactions.
        post_commithook_properties: Whether a due checkpoint is written, and the log cleaned up after it.

    Returns:
        The commit: ``version``, ``committed_at`` in epoch milliseconds, and ``replayed`` if an application
        transaction had already been committed. None for a plain table, in a transaction, or if
        ``mode="ignore"`` wrote nothing.

    Example:
        >>> write_deltalake("deltasql://sqlite//lake/meta.db?table=t&location=/lake/t", df, mode="append")
    """
    options: dict[str, Any] = {
        "partition_by": partition_by,
        "name": name,
        "description": description,
        "configuration": configuration,
        "schema_mode": schema_mode,
        "target_file_size": target_file_size,
        "writer_properties": writer_properties,
        "commit_properties": commit_properties,
        "post_commithook_properties": post_commithook_properties,
    }
    handle = _handle_of(table_or_uri) if isinstance(table_or_uri, deltalake.DeltaTable) else None
    if handle is None and not _is_deltasql(table_or_uri):
        write: Any = _stock_write
    else:
        from deltalakedb.table.write.write import write_table as write
    table = table_or_uri if handle is None else handle
    done: Committed | None = write(
        table, data, mode=mode, storage_options=storage_options, predicate=predicate, **options
    )
    return done


def _handle_of(table: deltalake.DeltaTable) -> TableHandle | None:
    """`handle_of`, but a plain table imports nothing."""
    if isinstance(getattr(table, "_table", None), RawDeltaTable):
        return None
    from deltalakedb.table.handle import handle_of

    return handle_of(table)


def use_handle(table: deltalake.DeltaTable, handle: TableHandle) -> None:
    from deltalakedb.table.drop_in.raw_table import RawSqlTable

    options = handle.storage_options
    table._storage_options = None if options is None else dict(options)  # noqa: SLF001
    table._table = RawSqlTable(handle)  # type: ignore[assignment]  # noqa: SLF001


def table_of(handle: TableHandle) -> DeltaTable:
    made = object.__new__(DeltaTable)
    use_handle(made, handle)
    return made


def _required(table: deltalake.DeltaTable, name: str) -> TableHandle:
    if (handle := _handle_of(table)) is None:
        raise AttributeError(f"a plain table has no attribute {name!r}", name=name, obj=table)
    return handle
