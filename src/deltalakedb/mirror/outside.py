"""Outside writers: is a commit file in `_delta_log` the one that the catalog made, and which are not?"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.commit.request import Adopted
from deltalakedb.commit.versions import own_transaction
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_actions, iter_pieces, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import DeltaSqlError, LogCorruptError, StorageMissingError, TableFrozenError
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.metastore.ratify import Streamed
from deltalakedb.protocol.actions import Add, Cdc, CommitInfo, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.features import check_readable
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import Table
    from deltalakedb.mirror import Options
    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

CommitFileState: TypeAlias = Literal["absent", "ours", "damaged", "foreign"]

#: a table's setting: what to do with foreign commits beyond the head
POLICY = "outside_writers"
FREEZE, ADOPT = "freeze", "adopt"

ADVICE = (
    "another engine wrote it, or the database is an older backup: `deltasql mirror recover` adopts the log's "
    "commits, `deltasql mirror resolve` decides if both sides have one: see "
    "docs/how-to/keep-the-log-in-step.md"
)


# ---- one commit file -------------------------------------------------------------------------------------


def commit_file_state(database: Database, table: Table, store: Store, version: int) -> CommitFileState:
    """What the log has for a version.

    ``absent``: no file. ``ours``: the bytes that the catalog ratified. ``damaged``: those bytes, cut short or
    spoiled. ``foreign``: another writer's commit. Only a published version can be damaged: whatever is in the
    place of one that waits is foreign. A version that was imported without its bytes counts as ours.

    Raises:
        CatalogCorruptError: The bytes differ, and the catalog's own copy is damaged.
    """
    try:
        found = commit_digest(store, commit_path(version))
    except StorageMissingError:
        return "absent"
    row = commits.one(database, table, version)
    if row is None:
        return "foreign" if version > table.head.version else "ours"
    if row.sha256 in (None, found.sha256):
        return "ours"
    if version > table.published_version:
        return "foreign"
    return "damaged" if damage(database, table.table_id, store, row, table=table.name) else "foreign"


def is_ratified(database: Database, table: Table, version: int, data: bytes) -> bool:
    """Whether the catalog has these bytes as a version."""
    row = commits.one(database, table, version)
    return row is not None and row.sha256 == commits.digest(data)


def damage(
    database: Database, table_id: int, store: Store, row: CommitRow, *, table: str | None = None
) -> str | None:
    """How a commit file that is not as published is damaged; None if it is a foreign commit.

    Raises:
        CatalogCorruptError: The catalog's own copy is damaged.
    """
    path, info = commit_path(row.version), CommitInfo()
    try:
        # line by line to the end: it may be of any size
        for action in iter_actions(store, path):
            info = action if isinstance(action, CommitInfo) else info
    except LogCorruptError as error:
        return error.message
    ours = commits.kept_bytes(database, table_id, row.version)
    if ours is None:
        # pruned: only its digest is known, and the transaction that made it
        spoiled = info.extra.get("txnId") == row.txn_uuid
        return "the commit file is not as it was published" if spoiled else None
    commits.checked_bytes(row, ours, table=table)
    there = commit_digest(store, path)
    if there.size < len(ours) and there.sha256 == commits.digest(ours[: there.size]):
        return "the commit file is cut short"
    return None


# ---- the log beyond the head, or in the place of ours -----------------------------------------------------


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


def is_ahead(database: Database, table: Table, storage_options: Options = None) -> bool:
    return newest_beyond(database, table, open_store(table.location, storage_options)) is not None


def require_no_foreign_commits(
    database: Database,
    table: Table,
    storage_options: Options = None,
    *,
    danger: str = "files that only the log has would be deleted",
) -> None:
    """Before data files or log files are deleted: check that the log has no commit the catalog lacks.

    ``danger`` says what would happen otherwise, for messages.

    Raises:
        TableFrozenError: It has one, or may have one: the table is frozen, or its log is ahead.
    """
    suggestion = ADVICE
    if table.state == "frozen":
        found = f"the table is frozen, and {danger}: {table.state_reason}"
        suggestion = "decide that first: see `deltasql mirror status`"
    else:
        store = open_store(table.location, storage_options)
        newest = newest_beyond(database, table, store)
        if newest is None and (newest := _taken(database, table, store)) is None:
            return
        found = f"_delta_log has version {newest}, which the catalog did not make: {danger}"
    raise TableFrozenError(found, table=table.name, version=table.head.version, suggestion=suggestion)


def looked_at(database: Database, status: MirrorStatus) -> MirrorStatus:
    """A status with the number of versions of the log that the catalog does not know."""
    options = database.engine.config.storage_options_for(status.location)
    try:
        table, store = registry.find(database, status.table), open_store(status.location, options)
        newest, taken = newest_beyond(database, table, store), _taken(database, table, store)
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
    """Check that the log continues what the catalog knows; LogCorruptError if it is another log."""
    if is_rewritten(database, table, store):
        version = table.head.version
        raise LogCorruptError(
            f"version {version} of the log is not the one in the catalog: the log was rewritten, or both "
            "sides have new commits",
            table=table.name,
            version=version,
            suggestion="`deltasql mirror verify` shows where they differ; a rewritten log is another "
            f"table's: `deltasql drop {table.name} --force` forgets ours, `deltasql import` imports that one",
        )


def read_foreign(
    reader: FileTxnLogReader, version: int, table: str, origin: str = "adopt"
) -> tuple[Sequence[Action], Adopted]:
    """A commit of the log to be adopted; of one that is too large to be held, all but its files.

    Raises:
        UnsupportedFeatureError: It enables a feature that cannot be read here.
    """
    store, path, timestamp = reader.store, commit_path(version), reader.timestamp_of(version)
    actions: Sequence[Action]
    if is_large(store.head(path)):
        actions = [a for a in iter_state(store, path) if not isinstance(a, Add | Remove | Cdc)]
        found = commit_digest(store, path)
        streamed = Streamed(partial(iter_pieces, store, path), found.sha256, found.size)
        copy = Adopted(None, timestamp, origin, streamed, own_transaction(actions))
    else:
        data = reader.commit_bytes(version)
        actions = decode_commit(data, source=path)
        copy = Adopted(data, timestamp, origin, txn_uuid=own_transaction(actions))
    for protocol in (a for a in actions if isinstance(a, Protocol)):
        check_readable(protocol, table=table)
    return actions, copy
