"""Drift: is `_delta_log` what the catalog published, and is the table's folder still there?

`transfer.verifying` builds the full comparison of log and catalog on these checks.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from deltalakedb.delta_log.checkpoint import is_complete, iter_checkpoint
from deltalakedb.delta_log.commit_file import commit_digest, iter_actions
from deltalakedb.delta_log.listing import Checkpoint, list_log
from deltalakedb.delta_log.names import LAST_CHECKPOINT, LOG_FOLDER, commit_path
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.exceptions import (
    CatalogCorruptError,
    DeltaSqlError,
    LogCorruptError,
    LogError,
    ProtocolError,
    StorageError,
    StorageMissingError,
    TableFolderMissingError,
    TableFrozenError,
)
from deltalakedb.metastore import commits, files, outbox, registry
from deltalakedb.metastore.txn_log import SqlTxnLogReader
from deltalakedb.mirror import Options, store_at
from deltalakedb.protocol.actions import Add, CommitInfo, FileKey, Metadata, Protocol, meaning
from deltalakedb.protocol.paths import relative_to
from deltalakedb.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: a table's setting, `FREEZE` or `ADOPT`: what to do with foreign commits beyond the head
FOREIGN_COMMITS = "outside_writers"
FREEZE, ADOPT = "freeze", "adopt"
AHEAD_HINT = (
    "another engine wrote it, or the database is an older backup: `deltasql mirror recover` adopts the log's "
    "commits, `deltasql mirror resolve` decides if both sides have one: see "
    "docs/how-to/keep-the-log-in-step.md"
)
#: how many of the newest published commits a quick check looks for, and how many of those it reads
_MAX_LISTED, _MAX_READ = 1_000, 32
#: a quick check replays checkpoints up to this size
_MAX_REPLAYED_BYTES = 8 << 20

CommitFileState: TypeAlias = Literal["absent", "ours", "damaged", "foreign"]
_LogKind: TypeAlias = Literal["missing", "damaged", "foreign", "ahead", "checkpoint", "commit", "log"]
_TableKind: TypeAlias = Literal["state", "counts", "missing_file", "extra_file", "changed_file", "rows"]
Kind: TypeAlias = _LogKind | _TableKind


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a table's log and the catalog.

    Attributes:
        kind: What differs. Commit files: ``missing`` or ``damaged`` (both can be repaired), ``foreign``
            (another writer's commit has the place of ours), ``ahead`` (the log has versions that the catalog
            does not know), ``commit`` (the catalog's own copy of a commit is damaged). ``checkpoint`` for a
            checkpoint or ``_last_checkpoint``. ``log`` if the log cannot be read. ``state`` for metadata,
            protocol, txns and domains. ``counts`` of files or bytes. Data files: ``missing_file`` (only the
            log has it), ``extra_file`` (only the catalog has it), ``changed_file``. ``rows`` of data.
        version: The version concerned.
        detail: What was found.
        path: The data file, if it is about one.
    """

    kind: Kind
    version: int
    detail: str
    path: str | None = None


# ---- commit files ----------------------------------------------------------------------------------------


def commit_file_state(database: Database, table: Table, store: Store, version: int) -> CommitFileState:
    """What the log has for a version.

    ``absent``: no file. ``ours``: the bytes that the catalog ratified. ``damaged``: those bytes, truncated or
    corrupted. ``foreign``: another writer's commit. Only a published version can be damaged: other bytes in
    the place of an unpublished one are foreign. A version that was imported without its bytes is ours.

    Raises:
        CatalogCorruptError: The bytes differ, and the catalog's own copy is damaged.
    """
    row = commits.one(database, table, version)
    if row is None:
        if not store.exists(commit_path(version)):
            return "absent"
        if version <= table.head.version:
            return "ours"
        # our commits are in the catalog before they are in the log, so only a look after the file was seen
        # shows that it is not ours
        row = commits.one(database, table, version)
        if row is None:
            return "foreign"
    found = commit_file_difference(database, table.table_id, store, row, published=table.published_version)
    if found is not None and found.kind == "commit":
        raise CatalogCorruptError(found.detail, table=table.name, version=version)
    match found:
        case None:
            return "ours"
        case Difference("damaged" | "foreign" as state):
            return state
    return "absent"


