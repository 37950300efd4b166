"""``write_deltalake`` and ``DeltaTable.create``: written by delta-rs, committed in SQL, then published."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import deltalake
import pyarrow as pa

from deltalakedb.commit.changes import NewTable
from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import (
    ArgumentTypeError,
    ConflictError,
    InvalidArgumentError,
    SchemaError,
    TableExistsError,
    TableMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.features import check_writable
from deltalakedb.protocol.reads import EVERYTHING, NOTHING
from deltalakedb.protocol.rules import OURS
from deltalakedb.table import memory
from deltalakedb.table.direct import append
from deltalakedb.table.new_tables import PLAIN, Wishes, granted, quiet, taken_out
from deltalakedb.table.operations import call, removes, rewrite, submit
from deltalakedb.table.parquet import arrow_source
from deltalakedb.table.places import normal_location, place_for
from deltalakedb.table.refusals import Concerned
from deltalakedb.table.roots import root_at
from deltalakedb.table.source import SqlSource
from deltalakedb.table.sql_table import SqlDeltaTable
from deltalakedb.table.staging import Scratch
from deltalakedb.table.work import AutoCommit, Work
from deltalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from deltalakedb.metastore.values import OpenTable
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
        predicate: With ``mode="overwrite"``, replace only what matches; every new row must match.
        target_file_size: The size of data files to aim at.
        writer_properties: How Parquet is written.
        commit_properties: Custom metadata and application transactions.
        post_commithook_properties: Whether a due checkpoint is written, and the log cleaned up after it.

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
    hooks = {"post_commithook_properties": post_commithook_properties}
    stock: Any = deltalake.write_deltalake  # its overloads are split by mode
    if not isinstance(table_or_uri, SqlDeltaTable) and not is_deltasql(table_or_uri):
        stock(
            table_or_uri,
            data,
            mode=mode,
            storage_options=storage_options,
            predicate=predicate,
            **hooks,
            **options,
        )
        return
    mode = cast("Mode", known_mode(mode))
    if isinstance(table_or_uri, SqlDeltaTable):
        table_or_uri._use_options(storage_options)
        table_or_uri._refresh()
        if mode != "ignore":
            write_to(table_or_uri, arrow_source(data), mode=mode, predicate=predicate, **options, **hooks)
        return
    address = parse_uri(str(table_or_uri))
    if mode == "ignore" and (table := open_existing(address, storage_options)) is not None:
        table._check_location(address.location)
        return  # as in stock, nobody looks at the data
    data = arrow_source(data)
    plain = mode == "append" and predicate is None
    if plain and _append_remembered(address, data, options | hooks, storage_options):
        return
    table = open_existing(address, storage_options)
    if table is not None:
        if mode != "error":
            table._check_location(address.location)
            table._require_folder()
        write_to(table, data, mode=mode, predicate=predicate, **options, **hooks)
        if mode == "append" and isinstance(table._source, SqlSource):
            _remember(table, table._source.opened)
    else:
        options |= hooks
        wishes = taken_out(options, table=address.table)
        create_with(
            Database.open(address),
            address.table or "",
            address.location,
            lambda target: stock(target, data, mode=mode, predicate=predicate, **quiet(options)),
            storage_options=storage_options,
            wishes=wishes,
        )


def _append_remembered(
    address: Address, data: Any, options: dict[str, Any], storage_options: Mapping[str, str] | None
) -> bool:
    """Append to a table as this process last saw it; False where it has to be looked up."""
    if isinstance(data, pa.RecordBatchReader) or address.table is None:
        return False  # a stream can be read only once
    wishes = taken_out(options)
    database = Database.open(address)
    if (opened := memory.recall(database, address.table)) is None:
        return False
    table = SqlDeltaTable._remembered(address.catalog.with_table(address.table), database, opened)
    table._use_options(storage_options)
    if address.location and normal_location(address.location) != opened.table.location:
        memory.forget(database, address.table)  # the name may belong to another table by now
        return False
    try:
        # an object store takes a request for it, which need not wait for the upload
        check = None if table._root.is_local else table._require_folder
        if check is None:
            table._require_folder()
        rest = append(table, data, options, hooks=wishes.hooks, check=check)
    except (ConflictError, SchemaError, TableMissingError) as error:
        memory.forget(database, address.table)
        if error.context.get("dropped"):
            raise  # a new table in a new catalog is not what was meant
        return False
    _remember(table, opened)
    return rest is None


def _remember(table: SqlDeltaTable, opened: OpenTable) -> None:
    """Remember a table that was just appended to, unless more than its files has changed."""
    done = table._appended
    if done is not None and done.fresh is not None:
        memory.move_on(table._database, table.name, opened, done.version, done.timestamp)
    else:
        memory.forget(table._database, table.name)


def known_mode(mode: str) -> str:
    """A mode, which may be written in capitals; one that there is not is refused."""
    if not isinstance(mode, str):
        raise ArgumentTypeError(f"a mode is a text, not {mode!r}")
    if (known := mode.lower()) not in _MODES:
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion=f"use one of {', '.join(_MODES)}")
    return known


def write_to(
    table: SqlDeltaTable, data: Any, *, mode: str = "append", predicate: str | None = None, **options: Any
) -> None:
    """Write to an open table at the version it shows."""
    mode = known_mode(mode)
    wishes = taken_out(options, table=table.name)
    if mode == "ignore":
        return
    if mode == "error":
        raise exists(table)
    if predicate is not None and mode == "overwrite":
        where = table._predicate_or_all(predicate)

        def replace_matching(target: str) -> None:
            deltalake.write_deltalake(target, data, mode="overwrite", predicate=predicate, **quiet(options))

        rewrite(table, where, lambda stage: replace_matching(str(stage.scratch.folder)), hooks=wishes.hooks)
        return
    direct = mode == "append" and predicate is None
    if direct and (data := append(table, data, options, hooks=wishes.hooks)) is None:
        return
    stock: Any = deltalake.write_deltalake  # its overloads are split by mode
    # beside an append, a predicate is what every new row must meet
    run = partial(stock, data=data, mode=mode, predicate=predicate, **quiet(options))
    # stock leaves the properties of an existing table alone
    _without_files(table, mode, run, Wishes(hooks=wishes.hooks))


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
    wishes = taken_out(options)
    stock: Any = deltalake.DeltaTable.create
    create_or_replace(
        table_uri,
        mode,
        lambda target, how: stock(target, schema, mode=how, **quiet(options)),
        comment=comment,
        tags=tags,
        storage_options=storage_options,
        wishes=wishes,
    )


def create_or_replace(
    table_uri: str,
    mode: str,
    operation: Callable[[str, str], object],
    *,
    in_place: bool = False,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    wishes: Wishes = PLAIN,
) -> None:
    """Create a table by what delta-rs does in a folder, in a mode; or replace one, or leave it alone.

    Args:
        table_uri: The table's address.
        mode: What to do where there is a table already.
        operation: Runs delta-rs in a folder and in a mode.
        in_place: The data files lie under the table's root already.
        comment: A new table's comment in the registry.
        tags: A new table's tags in the registry.
        storage_options: Options for the object store.
        wishes: What is wanted of us rather than of delta-rs.
    """
    mode = known_mode(mode)
    address = parse_uri(table_uri)
    table = open_existing(address, storage_options)
    if table is None:
        create_with(
            Database.open(address),
            address.table or "",
            address.location,
            lambda target: operation(target, mode),
            in_place=in_place,
            comment=comment,
            tags=tags,
            storage_options=storage_options,
            wishes=wishes,
        )
    elif mode in ("error", "append"):
        raise exists(table)
    elif mode == "overwrite":
        table._check_location(address.location)
        table._require_folder()
        _without_files(table, mode, lambda target: operation(target, mode), wishes, in_place=in_place)


def open_existing(address: Address, storage_options: Mapping[str, str] | None = None) -> SqlDeltaTable | None:
    """The table at an address, or None where there is none."""
    name = address.require_table()
    try:
        options = None if storage_options is None else dict(storage_options)
        table = address.catalog.with_table(name)
        return SqlDeltaTable(table, storage_options=options)._pass_by()
    except TableMissingError as error:  # or the whole catalog
        if error.context.get("dropped"):
            raise
        return None


def create_with(
    database: Database,
    name: str,
    location: str | None,
    operation: Callable[[str], object],
    *,
    in_place: bool = False,
    names: Callable[[], Mapping[str, str]] | None = None,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    sink: Sink | None = None,
    free: bool = False,
    storage_options: Mapping[str, str] | None = None,
    wishes: Wishes = PLAIN,
) -> None:
    """Create a table by what delta-rs does in an empty folder, where its data files do not lie in place.

    ``free`` says that its name will be free by then, ``names`` what the files are really called.
    """
    database.ensure()
    place = place_for(database, name, location)
    registry.refuse_taken(database, name, place, free=free)
    root = root_at(place, storage_options, database.engine.config)
    if next(root.store.list(LOG_FOLDER), None) is not None:
        raise TableExistsError(
            f"there is a plain Delta table at {place} already",
            table=name,
            suggestion="take it over with import_table(path, address), or choose another location",
        )
    failpoint("data.before")
    with Scratch.for_writing(root, table=name) as scratch:
        call(operation, str(scratch.folder), Concerned(name, place, hint=wishes.hint))
        harvest = scratch.harvest(after=-1)
        if in_place:
            harvest = harvest.in_place(names() if names is not None else {})
        moved = scratch.place(harvest.new_files, fsync=database.engine.config.publish.fsync)
        failpoint("data.after")
        new = NewTable(name, place, comment=comment, tags=tags or {})
        actions = granted(harvest.actions, wishes, database.engine.config, place)
        work = Work(
            new, actions, None, NOTHING, moved, harvest.fresh, root=root, hooks=wishes.hooks, kept=wishes.kept
        )
        (sink or AutoCommit(database)).submit(work)


def _without_files(
    table: SqlDeltaTable,
    mode: str,
    operation: Callable[[str], object],
    wishes: Wishes = PLAIN,
    *,
    in_place: bool = False,
) -> None:
    """Run an operation that needs none of the table's files: an append, or a full overwrite.

    A full overwrite is what delta-rs makes of an empty table, plus the removal of every file.
    """
    snapshot = table._source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=OURS)
    failpoint("data.before")
    with Scratch.for_writing(table._root, table=table.name) as scratch:
        scratch.lay(snapshot)
        call(operation, str(scratch.folder), Concerned.at(table))
        harvest = scratch.harvest(after=snapshot.version)
        if in_place:
            harvest = harvest.in_place()
        if mode == "append":
            submit(table, scratch, harvest, NOTHING, hooks=wishes.hooks)
            return
        config = table._database.engine.config
        actions = granted(harvest.actions, wishes, config, table._row.location, before=snapshot.metadata)
        whole = replace(harvest, steps=(actions,))
        submit(table, scratch, whole, EVERYTHING, removes(table._source.adds()), hooks=wishes.hooks)


def exists(table: SqlDeltaTable) -> TableExistsError:
    """The error that says so."""
    return TableExistsError(
        f"the table {table.name!r} already exists at {table._row.location}",
        table=table.name,
        version=table.version(),
        suggestion="write with mode='append', 'overwrite' or 'ignore'",
    )
