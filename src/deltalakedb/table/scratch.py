"""Scratch tables: delta-rs runs an operation on links to the files it needs, and we commit the result.

The steps: `OpenScratchTable.write_log`, the operation, `read_commits`, and `submit`.
"""

from __future__ import annotations

import re
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from deltalake._internal import RawDeltaTable

from deltalakedb import exceptions
from deltalakedb.commit.request import Write
from deltalakedb.delta_log.names import LOG_FOLDER, commit_path, parse_name
from deltalakedb.exceptions import (
    DeltaSqlError,
    OperationError,
    ProtocolError,
    SchemaError,
    StorageError,
    UnsupportedFeatureError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    decode_commit,
    encode_commit,
)
from deltalakedb.protocol.features import (
    COMMITTER_FEATURES,
    check_writable,
    tracks_rows,
    with_features,
    without_features,
)
from deltalakedb.protocol.partition import equal_key, partition_columns
from deltalakedb.protocol.paths import decode_path, encode_path
from deltalakedb.protocol.properties import is_on
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.stats import float_paths, without_highest
from deltalakedb.storage.local import translated
from deltalakedb.table.handle import DEFAULT_HOOKS, NO_HOOKS, Hooks, TableHandle
from deltalakedb.table.locations import url_of
from deltalakedb.table.roots import FILES_FOLDER, Root, find_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.table.sources import Source

_MINUS_ZERO: Final = re.compile(r"-(?:0+(?:\.0*)?|\.0+)(?:[eE][+-]?\d{1,4})?")


#: exception class of delta-rs -> our subclass of it; any other class is raised unchanged
_OURS: Mapping[type[BaseException], type[DeltaSqlError]] = {
    exceptions.SchemaMismatchError: SchemaError,
    exceptions.CommitFailedError: exceptions.CommitError,
    exceptions.DeltaProtocolError: ProtocolError,
    exceptions.DeltaError: OperationError,
    FileNotFoundError: exceptions.StorageMissingError,
    OSError: StorageError,
    NotImplementedError: exceptions.UnsupportedOperationError,
    ValueError: exceptions.InvalidArgumentError,
    Exception: OperationError,
}
#: the folder of the provided files, in a path
_FILES = rf"(?:/{FILES_FOLDER}\d*)?"
#: a scratch folder under the table's root, and one in the system's temporary folder
_SCRATCH_IN_ROOT = re.compile(rf"/_deltasql/(?:[\w.]+-)*[0-9a-f]{{32}}{_FILES}")
_PATH = re.compile(r"[^\s'\"(]+")
_SCRATCH_IN_TEMP = re.compile(rf"\bdeltasql-(?:fetched-)?[a-z0-9_]{{8}}{_FILES}")
_ANSI_COLOUR = re.compile("\x1b\\[[0-9;]*m")
#: in delta-rs's message if the input stream raised an exception
_INPUT_FAILED = "Python exception:"
#: in its message if a data file may be the cause: the Parquet reader failed, or a task of it panicked
_FILE_FAILED = ("arquet", "panicked")
#: how many columns a suggestion lists
_MAX_COLUMNS_SHOWN = 20


class ErrorContext(NamedTuple):
    """What is known about the table of a failed operation, for the error message."""

    name: str | None = None
    location: str | None = None
    version: int | None = None
    metadata: Metadata | None = None
    #: the suggestion, if the caller has a better one than the default
    hint: str | None = None
    #: finds the data file that an error is about
    unreadable: Callable[[str], StorageError | None] | None = None

    @classmethod
    def at(cls, table: TableHandle) -> ErrorContext:
        snapshot = table.snapshot
        look = partial(find_unreadable, table.root, table.file_sizes, snapshot.version)
        return cls(table.name, table.row.location, snapshot.version, snapshot.metadata, unreadable=look)


