"""What an operation does to a table, and where that goes: straight to a commit, or into a transaction."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from deltalake import PostCommitHookProperties

from deltalakedb.commit.request import CommitRequest, TableChange, Write
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, NothingWrittenWarning
from deltalakedb.mirror.checkpointer import CheckpointOptions
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet
from deltalakedb.table.roots import undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deltalake import CommitProperties

    from deltalakedb.commit.request import NewTable, UserStatement
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.table.roots import PlacedFile, Root

#: packages whose lines are not the user's own
_INSIDE = ("deltalakedb", "deltalake")
#: for delta-rs on a scratch table: a checkpoint of it, or a clean-up, would be work for nothing
QUIET: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Hooks(CheckpointOptions):
    """What follows a commit: a checkpoint if one is due, and after it the clean-up of the log."""

    __slots__ = ()

    @classmethod
    def of(cls, properties: PostCommitHookProperties | None) -> Hooks:
        """What stock's properties ask for; the mirror does it, a scratch table none of it."""
        if properties is None:
            return DEFAULT
        found: Any = properties.create_checkpoint, properties.cleanup_expired_logs
        if not all(isinstance(choice, bool | None) for choice in found):
            raise ArgumentTypeError(f"post-commit hooks are switched on or off by a bool: {found}")
        return cls(bool(found[0]), found[1])

    @classmethod
    def all_of(cls, several: Iterable[Hooks]) -> Hooks:
        """The hooks of several operations in one commit: what one of them forbids does not happen."""
        found = list(several)
        choices = {h.cleanup for h in found} - {None}
        return cls(all(h.write for h in found), all(choices) if choices else None)


DEFAULT: Final = Hooks()


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """What one operation does to one table.

    Attributes:
        table: The table, or the new table to create.
        actions: The actions.
        read: The snapshot it worked from.
        reads: What its result depends on.
        files: New files that are below the table's root already.
        new_names: Every added file is one of these.
        root: The table's root, with the storage options that the caller gave.
        hooks: What is to follow the commit.
        then: Actions of further versions, if the operation made several.
        handled_features: Writer features whose duties the engine that wrote the files has fulfilled.
        own: Done in the same database transaction, after the rows of the commit are written.
    """

    table: Table | NewTable
    actions: Sequence[Action]
    read: Snapshot | None = None
    reads: ReadSet = EVERYTHING
    files: Sequence[PlacedFile] = ()
    new_names: bool = False
    root: Root | None = None
    hooks: Hooks = DEFAULT
    then: Sequence[Sequence[Action]] = ()
    handled_features: frozenset[str] = frozenset()
    own: Sequence[UserStatement] = ()

    @property
    def steps(self) -> list[Sequence[Action]]:
        """The actions of each version, in order."""
        return [s for s in (self.actions, *self.then) if s]


class CommitTarget(Protocol):
    """Where the changes of operations go."""

    @property
    def flushes(self) -> Flushes | None:
        """Collects new files that are to be flushed before the commit; None if each is flushed by itself."""
        ...

    def ready(self) -> None:
        """Called before an operation; raises an error if it could not be submitted."""
        ...

    def submit(self, work: WriteIntent) -> Committed | None:
        """Take the work; return its commit, or None if that is still to come or there was nothing to do."""
        ...


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """Commits and publishes each operation by itself."""

    database: Database
    flushes: None = None

    def ready(self) -> None:
        pass

    def submit(self, work: WriteIntent) -> Committed | None:
        if not work.actions:
            return None
        origin = Write(new_names=work.new_names, handled_features=work.handled_features)
        change = TableChange(work.table, work.steps, work.read, work.reads, origin)
        options = {} if work.root is None else {work.root.location: work.root.options}
        (done,) = Coordinator(self.database, options).commit(
            CommitRequest([change], statements=work.own),
            delete_files=lambda: undo(work.files),
            checkpoints={work.table.location: work.hooks},
        )
        if done.replayed:
            warn_nothing_written(work.table.name)
        return done


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Refuses every operation: the target of an older version inside a transaction."""

    name: str
    version: int
    flushes: None = None

    def ready(self) -> NoReturn:
        raise InvalidArgumentError(
            f"version {self.version} was opened for reading only",
            table=self.name,
            version=self.version,
            suggestion="leave the version out to change the table",
        )

    def submit(self, work: WriteIntent) -> Committed | None:
        undo(work.files)
        self.ready()


def warn_nothing_written(tables: str, why: str = "the application's version was recorded before") -> None:
    """Warn that a write was done before, at the line of the user's code that asked for it."""
    frame, level = sys._getframe(1).f_back, 3  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"nothing was written to {tables}: {why}", NothingWrittenWarning, stacklevel=level)


# ---- commitInfo and application transactions of commits that delta-rs does not write --------------------


def commit_info(
    operation: str,
    parameters: Mapping[str, str],
    metrics: Mapping[str, Any],
    properties: CommitProperties | None,
) -> list[Action]:
    """The commitInfo of an operation, with delta-rs's keys and the user's, and application transactions."""
    own = {} if properties is None else _custom_metadata(properties)
    more = {
        k: v if isinstance(v, str) else encode_json(v) for k, v in own.pop("operationParameters", {}).items()
    }
    info: dict[str, Any] = {
        "operation": operation,
        "operationParameters": {**more, **parameters},
        **own,
        "operationMetrics": dict(metrics),
    }
    return [CommitInfo(extra=info), *app_transactions(properties)]


def app_transactions(properties: CommitProperties | None) -> list[Txn]:
    given = () if properties is None else properties.app_transactions or ()
    return [Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated) for t in given]


_ISOLATION: Final = ("Serializable", "WriteSerializable", "SnapshotIsolation")
_GENERATED: Final[tuple[Callable[[Any], bool], str]] = (
    lambda _: False,
    "is made by the commit itself and cannot be set",
)
_TEXT: Final[tuple[Callable[[Any], bool], str]] = (lambda value: isinstance(value, str), "must be a text")
#: keys of a commitInfo that mean something: what their values must be
_DEMANDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(("timestamp", "operation", "engineInfo"), _GENERATED),
    **dict.fromkeys(("userId", "userName", "userMetadata"), _TEXT),
    "operationParameters": (lambda value: isinstance(value, dict), "must be an object"),
    "readVersion": (lambda value: type(value) is int and value >= 0, "must be a whole number from 0 on"),
    "isolationLevel": (lambda value: value in _ISOLATION, f"must be one of {', '.join(_ISOLATION)}"),
    "isBlindAppend": (lambda value: isinstance(value, bool), "must be true or false"),
}


def _custom_metadata(properties: CommitProperties) -> dict[str, Any]:
    """The user's own entries of a commitInfo; InvalidArgumentError as in stock."""
    given: Any = properties.custom_metadata
    if given is None:
        return {}
    if not hasattr(given, "items"):
        raise InvalidArgumentError("CommitProperties.custom_metadata must be a mapping")
    out: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise InvalidArgumentError(f"the keys of custom_metadata must be texts, not {key!r}")
        try:
            out[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"the value of custom_metadata[{key!r}] cannot be written as JSON: {error}"
            ) from error
        fits, demand = _DEMANDS.get(key, (None, ""))
        if fits is not None and not fits(out[key]):
            raise InvalidArgumentError(f"custom_metadata[{key!r}] {demand}")
    return out
