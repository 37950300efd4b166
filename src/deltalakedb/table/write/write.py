"""``write_deltalake`` and ``DeltaTable.create``: delta-rs or our own writer writes files, SQL commits them.

New tables get what delta-rs cannot give them: named features, in-commit timestamps, row tracking, the fence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, Transaction

from deltalakedb.address import Address, parse_address
from deltalakedb.commit.request import NewTable, TableChange, Write
from deltalakedb.delta_log.names import LOG_FOLDER, commit_path
from deltalakedb.exceptions import (
    ArgumentTypeError,
    CatalogNotFoundError,
    ConflictError,
    InvalidArgumentError,
    SchemaError,
    TableExistsError,
    TableFolderMissingError,
    TableMissingError,
    UnsupportedFeatureError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.protocol import properties
from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol, decode_commit
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    FENCE,
    check_writable,
    features_named,
    reader_features,
    with_features,
)
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.row_tracking import with_row_columns
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.storage.store import is_local
from deltalakedb.table.handle import (
    DEFAULT_HOOKS,
    NO_HOOKS,
    CommitTarget,
    Hooks,
    TableHandle,
    WriteIntent,
    commit,
    commit_info,
)
from deltalakedb.table.locations import normal_location, place_below, place_for
from deltalakedb.table.roots import delete_new_files, root_at
from deltalakedb.table.scratch import (
    ErrorContext,
    OpenScratchTable,
    ScratchCommits,
    ScratchTable,
    removes,
    rewrite,
    translate_errors,
)
from deltalakedb.table.sources import SqlSource, cache_of
from deltalakedb.table.write.parquet import AppendPlan, Rows, arrow_source, plan_append, write_files
from deltalakedb.table.write_locks import write_lock

if TYPE_CHECKING:
    from deltalakedb.metastore.rows import OpenTable
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.settings import Config

Mode = Literal["error", "append", "overwrite", "ignore"]
_MODES = ("error", "append", "overwrite", "ignore")
_MAPPING = "columnMapping"


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """What a caller of ``create`` or ``write_deltalake`` asks of us rather than of delta-rs."""

    #: None leaves it to the settings
    in_commit_timestamps: bool | None = None
    row_tracking: bool = False
    #: features requested by name, or by a property that delta-rs ignores
    features: tuple[str, ...] = ()
    hooks: Hooks = DEFAULT_HOOKS
    #: what to do if delta-rs refuses the rest
    hint: str | None = None
    #: writer features that the engine which creates the table takes care of
    handled_features: frozenset[str] = frozenset()
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    #: for data files that are under the root already: their paths by those in delta-rs's actions
    in_place: Callable[[], Mapping[str, str]] | None = None
    #: properties of the caller's own, which delta-rs would refuse
    own_properties: Mapping[str, str | None] = field(default_factory=dict)
    #: run all checks, but create nothing
    dry_run: bool = False


NO_OPTIONS: Final = CreateOptions()
_HINT: Final = "set other properties afterwards: alter.set_table_properties({…}, raise_if_not_exists=False)"


def split_options(options: dict[str, Any], *, table: str | None = None) -> CreateOptions:
    """Take out of stock's options what delta-rs would refuse, or do on the scratch table.

    Raises InvalidArgumentError or UnsupportedFeatureError for values and features that we cannot write.
    """
    hooks = Hooks.of(options.get("post_commithook_properties"))
    options["post_commithook_properties"] = NO_HOOKS
    given = options.get("configuration")
    if not given or not isinstance(given, Mapping):
        return CreateOptions(hooks=hooks)  # delta-rs refuses what it cannot read
    properties.check_properties(given, table=table)
    features = features_named(given, also=COMMITTER_FEATURES, table=table)
    rest = properties.without_feature_names(given)
    timed, tracked = rest.pop(properties.IN_COMMIT_TIMESTAMPS, None), rest.pop(properties.ROW_TRACKING, None)
    options["configuration"] = rest or None
    return CreateOptions(
        None if timed is None else _is_true(timed),
        _is_true(tracked),
        features,
        hooks,
        _HINT if properties.unknown_names(rest) else None,
    )


def _is_true(value: str | None) -> bool:
    return str(value).strip().lower() == "true"


def _apply_options(
    actions: Sequence[Action],
    create_options: CreateOptions,
    config: Config,
    location: str,
    before: Metadata | None = None,
) -> tuple[Action, ...]:
    """Add what the caller and the settings ask for to what delta-rs made; a replaced table had ``before``."""
    if not any(isinstance(a, Protocol) for a in actions):
        return tuple(actions)  # only rows are replaced
    timed = create_options.in_commit_timestamps
    # a table that is replaced keeps its in-commit timestamps
    since = (
        properties.enablement(before)
        if before is not None and properties.is_on(before, properties.IN_COMMIT_TIMESTAMPS)
        else None
    )
    if timed is None:
        setting = config.catalog.in_commit_timestamps
        timed = since is not None or setting == "always" or (setting == "remote" and not is_local(location))
    features = [
        *create_options.features,
        *_missing_mapping_feature(actions),
        *(["inCommitTimestamp"] if timed else []),
        *(["rowTracking"] if create_options.row_tracking else []),
        *([FENCE] if config.catalog.fence and before is None else []),
    ]
    settings = {properties.IN_COMMIT_TIMESTAMPS: "true", **(since or {})} if timed else {}
    if create_options.row_tracking:
        settings[properties.ROW_TRACKING] = "true"
    settings |= {name: value for name, value in create_options.own_properties.items() if value is not None}

    def changed(action: Action) -> Action:
        if isinstance(action, Protocol):
            return with_features(action, features)
        if not isinstance(action, Metadata):
            return action
        action = replace(action, configuration={**action.configuration, **settings})
        return with_row_columns(action) if create_options.row_tracking else action

    return tuple(map(changed, actions))


def _missing_mapping_feature(actions: Sequence[Action]) -> list[str]:
    """The feature of mapped columns, which delta-rs forgets if a column or a property brings others."""
    metadata = next((a for a in actions if isinstance(a, Metadata)), None)
    protocol = next((a for a in actions if isinstance(a, Protocol)), None)
    mode = "none" if metadata is None else properties.mapping_mode(metadata)
    if protocol is None or mode == "none" or _MAPPING in reader_features(protocol):
        return []
    if any(isinstance(a, Add) for a in actions):  # under names that readers would not find
        raise UnsupportedFeatureError(
            f"delta-rs does not map the columns of this data, though delta.columnMapping.mode is {mode!r}",
            suggestion="create the table empty, by DeltaTable.create, and append to it",
            command="create the table empty with `deltasql create`, and append to it with `deltasql write`",
            features=(_MAPPING,),
        )
    return [_MAPPING]


def known_mode(mode: str) -> Mode:
    if not isinstance(mode, str):
        raise ArgumentTypeError(f"a mode is a text, not {mode!r}")
    if (known := mode.lower()) not in _MODES:
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion=f"use one of {', '.join(_MODES)}")
    return cast("Mode", known)


def create_table(
    table_uri: str,
    schema: Any,
    *,
    mode: str = "error",
    storage_options: dict[str, str] | None = None,
    comment: str | None = None,
    tags: Mapping[str, str] | None = None,
    own_properties: Mapping[str, str] | None = None,
    dry_run: bool = False,
    **options: Any,
) -> None:
    """Create an empty SQL-backed table, or replace one with ``mode="overwrite"``.

    ``configuration`` takes only properties that Delta knows, as in stock. A dry run of a new table makes all
    checks, and creates nothing.
    """
    create_options = replace(
        split_options(options),
        comment=comment,
        tags=tags or {},
        own_properties=own_properties or {},
        dry_run=dry_run,
    )
    stock: Any = deltalake.DeltaTable.create
    run = partial(stock, schema=schema, **options)
    create_or_replace(table_uri, mode, run, create_options, storage_options)


def create_or_replace(
    table_uri: str,
    mode: str,
    operation: Callable[..., object],
    create_options: CreateOptions,
    storage_options: Mapping[str, str] | None,
) -> None:
    """Create a table by what delta-rs does in a folder and in a mode, replace one, or leave it alone."""
    mode = known_mode(mode)
    run = partial(operation, mode=mode)
    address = parse_address(table_uri)
    table = open_existing(address, storage_options)
    if table is None:
        create_with(Database.open(address), address, run, create_options, storage_options)
    elif mode in ("error", "append"):
        raise exists(table)
    elif mode == "overwrite":
        table.check_location(address.location)
        table.require_writable()
        replace_or_append(table, mode, run, create_options)


def open_existing(address: Address, storage_options: Mapping[str, str] | None = None) -> TableHandle | None:
    name = address.require_table()
    try:
        return TableHandle.open(address.catalog.with_table(name), None, storage_options, one_shot=True)
    except TableMissingError as error:  # or the whole catalog
        if error.context.get("dropped"):
            raise
        return None


def create_with(
    database: Database,
    address: Address,
    operation: Callable[[str], object],
    create_options: CreateOptions = NO_OPTIONS,
    storage_options: Mapping[str, str] | None = None,
    *,
    transaction: CommitTarget | None = None,
    name_is_free: bool = False,
) -> Committed | None:
    """Create a table by what delta-rs does in an empty folder, and commit it at once or in a transaction.

    ``name_is_free`` if the transaction renames or drops the table that has the name now.
    """
    name, location = address.require_table(), address.location
    config, dry_run = database.engine.config, create_options.dry_run
    try:
        database.ensure(create=not dry_run)
        place = place_for(database, name, location)
        registry.refuse_taken(database, name, place, free=name_is_free)
    except CatalogNotFoundError as error:
        if not (dry_run and database.may_be_created(error)):
            raise
        place = place_below(config.catalog.root, name, location)  # in a new catalog everything is free
    root = root_at(place, storage_options, config)
    if next(root.store.list(LOG_FOLDER), None) is not None:
        raise TableExistsError(
            f"there is a plain Delta table at {place} already",
            table=name,
            suggestion="import it with import_table(path, address), or choose another location",
            command=f"import it with `deltasql import {place} {name}`, or choose another location",
        )
    if dry_run:
        with TemporaryDirectory(prefix="deltasql-dry-run-") as folder:
            with translate_errors(ErrorContext(name, place, hint=create_options.hint)):
                operation(folder)
            made = decode_commit((Path(folder) / commit_path(0)).read_bytes())
        for action in _apply_options(made, create_options, config, place):
            if isinstance(action, Protocol):
                check_writable(action, table=name, also=COMMITTER_FEATURES)
        return None
    failpoint("data.before")
    with ScratchTable(root) as scratch:
        about = ErrorContext(name, place, hint=create_options.hint)
        commits = _commits_of(operation, scratch, about, create_options)
        moved = root.move_in(scratch.folder, commits.new_files, fsync=config.publish.fsync)
        failpoint("data.after")
        new = NewTable(name, place, comment=create_options.comment, tags=create_options.tags)
        actions = _apply_options(commits.actions, create_options, config, place)
        origin = Write(commits.new_names, create_options.handled_features)
        change = TableChange(new, [actions], reads=NOTHING, origin=origin)
        intent = WriteIntent(change, moved, root, create_options.hooks)
        if transaction is None:
            return commit(database, intent)
        transaction.submit(intent)
        return None


def _commits_of(
    operation: Callable[[str], object], scratch: ScratchTable, about: ErrorContext, options: CreateOptions
) -> ScratchCommits:
    with translate_errors(about):
        operation(str(scratch.folder))
    commits = scratch.read_commits()
    return commits if options.in_place is None else commits.in_place(options.in_place())


def replace_or_append(
    table: TableHandle,
    mode: str,
    operation: Callable[[str], object],
    create_options: CreateOptions = NO_OPTIONS,
) -> Committed | None:
    """Run an operation that needs none of the table's files: an append, or a full overwrite.

    A full overwrite is what delta-rs makes of an empty table, plus the removal of every file.
    """
    read, reads = table.snapshot, NOTHING if mode == "append" else EVERYTHING
    with OpenScratchTable(table, read, (), reads) as scratch:
        commits = _commits_of(operation, scratch, ErrorContext.at(table), create_options)
        if mode == "append":
            return scratch.submit(create_options.hooks, commits)
        config, location = table.database.engine.config, table.row.location
        actions = _apply_options(commits.actions, create_options, config, location, read.metadata)
        whole = replace(commits, steps=(actions,))
        return scratch.submit(create_options.hooks, whole, removes(table.source.adds()))


def exists(table: TableHandle) -> TableExistsError:
    return TableExistsError(
        f"the table {table.name!r} already exists at {table.row.location}",
        table=table.name,
        version=table.version,
        suggestion="write with mode='append', 'overwrite' or 'ignore'",
        command="pass --mode append, overwrite or ignore",
    )


# ---- writing ----------------------------------------------------------------------------------------------

_stock: Any = deltalake.write_deltalake  # its overloads are split by mode


def write_table(
    table_or_uri: str | Path | TableHandle,
    data: Any,
    *,
    mode: Mode = "error",
    storage_options: dict[str, str] | None = None,
    predicate: str | None = None,
    **options: Any,
) -> Committed | None:
    """``write_deltalake`` on a SQL-backed table: an address, or an open table's handle.

    Returns the commit, or None if there is none: in a transaction, or with ``mode="ignore"``.
    """
    mode = known_mode(mode)
    if isinstance(table_or_uri, TableHandle):
        table_or_uri.use_options(storage_options)
        table_or_uri.refresh()
        if mode == "ignore":
            return None
        return _public(write_to(table_or_uri, arrow_source(data), mode=mode, predicate=predicate, **options))
    address = parse_address(table_or_uri)
    if mode == "ignore" and (table := open_existing(address, storage_options)) is not None:
        table.check_location(address.location)
        return None  # as in stock, the data is not looked at
    data = arrow_source(data)
    plain = mode == "append" and predicate is None
    if plain and (done := _append_remembered(address, data, dict(options), storage_options)) is not None:
        return _public(done)
    table = open_existing(address, storage_options)
    if table is None:
        create_options = split_options(options, table=address.table)
        run = partial(_stock, data=data, mode=mode, predicate=predicate, **options)
        create = create_with(Database.open(address), address, run, create_options, storage_options)
        return _public(create)
    if mode != "error":
        table.check_location(address.location)
        table.require_writable()
    done = write_to(table, data, mode=mode, predicate=predicate, **options)
    if mode == "append" and isinstance(table.source, SqlSource):
        _remember(table, table.source.opened)
    return _public(done)


def _public(done: Committed | None) -> Committed | None:
    """A commit without its bytes, which a caller would keep in memory."""
    return None if done is None else replace(done, unpublished=None)


def _append_remembered(
    address: Address, data: Rows, options: dict[str, Any], storage_options: Mapping[str, str] | None
) -> Committed | None:
    """Append to a table as this process last saw it; None if it has to be looked up."""
    if isinstance(data, pa.RecordBatchReader) or address.table is None:
        return None  # a stream can be read only once
    hooks = split_options(options).hooks
    database = Database.open(address)
    if (opened := cache_of(database).tables.get(address.table)) is None:
        return None
    table = TableHandle(
        address.catalog.with_table(address.table),
        database,
        opened.table,
        SqlSource(database, opened),
        storage_options=storage_options,
        one_shot=True,
    )
    if address.location and normal_location(address.location) != opened.table.location:
        cache_of(database).tables.pop(address.table, None)  # the name may belong to another table by now
        return None
    try:
        # on an object store the check is a request, which runs during the upload
        check = None if table.root.is_local else table.require_writable
        if check is None:
            table.require_writable()
        snapshot = table.snapshot
        if (plan := _direct_plan(snapshot, data, options)) is None:
            return None
        done = append(table, snapshot, data, plan, options, hooks=hooks, check=check)
    except (ConflictError, SchemaError, TableMissingError, TableFolderMissingError) as error:
        # the table may have been changed, dropped or moved
        cache_of(database).tables.pop(address.table, None)
        if error.context.get("dropped"):
            raise  # the caller did not mean to create a new table in a new catalog
        return None
    _remember(table, opened)
    return done


def _remember(table: TableHandle, opened: OpenTable) -> None:
    """Remember a table that was just appended to, unless more than its files has changed."""
    done = table.appended
    if done is not None and done.unpublished is not None:
        cache_of(table.database).appended(opened, done)
    else:
        cache_of(table.database).tables.pop(table.name, None)


def write_to(
    table: TableHandle, data: Any, *, mode: str = "append", predicate: str | None = None, **options: Any
) -> Committed | None:
    """Write to an open table at the version it shows; return the commit, or None inside a transaction."""
    mode = known_mode(mode)
    hooks = split_options(options, table=table.name).hooks
    if mode == "ignore":
        return None
    if mode == "error":
        raise exists(table)
    if mode == "append" and predicate is None:
        data = arrow_source(data)
        snapshot = table.snapshot  # another thread may move the handle meanwhile
        if (plan := _direct_plan(snapshot, data, options)) is not None:
            return append(table, snapshot, data, plan, options, hooks=hooks)
    # with an append, the predicate is a condition for every new row
    run = partial(_stock, data=data, mode=mode, predicate=predicate, **options)
    if predicate is not None and mode == "overwrite":
        where = table.where_or_all(predicate)
        return rewrite(table, where, lambda stage: run(str(stage.folder)), hooks=hooks)[1]
    # stock leaves the properties of an existing table alone
    return replace_or_append(table, mode, run, CreateOptions(hooks=hooks))


def _direct_plan(snapshot: Snapshot, data: Rows, options: dict[str, Any]) -> AppendPlan | None:
    """How to append with our own writer; None unless that is certain to give what delta-rs would."""
    given = options.get("commit_properties")
    if given is not None and not _only_transactions(given):
        return None
    try:
        return plan_append(snapshot, data.schema, options, also=COMMITTER_FEATURES)
    except UnsupportedOperationError:
        return None


def append(
    table: TableHandle,
    snapshot: Snapshot,
    data: Rows,
    plan: AppendPlan,
    options: dict[str, Any],
    *,
    hooks: Hooks,
    check: Callable[[], None] | None = None,
) -> Committed | None:
    """Append with our own writer; return the commit, or None inside a transaction.

    ``check`` is called while the files are written; if it raises, they are deleted and nothing is committed.
    """
    given = options.get("commit_properties")
    root = table.root
    begun = time.monotonic()
    failpoint("data.before")
    with write_lock(root.location), ExitStack() as stack:
        checking = None if check is None else stack.enter_context(ThreadPoolExecutor(1)).submit(check)
        fsync = table.database.engine.config.publish.fsync
        adds = write_files(data, plan, root, fsync=fsync, flushes=table.flushes)
        failpoint("data.after")
        actions = [*_info(adds, snapshot.metadata.partition_columns, begun, given), *adds]
        files = root.placed(a.path for a in adds)
        if checking is not None and (failure := checking.exception()) is not None:
            delete_new_files(files)
            raise failure
        return table.submit(snapshot, [actions], NOTHING, files, origin=Write(new_names=True), hooks=hooks)


def _only_transactions(given: CommitProperties) -> bool:
    """Whether a commit is to hold nothing but application transactions; delta-rs judges the rest."""
    retries = given.max_commit_retries
    return (
        given.custom_metadata in (None, {})
        and (retries is None or (isinstance(retries, int) and retries >= 0))
        and all(isinstance(t, Transaction) for t in given.app_transactions or ())
    )


def _info(
    adds: Sequence[Add], partition_columns: Sequence[str], begun: float, given: CommitProperties | None
) -> list[Action]:
    """The commitInfo of an append, with the keys that delta-rs gives it, and application transactions."""
    counts = [s.num_records or 0 for a in adds if (s := parse_stats(a.stats)) is not None]
    by = {"partitionBy": encode_json(list(partition_columns))} if partition_columns else {}
    metrics = {
        "num_added_files": len(adds),
        "num_removed_files": 0,
        "num_partitions": 0,  # always, as delta-rs has it
        "num_added_rows": sum(counts),
        "execution_time_ms": int((time.monotonic() - begun) * 1000),
        "num_retries": 0,
    }
    return commit_info("WRITE", {"mode": "Append", **by}, metrics, given)
