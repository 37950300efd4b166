"""``deltasql://`` addresses in ``deltalake`` itself, for code that cannot change its imports."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Self, cast

import deltalake
import deltalake.fs
import deltalake.table
import deltalake.transaction
import deltalake.writer.convert_to
import deltalake.writer.writer

from deltalakedb.address import is_deltasql, parse_address
from deltalakedb.table.drop_in.convert import convert, create_table_with_add_actions
from deltalakedb.table.drop_in.delta_table import DeltaTable, use_handle, warn_ignored
from deltalakedb.table.drop_in.query_builder import register_table
from deltalakedb.table.drop_in.raw_table import RawSqlTable
from deltalakedb.table.drop_in.storage_handler import DeltaStorageHandler
from deltalakedb.table.handle import TableHandle, handle_of
from deltalakedb.table.write.create import create_table
from deltalakedb.table.write.write import write_deltalake

if TYPE_CHECKING:
    from collections.abc import Callable

_lock = threading.Lock()
#: registrations that hold; stock is changed while there is one
_holding: set[Registration] = set()
#: what stock had before, to be put back
_before: list[tuple[Any, str, Any]] = []
#: methods of stock's table that hand it to Rust, or that SQL can answer better
_OF_TABLES = (
    "count",
    "load_as_version",
    "to_pyarrow_dataset",
    "to_pyarrow_table",
    "_encode_file_pruning_predicate",
)


class Registration:
    """A registration that holds until it is closed, or until its ``with`` block ends."""

    def close(self) -> None:
        """Take this registration back; with the last one, ``deltalake`` no longer knows addresses."""
        with _lock:
            _holding.discard(self)
            if not _holding:
                _restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Registration({'holds' if self in _holding else 'closed'})"


def register() -> Registration:
    """Let ``deltalake`` itself understand ``deltasql://`` addresses, in this process, until it is taken back.

    Afterwards ``deltalake.DeltaTable``, ``DeltaTable.create``, ``DeltaTable.is_deltatable``,
    ``write_deltalake``, ``convert_to_deltalake`` and ``create_table_with_add_actions`` accept them, wherever
    they were imported before, and so do libraries that use them: ``polars.scan_delta("deltasql://…")``.
    Everything else goes on as before.

    Returns:
        A context manager: leaving its block takes this registration back, and no other.

    Example:
        >>> with deltalakedb.register():
        ...     polars.scan_delta("deltasql://sqlite//lake/meta.db?table=sales.orders").collect()
    """
    made = Registration()
    with _lock:
        if not _holding:
            _change()
        _holding.add(made)
    return made


def unregister() -> None:
    """Take every registration back: addresses are unknown to ``deltalake`` again. Open tables stay open."""
    with _lock:
        _holding.clear()
        _restore()


def _change() -> None:
    _serve_open_tables()
    # Functions are replaced inside the modules that call them, and methods on the class: code that
    # imported write_deltalake or DeltaTable before has the same objects, which now come by here.
    kind = deltalake.table.DeltaTable
    _replace(kind, "__init__", _init)
    _replace(kind, "is_deltatable", lambda stock: staticmethod(_is_deltatable(stock)))
    _replace(deltalake.table, "_create_deltalake", _create)
    _replace(deltalake.writer.writer, "write_deltalake_rust", _write_new)
    _replace(deltalake.writer.convert_to, "_convert_to_deltalake", _convert)
    _replace(deltalake.transaction, "_create_table_with_add_actions", _create_with_adds)


@functools.cache
def _serve_open_tables() -> None:
    """Let stock's classes take SQL-backed tables. This stays: tables that are open outlive a registration."""
    kind = deltalake.table.DeltaTable
    for name in _OF_TABLES:
        setattr(kind, name, _for_tables(getattr(kind, name), getattr(DeltaTable, name)))
    stock_register = deltalake.QueryBuilder.register

    @functools.wraps(stock_register)
    def register(
        self: deltalake.QueryBuilder, table_name: str, delta_table: deltalake.DeltaTable
    ) -> deltalake.QueryBuilder:
        return register_table(self, table_name, delta_table)

    handler: Any = deltalake.fs.DeltaStorageHandler
    stock_handler = handler.from_table.__func__

    @functools.wraps(stock_handler)
    def from_table(cls: Any, table: Any, *args: Any, **options: Any) -> Any:
        if isinstance(table, RawSqlTable):
            return DeltaStorageHandler.from_table(table, *args, **options)  # type: ignore[arg-type]
        return stock_handler(cls, table, *args, **options)

    deltalake.QueryBuilder.register = register  # type: ignore[method-assign]
    handler.from_table = classmethod(from_table)


def _for_tables(stock: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def method(self: deltalake.DeltaTable, *args: Any, **options: Any) -> Any:
        return (stock if handle_of(self) is None else ours)(self, *args, **options)

    return method


def _replace(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    found = vars(owner)[name]
    _before.append((owner, name, found))
    setattr(owner, name, made(found.__func__ if isinstance(found, staticmethod) else found))


def _restore() -> None:
    while _before:
        setattr(*_before.pop())


def _init(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def __init__(  # noqa: N807 - it takes the place of one
        self: deltalake.DeltaTable,
        table_uri: Any,
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
            stock(self, table_uri, version, storage_options)

    return __init__


def _is_deltatable(stock: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(stock)
    def is_deltatable(table_uri: Any, storage_options: dict[str, str] | None = None) -> bool:
        if is_deltasql(table_uri):
            return DeltaTable.is_deltatable(table_uri, storage_options)
        return stock(table_uri, storage_options)

    return is_deltatable


_CREATE: tuple[str, ...] = ("partition_by", "mode", "raise_if_key_not_exists", "name", "description")
_CREATE += ("configuration", "storage_options", "commit_properties", "post_commithook_properties")


def _create(stock: Callable[..., None]) -> Callable[..., None]:
    """Rust's side of ``DeltaTable.create``, which gives it everything by position."""

    def create(table_uri: str, schema: Any, *args: Any) -> None:
        if is_deltasql(table_uri):
            create_table(table_uri, schema, **dict(zip(_CREATE, args, strict=True)))
        else:
            stock(table_uri, schema, *args)

    return create


def _write_new(stock: Callable[..., None]) -> Callable[..., None]:
    """Rust's side of ``write_deltalake`` where there is no table yet."""

    def write(table_uri: str, data: Any, **options: Any) -> None:
        if is_deltasql(table_uri):
            del options["batch_schema"]
            write_deltalake(table_uri, data, **options)
        else:
            stock(table_uri=table_uri, data=data, **options)

    return write


def _convert(stock: Callable[..., None]) -> Callable[..., None]:
    """Rust's side of ``convert_to_deltalake``; stock has looked after ``mode`` already."""

    def run(uri: str, **options: Any) -> None:
        if is_deltasql(uri):
            options["partition_by"] = options.pop("partition_schema")
            del options["post_commithook_properties"]
            convert(parse_address(uri), "error", options)
        else:
            stock(uri=uri, **options)

    return run


def _create_with_adds(stock: Callable[..., None]) -> Callable[..., None]:
    def create(table_uri: str, **options: Any) -> None:
        target = create_table_with_add_actions if is_deltasql(table_uri) else stock
        cast("Callable[..., None]", target)(table_uri=table_uri, **options)

    return create
