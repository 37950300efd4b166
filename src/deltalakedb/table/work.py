"""A piece of work on a table, and the two places it can go: straight to a commit, or into a transaction."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from deltalakedb.catalog import registry
from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import CommitUnknownError, ConflictError, DeltaSqlError
from deltalakedb.failpoints import failpoint
from deltalakedb.mirror.background import PUBLISHER
from deltalakedb.mirror.outside import look_ahead
from deltalakedb.mirror.publisher import publish
from deltalakedb.protocol.log import Committed, Conflict
from deltalakedb.protocol.reads import EVERYTHING, ReadSet
from deltalakedb.table.places import is_local
from deltalakedb.table.staging import undo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.values import Table
    from deltalakedb.commit.committer import OwnWork
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.log import Snapshot

logger = logging.getLogger(__name__)


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
        then: Actions of further versions, where the operation made several.
    """

    table: Table | NewTable
    actions: Sequence[Action]
    read: Snapshot | None = None
    reads: ReadSet = EVERYTHING
    files: Sequence[Path] = field(default=())
    fresh: bool = False
    then: Sequence[Sequence[Action]] = field(default=())

    @property
    def steps(self) -> list[Sequence[Action]]:
        """The actions of each version, in order."""
        return [s for s in (self.actions, *self.then) if s]


class Sink(Protocol):
    """Where work goes."""

    def submit(self, work: Work) -> Committed | None:
        """Take the work; the commit it became, or None where that is still to come or there was nothing."""
        ...


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """Every piece of work is a transaction of its own: committed, then published."""

    database: Database

    def submit(self, work: Work) -> Committed | None:
        """Commit the work and publish it; ConflictError where somebody else was first."""
        if not work.actions:
            return None
        change = TableChange(work.table, work.actions, work.read, work.reads, work.then, fresh=work.fresh)
        outcome = settle(self.database, [change], files=work.files)
        publish_committed(self.database, [work.table])
        return outcome[0]


def settle(
    database: Database,
    changes: Sequence[TableChange],
    *,
    files: Sequence[Path] = (),
    txn_uuid: str | None = None,
    repeated: bool = True,
    own: Sequence[OwnWork] = (),
) -> list[Committed]:
    """Commit changes; where they certainly did not happen, their files are deleted and an error says why."""
    try:
        _look_ahead(database, changes)
        outcome = commit(database, changes, txn_uuid=txn_uuid, repeated=repeated, own=own)
    except CommitUnknownError:
        # it may have happened: its files must stay. So too after an interrupt, which can come with the answer
        raise
    except Exception:
        undo(files)
        raise
    if isinstance(outcome, Conflict):
        undo(files)
        raise conflict_error(outcome)
    if outcome and all(c.replayed for c in outcome):
        # done before: this attempt's own files belong to no version
        undo(files)
    return outcome


def _look_ahead(database: Database, changes: Sequence[TableChange]) -> None:
    """Look for commits that others put into the log, before ours would collide with them."""
    config = database.engine.config
    for change in changes:
        table = change.table
        if isinstance(table, NewTable) or not change.steps or config.publish.look_ahead == "off":
            continue
        if config.publish.look_ahead == "always" or is_local(table.location):
            look_ahead(database, table, config.storage_options_for(table.location))


def publish_committed(database: Database, tables: Sequence[Table | NewTable]) -> None:
    """Publish what was just committed, as the settings say. A failure here never fails the commit."""
    config = database.engine.config
    if config.publish.mode == "background":
        for table in tables:
            PUBLISHER.soon(database, table.name)
    if config.publish.mode != "sync":
        return
    for number, table in enumerate(tables):
        with after_commit(f"{table.name} could not be published"):
            if number:
                failpoint("publish.between_tables")
            publish(
                database,
                registry.find(database, table.name) if isinstance(table, NewTable) else table,
                storage_options=config.storage_options_for(table.location),
                limit=config.publish.help_predecessors + 1,
                seconds=1.0,
            )


@contextmanager
def after_commit(trouble: str) -> Iterator[None]:
    """What follows a commit cannot fail it any more: whoever saw an error would do it a second time."""
    try:
        yield
    except DeltaSqlError as error:
        logger.warning("the commit stands, but %s: %s", trouble, error.message)


def conflict_error(conflict: Conflict) -> ConflictError:
    """The exception for a conflict."""
    winner = f"version {conflict.version}" + (f" ({conflict.operation})" if conflict.operation else "")
    return ConflictError(
        f"{conflict.detail}; {winner} was first",
        table=conflict.table,
        version=conflict.version,
        suggestion="read the table again and repeat the write, or let Catalog.run repeat it",
        kind=conflict.kind,
        files=conflict.files,
    )
