"""Scratch tables: delta-rs works on links to candidate files, and what it did is committed in SQL."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from deltalake._internal import RawDeltaTable

from deltalakedb.delta_log.names import commit_path, parse_name
from deltalakedb.exceptions import (
    CommitError,
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    DeltaSqlError,
    InvalidArgumentError,
    OperationError,
    ProtocolError,
    SchemaError,
    SchemaMismatchError,
    StorageError,
    StorageMissingError,
    UnsupportedFeatureError,
    UnsupportedOperationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.actions import Action, Add, Cdc, CommitInfo, Metadata, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit, encode_commit
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    check_writable,
    with_writer_features,
    without_features,
)
from deltalakedb.protocol.partition import equal_key
from deltalakedb.protocol.paths import decode_path, encode_path
from deltalakedb.protocol.properties import is_on
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet
from deltalakedb.protocol.row_tracking import tracks_rows
from deltalakedb.protocol.schema import PrimitiveType, parse_schema
from deltalakedb.protocol.stats import float_paths, without_highest
from deltalakedb.storage.durable import storage_error
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.intent import WriteIntent
from deltalakedb.table.locations import url_of
from deltalakedb.table.roots import root_at
from deltalakedb.table.roots.local import LENT
from deltalakedb.table.unreadable import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.table.handle import TableHandle
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.roots import PlacedFile, Root, WorkFolder
    from deltalakedb.table.sources import Source

_MINUS_ZERO: Final = re.compile(r"-(?:0+(?:\.0*)?|\.0+)(?:[eE][+-]?\d{1,4})?")


#: exception class of delta-rs -> our subclass of it; any other class is raised unchanged
_OURS: Mapping[type[Exception], type[DeltaSqlError]] = {
    SchemaMismatchError: SchemaError,
    CommitFailedError: CommitError,
    DeltaProtocolError: ProtocolError,
    DeltaError: OperationError,
    FileNotFoundError: StorageMissingError,
    OSError: StorageError,
    NotImplementedError: UnsupportedOperationError,
    ValueError: InvalidArgumentError,
    Exception: OperationError,
}
_LENT = rf"(?:/{LENT}\d*)?"
#: a scratch folder under the table's root, and one in the system's temporary folder
_SCRATCH_IN_ROOT = re.compile(rf"/_deltasql/(?:[\w.]+-)*[0-9a-f]{{32}}{_LENT}")
_PATH = re.compile(r"[^\s'\"(]+")
_SCRATCH_IN_TEMP = re.compile(rf"\bdeltasql-(?:fetched-)?[a-z0-9_]{{8}}{_LENT}")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
#: how delta-rs reports that the input stream raised an exception
_INPUT_FAILED = "Python exception:"
#: how it reports that a data file may be the cause: the Parquet reader failed, or one of its tasks panicked
_FILE_FAILED = ("arquet", "panicked")
#: the most columns that a suggestion names
_SHOWN = 20


class ErrorContext(NamedTuple):
    """The table that an operation is about, as far as it is known.

    Attributes:
        name: Its name.
        location: Its root.
        version: Its version.
        metadata: Its metadata.
        hint: What to do about a failure, if that is known.
        unreadable: Finds the data file that an error is about.
    """

    name: str | None = None
    location: str | None = None
    version: int | None = None
    metadata: Metadata | None = None
    hint: str | None = None
    unreadable: Callable[[str], StorageError | None] | None = None

    @classmethod
    def at(cls, table: TableHandle) -> ErrorContext:
        """An open table, at the version it shows."""
        snapshot = table.source.snapshot
        look = partial(unreadable, table.root, table.file_sizes, table=table.name, version=snapshot.version)
        return cls(table.name, table.row.location, snapshot.version, snapshot.metadata, unreadable=look)


NO_CONTEXT = ErrorContext()


@contextmanager
def translate_errors(about: ErrorContext) -> Iterator[None]:
    """Raise delta-rs's errors and panics as typed errors, without scratch paths in their messages.

    Each typed error is a subclass of what plain `deltalake` would raise in the same place.
    """
    try:
        yield
    except DeltaSqlError:
        raise
    except Exception as error:
        text = without_scratch(str(error), about.location)
        if text != str(error):
            error.args = (text,)  # a traceback shows it as the cause of ours
        if (ours := _OURS.get(type(error))) is None:
            raise
        by_file = any(word in text for word in _FILE_FAILED)
        if by_file and about.unreadable is not None and (found := about.unreadable(text)):
            raise found from error
        raise ours(
            text.strip(), table=about.name, version=about.version, suggestion=_suggestion(ours, about, text)
        ) from error
    except BaseException as panic:
        if isinstance(panic, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        text = without_scratch(str(panic), about.location)
        panic.args = (text,)
        if about.unreadable is not None and (found := about.unreadable(text)):
            raise found from panic
        raise OperationError(
            f"delta-rs stopped unexpectedly: {text}", table=about.name, version=about.version
        ) from panic


def without_scratch(text: str, location: str | None) -> str:
    """A message with the table's own paths instead of those of a scratch table."""

    def rebased(path: re.Match[str]) -> str:
        # the last one counts: a temporary folder may itself be inside another
        found = deque(_SCRATCH_IN_TEMP.finditer(path[0]), maxlen=1)
        return (location or "…") + path[0][found[0].end() :] if found else path[0]

    return _COLOUR.sub("", _PATH.sub(rebased, _SCRATCH_IN_ROOT.sub("", text)))