@contextmanager
def translate_errors(about: ErrorContext) -> Iterator[None]:
    """Raise delta-rs's errors and panics as typed errors, without scratch paths in their messages.

    Each typed error is a subclass of what plain `deltalake` would raise in the same place.
    """
    try:
        yield
    except (DeltaSqlError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # delta-rs's panics are no Exceptions
        text = without_scratch(str(error), about.location)
        if text != str(error):
            error.args = (text,)  # a traceback shows it as the cause of ours
        panic = not isinstance(error, Exception)
        if (ours := OperationError if panic else _OURS.get(type(error))) is None:
            raise
        by_file = panic or any(word in text for word in _FILE_FAILED)
        if by_file and about.unreadable is not None and (found := about.unreadable(text)):
            raise found from error
        raise ours(
            f"delta-rs stopped unexpectedly: {text}" if panic else text.strip(),
            table=about.name,
            version=about.version,
            **({} if panic else _suggestion(ours, about, text)),
        ) from error


def without_scratch(text: str, location: str | None) -> str:
    """A message with the table's own paths instead of those of a scratch table."""

    def rebased(path: re.Match[str]) -> str:
        # the last match: the temporary folder may itself be inside a scratch folder
        found = deque(_SCRATCH_IN_TEMP.finditer(path[0]), maxlen=1)
        return (location or "…") + path[0][found[0].end() :] if found else path[0]

    return _ANSI_COLOUR.sub("", _PATH.sub(rebased, _SCRATCH_IN_ROOT.sub("", text)))


def _suggestion(kind: type[DeltaSqlError], about: ErrorContext, text: str) -> dict[str, str]:
    """Suggest a fix; list columns and constraints if a row or an expression may have caused the error."""
    if about.hint is not None and kind is OperationError:
        return {"suggestion": about.hint}
    if _INPUT_FAILED in text:
        return {"suggestion": "nothing was written; fix the exception that the input raised"}
    if about.metadata is None or kind not in (OperationError, SchemaError, ProtocolError):
        return {}
    names = [f.name for f in parse_schema(about.metadata.schema_string).fields]
    shown = ", ".join(names[:_MAX_COLUMNS_SHOWN]) + (", …" if len(names) > _MAX_COLUMNS_SHOWN else "")
    rules = {
        key.removeprefix("delta.constraints."): rule
        for key, rule in about.metadata.configuration.items()
        if key.startswith("delta.constraints.")
    }
    has = f"the table's columns are {shown}"
    if kind is SchemaError:
        return {
            "suggestion": f"{has}; schema_mode='merge' adds new ones",
            "command": f"{has}; `deltasql write --schema-mode merge` adds new ones",
        }
    constraints = "".join(f"; every row must meet {name}: {rule}" for name, rule in rules.items())
    return {"suggestion": f"{has}{constraints}"}


@dataclass(frozen=True, slots=True)
class ScratchCommits:
    """What an engine did on a scratch table.

    Attributes:
        steps: The actions of each commit.
        new_files: Decoded paths of the new files, relative to the scratch folder; the same below the root.
        new_names: Whether every added file is a new one.
    """

    steps: tuple[tuple[Action, ...], ...]
    new_files: tuple[str, ...]
    new_names: bool

    @property
    def actions(self) -> tuple[Action, ...]:
        return tuple(a for step in self.steps for a in step)

    def each(self, change: Callable[[Action], Action]) -> ScratchCommits:
        return replace(self, steps=tuple(tuple(map(change, step)) for step in self.steps))

    def in_place(self, names: Mapping[str, str]) -> ScratchCommits:
        """A copy whose added files are already under the root, some of them renamed; none is moved."""

        def named(action: Action) -> Action:
            if not isinstance(action, Add) or not names:
                return action
            path = decode_path(action.path)
            return replace(action, path=encode_path(names.get(path, path)))

        return replace(self.each(named), new_files=(), new_names=False)


class ScratchTable:
    """A temporary table: a folder with its own `_delta_log` that names files of the real table.

    Files of the real table are provided as links, or as copies if they are on an object store. Never vacuum a
    scratch table: delta-rs would follow the links and delete real files.
    """

    #: whether the engine counts NaN as the greatest value in its statistics
    stats_include_nan = False

    def __init__(self, root: Root) -> None:
        with translated("write under the table's root", root.location):
            self._work = root.scratch_folder()
            self.folder = self._work.path
            (self.folder / LOG_FOLDER).mkdir(parents=True)
        self.root = root
        #: the version that the log was written at
        self._version = -1
        #: path of a provided file -> its add in the scratch table, and in the real table
        self._provided: dict[str, tuple[Add, Add]] = {}
        #: features that are left out of the scratch table's protocol, and added back to new protocols
        self._hidden: Sequence[str] = ()
        #: physical paths of floating-point columns: delta-rs ignores NaN when it writes their maxima
        self._floats: Sequence[tuple[str, ...]] = ()

    def read_commits(self) -> ScratchCommits:
        """The commits that the engine made since the log was written, with the paths of the real table."""
        steps: list[list[Action]] = []
        for file in sorted((self.folder / LOG_FOLDER).iterdir()):
            name = parse_name(file.name)
            if name is not None and name.kind == "commit" and name.version > self._version:
                steps.append(decode_commit(file.read_bytes(), source=file.name))
        actions = [a for step in steps for a in step]
        for action in actions:
            if isinstance(action, Metadata) and not self.stats_include_nan:
                self._floats = float_paths(parse_schema(action.schema_string))
        new = dict.fromkeys(
            a.path for a in actions if isinstance(a, Add | Cdc) and not a.path.startswith(FILES_FOLDER)
        )
        real = tuple(tuple(map(self._real, step)) for step in steps)
        new_names = all(a.path in new for a in actions if isinstance(a, Add))
        return ScratchCommits(real, tuple(decode_path(p) for p in new), new_names)

    def remove(self) -> None:
        self._work.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _real(self, action: Action) -> Action:
        """Translate an action of the scratch table into one of the real table."""
        if isinstance(action, CommitInfo):
            parameters = action.extra.get("operationParameters")
            if not isinstance(parameters, dict) or "location" not in parameters:
                return action
            parameters = {**parameters, "location": url_of(self.root.location)}
            return replace(action, extra={**action.extra, "operationParameters": parameters})
        if isinstance(action, Protocol):
            return with_features(action, self._hidden)
        if isinstance(action, Add) and action.path not in self._provided:
            return with_safe_stats(action, self._floats, if_equal=True)
        if not isinstance(action, Add | Remove) or (found := self._provided.get(action.path)) is None:
            return action
        ours, real = found
        vector = action.deletion_vector
        if vector == ours.deletion_vector:
            vector = real.deletion_vector
        if action.partition_values == ours.partition_values:
            action = replace(action, partition_values=real.partition_values)
        return replace(action, path=real.path, deletion_vector=vector)


def with_safe_stats(add: Add, floats: Sequence[tuple[str, ...]], *, if_equal: bool = False) -> Add:
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


_HOOKS: Final = "post_commithook_properties"


@dataclass(frozen=True)
class Call:
    """A call of a method of delta-rs's ``RawDeltaTable``, which can be repeated on a scratch table."""

    name: str
    arguments: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def hooks(self) -> Hooks:
        return Hooks.of(self[_HOOKS])

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in self.arguments.items() if name != _HOOKS}

    def on(self, scratch: OpenScratchTable, **instead: Any) -> Any:
        """Repeat the call on a scratch table, without hooks and with some arguments replaced."""
        return getattr(scratch.raw, self.name)(**self.arguments | {_HOOKS: NO_HOOKS} | instead)


