"""Outside writers: commits in `_delta_log` that the catalog did not make, found before they do harm."""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from deltalakedb.commit.changes import Copy, TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.commit.info import own_transaction
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_pieces, iter_state
from deltalakedb.delta_log.listing import last_checkpoint, list_log
from deltalakedb.delta_log.names import LAST_CHECKPOINT, LOG_FOLDER, commit_path
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    ConflictError,
    DeltaSqlError,
    DivergedWarning,
    LogCorruptError,
    LogGapError,
    StorageError,
    StorageMissingError,
    TableFrozenError,
)
from deltalakedb.metastore import commits, outbox, registry, snapshots
from deltalakedb.metastore.ratify import Streamed
from deltalakedb.protocol.actions import Add, Cdc, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.features import check_readable
from deltalakedb.protocol.log import Conflict
from deltalakedb.storage.store import local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.values import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: a table's setting: what to do with commits beyond the head that others made
POLICY = "outside_writers"
FREEZE, ADOPT = "freeze", "adopt"

_ADVICE = (
    "another engine wrote it, or the database is an older backup: `deltasql mirror recover` takes the log's "
    "commits over, `deltasql mirror resolve` decides where both sides have one: see "
    "docs/how-to/keep-the-log-in-step.md"
)


@dataclass(frozen=True, slots=True)
class Adopted:
    """Versions that were taken over from the log."""

    versions: tuple[int, ...] = ()


def newest_beyond(database: Database, table: Table, store: Store) -> int | None:
    """The newest version of the log beyond the head that the catalog does not know; None where there is none.

    A version is in the database before it is in the log, so a file beyond the head is of somebody else, or of
    a time that this database, an older backup, does not remember. The next version may be gone again: whoever
    wrote a checkpoint after it can clean up.
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


def refuse_strangers(
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
            suggestion=_ADVICE,
        )


def looked_at(database: Database, status: MirrorStatus) -> MirrorStatus:
    """A status that knows how many versions of the log the catalog does not know."""
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
        logger.warning("the log of %s could not be looked at: %s", status.table, error.message)
        return status


def _taken(database: Database, table: Table, store: Store) -> int | None:
    """The oldest version of ours that waits, where somebody else's commit stands in its place."""
    waiting = next(iter(outbox.waiting_versions(database, table.table_id)), None)
    if waiting is None or not store.exists(commit_path(waiting)):
        return None
    ours = commits.digest(commits.commit_bytes(database, table, waiting))
    return None if commit_digest(store, commit_path(waiting)).sha256 == ours else waiting


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
    if root is None:
        return False
    return os.path.lexists(f"{root}/{commit_path(version + 1)}") or _goes_on(str(root), version)


def _goes_on(root: str, version: int) -> bool:
    """Whether a log on local disk goes on beyond a version whose next one was cleaned up."""
    try:
        hint = os.stat(f"{root}/{LAST_CHECKPOINT}")  # noqa: PTH116 - asked before every commit
        newest = _hinted(root, (hint.st_ino, hint.st_size, hint.st_mtime_ns, hint.st_ctime_ns))
        if newest is None or newest <= version:
            return False
        # a hint may be wrong
        return any(name.startswith(f"{newest:020}.") for name in os.listdir(f"{root}/{LOG_FOLDER}"))  # noqa: PTH208
    except (OSError, StorageError):
        return False


@lru_cache(maxsize=1024)
def _hinted(root: str, _seen: tuple[int, ...]) -> int | None:
    """The checkpoint that a log's hint names; how its file looks from outside is part of the question.

    A head is held while this is asked, and nobody writes a hint for most commits: it is read when it is new.
    """
    return last_checkpoint(open_store(root))


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
        store = open_store(table.location, storage_options)
        if (newest := newest_beyond(database, table, store)) is None:
            return False
    except StorageError as error:
        # trouble with the log never stops a commit; what stands there is found when it is published
        logger.warning("the log of %s could not be looked at: %s", table.name, error.message)
        return False
    if table.settings.get(POLICY, FREEZE) == ADOPT:
        return bool(adopt(database, table.name, storage_options).versions)
    reason = f"_delta_log has version {newest}, which the catalog did not make"
    registry.freeze(database, table, reason, version=table.head.version)
    raise TableFrozenError(
        f"the table is frozen: {reason}",
        table=table.name,
        version=table.head.version,
        suggestion=_ADVICE,
    )