def _suggestion(kind: type[DeltaSqlError], about: ErrorContext, text: str) -> str | None:
    """Suggest a fix; list columns and constraints if a row or an expression may have caused the error."""
    if about.hint is not None and kind is OperationError:
        return about.hint
    if _INPUT_FAILED in text:
        return "nothing was written; look at what makes the batches"
    if about.metadata is None or kind not in (OperationError, SchemaError, ProtocolError):
        return None
    names = [f.name for f in parse_schema(about.metadata.schema_string).fields]
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    rules = {
        key.removeprefix("delta.constraints."): rule
        for key, rule in about.metadata.configuration.items()
        if key.startswith("delta.constraints.")
    }
    if kind is SchemaError:
        return f"the table's columns are {shown}; schema_mode='merge' lets new ones in"
    constraints = "".join(f"; every row must meet {name}: {rule}" for name, rule in rules.items())
    return f"the table's columns are {shown}{constraints}"


@dataclass(frozen=True, slots=True)
class Harvest:
    """What delta-rs did on a scratch table: the actions of each commit, and the paths of its new files."""

    steps: tuple[tuple[Action, ...], ...]
    new_files: tuple[str, ...]  # decoded paths relative to the scratch folder and to the table's root alike
    new_names: bool  # every added file is a new one

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions of all commits."""
        return tuple(a for step in self.steps for a in step)

    def each(self, change: Callable[[Action], Action]) -> Harvest:
        """Return a copy with ``change`` applied to every action."""
        return replace(self, steps=tuple(tuple(map(change, step)) for step in self.steps))

    def in_place(self, names: Mapping[str, str] | None = None) -> Harvest:
        """Return a copy for added files that delta-rs did not write and that are under the root already.

        Args:
            names: Actual paths of files, by the path in delta-rs's action, if the two differ.
        """

        def named(action: Action) -> Action:
            if not isinstance(action, Add) or not names:
                return action
            path = decode_path(action.path)
            return replace(action, path=encode_path(names.get(path, path)))

        return replace(self.each(named), new_files=(), new_names=False)


class Scratch:
    """A temporary table: a folder with its own `_delta_log` that names files of the real table.

    Files of the real table are lent to it as links, or as copies from an object store. Never vacuum a scratch
    table: delta-rs would follow links and delete real files.

    Args:
        root: The real table's root.
        work: The folder that the scratch table is made in.
    """

    #: whether the engine's statistics count NaN as the greatest value
    bounds_nan = False

    def __init__(self, root: Root, work: WorkFolder) -> None:
        self.root = root
        self.folder = work.path
        self._work = work
        self._lender = root.lender(work.path)
        #: path of a lent file -> the add as the scratch table has it, and as the real table has it
        self._lent: dict[str, tuple[Add, Add]] = {}
        self._hidden: Protocol | None = None
        #: physical paths of columns of floating point, whose maxima delta-rs writes without regard to NaN
        self._floats: Sequence[tuple[str, ...]] = ()
        (self.folder / "_delta_log").mkdir(parents=True)

    @classmethod
    def for_writing(cls, root: Root | str, *, table: str) -> Scratch:
        """A scratch table whose new files are to become the real table's."""
        root = root_at(root) if isinstance(root, str) else root
        try:
            return cls(root, root.work_folder())
        except StorageError:  # already typed, and may be an OSError too
            raise
        except OSError as error:
            raise StorageError(
                f"cannot write under the table's root {root.location}: {os.strerror(error.errno or 0)}",
                table=table,
                suggestion="check that the folder exists and may be written, and that the disk is not full",
            ) from error

    def lay(self, snapshot: Snapshot, adds: Iterable[Add] = (), *, unlent: Collection[str] = ()) -> None:
        """Write the log that makes this folder the table at the snapshot's version.

        Args:
            snapshot: The version.
            adds: The files that delta-rs sees, in this order.
            unlent: Paths of adds that are only log entries, without a file behind them.
        """
        protocol = without_features(snapshot.protocol, COMMITTER_FEATURES)
        self._hidden = snapshot.protocol if protocol != snapshot.protocol else None
        path = self.folder / commit_path(snapshot.version)
        try:
            adds = list(adds)
            real = [a for a in adds if a.path not in unlent]
            self._floats = float_paths(parse_schema(snapshot.metadata.schema_string))
            lent = self._lender.lend([cautious(add, self._floats) for add in real])
            self._lent.update((ours.path, (ours, add)) for ours, add in zip(lent, real, strict=True))
            shown = iter(lent)
            actions: list[Action] = [protocol, snapshot.metadata]
            actions += [a if a.path in unlent else next(shown) for a in adds]
            path.write_bytes(encode_commit(actions))
        except StorageError:  # one of them is an OSError too
            raise
        except OSError as error:
            raise storage_error(error, "write", path) from error

    def harvest(self, *, after: int) -> Harvest:
        """The actions of every commit after a version, with paths as the real table spells them."""
        steps: list[list[Action]] = []
        for file in sorted((self.folder / "_delta_log").iterdir()):
            name = parse_name(file.name)
            if name is not None and name.kind == "commit" and name.version > after:
                steps.append(decode_commit(file.read_bytes(), source=file.name))
        actions = [a for step in steps for a in step]
        for action in actions:
            if isinstance(action, Metadata) and not self.bounds_nan:
                self._floats = float_paths(parse_schema(action.schema_string))
        new = dict.fromkeys(
            a.path for a in actions if isinstance(a, Add | Cdc) and not a.path.startswith(LENT)
        )
        real = tuple(tuple(map(self._real, step)) for step in steps)
        new_names = all(a.path in new for a in actions if isinstance(a, Add))
        return Harvest(real, tuple(decode_path(p) for p in new), new_names)

    def place(self, files: Sequence[str], *, fsync: bool) -> Sequence[PlacedFile]:
        """Move new files under the table's root; return them, so that the move can be undone."""
        return self.root.take(self.folder, files, fsync=fsync)

    def remove(self) -> None:
        """Delete the scratch folder."""
        self._work.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _placed(self, info: CommitInfo) -> CommitInfo:
        """Replace the location in the parameters of an operation with the real table's."""
        parameters = info.extra.get("operationParameters")
        if not isinstance(parameters, dict) or "location" not in parameters:
            return info
        parameters = {**parameters, "location": url_of(self.root.location)}
        return replace(info, extra={**info.extra, "operationParameters": parameters})

    def _real(self, action: Action) -> Action:
        """Translate an action of the scratch table into one of the real table."""
        if isinstance(action, CommitInfo):
            return self._placed(action)
        if isinstance(action, Protocol) and self._hidden is not None:
            return _with(action, self._hidden)
        if isinstance(action, Add) and action.path not in self._lent:
            return cautious(action, self._floats, if_equal=True)
        if not isinstance(action, Add | Remove) or (found := self._lent.get(action.path)) is None:
            return action
        ours, real = found
        vector = action.deletion_vector
        if vector == ours.deletion_vector:
            vector = real.deletion_vector
        if action.partition_values == ours.partition_values:
            action = replace(action, partition_values=real.partition_values)
        return replace(action, path=real.path, deletion_vector=vector)


