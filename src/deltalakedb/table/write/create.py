"""What new tables get that delta-rs cannot give them: named features, in-commit timestamps, the fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import deltalake

from deltalakedb.address import parse_address
from deltalakedb.commit.request import NewTable
from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import (
    ArgumentTypeError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    UnsupportedFeatureError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.actions import Action, Add, Metadata, Protocol
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    FENCE,
    check_writable,
    features_named,
    reader_features,
    with_features,
)
from deltalakedb.protocol.properties import (
    IN_COMMIT_TIMESTAMPS,
    ROW_TRACKING,
    check_properties,
    enablement,
    is_on,
    mapping_mode,
    unknown_names,
    without_feature_names,
)
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.row_tracking import with_row_columns
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.hooks import DEFAULT, QUIET, Hooks
from deltalakedb.table.intent import AutoCommit, WriteIntent
from deltalakedb.table.locations import is_local, place_for
from deltalakedb.table.roots import root_at
from deltalakedb.table.scratch import ErrorContext, Scratch, call, removes, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.address import Address
    from deltalakedb.settings import Config
    from deltalakedb.table.intent import CommitTarget

Mode = Literal["error", "append", "overwrite", "ignore"]
_MODES = ("error", "append", "overwrite", "ignore")


_FEATURE = "inCommitTimestamp"
_MAPPING = "columnMapping"


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """What a caller of ``create`` or ``write_deltalake`` wants of us rather than of delta-rs.

    Attributes:
        in_commit_timestamps: Whether commits carry their own time; None leaves it to the settings.
        row_tracking: Whether rows have ids that stay.
        features: Features that were asked for by name, or by a property that delta-rs does not act on.
        hooks: What is to follow the commit.
        hint: What to do where delta-rs refuses the rest.
        handled_features: Writer features that the engine which makes the table sees to.
    """

    in_commit_timestamps: bool | None = None
    row_tracking: bool = False
    features: tuple[str, ...] = ()
    hooks: Hooks = DEFAULT
    hint: str | None = None
    handled_features: frozenset[str] = frozenset()


_HINT = "set properties of your own afterwards: alter.set_table_properties({…}, raise_if_not_exists=False)"

#: nothing special
NO_OPTIONS: Final = CreateOptions()


def split_options(options: dict[str, Any], *, table: str | None = None) -> CreateOptions:
    """Take out of stock's options what delta-rs would refuse, or do on the scratch table.

    Raises:
        InvalidArgumentError: A property cannot have the value that is given.
        UnsupportedFeatureError: A feature is asked for that could not be written here.
    """
    hooks = Hooks.of(options.pop("post_commithook_properties", None))
    given = options.get("configuration")
    if not given or not isinstance(given, Mapping):
        return CreateOptions(hooks=hooks)  # delta-rs refuses what it cannot read
    check_properties(given, table=table)
    features = features_named(given, also=COMMITTER_FEATURES, table=table)
    rest = without_feature_names(given)
    timed, tracked = rest.pop(IN_COMMIT_TIMESTAMPS, None), rest.pop(ROW_TRACKING, None)
    options["configuration"] = rest or None
    return CreateOptions(
        None if timed is None else _is_true(timed),
        _is_true(tracked),
        features,
        hooks,
        _HINT if unknown_names(rest) else None,
    )


def _is_true(value: str | None) -> bool:
    return str(value).strip().lower() == "true"


def without_hooks(options: dict[str, Any]) -> dict[str, Any]:
    """Options for delta-rs on a scratch table."""
    return {**options, "post_commithook_properties": QUIET}


def apply_options(
    actions: Sequence[Action],
    create_options: CreateOptions,
    config: Config,
    location: str,
    *,
    before: Metadata | None = None,
) -> tuple[Action, ...]:
    """A new table's first actions, or those that replace one, with what was wished for and is set.

    Args:
        actions: What delta-rs made.
        create_options: What the caller wants.
        config: The settings, for what the caller did not say.
        location: The table's root.
        before: The metadata of the table that is replaced.
    """
    if not any(isinstance(a, Protocol) for a in actions):
        return tuple(actions)  # rows are replaced, the table stays what it is
    found = create_options.in_commit_timestamps
    if found is None:
        setting = config.catalog.in_commit_timestamps
        found = setting == "always" or (setting == "remote" and not is_local(location))
        # a table that is replaced goes on telling its times as before
        found = found or (before is not None and is_on(before, IN_COMMIT_TIMESTAMPS))
    features = [
        *create_options.features,
        *_missing_mapping_feature(actions),
        *([_FEATURE] if found else []),
        *(["rowTracking"] if create_options.row_tracking else []),
    ]
    if config.catalog.fence and before is None:
        features.append(FENCE)
    if not features:
        return tuple(actions)
    return tuple(_granted(a, features, create_options, before, timed=found) for a in actions)


def _missing_mapping_feature(actions: Sequence[Action]) -> list[str]:
    """The feature of mapped columns, which delta-rs forgets where a column or a property brings others.

    Raises:
        UnsupportedFeatureError: It has written files already, by names that readers would not find.
    """
    metadata = next((a for a in actions if isinstance(a, Metadata)), None)
    protocol = next((a for a in actions if isinstance(a, Protocol)), None)
    mode = "none" if metadata is None else mapping_mode(metadata)
    if protocol is None or mode == "none" or _MAPPING in reader_features(protocol):
        return []
    if any(isinstance(a, Add) for a in actions):
        raise UnsupportedFeatureError(
            f"delta-rs does not map the columns of this data, though delta.columnMapping.mode is {mode!r}",
            suggestion="create the table empty, by DeltaTable.create, and append to it",
            features=(_MAPPING,),
        )
    return [_MAPPING]


def _granted(
    action: Action,
    features: Sequence[str],
    create_options: CreateOptions,
    before: Metadata | None,
    *,
    timed: bool,
) -> Action:
    if isinstance(action, Protocol):
        return with_features(action, features)
    if not isinstance(action, Metadata):
        return action
    if create_options.row_tracking:
        switched = {**action.configuration, ROW_TRACKING: "true"}
        action = with_row_columns(replace(action, configuration=switched))
    return _timed(action, before) if timed else action


def _timed(metadata: Metadata, before: Metadata | None) -> Metadata:
    since = enablement(before) if before is not None and is_on(before, IN_COMMIT_TIMESTAMPS) else {}
    configuration = {**metadata.configuration, IN_COMMIT_TIMESTAMPS: "true", **since}
    return replace(metadata, configuration=configuration)


def known_mode(mode: str) -> str:
    """A mode, which may be written in capitals; one that there is not is refused."""
    if not isinstance(mode, str):
        raise ArgumentTypeError(f"a mode is a text, not {mode!r}")
    if (known := mode.lower()) not in _MODES:
        raise InvalidArgumentError(f"unknown mode {mode!r}", suggestion=f"use one of {', '.join(_MODES)}")
    return known


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
    create_options = split_options(options)
    stock: Any = deltalake.DeltaTable.create
    create_or_replace(
        table_uri,
        mode,
        lambda target, how: stock(target, schema, mode=how, **without_hooks(options)),
        comment=comment,
        tags=tags,
        storage_options=storage_options,
        create_options=create_options,
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
    create_options: CreateOptions = NO_OPTIONS,
) -> None:
    """Create a table by what delta-rs does in a folder, in a mode; or replace one, or leave it alone.

    Args:
        table_uri: The table's address.
        mode: What to do if there is a table already.
        operation: Runs delta-rs in a folder and in a mode.
        in_place: The data files are under the table's root already.
        comment: A new table's comment in the registry.
        tags: A new table's tags in the registry.
        storage_options: Options for the object store.
        create_options: What is wanted of us rather than of delta-rs.
    """
    mode = known_mode(mode)
    address = parse_address(table_uri)
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
            create_options=create_options,
        )
    elif mode in ("error", "append"):
        raise exists(table)
    elif mode == "overwrite":
        table.check_location(address.location)
        table.require_folder()
        replace_or_append(
            table, mode, lambda target: operation(target, mode), create_options, in_place=in_place
        )


def open_existing(address: Address, storage_options: Mapping[str, str] | None = None) -> TableHandle | None:
    """The table at an address, or None if there is none."""
    name = address.require_table()
    try:
        options = None if storage_options is None else dict(storage_options)
        table = address.catalog.with_table(name)
        found = TableHandle.open(table, storage_options=options)
    except TableMissingError as error:  # or the whole catalog
        if error.context.get("dropped"):
            raise
        return None
    found.one_shot = True
    return found


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
    sink: CommitTarget | None = None,
    free: bool = False,
    storage_options: Mapping[str, str] | None = None,
    create_options: CreateOptions = NO_OPTIONS,
) -> None:
    """Create a table by what delta-rs does in an empty folder, unless its data files are in place already.

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
        call(operation, str(scratch.folder), ErrorContext(name, place, hint=create_options.hint))
        harvest = scratch.harvest(after=-1)
        if in_place:
            harvest = harvest.in_place(names() if names is not None else {})
        moved = scratch.place(harvest.new_files, fsync=database.engine.config.publish.fsync)
        failpoint("data.after")
        new = NewTable(name, place, comment=comment, tags=tags or {})
        actions = apply_options(harvest.actions, create_options, database.engine.config, place)
        work = WriteIntent(
            new,
            actions,
            None,
            NOTHING,
            moved,
            harvest.new_names,
            root=root,
            hooks=create_options.hooks,
            handled_features=create_options.handled_features,
        )
        (sink or AutoCommit(database)).submit(work)


