"""Outside writers: commits in `_delta_log` that the catalog did not make, found before they do harm."""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from deltalakedb.catalog import commits, outbox, registry, snapshots
from deltalakedb.catalog.ratify import Streamed
from deltalakedb.commit.changes import Copy, TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import (
    ConflictError,
    DeltaSqlError,
    DivergedWarning,
    StorageError,
    TableFrozenError,
)
from deltalakedb.log.large_commits import commit_digest, is_large, iter_pieces, iter_state
from deltalakedb.log.names import commit_path
from deltalakedb.log.reader import FileTxnLogReader
from deltalakedb.protocol.actions import Add, Cdc, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.log import Conflict
from deltalakedb.storage.store import local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.outbox import MirrorStatus
    from deltalakedb.catalog.values import Table
    from deltalakedb.commit.committer import OwnWork
    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: a table's setting: what to do with commits beyond the head that others made
POLICY = "outside_writers"
FREEZE, ADOPT = "freeze", "adopt"


@dataclass(frozen=True, slots=True)
class Adopted:
    """Versions that were taken over from the log."""

    versions: tuple[int, ...] = ()


def is_ahead(database: Database, table: Table, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether the log holds a version beyond the head that the catalog does not know.

    A version is in the database before it is in the log, so a file beyond the head is of somebody else, or of
    a time that this database, an older backup, does not remember.
    """
    store = open_store(table.location, storage_options)
    head = table.head.version
    while store.exists(commit_path(head + 1)):
        now = registry.find(database, table.name).head.version
        if now <= head:
            return True
        head = now  # another writer of ours was faster
    return False


#: versions beyond the head that a look counts
_COUNTED = 1000


def looked_at(database: Database, status: MirrorStatus) -> MirrorStatus:
    """A status that knows how many versions of the log the catalog does not know."""
    options = database.engine.config.storage_options_for(status.location)
    try:
        table = registry.find(database, status.table)
        store = open_store(status.location, options)
        first = _taken(database, table, store)
        if first is None:
            if not is_ahead(database, table, options):
                return replace(status, ahead=0)
            first = registry.find(database, status.table).head.version + 1
        ahead = next((n for n in range(_COUNTED) if not store.exists(commit_path(first + n))), _COUNTED)
        return replace(status, ahead=ahead)
    except DeltaSqlError as error:
        logger.warning("the log of %s could not be looked at: %s", status.table, error.message)
        return status


def _taken(database: Database, table: Table, store: Store) -> int | None:
    """The oldest version of ours that waits, where somebody else's commit stands in its place."""
    waiting = next(iter(outbox.waiting_versions(database, table.table_id)), None)
    if waiting is None or not store.exists(commit_path(waiting)):
        return None
    ours = commits.commit_bytes(database, table, waiting)
    return None if store.get(commit_path(waiting)) == ours else waiting


def look_at_open(database: Database, table: Table) -> bool:
    """When a table is opened: take foreign commits over or freeze the table, as its policy says.

    Reading goes on in every case: who may only read, or finds the table frozen, is told and not stopped.

    Returns:
        True where versions were taken over.
    """
    try:
        options = database.engine.config.storage_options_for(table.location)
        return table.state == "active" and look_ahead(database, table, options)
    except DeltaSqlError as error:
        warnings.warn(f"{table.name}: {error.message}; {error.suggestion}", DivergedWarning, stacklevel=2)
        return False


def has_next(table: Table, version: int) -> bool:
    """Whether a log on local disk holds the version after another."""
    # trouble with the log never stops a commit; what stands there is found when it is published
    root = local_path(table.location)
    return root is not None and os.path.lexists(f"{root}/{commit_path(version + 1)}")


def look_ahead(database: Database, table: Table, storage_options: Mapping[str, str] | None = None) -> bool:
    """Before a commit: take foreign commits over, or refuse to write, as the table's policy says.

    Returns:
        True where versions were taken over, and the writer's snapshot is older than it thought.

    Raises:
        TableFrozenError: The log is ahead and the policy is to freeze.
        TableFollowedError: The table is others': its log is always ahead.
    """
    registry.refuse_followed(table)
    try:
        if not is_ahead(database, table, storage_options):
            return False
    except StorageError as error:
        # trouble with the log never stops a commit; what stands there is found when it is published
        logger.warning("the log of %s could not be looked at: %s", table.name, error.message)
        return False
    if table.settings.get(POLICY, FREEZE) == ADOPT:
        return bool(adopt(database, table.name, storage_options).versions)
    reason = f"_delta_log has version {table.head.version + 1}, which the catalog did not make"
    outbox.freeze(database, table, reason, version=table.head.version)
    raise TableFrozenError(
        f"the table is frozen: {reason}",
        table=table.name,
        version=table.head.version,
        suggestion="another engine wrote it, or the database is an older backup: `deltasql mirror recover` "
        "takes the log's commits over, `deltasql mirror resolve` decides where both sides have one: see "
        "docs/how-to/keep-the-log-in-step.md",
    )


def adopt(
    database: Database,
    name: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    origin: str = "adopt",
    own: Sequence[OwnWork] = (),
) -> Adopted:
    """Take over every commit of the log beyond the head, in order, byte for byte, by the one commit path.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        origin: What takes them over.
        own: Done inside each commit's transaction, such as asking whether it may still be made.
    """
    table = registry.find(database, name)
    reader = FileTxnLogReader(table.location, storage_options)
    done = []
    version = table.head.version + 1
    while reader.store.exists(commit_path(version)):
        opened = snapshots.open_table(database, name)
        actions, copy = _copied(reader, version, origin)
        change = TableChange(opened.table, actions, opened.snapshot, exact=True, copy=copy)
        outcome = commit(database, [change], txn_uuid=str(uuid.uuid4()), own=own)
        if isinstance(outcome, Conflict):
            raise ConflictError(
                f"somebody else committed version {version} while it was taken over",
                table=name,
                version=version,
            )
        outbox.advance(database, table.table_id, version)
        done.append(version)
        version += 1
    if done:
        # whoever imports expects them
        level = logging.INFO if origin == "import" else logging.WARNING
        logger.log(level, "%s: commits of other writers that were taken over: %d", name, len(done))
    return Adopted(tuple(done))


def _copied(reader: FileTxnLogReader, version: int, origin: str) -> tuple[Sequence[Action], Copy]:
    """A commit of the log to be taken over; of one that is too large to be held, all but its files."""
    store, path, timestamp = reader.store, commit_path(version), reader.timestamp_of(version)
    if not is_large(store.head(path)):
        data = reader.commit_bytes(version)
        return decode_commit(data, source=path), Copy(data, timestamp, origin)
    state = [a for a in iter_state(store, path) if not isinstance(a, Add | Remove | Cdc)]
    found = commit_digest(store, path)
    streamed = Streamed(partial(iter_pieces, store, path), found.sha256, found.size)
    return state, Copy(None, timestamp, origin, streamed)