def cautious(add: Add, floats: Sequence[tuple[str, ...]], *, if_equal: bool = False) -> Add:
    """Return an add without maxima of floating-point columns, which may not account for NaN.

    Partition values of minus zero become zero, because delta-rs treats the two as different values.
    """
    stats = without_highest(add.stats, floats, if_equal=if_equal)
    values = dict(add.partition_values)
    for name in {path[0] for path in floats if len(path) == 1} & values.keys():
        if _MINUS_ZERO.fullmatch(values[name] or ""):
            values[name] = "0"
    if stats == add.stats and values == add.partition_values:
        return add
    return replace(add, stats=stats, partition_values=values)


def _with(protocol: Protocol, hidden: Protocol) -> Protocol:
    """The protocol with the features that were hidden from delta-rs."""

    def restored(now: tuple[str, ...] | None, before: tuple[str, ...] | None) -> tuple[str, ...] | None:
        lost = [f for f in before or () if f in COMMITTER_FEATURES and f not in (now or ())]
        return (*(now or ()), *lost) if lost else now

    readers = restored(protocol.reader_features, hidden.reader_features)
    lost = [f for f in hidden.writer_features or () if f in COMMITTER_FEATURES]
    # a protocol from before table features must list all of its features now
    whole = with_writer_features(protocol, lost) if lost else protocol
    return replace(whole, reader_features=readers)


