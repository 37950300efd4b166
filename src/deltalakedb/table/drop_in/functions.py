"""Stock's functions that write and create tables, with SQL-backed tables on Rust's side."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import deltalake
import deltalake.transaction
import deltalake.writer.convert_to
import deltalake.writer.writer

from deltalakedb.address import parse_address
from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import AddressError, InvalidArgumentError, TableNotFoundError
from deltalakedb.metastore.database import Database
from deltalakedb.table.drop_in.delta_table import DeltaTable, by_address, create_by_position, rebound
from deltalakedb.table.locations import normal_location
from deltalakedb.table.roots import Root, root_at
from deltalakedb.table.write.write import (
    create_or_replace,
    create_with,
    exists,
    open_existing,
    split_options,
    write_table,
)
from deltalakedb.table.write_locks import WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable


def try_get_table_and_table_uri(
    table_or_uri: str | Path | deltalake.DeltaTable, storage_options: dict[str, str] | None = None
) -> tuple[deltalake.DeltaTable | None, str]:
    """The table, or None if there is none yet, and its address, as in ``deltalake.writer._utils``."""
    if isinstance(table_or_uri, deltalake.DeltaTable):
        return table_or_uri, table_or_uri.table_uri
    if not isinstance(table_or_uri, str | Path):
        raise InvalidArgumentError(
            f"table_or_uri must be a str, Path or DeltaTable, not {type(table_or_uri).__name__}"
        )
    return try_get_deltatable(table_or_uri, storage_options), str(table_or_uri)


def try_get_deltatable(
    table_uri: str | Path, storage_options: dict[str, str] | None
) -> deltalake.DeltaTable | None:
    """The table at an address, or None, as in ``deltalake.writer._utils``."""
    try:
        return DeltaTable(table_uri, storage_options=storage_options)
    except TableNotFoundError:
        return None


def _write_new(*, batch_schema: Any, **options: Any) -> None:  # noqa: ARG001 - it follows from the data
    write_table(options.pop("table_uri"), **options)


def _convert(*, uri: str, partition_schema: Any, **options: Any) -> None:
    address = parse_address(uri)
    create_options = split_options(options, table=address.table)
    given = options.pop("storage_options")
    if (table := open_existing(address, given)) is not None:
        raise exists(table)
    if address.location is None:
        raise AddressError(
            f"{address.to_uri()} has no location: the folder of the files is unknown",
            table=address.table,
            suggestion="add location=… to the address: the folder that holds the Parquet files",
        )
    database = Database.open(address)
    root = root_at(normal_location(address.location), given, database.engine.config)

    def run(target: str) -> None:
        # delta-rs lists the scratch folder: it must look like the real one
        root.populate(Path(target))
        deltalake.convert_to_deltalake(target, partition_by=partition_schema, **options)

    names = partial(_real_names, root, address.table)
    create_with(database, address, run, replace(create_options, in_place=names), given)


def _real_names(root: Root, table: str | None) -> dict[str, str]:
    """The Parquet files below a root, by the names that delta-rs's conversion gives them.

    It undoes percent-encoding, which file names may hold for their own reasons: hive escapes values so.
    """
    found: dict[str, str] = {}
    for meta in root.store.list("", recursive=True):
        if not meta.path.endswith(".parquet") or meta.path.startswith((f"{LOG_FOLDER}/", f"{WORK_FOLDER}/")):
            continue
        other = found.setdefault(unquote(meta.path), meta.path)
        if other != meta.path:
            raise InvalidArgumentError(
                f"the files {other} and {meta.path} have the same name in the log",
                table=table,
                suggestion="rename one of them",
            )
    return found


def _create_with_add_actions(
    *, table_uri: str, schema: Any, add_actions: Any, mode: str, storage_options: Any, **options: Any
) -> None:
    stock: Any = deltalake.transaction.create_table_with_add_actions
    create_options = replace(split_options(options), in_place=dict)
    run = partial(stock, schema=schema, add_actions=add_actions, **options)
    create_or_replace(table_uri, mode, run, create_options, storage_options)


#: stock's modules and their functions of Rust, which take addresses of either kind here
RUST: Final[dict[tuple[Any, str], Callable[..., Any]]] = {
    (module, name): by_address(getattr(module, name), ours)
    for module, name, ours in (
        (deltalake.table, "_create_deltalake", create_by_position),
        (deltalake.writer.writer, "write_deltalake_rust", _write_new),
        (deltalake.writer.convert_to, "_convert_to_deltalake", _convert),
        (deltalake.transaction, "_create_table_with_add_actions", _create_with_add_actions),
    )
}
convert_to_deltalake = rebound(
    deltalake.convert_to_deltalake,
    __name__,
    """Make a Delta table of a folder of Parquet files, which stay where they are.

    Example:
        >>> convert_to_deltalake("deltasql://sqlite//lake/meta.db?table=logs&location=/lake/logs")
    """,
    try_get_deltatable=try_get_deltatable,
    _convert_to_deltalake=RUST[deltalake.writer.convert_to, "_convert_to_deltalake"],
)
create_table_with_add_actions = rebound(
    deltalake.transaction.create_table_with_add_actions,
    __name__,
    "Create a table of data files that are under its root already.",
    _create_table_with_add_actions=RUST[deltalake.transaction, "_create_table_with_add_actions"],
)