def commit_file_difference(
    database: Database, table_id: int, store: Store, row: CommitRow, *, published: int
) -> Difference | None:
    """How the file of a commit differs from the bytes that the catalog ratified; None if it does not."""
    version, path, info = row.version, commit_path(row.version), CommitInfo()
    try:
        there = commit_digest(store, path)
    except StorageMissingError:
        return _missing(version)
    if row.sha256 in (None, there.sha256):
        return None
    if version > published:
        return Difference("foreign", version, "another commit has the place of an unpublished version")
    try:
        for action in iter_actions(store, path):  # streamed to the end, since the file may be large
            info = action if isinstance(action, CommitInfo) else info
    except LogCorruptError as error:
        return Difference("damaged", version, error.message)
    ours = commits.kept_bytes(database, table_id, version)
    if ours is None:
        # pruned: only its digest is known, and the transaction that made it
        if info.extra.get("txnId") == row.txn_uuid:
            return Difference("damaged", version, "the commit file is not as it was published")
    elif commits.digest(ours) != row.sha256:
        return Difference("commit", version, "the catalog's copy does not match its recorded digest")
    elif there.size < len(ours) and there.sha256 == commits.digest(ours[: there.size]):
        return Difference("damaged", version, "the commit file is truncated")
    return Difference("foreign", version, "another commit has the place of ours")


def _missing(version: int) -> Difference:
    return Difference("missing", version, "the commit file is missing")


def is_ratified(database: Database, table: Table, version: int, data: bytes) -> bool:
    """Whether the catalog has these bytes as a version."""
    row = commits.one(database, table, version)
    return row is not None and row.sha256 == commits.digest(data)


def log_differences(database: Database, table: Table, store: Store) -> list[Difference]:
    """Every commit file that is not as published, and versions beyond the head."""
    found = commit_differences(database, table.table_id, store, published=table.published_version)[1]
    return [*found, *versions_ahead(database, table, store)]


def newest_commit_differences(database: Database, table: Table, store: Store) -> list[Difference]:
    """What is wrong with the newest published commits, by a cheap check.

    Readers need the commits since the newest checkpoint. One listing shows whether they exist, and their
    sizes; only the newest are read and compared by their digests.
    """
    published = table.published_version
    rows = commits.history(database, table, upto=published, limit=_MAX_LISTED)
    found = commit_differences(
        database, table.table_id, store, published=published, rows=rows, read=_MAX_READ
    )
    return found[1]


def commit_differences(
    database: Database,
    table_id: int,
    store: Store,
    *,
    published: int,
    oldest: int = 0,
    rows: Sequence[CommitRow] | None = None,
    read: int | None = None,
) -> tuple[int, list[Difference]]:
    """Compare the bytes of every commit file with the digests that the catalog keeps.

    The log must have the versions from ``oldest`` or the newest checkpoint to ``published``; later ones
    are not published yet. With ``read``, only so many of the ``rows`` are read, and the rest compared by
    size. Returns how many files were compared, and what differs, by version.
    """
    listing = list_log(store)
    # any engine may delete commit files below a checkpoint
    covered = max((v for v in listing.checkpoints if v <= published), default=-1)
    compared, found = 0, []
    for number, row in enumerate(reversed(commits.of_table(database, table_id)) if rows is None else rows):
        if row.sha256 is None or (read is not None and row.version < covered):
            continue  # imported from a checkpoint, so there never were bytes; or not needed by readers
        there = listing.commits.get(row.version)
        if there is None:
            if max(covered, oldest) <= row.version <= published:
                found.append(_missing(row.version))
            continue
        difference = None
        if read is None or number < read or row.size_bytes not in (None, there.size):
            difference = commit_file_difference(database, table_id, store, row, published=published)
        compared += 1
        found += [] if difference is None else [difference]
    return compared, found


# ---- versions of other writers ----------------------------------------------------------------------------