A = TypeVar("A")
T = TypeVar("T")


def rewrite(
    table: TableHandle, where: Expr | None, run: Callable[[Stage], T], *, hooks: Hooks = DEFAULT
) -> T:
    """Run an operation that rewrites rows (delete, update, overwrite by predicate) on the candidate files.

    Args:
        table: The open table.
        where: What the operation reads; None for every row.
        run: Calls delta-rs on the scratch table.
        hooks: What is to follow the commit.

    Returns:
        What delta-rs returned.
    """
    with Stage(table, *candidates(table, where)) as stage:
        out = call(run, stage, ErrorContext.at(table))
        stage.submit(hooks)
    return out


def candidates(table: TableHandle, where: Expr | None) -> tuple[list[Add], ReadSet]:
    """The files whose rows an operation may rewrite, and what its result then depends on."""
    refuse_row_ids(table)
    adds = list(table.source.adds(where))
    if where is None or table.source.schema_changed:
        return adds, EVERYTHING
    return adds, ReadSet(predicates=(where,), files=frozenset(a.key for a in adds))


def refuse_row_ids(table: TableHandle) -> None:
    """Raise UnsupportedFeatureError if a rewrite would change row ids, which must be stable."""
    snapshot = table.source.snapshot
    check_writable(snapshot.protocol, table=table.name, also=COMMITTER_FEATURES)
    if tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, "delta.enableRowTracking"):
        raise UnsupportedFeatureError(
            "rows of a table with row tracking cannot be rewritten here: their ids would change",
            table=table.name,
            suggestion="append instead, or rewrite with an engine that keeps row ids",
            features=("rowTracking",),
        )


class Stage:
    """A scratch table over some files of an open table, ready for delta-rs.

    Args:
        table: The open table.
        adds: The files that delta-rs sees, in this order.
        reads: What the operation's result depends on.
        unlent: Paths of entries that stand for no file.
        shown: The snapshot to present to delta-rs, if it differs from the table's own.
    """

    def __init__(
        self,
        table: TableHandle,
        adds: Iterable[Add],
        reads: ReadSet,
        *,
        unlent: Collection[str] = (),
        shown: Snapshot | None = None,
    ) -> None:
        snapshot = table.source.snapshot
        check_writable(snapshot.protocol, table=table.name, also=COMMITTER_FEATURES)
        self._table = table
        self._snapshot = snapshot
        self._reads = reads
        failpoint("data.before")
        self.scratch = Scratch.for_writing(table.root, table=table.name)
        try:
            self.scratch.lay(shown or snapshot, adds, unlent=unlent)
            self.raw = call(_open, str(self.scratch.folder), ErrorContext.at(table))
        except BaseException:
            self.scratch.remove()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.scratch.remove()

    def harvest(self) -> Harvest:
        """What delta-rs did so far."""
        return self.scratch.harvest(after=self._snapshot.version)

    def submit(self, hooks: Hooks = DEFAULT, harvest: Harvest | None = None) -> Committed | None:
        """Submit what delta-rs did, or a modified ``harvest`` of it."""
        return submit(self._table, self.scratch, harvest or self.harvest(), self._reads, hooks=hooks)


