"""``write_deltalake`` and ``DeltaTable.create``: staged by delta-rs, committed in SQL, then published."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import deltalake

from deltalakedb.catalog import registry, snapshots
from deltalakedb.catalog.database import Database
from deltalakedb.catalog.files import read_adds
from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.config import get_config, use_config
from deltalakedb.exceptions import (
    AddressError,
    DeltaError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.log.names import LOG_FOLDER
from deltalakedb.protocol.actions import Action, Remove
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.reads import EVERYTHING, NOTHING
from deltalakedb.table.finish import finish
from deltalakedb.table.places import local_root, normal_location, place_for
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.staging import Scratch
from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.catalog.values import OpenTable
    from deltalakedb.uri import Address

Mode = Literal["error", "append", "overwrite", "ignore"]
_MODES = ("error", "append", "overwrite", "ignore")


def write_deltalake(
    table_or_uri: str | Path | deltalake.DeltaTable,
    data: Any,
    *,
    partition_by: list[str] | str | None = None,
    mode: Mode = "error",
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
) -> None:
    """Write data to a Delta table, creating it where it does not exist.

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
        predicate: Replace only what matches, with ``mode="overwrite"``.
        target_file_size: The size of data files to aim at.
        writer_properties: How Parquet is written.
        commit_properties: Custom metadata and application transactions.
        post_commithook_properties: Accepted; the mirror does these jobs.

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
    }
    if not isinstance(table_or_uri, SqlDeltaTable) and not is_deltasql(table_or_uri):
        stock: Any = deltalake.write_deltalake  # its overloads are split by mode
        stock(
            table_or_uri,
            data,
            mode=mode,
            storage_options=storage_options,
            predicate=predicate,
            post_commithook_properties=post_commithook_properties,
            **options,
        )
        return
    if mode not in _MODES:
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion=f"use one of {', '.join(_MODES)}")
    if predicate is not None:
        if mode != "overwrite":
            raise InvalidArgumentError("a predicate goes with mode='overwrite' only")
        raise UnsupportedOperationError(
            "overwriting by predicate is not offered on SQL-backed tables yet",
            suggestion="overwrite the whole table, or append",
        )
    handle = table_or_uri if isinstance(table_or_uri, SqlDeltaTable) else None
    address = handle._address if handle is not None else parse_uri(str(table_or_uri))  # noqa: SLF001
    # an open table keeps the settings it was opened with
    with use_config(get_config() if handle is None else handle._database.engine.config):  # noqa: SLF001
        written = _write(
            address, mode, lambda target, how: deltalake.write_deltalake(target, data, mode=how, **options)
        )
    if written and handle is not None:
        handle.update_incremental()


def create_table(
    table_uri: str,
    schema: Any,
    *,
    mode: str = "error",
    storage_options: dict[str, str] | None = None,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Create an empty SQL-backed table, or replace one with ``mode="overwrite"``."""
    if mode not in _MODES:
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion=f"use one of {', '.join(_MODES)}")
    del storage_options  # local roots need none
    options.pop("post_commithook_properties", None)
    address = parse_uri(table_uri)
    if mode == "append" and _existing(address) is not None:
        raise TableExistsError("the table exists", table=address.table, suggestion="write to it instead")
    _write(
        address,
        mode,
        lambda target, how: deltalake.DeltaTable.create(target, schema, mode=how, **options),
        comment=comment,
        tags=tags,
    )


def _existing(address: Address) -> OpenTable | None:
    if address.table is None:
        raise AddressError(
            f"{address.to_uri()} is a catalog's address, not a table's", suggestion="add ?table=NAME"
        )
    try:
        return snapshots.open_table(Database.open(address), address.table)
    except TableMissingError:
        return None


def _write(
    address: Address,
    mode: str,
    operation: Callable[[str, Any], object],
    *,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> bool:
    """Run a delta-rs operation on a scratch table and commit what it did; False where nothing was to do."""
    opened = _existing(address)
    database, name = Database.open(address), address.table or ""
    if opened is None:
        _create(database, name, address.location, operation, comment=comment, tags=tags)
        return True
    if mode == "error":
        raise TableExistsError(
            f"the table {name!r} exists at {opened.table.location}",
            table=name,
            version=opened.snapshot.version,
            suggestion="write with mode='append', 'overwrite' or 'ignore'",
        )
    if address.location and normal_location(address.location) != opened.table.location:
        raise InvalidArgumentError(
            f"the address says location={address.location}, but the table lies at {opened.table.location}",
            table=name,
            suggestion="leave location= out: it is needed only where a table is created",
        )
    if mode == "ignore":
        return False
    check_writable(opened.snapshot.protocol, table=name)
    root = local_root(opened.table.location, table=name)
    with Scratch.for_writing(root, table=name) as scratch:
        scratch.lay(opened.snapshot)
        _run(operation, scratch, mode)
        harvest = scratch.harvest(after=opened.snapshot.version)
        actions: list[Action] = list(harvest.actions)
        if mode == "overwrite":
            actions += _removes(database, opened)
        reads = NOTHING if mode == "append" else EVERYTHING
        change = TableChange(opened.table, actions, opened.snapshot, reads)
        finish(database, change, scratch, harvest)
    return True


def _create(
    database: Database,
    name: str,
    location: str | None,
    operation: Callable[[str, Any], object],
    *,
    comment: str | None,
    tags: Mapping[str, str] | None,
) -> None:
    root = place_for(database, name, location)
    if (owner := registry.find_location(database, root)) is not None:
        raise TableExistsError(
            f"the location {root} belongs to the table {owner.name!r}",
            table=name,
            suggestion=f"use the table {owner.name!r}, or another location",
        )
    if (Path(root) / LOG_FOLDER).is_dir() and any((Path(root) / LOG_FOLDER).iterdir()):
        raise TableExistsError(
            f"there is a plain Delta table at {root} already",
            table=name,
            suggestion="take it over with import_table(path, address), or choose another location",
        )
    with Scratch.for_writing(root, table=name) as scratch:
        _run(operation, scratch, "error")
        harvest = scratch.harvest(after=-1)
        new = NewTable(name, root, comment=comment, tags=tags or {})
        finish(database, TableChange(new, harvest.actions), scratch, harvest)


def _run(operation: Callable[[str, Any], object], scratch: Scratch, mode: str) -> None:
    """Run delta-rs; its errors pass as they are, its panics become errors."""
    try:
        operation(str(scratch.folder), mode)
    except Exception:
        raise
    except BaseException as panic:
        if isinstance(panic, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise DeltaError(f"delta-rs stopped unexpectedly: {panic}") from panic


def _removes(database: Database, opened: OpenTable) -> list[Action]:
    """Every live file as a remove: what a full overwrite leaves behind."""
    now = time.time_ns() // 1_000_000
    return [
        Remove(
            path=a.path,
            deletion_timestamp=now,
            data_change=True,
            extended_file_metadata=True,
            partition_values=a.partition_values,
            size=a.size,
            tags=a.tags,
            deletion_vector=a.deletion_vector,
            base_row_id=a.base_row_id,
            default_row_commit_version=a.default_row_commit_version,
        )
        for a in read_adds(database, opened)
    ]
