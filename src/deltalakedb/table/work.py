"""A piece of work on a table, and the two places it can go: straight to a commit, or into a transaction."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.commit.committer import LogAheadError, commit
from deltalakedb.exceptions import (
    CatalogBusyError,
    CommitUnknownError,
    ConflictError,
    DeltaSqlError,
    InvalidArgumentError,
    NothingWrittenWarning,
)
from deltalakedb.metastore import registry
from deltalakedb.metastore.outbox import Member
from deltalakedb.mirror.background import PUBLISHER
from deltalakedb.mirror.checkpointer import (
    DEFAULT_INTERVAL,
    Checkpoints,
    checkpoint_if_due,
    crossed,
    interval_of,
)
from deltalakedb.mirror.fresh import PublishedFresh, publish_fresh
from deltalakedb.mirror.groups import Group
from deltalakedb.mirror.outside import has_next, look_ahead
from deltalakedb.mirror.publisher import publish
from deltalakedb.protocol.actions import Metadata
from deltalakedb.protocol.log import Committed, Conflict
from deltalakedb.protocol.reads import EVERYTHING, ReadSet
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.places import is_local
from deltalakedb.table.roots import undo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.commit.committer import OwnWork
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.registry import NameChange
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.log import Fresh, Snapshot
    from deltalakedb.storage.flushes import Flushes
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.roots import PlacedFile, Root

logger = logging.getLogger(__name__)

#: how often others may be ahead of one commit
_LOOKS = 5
#: packages whose lines are not the user's own
_INSIDE = ("deltalakedb", "deltalake")


@dataclass(frozen=True, slots=True)
class Work:
    """What one operation does to one table.

    Attributes:
        table: The table, or the new table to create.
        actions: The actions.
        read: The snapshot it worked from.
        reads: What its result depends on.
        files: New files that lie under the table's root already.
        fresh: Every added file is one of these.
        root: The table's root, with the storage options that the caller gave.
        hooks: What is to follow the commit.
        then: Actions of further versions, where the operation made several.
        kept: Writer features that the engine which wrote the files has seen to.
        own: Done in the same database transaction, after the rows of the commit are written.
    """

    table: Table | NewTable
    actions: Sequence[Action]
    read: Snapshot | None = None
    reads: ReadSet = EVERYTHING
    files: Sequence[PlacedFile] = field(default=())
    fresh: bool = False
    root: Root | None = None
    hooks: Hooks = DEFAULT
    then: Sequence[Sequence[Action]] = field(default=())
    kept: frozenset[str] = frozenset()
    own: Sequence[OwnWork] = field(default=())

    @property
    def steps(self) -> list[Sequence[Action]]:
        """The actions of each version, in order."""
        return [s for s in (self.actions, *self.then) if s]


class Sink(Protocol):
    """Where work goes."""

    @property
    def flushes(self) -> Flushes | None:
        """Where new files may be put that are on their way to the disk; None where nobody waits for them."""
        ...

    def ready(self) -> None:
        """Called before an operation: refuse early what could not be taken."""
        ...

    def submit(self, work: Work) -> Committed | None:
        """Take the work; the commit it became, or None where that is still to come or there was nothing."""
        ...


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """Every piece of work is a transaction of its own: committed, then published."""

    database: Database

    @property
    def flushes(self) -> None:
        """Nobody waits: the commit follows at once."""

    def ready(self) -> None:
        """Always."""

    def submit(self, work: Work) -> Committed | None:
        """Commit the work and publish it; ConflictError where somebody else was first."""
        if not work.actions:
            return None
        change = TableChange(
            work.table,
            work.actions,
            work.read,
            work.reads,
            work.then,
            fresh=work.fresh,
            kept=work.kept,
        )
        roots = {} if work.root is None else {work.root.location: work.root}
        outcome = settle(self.database, [change], files=work.files, roots=roots, own=work.own)
        every = interval(work.read, work.actions)
        publish_committed(self.database, [Settled(work.table, every, work.hooks, outcome[0].fresh)], roots)
        if outcome[0].replayed:
            tell_nothing_written(work.table.name)
        return outcome[0]


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

    def submit(self, work: Work) -> Committed | None:
        """Refuse; files that were written already are deleted."""
        undo(work.files)
        self.ready()


def tell_nothing_written(tables: str, why: str = "the application's version was recorded before") -> None:
    """Warn a caller whose write was done before, as far as it can be known, at the caller's own line."""
    frame, level = sys._getframe(1).f_back, 3
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"nothing was written to {tables}: {why}",
        NothingWrittenWarning,
        stacklevel=level,
    )