T = TypeVar("T")


def rewrite(
    table: TableHandle,
    where: Expr | None,
    run: Callable[[OpenScratchTable], T],
    *,
    hooks: Hooks = DEFAULT_HOOKS,
) -> tuple[T, Committed | None]:
    """Run an operation that rewrites rows, by calling delta-rs on the candidate files, and commit it."""
    read = table.snapshot
    with OpenScratchTable(table, read, *candidates(table, where)) as scratch:
        return scratch.run(run), scratch.submit(hooks)


def candidates(table: TableHandle, where: Expr | None) -> tuple[list[Add], ReadSet]:
    """The files whose rows an operation may rewrite, and the read set of that operation."""
    refuse_row_ids(table)
    return with_read_set(table, where)


def with_read_set(table: TableHandle, where: Expr | None) -> tuple[list[Add], ReadSet]:
    adds = list(table.source.adds(where))
    if where is None or table.source.schema_changed:
        return adds, EVERYTHING
    return adds, ReadSet(predicates=(where,), files=frozenset(a.key for a in adds))


def refuse_row_ids(table: TableHandle) -> None:
    """Raise UnsupportedFeatureError if a rewrite would change row ids, which must be stable."""
    snapshot = table.snapshot
    check_writable(snapshot.protocol, table=table.name, also=COMMITTER_FEATURES)
    if tracks_rows(snapshot.protocol) and is_on(snapshot.metadata, "delta.enableRowTracking"):
        raise UnsupportedFeatureError(
            "rows of a table with row tracking cannot be rewritten here: their ids would change",
            table=table.name,
            suggestion="append instead, or rewrite with an engine that keeps row ids",
            features=("rowTracking",),
        )