def adopt(
    database: Database,
    name: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    origin: str = "adopt",
) -> Adopted:
    """Take over every commit of the log beyond the head, in order, byte for byte, by the one commit path.

    Args:
        database: The catalog.
        name: The table.
        storage_options: Options for the object store.
        origin: What takes them over.

    Raises:
        LogGapError: The log goes on beyond versions that were cleaned up before the catalog had them.
        LogCorruptError: It is another log than the catalog knows.
        UnsupportedFeatureError: A commit makes the table one that cannot be read here.
    """
    table = registry.find(database, name)
    reader = FileTxnLogReader(table.location, storage_options)
    refuse_rewritten(database, table, reader.store)
    done: list[int] = []
    version = table.head.version + 1
    while True:
        while reader.store.exists(commit_path(version)):
            if _adopt_one(database, name, reader, version, origin):
                done.append(version)
            version += 1
        newest = newest_beyond(database, registry.find(database, name), reader.store)
        if newest is None:
            break
        if not reader.store.exists(commit_path(version)):
            raise LogGapError(
                f"version {version} was cleaned up before the catalog had it; the log is at {newest}",
                table=name,
                version=version,
                suggestion="what the catalog knows of the table is not enough to go on: "
                f"`deltasql drop {name} --force` forgets that and leaves all files, `deltasql import` takes "
                "the table over anew",
            )
    if done:
        # whoever imports expects them
        level = logging.INFO if origin == "import" else logging.WARNING
        logger.log(level, "%s: commits of other writers that were taken over: %d", name, len(done))
    return Adopted(tuple(done))


def is_rewritten(database: Database, table: Table, store: Store) -> bool:
    """Whether the commit of the newest version that the catalog knows is another one in the log."""
    if table.published_version < table.head.version:
        return False  # it is nobody's yet but ours
    row = commits.one(database, table, table.head.version)
    if row is None or row.sha256 is None:
        return False
    try:
        found = commit_digest(store, commit_path(table.head.version))
    except StorageMissingError:
        return False  # cleaned up; the checkpoint that covers it has no digest
    return found.sha256 != row.sha256


def refuse_rewritten(database: Database, table: Table, store: Store) -> None:
    """See that the log goes on from what the catalog knows.

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


def _adopt_one(database: Database, name: str, reader: FileTxnLogReader, version: int, origin: str) -> bool:
    """Take one commit over; False where another process did so a moment ago."""
    opened = snapshots.open_table(database, name)
    # a copy is committed on top of what was opened: on anything else it would become another version
    if opened.snapshot.version == version - 1:
        actions, copy = copied(reader, version, origin)
        if opened.table.state == registry.FOLLOWING:
            copy = replace(copy, txn_uuid=None)  # its owners' transactions are not this catalog's
        for protocol in (a for a in actions if isinstance(a, Protocol)):
            check_readable(protocol, table=name)
        change = TableChange(opened.table, actions, opened.snapshot, exact=True, copy=copy)
        noted = partial(outbox.advance, table_id=opened.table.table_id, version=version)
        outcome = commit(database, [change], txn_uuid=str(uuid.uuid4()), own=[noted])
        if not isinstance(outcome, Conflict):
            return True
    ours = commits.one(database, opened.table, version)
    if ours is None or ours.sha256 != commit_digest(reader.store, commit_path(version)).sha256:
        raise ConflictError(
            f"somebody else committed version {version} while it was taken over",
            table=name,
            version=version,
            suggestion="look at `deltasql mirror status`, then try again",
        )
    return False


def copied(reader: FileTxnLogReader, version: int, origin: str) -> tuple[Sequence[Action], Copy]:
    """A commit of the log to be taken over; of one that is too large to be held, all but its files."""
    store, path, timestamp = reader.store, commit_path(version), reader.timestamp_of(version)
    if not is_large(store.head(path)):
        data = reader.commit_bytes(version)
        actions = decode_commit(data, source=path)
        return actions, Copy(data, timestamp, origin, txn_uuid=own_transaction(actions))
    state = [a for a in iter_state(store, path) if not isinstance(a, Add | Remove | Cdc)]
    found = commit_digest(store, path)
    streamed = Streamed(partial(iter_pieces, store, path), found.sha256, found.size)
    return state, Copy(None, timestamp, origin, streamed, own_transaction(state))