def settle(
    database: Database,
    changes: Sequence[TableChange],
    *,
    files: Sequence[PlacedFile] = (),
    roots: Mapping[str, Root] | None = None,
    txn_uuid: str | None = None,
    repeated: bool = True,
    names: Sequence[NameChange] = (),
    own: Sequence[OwnWork] = (),
) -> list[Committed]:
    """Commit changes; if they certainly did not happen, their files are deleted and an error says why.

    Only our own errors are certain. Whatever else comes out of a commit, such as an interrupt or the
    exception of a signal handler, may have come after it: the files stay, and `gc` finds those that no
    version needs.
    """
    try:
        outcome = _commit(
            database, changes, roots, txn_uuid=txn_uuid, repeated=repeated, names=names, own=own
        )
    except CommitUnknownError:
        raise
    except DeltaSqlError:
        undo(files)
        raise
    if isinstance(outcome, Conflict):
        undo(files)
        raise conflict_error(outcome)
    if outcome and all(c.replayed for c in outcome):
        # done before: this attempt's own files belong to no version
        undo(files)
    return outcome


def storage_options(
    database: Database, location: str, roots: Mapping[str, Root] | None
) -> Mapping[str, str] | None:
    """The storage options for a location: those of a root that the caller opened, else the settings'."""
    if roots is not None and (root := roots.get(location)) is not None:
        return root.options
    return database.engine.config.storage_options_for(location)


def _commit(
    database: Database,
    changes: Sequence[TableChange],
    roots: Mapping[str, Root] | None,
    *,
    txn_uuid: str | None,
    repeated: bool,
    names: Sequence[NameChange],
    own: Sequence[OwnWork],
) -> list[Committed] | Conflict:
    """Commit, unless others put commits into a log that ours would collide with."""
    config = database.engine.config
    watched = config.publish.look_ahead != "off"
    if config.publish.look_ahead == "always":
        for change in changes:
            table = change.table
            if change.steps and not isinstance(table, NewTable) and not is_local(table.location):
                # a store far away is not asked while the head is held
                look_ahead(database, table, storage_options(database, table.location, roots))
    for _ in range(_LOOKS):
        try:
            return commit(
                database,
                changes,
                txn_uuid=txn_uuid,
                repeated=repeated,
                names=names,
                own=own,
                guard=has_next if watched else None,
            )
        except LogAheadError as ahead:
            look_ahead(database, ahead.table, storage_options(database, ahead.table.location, roots))
    raise CatalogBusyError(
        "others put commits into the log faster than they can be taken over",
        suggestion="let one side write: see `deltasql mirror status`",
    )


@dataclass(frozen=True, slots=True)
class Settled:
    """A table that was committed to, and what is to follow.

    Attributes:
        table: The table.
        interval: Commits between two checkpoints.
        hooks: What its writer asked for.
        fresh: What was ratified of it, where that is known.
    """

    table: Table | NewTable
    interval: int
    hooks: Hooks = DEFAULT
    fresh: Fresh | None = None


def interval(read: Snapshot | None, actions: Iterable[Action]) -> int:
    """Commits between two checkpoints, as the table has it after some actions."""
    metadata = next((a for a in actions if isinstance(a, Metadata)), None if read is None else read.metadata)
    return DEFAULT_INTERVAL if metadata is None else interval_of(metadata)