class OpenScratchTable(ScratchTable):
    """A scratch table over some files of an open table.

    The operation's result depends on ``reads``, from the snapshot ``read``, which is taken before the adds
    are listed. Adds whose paths are in ``placeholders`` are log entries without a file. delta-rs sees the
    snapshot ``shown``, if it differs from the table's own.
    """

    #: writer features whose rules the engine follows
    handled_features: frozenset[str] = frozenset()

    def __init__(
        self,
        table: TableHandle,
        read: Snapshot,
        adds: Iterable[Add],
        reads: ReadSet,
        *,
        placeholders: Collection[str] = (),
        shown: Snapshot | None = None,
    ) -> None:
        check_writable(read.protocol, table=table.name, also=COMMITTER_FEATURES | self.handled_features)
        self._table, self._read, self._reads, self._placeholders = table, read, reads, placeholders
        failpoint("data.before")
        super().__init__(table.root)
        try:
            self.write_log(shown or read, list(adds))
        except BaseException:
            self.remove()
            raise

    def write_log(self, snapshot: Snapshot, adds: Sequence[Add]) -> None:
        """Write the log that makes this folder a table of the given files."""
        self._version = snapshot.version
        protocol = without_features(snapshot.protocol, COMMITTER_FEATURES)
        self._hidden = [f for f in snapshot.protocol.writer_features or () if f in COMMITTER_FEATURES]
        path = self.folder / commit_path(snapshot.version)
        with translated("write", path):
            real = [a for a in adds if a.path not in self._placeholders]
            self._floats = float_paths(parse_schema(snapshot.metadata.schema_string))
            provided = self._work.provide([with_safe_stats(add, self._floats) for add in real])
            self._provided.update((ours.path, (ours, add)) for ours, add in zip(provided, real, strict=True))
            shown = iter(provided)
            actions: list[Action] = [protocol, snapshot.metadata]
            actions += [a if a.path in self._placeholders else next(shown) for a in adds]
            path.write_bytes(encode_commit(actions))

    @cached_property
    def raw(self) -> RawDeltaTable:
        """The table as delta-rs opens it."""
        return RawDeltaTable(str(self.folder), version=None, storage_options=None)

    def run(self, operation: Callable[[OpenScratchTable], T], about: ErrorContext | None = None) -> T:
        with translate_errors(about or ErrorContext.at(self._table)):
            return operation(self)

    def submit(
        self,
        hooks: Hooks = DEFAULT_HOOKS,
        commits: ScratchCommits | None = None,
        more: Sequence[Action] = (),
    ) -> Committed | None:
        """Move new files into place, then submit what the engine did and ``more`` actions.

        ``commits`` is a modified version of what it did.
        """
        commits = commits or self.read_commits()
        steps: list[Sequence[Action]] = list(commits.steps)
        if more:
            last = steps.pop() if steps else ()
            steps.append((*(_with_changed_metrics(a, partial(_with_removes, more)) for a in last), *more))
        steps = [step for step in steps if step]
        if not steps:
            return None
        table = self._table
        fsync = table.database.engine.config.publish.fsync
        moved = self.root.move_in(self.folder, commits.new_files, fsync=fsync)
        failpoint("data.after")
        origin = Write(commits.new_names, self.handled_features)
        return table.submit(self._read, steps, self._reads, moved, origin=origin, hooks=hooks)


def with_metrics(commits: ScratchCommits, more: int, *names: str) -> ScratchCommits:
    """Commits whose metrics also count files that delta-rs did not see."""
    return commits.each(
        lambda a: _with_changed_metrics(a, lambda metrics: add_to_metrics(metrics, more, *names))
    )


def add_to_metrics(metrics: dict[str, Any], more: int, *names: str) -> dict[str, Any]:
    return metrics | {name: metrics[name] + more for name in names if name in metrics}


def _with_changed_metrics(action: Action, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Action:
    if not isinstance(action, CommitInfo) or "operationMetrics" not in action.extra:
        return action
    metrics = change(action.extra["operationMetrics"])
    return replace(action, extra={**action.extra, "operationMetrics": metrics})


def _with_removes(more: Sequence[Action], metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that also count removes that the engine did not see, under the engine's names."""
    removed = [a for a in more if isinstance(a, Remove)]
    if "numRemovedFiles" not in metrics:
        return metrics | {"num_removed_files": len(removed)}
    size = sum(remove.size or 0 for remove in removed)  # delta-spark's metrics are strings
    return metrics | {"numRemovedFiles": str(len(removed)), "numRemovedBytes": str(size)}


def in_partitions_of(source: Source, new: Iterable[Add]) -> Iterator[Add]:
    """The live files in the partitions of new files; values are compared, not their spelling."""
    columns = {physical: kind for _, physical, kind in partition_columns(source.snapshot.metadata)}
    keys = {equal_key(add.partition_values, columns) for add in new}
    return (add for add in source.adds() if equal_key(add.partition_values, columns) in keys)


def removes(adds: Iterable[Add]) -> list[Action]:
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