def newest_beyond(database: Database, table: Table, store: Store) -> int | None:
    """The newest version of the log beyond the head, which the catalog does not know; None if there is none.

    A version is in the database before it is in the log, so a file beyond the head is another writer's, or
    was made after the backup that this database was restored from. The next version may be missing
    while later ones exist: a writer of a later checkpoint may have cleaned it up.
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
        head = now  # another process of ours committed meanwhile


def versions_ahead(database: Database, table: Table, store: Store) -> Iterator[Difference]:
    """The newest version of the log that the catalog does not know, if there is one."""
    if (newest := newest_beyond(database, table, store)) is not None:
        yield Difference("ahead", newest, "the log has a version that the catalog does not know")


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
    suggestion = AHEAD_HINT
    if table.state == "frozen":
        found = f"the table is frozen, and {danger}: {table.state_reason}"
        suggestion = "resolve that first: see `deltasql mirror status`"
    else:
        store = store_at(database, table.location, storage_options)
        newest = newest_beyond(database, table, store)
        if newest is None and (newest := _displaced_version(database, table, store)) is None:
            return
        found = f"_delta_log has version {newest}, which the catalog did not make: {danger}"
    raise TableFrozenError(found, table=table.name, version=table.head.version, suggestion=suggestion)


def with_foreign_count(database: Database, status: MirrorStatus) -> MirrorStatus:
    """A status with the number of versions of the log that the catalog does not know."""
    try:
        table, store = registry.find(database, status.table), store_at(database, status.location)
        newest, displaced = newest_beyond(database, table, store), _displaced_version(database, table, store)
        if displaced is None and newest is None:
            return replace(status, ahead=0)
        head = registry.find(database, status.table).head.version
        first, last = head + 1 if displaced is None else displaced, head if newest is None else newest
        return replace(status, ahead=last + 1 - first)
    except DeltaSqlError as error:
        logger.warning("the log of %s could not be checked: %s", status.table, error.message)
        return status


def _displaced_version(database: Database, table: Table, store: Store) -> int | None:
    """The oldest unpublished version, if a foreign commit has its place in the log; else None."""
    waiting = next(iter(outbox.waiting_versions(database, table.table_id)), None)
    if waiting is None or commit_file_state(database, table, store, waiting) in ("absent", "ours"):
        return None
    return waiting


def is_rewritten(database: Database, table: Table, store: Store) -> bool:
    """Whether the log has another commit than the catalog for the newest version that both have."""
    if table.published_version < table.head.version:
        return False  # the head is not published yet
    # an absent file is fine: a checkpoint covers it
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


#: data files that a quick check looks for on an object store, each with a request
_REMOTE_FILES = 3


def lost_file(database: Database, table: Table, store: Store) -> str | None:
    """Check whether a few live files exist in a store; return one that does not."""
    some = _some_files(database, table, store)
    some = some if isinstance(store, LocalStore) else some[:_REMOTE_FILES]
    return next((path for path in some if not store.exists(path)), None)


def _some_files(database: Database, table: Table, store: Store) -> list[str]:
    """A few live files below the table's root."""
    paths = [relative_to(store.location, path) for path in files.some_live(database, table)]
    return [path for path in paths if path is not None]


# ---- checkpoints ----------------------------------------------------------------------------------------


def broken_checkpoints(
    database: Database, table: Table, store: Store, *, quick: bool = False
) -> Iterator[tuple[Difference, Checkpoint | None]]:
    """Checkpoints that do not match the catalog, and a broken `_last_checkpoint` (without a checkpoint).

    ``quick`` looks at the newest checkpoint only, and replays it only if it is small.
    """
    hint = last_checkpoint(store)
    ours, listing = SqlTxnLogReader(database, table.name), list_log(store)
    newest = max(listing.checkpoints, default=-1)
    for version in sorted(listing.checkpoints):
        if not table.head.first_version <= version <= table.published_version:
            continue  # the catalog does not know that version
        if quick and version < newest:
            continue
        for checkpoint in listing.checkpoints[version]:
            # each one, since a reader skips a broken checkpoint and uses another
            replay = not quick or sum(meta.size for meta in checkpoint.files) <= _MAX_REPLAYED_BYTES
            detail = _checkpoint_difference(ours, store, checkpoint, replay=replay)
            if detail is not None:
                yield Difference("checkpoint", version, detail), checkpoint
    # read again: another process may have written a checkpoint meanwhile
    if hint is None and store.exists(LAST_CHECKPOINT) and last_checkpoint(store) is None:
        yield Difference("checkpoint", max(newest, 0), "_last_checkpoint cannot be read"), None
    elif hint is not None and hint > newest and hint == last_checkpoint(store):
        detail = "_last_checkpoint names a checkpoint that does not exist"
        yield Difference("checkpoint", hint, detail), None