def _open(folder: str) -> RawDeltaTable:
    return RawDeltaTable(folder, version=None, storage_options=None)


def submit(
    table: TableHandle,
    scratch: Scratch,
    harvest: Harvest,
    reads: ReadSet,
    more: Iterable[Action] = (),
    *,
    hooks: Hooks = DEFAULT,
    handled_features: frozenset[str] = frozenset(),
) -> Committed | None:
    """Move new files into place, then submit the changes and ``more`` actions to the commit target."""
    more = tuple(more)
    steps: list[Sequence[Action]] = list(harvest.steps)
    if more:
        known = [_counted(a, more) for a in (steps.pop() if steps else ())]
        steps.append((*known, *more))
    if not any(steps):
        return None
    moved = scratch.place(harvest.new_files, fsync=table.database.engine.config.publish.fsync)
    failpoint("data.after")
    read, root = table.source.snapshot, table.root
    first, *then = steps
    work = WriteIntent(
        table.row,
        first,
        read,
        reads,
        moved,
        harvest.new_names,
        root=root,
        hooks=hooks,
        then=then,
        handled_features=handled_features,
    )
    return table.submit(work)


def with_metrics(harvest: Harvest, more: int, *names: str) -> Harvest:
    """A harvest whose metrics count files that delta-rs did not see."""

    def counted(action: Action) -> Action:
        if not isinstance(action, CommitInfo) or "operationMetrics" not in action.extra:
            return action
        metrics = add_to_metrics(action.extra["operationMetrics"], more, *names)
        return replace(action, extra={**action.extra, "operationMetrics": metrics})

    return harvest.each(counted)


def add_to_metrics(metrics: dict[str, Any], more: int, *names: str) -> dict[str, Any]:
    """Metrics with more added to some of them."""
    return metrics | {name: metrics[name] + more for name in names if name in metrics}


def _counted(action: Action, more: Sequence[Action]) -> Action:
    """Record removes that the engine did not see in a commitInfo, under the engine's metric names."""
    if not isinstance(action, CommitInfo) or "operationMetrics" not in action.extra:
        return action
    metrics, gone = dict(action.extra["operationMetrics"]), [a for a in more if isinstance(a, Remove)]
    if "numRemovedFiles" in metrics:  # delta-spark's metrics are strings
        size = sum(remove.size or 0 for remove in gone)
        metrics |= {"numRemovedFiles": str(len(gone)), "numRemovedBytes": str(size)}
    else:
        metrics["num_removed_files"] = len(gone)
    return replace(action, extra={**action.extra, "operationMetrics": metrics})


def call(operation: Callable[[A], T], argument: A, about: ErrorContext = NO_CONTEXT) -> T:
    """Call delta-rs, and raise its errors as typed errors about the table."""
    with translate_errors(about):
        return operation(argument)


def in_partitions_of(source: Source, new: Iterable[Add]) -> Iterator[Add]:
    """The live files in the partitions that new files are in, by the values and not by their spelling."""
    metadata = source.snapshot.metadata
    schema = parse_schema(metadata.schema_string)
    columns: dict[str, PrimitiveType] = {}
    for name in metadata.partition_columns:
        field = schema.field(name)
        kind = field.type if field and isinstance(field.type, PrimitiveType) else PrimitiveType("string")
        columns[name if field is None else field.physical_name] = kind
    keys = {equal_key(add.partition_values, columns) for add in new}
    return (add for add in source.adds() if equal_key(add.partition_values, columns) in keys)


def removes(adds: Iterable[Add]) -> list[Action]:
    """Live files as removes."""
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
        for a in adds
    ]
