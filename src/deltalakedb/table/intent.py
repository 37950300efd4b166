"""A piece of work on a table, and the two places it can go: straight to a commit, or into a transaction."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from deltalakedb.commit.request import CommitRequest, TableChange, Write
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.exceptions import InvalidArgumentError, NothingWrittenWarning
from deltalakedb.mirror.checkpointer import CheckpointOptions
from deltalakedb.protocol.read_set import EVERYTHING, ReadSet
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.roots import undo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.commit.request import NewTable, UserStatement
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.txn_log import Committed, Snapshot
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.roots import PlacedFile, Root

#: packages whose lines are not the user's own
_INSIDE = ("deltalakedb", "deltalake")


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
    files: Sequence[PlacedFile] = field(default=())
    new_names: bool = False
    root: Root | None = None
    hooks: Hooks = DEFAULT
    then: Sequence[Sequence[Action]] = field(default=())
    handled_features: frozenset[str] = frozenset()
    own: Sequence[UserStatement] = field(default=())

    @property
    def steps(self) -> list[Sequence[Action]]:
        """The actions of each version, in order."""
        return [s for s in (self.actions, *self.then) if s]


class CommitTarget(Protocol):
    """Where work goes."""

    @property
    def flushes(self) -> Flushes | None:
        """Where new files may be put that are on their way to the disk; None if each is flushed by itself."""
        ...

    def ready(self) -> None:
        """Called before an operation: refuse early what could not be taken."""
        ...

    def submit(self, work: WriteIntent) -> Committed | None:
        """Take the work; the commit it became, or None if that is still to come or there was nothing."""
        ...


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """Every piece of work is a transaction of its own: committed, then published."""

    database: Database

    @property
    def flushes(self) -> None:
        """Each file is flushed by itself: the commit follows at once."""

    def ready(self) -> None:
        """Every operation can be taken."""

    def submit(self, work: WriteIntent) -> Committed | None:
        """Commit the work and publish it; ConflictError if another writer was first."""
        if not work.actions:
            return None
        origin = Write(new_names=work.new_names, handled_features=work.handled_features)
        change = TableChange(work.table, work.steps, work.read, work.reads, origin)
        (done,) = Coordinator(self.database, options_of(() if work.root is None else (work.root,))).commit(
            CommitRequest([change], statements=work.own),
            delete_files=lambda: undo(work.files),
            checkpoints={work.table.location: checkpoints_of(work.hooks)},
        )
        if done.replayed:
            warn_nothing_written(work.table.name)
        return done


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Nowhere: an older version is there to be read."""

    name: str
    version: int

    @property
    def flushes(self) -> None:
        """Nothing is written."""

    def ready(self) -> NoReturn:
        """Refuse."""
        raise InvalidArgumentError(
            f"version {self.version} was opened for reading only",
            table=self.name,
            version=self.version,
            suggestion="leave the version out to change the table",
        )

    def submit(self, work: WriteIntent) -> Committed | None:
        """Refuse; files that were written already are deleted."""
        undo(work.files)
        self.ready()


def options_of(roots: Iterable[Root]) -> Mapping[str, Mapping[str, str] | None]:
    """The storage options of roots that the caller opened, by location."""
    return {root.location: root.options for root in roots}


def checkpoints_of(hooks: Hooks) -> CheckpointOptions:
    """What the hooks of an operation mean for the table's log."""
    return CheckpointOptions(hooks.create_checkpoint, hooks.cleanup_expired_logs)


def warn_nothing_written(tables: str, why: str = "the application's version was recorded before") -> None:
    """Warn a caller whose write was done before, as far as it can be known, at the caller's own line."""
    frame, level = sys._getframe(1).f_back, 3  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"nothing was written to {tables}: {why}",
        NothingWrittenWarning,
        stacklevel=level,
    )
