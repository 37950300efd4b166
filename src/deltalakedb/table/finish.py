"""The end of every write: place the files, commit in SQL, publish, and turn a conflict into an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.catalog import registry
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import CommitUnknownError, ConflictError
from deltalakedb.mirror.publisher import publish
from deltalakedb.protocol.log import Committed, Conflict
from deltalakedb.table.staging import undo

if TYPE_CHECKING:
    from deltalakedb.catalog.database import Database
    from deltalakedb.commit.changes import TableChange
    from deltalakedb.table.staging import Harvest, Scratch


def finish(database: Database, change: TableChange, scratch: Scratch, harvest: Harvest) -> Committed | None:
    """Commit what a scratch table brought; None where it brought nothing."""
    if not change.actions:
        return None
    config = database.engine.config
    moved = scratch.place(harvest.new_files, fsync=config.publish.fsync)
    try:
        outcome = commit(database, [change])
    except CommitUnknownError:
        # it may have happened: its files must stay
        raise
    except BaseException:
        undo(moved)
        raise
    if isinstance(outcome, Conflict):
        undo(moved)
        raise conflict_error(outcome)
    if config.publish.mode == "sync":
        publish(
            database,
            registry.find(database, change.table.name),
            storage_options=config.storage_options_for(change.table.location),
            limit=config.publish.help_predecessors,
        )
    return outcome[0]


def conflict_error(conflict: Conflict) -> ConflictError:
    """The exception for a conflict."""
    winner = f"version {conflict.version}" + (f" ({conflict.operation})" if conflict.operation else "")
    return ConflictError(
        f"{conflict.detail}; {winner} was first",
        table=conflict.table,
        version=conflict.version,
        suggestion="read the table again and repeat the write",
        kind=conflict.kind,
    )
