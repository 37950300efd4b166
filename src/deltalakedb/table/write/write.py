"""``write_deltalake`` and ``DeltaTable.create``: written by delta-rs, committed in SQL, then published."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import deltalake
import pyarrow as pa
from deltalake import Transaction

from deltalakedb.address import is_deltasql, parse_address
from deltalakedb.exceptions import (
    ConflictError,
    SchemaError,
    TableMissingError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.actions import CommitInfo
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import COMMITTER_FEATURES
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.table import memory
from deltalakedb.table.commit_info import app_transactions
from deltalakedb.table.handle import TableHandle, handle_of
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.intent import AutoCommit, WriteIntent
from deltalakedb.table.locations import normal_location
from deltalakedb.table.roots import undo
from deltalakedb.table.scratch import rewrite
from deltalakedb.table.sources import SqlSource
from deltalakedb.table.write.create import (
    CreateOptions,
    Mode,
    create_with,
    exists,
    known_mode,
    open_existing,
    replace_or_append,
    split_options,
    without_hooks,
)
from deltalakedb.table.write.parquet import arrow_source, write_files
from deltalakedb.table.write.plan import eligible
from deltalakedb.table.write_locks import write_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deltalake import CommitProperties

    from deltalakedb.address import Address
    from deltalakedb.metastore.rows import OpenTable
    from deltalakedb.protocol.actions import Action, Add
    from deltalakedb.table.hooks import Hooks


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
    handle = handle_of(table_or_uri) if isinstance(table_or_uri, deltalake.DeltaTable) else None
    if handle is None and not is_deltasql(table_or_uri):
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
    if handle is not None:
        handle.use_options(storage_options)
        handle.refresh()
        if mode != "ignore":
            write_to(handle, arrow_source(data), mode=mode, predicate=predicate, **options, **hooks)
        return
    address = parse_address(str(table_or_uri))
    if mode == "ignore" and (table := open_existing(address, storage_options)) is not None:
        table.check_location(address.location)
        return  # as in stock, the data is not looked at
    data = arrow_source(data)
    plain = mode == "append" and predicate is None
    if plain and _append_remembered(address, data, options | hooks, storage_options):
        return
    table = open_existing(address, storage_options)
    if table is not None:
        if mode != "error":
            table.check_location(address.location)
            table.require_folder()
        write_to(table, data, mode=mode, predicate=predicate, **options, **hooks)
        if mode == "append" and isinstance(table.source, SqlSource):
            _remember(table, table.source.opened)
    else:
        options |= hooks
        create_options = split_options(options, table=address.table)
        create_with(
            Database.open(address),
            address.table or "",
            address.location,
            lambda target: stock(target, data, mode=mode, predicate=predicate, **without_hooks(options)),
            storage_options=storage_options,
            create_options=create_options,
        )


def _append_remembered(
    address: Address, data: Any, options: dict[str, Any], storage_options: Mapping[str, str] | None
) -> bool:
    """Append to a table as this process last saw it; False if it has to be looked up."""
    if isinstance(data, pa.RecordBatchReader) or address.table is None:
        return False  # a stream can be read only once
    create_options = split_options(options)
    database = Database.open(address)
    if (opened := memory.recall(database, address.table)) is None:
        return False
    table = TableHandle(
        address.catalog.with_table(address.table),
        database,
        opened.table,
        SqlSource(database, opened),
        AutoCommit(database),
        storage_options=storage_options,
    )
    table.one_shot = True
    if address.location and normal_location(address.location) != opened.table.location:
        memory.forget(database, address.table)  # the name may belong to another table by now
        return False
    try:
        # an object store takes a request for it, which need not wait for the upload
        check = None if table.root.is_local else table.require_folder
        if check is None:
            table.require_folder()
        rest = append(table, data, options, hooks=create_options.hooks, check=check)
    except (ConflictError, SchemaError, TableMissingError) as error:
        memory.forget(database, address.table)
        if error.context.get("dropped"):
            raise  # a new table in a new catalog is not what was meant
        return False
    _remember(table, opened)
    return rest is None


def _remember(table: TableHandle, opened: OpenTable) -> None:
    """Remember a table that was just appended to, unless more than its files has changed."""
    done = table.appended
    if done is not None and done.unpublished is not None:
        memory.move_on(table.database, table.name, opened, done.version, done.timestamp)
    else:
        memory.forget(table.database, table.name)


def write_to(
    table: TableHandle, data: Any, *, mode: str = "append", predicate: str | None = None, **options: Any
) -> None:
    """Write to an open table at the version it shows."""
    mode = known_mode(mode)
    create_options = split_options(options, table=table.name)
    if mode == "ignore":
        return
    if mode == "error":
        raise exists(table)
    if predicate is not None and mode == "overwrite":
        where = table.where_or_all(predicate)

        def replace_matching(target: str) -> None:
            deltalake.write_deltalake(
                target, data, mode="overwrite", predicate=predicate, **without_hooks(options)
            )

        rewrite(
            table,
            where,
            lambda stage: replace_matching(str(stage.scratch.folder)),
            hooks=create_options.hooks,
        )
        return
    direct = mode == "append" and predicate is None
    if direct and (data := append(table, data, options, hooks=create_options.hooks)) is None:
        return
    stock: Any = deltalake.write_deltalake  # its overloads are split by mode
    # beside an append, a predicate is what every new row must meet
    run = partial(stock, data=data, mode=mode, predicate=predicate, **without_hooks(options))
    # stock leaves the properties of an existing table alone
    replace_or_append(table, mode, run, CreateOptions(hooks=create_options.hooks))


def append(
    table: TableHandle,
    data: Any,
    options: dict[str, Any],
    *,
    hooks: Hooks = DEFAULT,
    check: Callable[[], None] | None = None,
) -> Any | None:
    """Append directly if that is certain to give what delta-rs would.

    Args:
        table: The open table.
        data: Arrow data of any kind.
        options: The arguments of ``write_deltalake``.
        hooks: What is to follow the commit.
        check: Called while the files are written; if it raises, they are deleted and nothing is committed.

    Returns:
        None if it was done, else the data, unread, for delta-rs to write.
    """
    source = arrow_source(data)
    properties = options.get("commit_properties")
    if properties is not None and not _only_transactions(properties):
        return source
    snapshot = table.source.snapshot
    if eligible(snapshot, source.schema, options, also=COMMITTER_FEATURES) is not None:
        return source
    root = table.root
    begun = time.monotonic()
    failpoint("data.before")
    with write_lock(root.location), ExitStack() as stack:
        checking = None if check is None else stack.enter_context(ThreadPoolExecutor(1)).submit(check)
        adds = write_files(
            source,
            root=root,
            snapshot=snapshot,
            target_file_size=options.get("target_file_size"),
            writer_properties=options.get("writer_properties"),
            fsync=table.database.engine.config.publish.fsync,
            also=COMMITTER_FEATURES,
            flushes=table.target.flushes,
        )
        failpoint("data.after")
        info = _info(adds, snapshot.metadata.partition_columns, begun)
        actions: list[Action] = [info, *app_transactions(properties), *adds]
        files = root.placed(a.path for a in adds)
        if checking is not None and (failure := checking.exception()) is not None:
            undo(files)
            raise failure
        table.submit(
            WriteIntent(
                table.row,
                actions,
                snapshot,
                NOTHING,
                files,
                new_names=True,
                root=root,
                hooks=hooks,
            )
        )
    return None


def _only_transactions(properties: CommitProperties) -> bool:
    """Whether a commit is to hold nothing but application transactions; delta-rs judges the rest."""
    retries = properties.max_commit_retries
    return (
        not properties.custom_metadata
        and (retries is None or (isinstance(retries, int) and retries >= 0))
        and all(isinstance(t, Transaction) for t in properties.app_transactions or ())
    )


def _info(adds: Sequence[Add], partition_columns: Sequence[str], begun: float) -> CommitInfo:
    """The commitInfo of an append, with the keys that delta-rs gives it."""
    counts = [s.num_records or 0 for a in adds if (s := parse_stats(a.stats)) is not None]
    by = {"partitionBy": encode_json(list(partition_columns))} if partition_columns else {}
    return CommitInfo(
        extra={
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", **by},
            "operationMetrics": {
                "num_added_files": len(adds),
                "num_removed_files": 0,
                "num_partitions": 0,  # always, as delta-rs has it
                "num_added_rows": sum(counts),
                "execution_time_ms": int((time.monotonic() - begun) * 1000),
                "num_retries": 0,
            },
        }
    )
