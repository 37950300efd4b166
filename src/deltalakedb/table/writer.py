"""``write_deltalake`` and ``DeltaTable.create``: written by delta-rs, committed in SQL, then published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import deltalake

from deltalakedb.catalog import registry
from deltalakedb.catalog.database import Database
from deltalakedb.commit.changes import NewTable
from deltalakedb.exceptions import (
    AddressError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.log.names import LOG_FOLDER
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.reads import EVERYTHING, NOTHING
from deltalakedb.protocol.rules import OURS
from deltalakedb.table.direct import append
from deltalakedb.table.hooks import NO_HOOKS
from deltalakedb.table.operations import call, removes, rewrite, submit
from deltalakedb.table.parquet import arrow_source
from deltalakedb.table.places import local_root, place_for
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.staging import Scratch
from deltalakedb.table.work import AutoCommit, Work
from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.table.work import Sink
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
        post_commithook_properties: Whether a checkpoint follows where one is due, and the log is cleaned up.

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
    stock: Any = deltalake.write_deltalake  # its overloads are split by mode
    if not isinstance(table_or_uri, SqlDeltaTable) and not is_deltasql(table_or_uri):
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
    check_mode(mode)
    data = arrow_source(data)
    if isinstance(table_or_uri, SqlDeltaTable):
        table_or_uri._table.write(
            data,
            mode=mode,
            predicate=predicate,
            post_commithook_properties=post_commithook_properties,
            **options,
        )
        return
    address = parse_uri(str(table_or_uri))
    table = open_existing(address)
    if table is not None:
        if mode != "error":
            table._check_location(address.location)
        table._hooks = post_commithook_properties
        write_to(table, data, mode=mode, predicate=predicate, **options)
    else:
        create_with(
            Database.open(address),
            address.table or "",
            address.location,
            lambda target: stock(target, data, mode=mode, **options),
        )


def check_mode(mode: str) -> None:
    """Refuse a mode that there is not."""
    if mode not in _MODES:
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion=f"use one of {', '.join(_MODES)}")


def write_to(
    table: SqlDeltaTable, data: Any, *, mode: str = "append", predicate: str | None = None, **options: Any
) -> None:
    """Write to an open table at the version it shows."""
    check_mode(mode)
    options["post_commithook_properties"] = NO_HOOKS
    if predicate is not None and mode != "overwrite":
        raise InvalidArgumentError("a predicate goes with mode='overwrite' only", table=table.name)
    if mode == "ignore":
        return
    if mode == "error":
        raise _exists(table)
    if predicate is not None:
        where = table._predicate_or_all(predicate)

        def replace_matching(target: str) -> None:
            deltalake.write_deltalake(target, data, mode="overwrite", predicate=predicate, **options)

        rewrite(table, where, lambda stage: replace_matching(str(stage.scratch.folder)))
        return
    if mode == "append" and (data := append(table, data, options)) is None:
        return
    stock: Any = deltalake.write_deltalake  # its overloads are split by mode
    _without_files(table, mode, lambda target: stock(target, data, mode=mode, **options))


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
    check_mode(mode)
    del storage_options  # local roots need none
    options["post_commithook_properties"] = NO_HOOKS
    address = parse_uri(table_uri)
    table = open_existing(address)
    if table is None:
        create_with(
            Database.open(address),
            address.table or "",
            address.location,
            lambda target: deltalake.DeltaTable.create(target, schema, **options),
            comment=comment,
            tags=tags,
        )
    elif mode in ("error", "append"):
        raise _exists(table)
    elif mode == "overwrite":
        table._check_location(address.location)
        stock: Any = deltalake.DeltaTable.create
        _without_files(table, mode, lambda target: stock(target, schema, mode=mode, **options))


def open_existing(address: Address) -> SqlDeltaTable | None:
    """The table at an address, or None where there is none."""
    if address.table is None:
        raise AddressError(
            f"{address.to_uri()} is a catalog's address, not a table's", suggestion="add ?table=NAME"
        )
    try:
        return SqlDeltaTable(address.catalog.with_table(address.table))._pass_by()
    except TableMissingError:
        return None


def create_with(
    database: Database,
    name: str,
    location: str | None,
    operation: Callable[[str], object],
    *,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    sink: Sink | None = None,
) -> None:
    """Create a table by what delta-rs does in an empty folder."""
    root = place_for(database, name, location)
    registry.refuse_taken(database, name, root)
    refuse_plain_table(root, name)
    failpoint("data.before")
    with Scratch.for_writing(root, table=name) as scratch:
        call(operation, str(scratch.folder))
        harvest = scratch.harvest(after=-1)
        moved = scratch.place(harvest.new_files, fsync=database.engine.config.publish.fsync)
        failpoint("data.after")
        new = NewTable(name, root, comment=comment, tags=tags or {})
        (sink or AutoCommit(database)).submit(Work(new, harvest.actions, None, NOTHING, moved, fresh=True))


def refuse_plain_table(root: str, name: str) -> None:
    """Refuse a place where a plain Delta table lies."""
    log = Path(root) / LOG_FOLDER
    if log.is_dir() and any(log.iterdir()):
        raise TableExistsError(
            f"there is a plain Delta table at {root} already",
            table=name,
            suggestion="take it over with import_table(path, address), or choose another location",
        )


def _without_files(table: SqlDeltaTable, mode: str, operation: Callable[[str], object]) -> None:
    """Run an operation that needs none of the table's files: an append, or a full overwrite.

    A full overwrite is what delta-rs makes of an empty table, plus the removal of every file.
    """
    snapshot = table._source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=OURS)
    root = local_root(table.table_uri, table=table.name)
    failpoint("data.before")
    with Scratch.for_writing(root, table=table.name) as scratch:
        scratch.lay(snapshot)
        call(operation, str(scratch.folder))
        harvest = scratch.harvest(after=snapshot.version)
        if mode == "append":
            submit(table, scratch, harvest, NOTHING)
        else:
            submit(table, scratch, harvest, EVERYTHING, removes(table._source.adds()))


def _exists(table: SqlDeltaTable) -> TableExistsError:
    return TableExistsError(
        f"the table {table.name!r} exists at {table.table_uri}",
        table=table.name,
        version=table.version(),
        suggestion="write with mode='append', 'overwrite' or 'ignore'",
    )