def _checkpoint_difference(
    ours: SqlTxnLogReader, store: Store, checkpoint: Checkpoint, *, replay: bool
) -> str | None:
    if not is_complete(store, checkpoint):
        return "the checkpoint is torn"
    if not replay:
        return None
    metadata, protocol = None, None
    theirs: set[FileKey] = set()
    try:
        for batch in iter_checkpoint(store, checkpoint, kinds=frozenset({"add", "metaData", "protocol"})):
            theirs.update(a.key for a in batch if isinstance(a, Add))
            metadata = next((a for a in batch if isinstance(a, Metadata)), metadata)
            protocol = next((a for a in batch if isinstance(a, Protocol)), protocol)
    except (LogError, ProtocolError) as error:  # other errors, such as those of the store, are raised
        return error.message
    snapshot = ours.snapshot(checkpoint.version)
    states = ("metadata", snapshot.metadata, metadata), ("protocol", snapshot.protocol, protocol)
    for what, expected, found in states:
        if expected != found and (found is None or meaning(expected) != meaning(found)):
            return f"the {what} differs"
    mine = {add.key for add in ours.files(checkpoint.version)}
    if mine == theirs:
        return None
    lost, extra = len(mine - theirs), len(theirs - mine)
    return f"files that only the catalog has: {lost}; files that only the log has: {extra}"


# ---- the table's folder -----------------------------------------------------------------------------------

#: scratch folders of operations, which hold no data of the table
_WORK_FOLDER: Final = "_deltasql"


def require_folder(database: Database, table: Table, store: Store, *, log: bool = False) -> None:
    """Refuse to write to a table whose folder is gone: an unmounted share, or a folder that was moved.

    It costs one ``stat`` on local disk and one HEAD request on an object store. On local disk a folder with
    the table's data that has lost only its `_delta_log` passes unless ``log`` is set, since publishing writes
    the log again. An object store has no folders, so its log must hold at least one object.

    Raises:
        TableFolderMissingError: Versions were published, and the folder is missing or holds no data.
    """
    if table.head.version < 0:
        return  # a transaction is about to create it
    local = isinstance(store, LocalStore)
    log_folder = f"{store.location}/{LOG_FOLDER}"
    # before every write
    if os.path.isdir(log_folder) if local else _has_version(store, max(table.published_version, 0)):  # noqa: PTH112
        return
    if not _was_published(database, table):
        return
    if _is_empty(store, LOG_FOLDER) and not (local and not log and _has_data(database, table, store)):
        raise _folder_missing(table, store)


def require_data(database: Database, table: Table, store: Store) -> None:
    """Refuse to write a lost log again (TableFolderMissingError) unless the table's data is still there."""
    lost = _is_empty(store, LOG_FOLDER) and _was_published(database, table)
    if lost and not _has_data(database, table, store):
        raise _folder_missing(table, store)


def _folder_missing(table: Table, store: Store) -> TableFolderMissingError:
    local = isinstance(store, LocalStore)
    what = "folder is missing or holds none of its data" if local else "log is missing"
    return TableFolderMissingError(
        f"the table's {what}: {store.location}",
        table=table.name,
        suggestion="nothing was written: mount the file system, or run "
        f"`deltasql relocate {table.name} NEW_LOCATION` if the table was moved"
        if local
        else "nothing was written: check the bucket and the prefix. If only the log was deleted, "
        f"`deltasql mirror repair {table.name}` writes it again",
    )


def _was_published(database: Database, table: Table) -> bool:
    """Whether the catalog still has this very table, and a version of it was published."""
    found = registry.find(database, table.name)
    return found.table_id == table.table_id and found.published_version >= 0


def _has_version(store: Store, version: int) -> bool:
    try:
        store.head(commit_path(version))
    except StorageMissingError:
        return False
    except StorageError as error:
        # an error does not mean that it is missing
        logger.warning("the log at %s could not be checked: %s", store.location, error.message)
    return True


def _has_data(database: Database, table: Table, store: Store) -> bool:
    """Whether some live file is there; of a table without files under its root, whether anything is."""
    below = _some_files(database, table, store)
    return any(map(store.exists, below)) if below else not _is_empty(store)


def _is_empty(store: Store, prefix: str = "") -> bool:
    if not isinstance(store, LocalStore):
        return next(iter(store.list(prefix, recursive=not prefix)), None) is None
    try:
        with os.scandir(f"{store.location}/{prefix}") as entries:
            return all(entry.name == _WORK_FOLDER for entry in entries)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the write itself reports what is wrong
