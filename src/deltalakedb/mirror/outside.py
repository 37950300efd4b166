"""Outside writers: commits in `_delta_log` that the catalog did not make."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from deltalakedb.commit.info import own_transaction
from deltalakedb.commit.request import Adopted
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_pieces, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    DeltaSqlError,
    LogCorruptError,
    TableFrozenError,
)
from deltalakedb.metastore import outbox, registry
from deltalakedb.metastore.ratify import Streamed
from deltalakedb.mirror.commit_files import commit_file_state
from deltalakedb.protocol.actions import Add, Cdc, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: a table's setting: what to do with commits beyond the head that others made
POLICY = "outside_writers"
FREEZE, ADOPT = "freeze", "adopt"

ADVICE = (
    "another engine wrote it, or the database is an older backup: `deltasql mirror recover` takes the log's "
    "commits over, `deltasql mirror resolve` decides where both sides have one: see "
    "docs/how-to/keep-the-log-in-step.md"
)


def newest_beyond(database: Database, table: Table, store: Store) -> int | None:
    """The newest version of the log beyond the head, which the catalog does not know; None if there is none.

    A version is in the database before it is in the log, so a file beyond the head is another writer's, or
    was made after the backup that this database was restored from. The next version may be gone again: a
    writer of a later checkpoint may clean it up.
    """
    head = table.head.version
    while True:
        listing = list_log(store, start_after=commit_path(head))
        newest = max((*listing.commits, *listing.checkpoints), default=-1)
        if newest <= head:
            return None
        now = registry.find(database, table.name).head.version
        if now <= head:
            return newest
        head = now  # another writer of ours was faster


def is_ahead(database: Database, table: Table, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether the log holds a version beyond the head that the catalog does not know."""
    return newest_beyond(database, table, open_store(table.location, storage_options)) is not None


def require_no_foreign_commits(
    database: Database,
    table: Table,
    storage_options: Mapping[str, str] | None = None,
    *,
    danger: str = "files that only the log has would be deleted",
) -> None:
    """Before data files or log files are deleted: check that the log has no commit the catalog lacks.

    Args:
        database: The catalog.
        table: The table.
        storage_options: Options for the object store.
        danger: What would happen otherwise, for messages.

    Raises:
        TableFrozenError: It has one, or may have one: the table is frozen, or its log is ahead.
    """
    if table.state == "frozen":
        raise TableFrozenError(
            f"the table is frozen, and {danger}: {table.state_reason}",
            table=table.name,
            version=table.head.version,
            suggestion="decide that first: see `deltasql mirror status`",
        )
    store = open_store(table.location, storage_options)
    newest = newest_beyond(database, table, store)
    if newest is None:
        newest = _taken(database, table, store)
    if newest is not None:
        raise TableFrozenError(
            f"_delta_log has version {newest}, which the catalog did not make: {danger}",
            table=table.name,
            version=table.head.version,
            suggestion=ADVICE,
        )


def looked_at(database: Database, status: MirrorStatus) -> MirrorStatus:
    """A status with the number of versions of the log that the catalog does not know."""
    options = database.engine.config.storage_options_for(status.location)
    try:
        table = registry.find(database, status.table)
        store = open_store(status.location, options)
        newest = newest_beyond(database, table, store)
        taken = _taken(database, table, store)
        if taken is None and newest is None:
            return replace(status, ahead=0)
        head = registry.find(database, status.table).head.version
        first, last = head + 1 if taken is None else taken, head if newest is None else newest
        return replace(status, ahead=last + 1 - first)
    except DeltaSqlError as error:
        logger.warning("the log of %s could not be checked: %s", status.table, error.message)
        return status


def _taken(database: Database, table: Table, store: Store) -> int | None:
    """The oldest version of ours that waits, if a foreign commit has its place."""
    waiting = next(iter(outbox.waiting_versions(database, table.table_id)), None)
    if waiting is None or commit_file_state(database, table, store, waiting) in ("absent", "ours"):
        return None
    return waiting


def is_rewritten(database: Database, table: Table, store: Store) -> bool:
    """Whether the commit of the newest version that the catalog knows is another one in the log."""
    if table.published_version < table.head.version:
        return False  # it is not in the log yet
    # one that was cleaned up is covered by a checkpoint, which has no digest
    return commit_file_state(database, table, store, table.head.version) in ("damaged", "foreign")


def refuse_rewritten(database: Database, table: Table, store: Store) -> None:
    """Check that the log continues what the catalog knows.

    Raises:
        LogCorruptError: It is another log.
    """
    if is_rewritten(database, table, store):
        version = table.head.version
        raise LogCorruptError(
            f"version {version} of the log is not the one in the catalog: the log was written anew, or both "
            "sides went on",
            table=table.name,
            version=version,
            suggestion="`deltasql mirror verify` shows where they differ; a log that was written anew is "
            f"another table's: `deltasql drop {table.name} --force` forgets ours, `deltasql import` takes "
            "that one over",
        )


def read_foreign(reader: FileTxnLogReader, version: int, origin: str) -> tuple[Sequence[Action], Adopted]:
    """A commit of the log to be adopted; of one that is too large to be held, all but its files."""
    store, path, timestamp = reader.store, commit_path(version), reader.timestamp_of(version)
    if not is_large(store.head(path)):
        data = reader.commit_bytes(version)
        actions = decode_commit(data, source=path)
        return actions, Adopted(data, timestamp, origin, txn_uuid=own_transaction(actions))
    state = [a for a in iter_state(store, path) if not isinstance(a, Add | Remove | Cdc)]
    found = commit_digest(store, path)
    streamed = Streamed(partial(iter_pieces, store, path), found.sha256, found.size)
    return state, Adopted(None, timestamp, origin, streamed, own_transaction(state))
