"""Tables made from files that exist: ``convert_to_deltalake`` and ``create_table_with_add_actions``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import deltalake
import deltalake.transaction
from deltalake._util import deprecate_positional_commit_args

from deltalakedb.address import is_deltasql, parse_address
from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import AddressError, InvalidArgumentError
from deltalakedb.metastore.database import Database
from deltalakedb.table.locations import normal_location
from deltalakedb.table.roots import root_at
from deltalakedb.table.write.create import (
    create_or_replace,
    create_with,
    exists,
    open_existing,
    split_options,
)
from deltalakedb.table.write_locks import WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake.transaction import AddAction

    from deltalakedb.address import Address
    from deltalakedb.table.roots import Root


def convert_to_deltalake(
    uri: str | Path,
    mode: Literal["error", "ignore"] = "error",
    partition_by: deltalake.Schema | None = None,
    partition_strategy: Literal["hive", "directory"] | None = None,
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    storage_options: dict[str, str] | None = None,
    *args: Any,
    collect_stats: bool = True,
    commit_properties: deltalake.CommitProperties | None = None,
    post_commithook_properties: deltalake.PostCommitHookProperties | None = None,
) -> None:
    """Make a Delta table of a folder of Parquet files, which stay where they are.

    Args:
        uri: The folder, or a ``deltasql://`` address whose ``location`` is the folder.
        mode: What to do if there is a table already.
        partition_by: The partition columns, as a schema.
        partition_strategy: How partition values are read from folder names.
        name: The table's name in its metadata.
        description: The table's description.
        configuration: The table's properties.
        storage_options: Options for the object store.
        *args: The two properties below, by position, as older code gives them.
        collect_stats: Read the files' statistics from their footers.
        commit_properties: Custom metadata and application transactions.
        post_commithook_properties: For plain tables; the mirror does these jobs for SQL-backed ones.

    Example:
        >>> convert_to_deltalake("deltasql://sqlite//lake/meta.db?table=logs&location=/lake/logs")
    """
    commit_properties, post_commithook_properties = deprecate_positional_commit_args(
        "convert_to_deltalake", args, commit_properties, post_commithook_properties
    )
    options: dict[str, Any] = {
        "partition_by": partition_by,
        "partition_strategy": partition_strategy,
        "name": name,
        "description": description,
        "configuration": configuration,
        "storage_options": storage_options,
        "collect_stats": collect_stats,
        "commit_properties": commit_properties,
    }
    if is_deltasql(uri):
        convert(parse_address(str(uri)), mode, options)
        return
    deltalake.convert_to_deltalake(
        uri, mode, post_commithook_properties=post_commithook_properties, **options
    )


def convert(address: Address, mode: str, options: Mapping[str, Any]) -> None:
    """Convert a folder to a SQL-backed table; options as stock's function takes them."""
    options = dict(options)
    create_options = split_options(options, table=address.table)
    table = open_existing(address, options.get("storage_options"))
    if table is not None and mode == "ignore":
        return
    if table is not None:
        raise exists(table)
    if address.location is None:
        raise AddressError(
            f"{address.to_uri()} has no location: the folder of the files is unknown",
            table=address.table,
            suggestion="add location=… to the address: the folder that holds the Parquet files",
        )
    database = Database.open(address)
    given = options.get("storage_options")
    root = root_at(normal_location(address.location), given, database.engine.config)

    def run(target: str) -> None:
        # delta-rs lists the scratch folder: it must look like the real one
        root.show(Path(target))
        deltalake.convert_to_deltalake(target, **{**options, "storage_options": None})

    create_with(
        database,
        address.table or "",
        address.location,
        run,
        in_place=True,
        names=lambda: real_names(root, address.table),
        storage_options=given,
        create_options=create_options,
    )


def real_names(root: Root, table: str | None) -> dict[str, str]:
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
                f"the files {other} and {meta.path} cannot be told apart",
                table=table,
                suggestion="rename one of them",
            )
    return found


def create_table_with_add_actions(
    table_uri: str,
    schema: deltalake.Schema,
    add_actions: list[AddAction],
    mode: Literal["error", "append", "overwrite", "ignore"] = "error",
    partition_by: list[str] | str | None = None,
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    storage_options: dict[str, str] | None = None,
    *args: Any,
    commit_properties: deltalake.CommitProperties | None = None,
    post_commithook_properties: deltalake.PostCommitHookProperties | None = None,
) -> None:
    """Create a table of data files that are under its root already.

    Args:
        table_uri: A path, URL or ``deltasql://`` address.
        schema: The table's schema.
        add_actions: The files, with their sizes, partition values and statistics.
        mode: What to do if there is a table already.
        partition_by: Partition columns.
        name: The table's name in its metadata.
        description: The table's description.
        configuration: The table's properties.
        storage_options: Options for the object store.
        *args: The two properties below, by position, as older code gives them.
        commit_properties: Custom metadata and application transactions.
        post_commithook_properties: For plain tables; the mirror does these jobs for SQL-backed ones.
    """
    commit_properties, post_commithook_properties = deprecate_positional_commit_args(
        "create_table_with_add_actions", args, commit_properties, post_commithook_properties
    )
    stock: Any = deltalake.transaction.create_table_with_add_actions
    options: dict[str, Any] = {
        "partition_by": partition_by,
        "name": name,
        "description": description,
        "configuration": configuration,
        "commit_properties": commit_properties,
    }
    if is_deltasql(table_uri):
        create_options = split_options(options)
        create_or_replace(
            str(table_uri),
            mode,
            lambda target, how: stock(target, schema, add_actions, mode=how, **options),
            in_place=True,
            storage_options=storage_options,
            create_options=create_options,
        )
        return
    stock(
        table_uri,
        schema,
        add_actions,
        mode=mode,
        storage_options=storage_options,
        post_commithook_properties=post_commithook_properties,
        **options,
    )