def publish_committed(
    database: Database,
    settled: Sequence[Settled],
    roots: Mapping[str, Root] | None = None,
    *,
    group: str | None = None,
) -> None:
    """Publish what was just committed, as the settings say. A failure here never fails the commit.

    Args:
        database: The catalog.
        settled: The tables.
        roots: The roots that the caller opened, by location.
        group: The transaction, where it changed several tables.
    """
    config = database.engine.config
    if config.publish.mode == "background":
        for one in settled:
            given = storage_options(database, one.table.location, roots)
            PUBLISHER.soon(database, one.table.name, _checkpoints(database, one), given)
    if config.publish.mode != "sync":
        return
    at_once = PublishedFresh()
    options = {s.table.location: storage_options(database, s.table.location, roots) for s in settled}
    with after_commit("what was ratified could not be published at once"):
        fresh = [
            (s.fresh, s.table.location, options[s.table.location]) for s in settled if s.fresh is not None
        ]
        if fresh:
            at_once = publish_fresh(database, fresh, group=_group(group, settled), options=options)
    due = []
    for one in settled:
        versions: list[int] = []
        if one.fresh is not None:
            versions += at_once.noted.get(one.fresh.table_id, ())
        if one.fresh is None or one.fresh.table_id not in at_once.done:
            with after_commit(f"{one.table.name} could not be published"):
                versions += publish(
                    database,
                    registry.find(database, one.table.name) if isinstance(one.table, NewTable) else one.table,
                    storage_options=options[one.table.location],
                    others=options,
                    limit=config.publish.help_predecessors + 1,
                    seconds=1.0,
                ).versions
        # from the numbers alone: a commit that is not due one costs nothing
        may_be = crossed(versions, one.interval) or _is_heavy(database, one)
        if may_be and _checkpoints(database, one).write:
            due.append(one)
    # after all tables are published, since those of one transaction should appear together
    for one in due:
        with after_commit(f"the checkpoint of {one.table.name} must wait"):
            given = options[one.table.location]
            cleanup = one.hooks.cleanup_expired_logs
            checkpoint_if_due(database, one.table.name, storage_options=given, cleanup=cleanup)


def _is_heavy(database: Database, one: Settled) -> bool:
    """Whether a commit is a good part of what may come after a checkpoint: then it is worth a look."""
    limit = database.engine.config.publish.checkpoint_tail_bytes
    return bool(
        limit and one.fresh is not None and 8 * sum(len(data) for _, _, data in one.fresh.commits) >= limit
    )


def _group(txn: str | None, settled: Sequence[Settled]) -> Group | None:
    """A transaction over several tables, where it is known what all of them became."""
    members = [
        Member(s.fresh.table_id, s.table.name, s.table.location, version, at, published=False)
        for s in settled
        if s.fresh is not None
        for version, at, _ in s.fresh.commits[-1:]
    ]
    return None if txn is None else Group(txn, members if len(members) == len(settled) else None)


def _checkpoints(database: Database, one: Settled) -> Checkpoints:
    wanted = one.hooks.create_checkpoint and database.engine.config.publish.checkpoints
    return Checkpoints(wanted, one.hooks.cleanup_expired_logs, one.interval)


@contextmanager
def after_commit(trouble: str) -> Iterator[None]:
    """What follows a commit cannot fail it any more: whoever saw an error would do it a second time."""
    try:
        yield
    except CatalogBusyError as error:
        logger.info("%s: %s", trouble, error.message)
    except DeltaSqlError as error:
        logger.warning("the commit stands, but %s: %s", trouble, error.message)
    except Exception:
        logger.exception("the commit stands, but %s", trouble)


def conflict_error(conflict: Conflict) -> ConflictError:
    """The exception for a conflict."""
    winner = f"version {conflict.version}" + (f" ({conflict.operation})" if conflict.operation else "")
    return ConflictError(
        f"{conflict.detail}; {winner} was first",
        table=conflict.table,
        version=conflict.version,
        suggestion="read the table again and repeat the write, or let Catalog.run repeat it",
        kind=conflict.kind,
        operation=conflict.operation,
        files=conflict.files,
        predicate=conflict.predicate,
    )
