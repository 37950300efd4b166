"""What follows a commit: a checkpoint every so many versions, and clean-up of the log on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import PostCommitHookProperties

from deltalakedb.protocol.properties import checkpoint_interval
from deltalakedb.table.work import AutoCommit, after_commit

if TYPE_CHECKING:
    from deltalakedb.table.sql_table import SqlDeltaTable

#: a scratch table needs neither; delta-rs would do both by default
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def run_hooks(table: SqlDeltaTable, version: int) -> None:
    """Do after a commit what its hooks ask for; without any, write a checkpoint where one is due.

    Nothing is done for a transaction's operations, whose commit is still to come, nor where writers leave
    publishing to the mirror: it writes checkpoints as well.

    Args:
        table: The table.
        version: The version that was committed.
    """
    config = table._database.engine.config
    if not isinstance(table._sink, AutoCommit) or config.publish.mode != "sync":
        return
    with after_commit(f"the hooks after it could not be run for {table.name}"):
        hooks = table._hooks
        wanted = hooks is None or hooks.create_checkpoint
        due = wanted and (version + 1) % checkpoint_interval(table._source.snapshot.metadata) == 0
        clean = hooks is not None and bool(hooks.cleanup_expired_logs)
        if due or clean:
            _run(table, version if due else None, clean=clean)


def _run(table: SqlDeltaTable, version: int | None, *, clean: bool) -> None:
    from deltalakedb.mirror import checkpointer  # most commits need none of it

    database = table._database
    options = database.engine.config.storage_options_for(table.table_uri, table._storage_options)
    if version is not None:
        checkpointer.checkpoint(database, table.name, version=version, storage_options=options)
    if clean:
        checkpointer.clean(database, table.name, storage_options=options)
