"""``deltasql://`` addresses in ``deltalake`` itself, for code that cannot change its imports."""

from __future__ import annotations

import functools
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import deltalake
import deltalake.fs
import deltalake.table
import deltalake.transaction
import deltalake.writer.convert_to
import deltalake.writer.writer
from deltalake.fs._base_handler import BaseDeltaStorageHandler

from deltalakedb.fs import DeltaStorageHandler, root_at
from deltalakedb.query import register_table
from deltalakedb.table.drop_in.delta_table import DeltaTable, by_address
from deltalakedb.table.drop_in.functions import RUST
from deltalakedb.table.drop_in.raw_table import RawSqlTable
from deltalakedb.table.handle import handle_of

if TYPE_CHECKING:
    from collections.abc import Callable

_lock = threading.Lock()
#: open registrations; stock is changed while there is one
_holding: set[Registration] = set()
#: restores what stock had before
_undo = ExitStack()
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
        """End this registration; with the last one, ``deltalake`` no longer knows addresses."""
        with _lock:
            _holding.discard(self)
            if not _holding:
                _undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Registration({'holds' if self in _holding else 'closed'})"


def register() -> Registration:
    """Let ``deltalake`` itself understand ``deltasql://`` addresses in this process, until it is closed.

    Afterwards ``deltalake.DeltaTable``, ``DeltaTable.create``, ``DeltaTable.is_deltatable``,
    ``write_deltalake``, ``convert_to_deltalake``, ``create_table_with_add_actions`` and
    ``deltalake.fs.DeltaStorageHandler`` accept them, wherever they were imported before. So do libraries that
    use them: Polars reads and writes by address, and so do Daft and Dask. Everything else works as before.

    Returns:
        A context manager: leaving its block ends this registration, and no other.

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
    """End every registration: addresses are unknown to ``deltalake`` again. Open tables stay open."""
    with _lock:
        _holding.clear()
        _undo.close()


def _change() -> None:
    _serve_open_tables()
    # Functions are replaced inside the modules that call them, and methods on the class: code that
    # imported write_deltalake or DeltaTable before has the same objects, which now come by here.
    kind = deltalake.table.DeltaTable
    _replace(kind, "__init__", DeltaTable.__init__)
    _replace(BaseDeltaStorageHandler, "__init__", _handle_files(BaseDeltaStorageHandler.__init__))
    _replace(kind, "is_deltatable", staticmethod(by_address(kind.is_deltatable, DeltaTable.is_deltatable)))
    for (module, name), function in RUST.items():
        _replace(module, name, function)


def _handle_files(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def init(
        self: Any,
        table_uri: str,
        options: dict[str, str] | None = None,
        known_sizes: dict[str, int] | None = None,
    ) -> None:
        stock(self, *root_at(table_uri, options), known_sizes)

    return init


@functools.cache
def _serve_open_tables() -> None:
    """Let stock's classes take SQL-backed tables. This stays, since open tables outlive a registration."""
    kind = deltalake.table.DeltaTable
    for name in _OF_TABLES:
        setattr(kind, name, _for_tables(getattr(kind, name), getattr(DeltaTable, name)))
    builder: Any = deltalake.QueryBuilder
    builder.register = functools.wraps(builder.register)(
        lambda *args, **named: register_table(*args, **named)
    )
    handler: Any = deltalake.fs.DeltaStorageHandler
    stock_handler = handler.from_table.__func__

    @functools.wraps(stock_handler)
    def from_table(cls: Any, table: Any, *args: Any, **options: Any) -> Any:
        if isinstance(table, RawSqlTable):
            return DeltaStorageHandler.from_table(table, *args, **options)  # type: ignore[arg-type]
        return stock_handler(cls, table, *args, **options)

    handler.from_table = classmethod(from_table)


def _for_tables(stock: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def method(self: deltalake.DeltaTable, *args: Any, **options: Any) -> Any:
        return (stock if handle_of(self) is None else ours)(self, *args, **options)

    return method


def _replace(owner: Any, name: str, made: Any) -> None:
    _undo.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, made)