def replace_or_append(
    table: TableHandle,
    mode: str,
    operation: Callable[[str], object],
    create_options: CreateOptions = NO_OPTIONS,
    *,
    in_place: bool = False,
) -> None:
    """Run an operation that needs none of the table's files: an append, or a full overwrite.

    A full overwrite is what delta-rs makes of an empty table, plus the removal of every file.
    """
    snapshot = table.source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=COMMITTER_FEATURES)
    failpoint("data.before")
    with Scratch.for_writing(table.root, table=table.name) as scratch:
        scratch.lay(snapshot)
        call(operation, str(scratch.folder), ErrorContext.at(table))
        harvest = scratch.harvest(after=snapshot.version)
        if in_place:
            harvest = harvest.in_place()
        if mode == "append":
            submit(table, scratch, harvest, NOTHING, hooks=create_options.hooks)
            return
        config = table.database.engine.config
        actions = apply_options(
            harvest.actions, create_options, config, table.row.location, before=snapshot.metadata
        )
        whole = replace(harvest, steps=(actions,))
        submit(table, scratch, whole, EVERYTHING, removes(table.source.adds()), hooks=create_options.hooks)


def exists(table: TableHandle) -> TableExistsError:
    """The error of creating a table that exists."""
    return TableExistsError(
        f"the table {table.name!r} already exists at {table.row.location}",
        table=table.name,
        version=table.version,
        suggestion="write with mode='append', 'overwrite' or 'ignore'",
    )
