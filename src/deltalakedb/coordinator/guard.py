"""Detect commits of other writers in the log, and adopt them or freeze the table."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, NewTable, TableChange
from deltalakedb.delta_log.names import LAST_CHECKPOINT, LOG_FOLDER, commit_path
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    CatalogCorruptError,
    ConflictError,
    DeltaSqlError,
    DivergedWarning,
    LogError,
    LogGapError,
    StorageError,
    TableFrozenError,
)
from deltalakedb.metastore import outbox, registry, snapshots
from deltalakedb.mirror.drift import log_differences
from deltalakedb.mirror.folder import require_data
from deltalakedb.mirror.outside import (
    ADOPT,
    ADVICE,
    FREEZE,
    POLICY,
    commit_file_state,
    newest_beyond,
    read_foreign,
    refuse_rewritten,
)
from deltalakedb.protocol.txn_log import Conflict
from deltalakedb.storage.store import local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.commit.committer import LogAheadCheck
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.mirror import Options
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)


# ---- looking ---------------------------------------------------------------------------------------------


def check_under_lock(database: Database) -> LogAheadCheck | None:
    """The check that a committer runs while it locks a head; None if it is disabled."""
    return None if database.engine.config.publish.look_ahead == "off" else has_next


def look_ahead(database: Database, changes: Sequence[TableChange], options: Callable[[str], Options]) -> None:
    """Before a commit: handle foreign commits on object stores, if the settings say so.

    Object stores respond slowly, so they are not queried while a head is locked.
    """
    if database.engine.config.publish.look_ahead != "always":
        return
    for change in changes:
        table = change.table
        if change.versions and not isinstance(table, NewTable) and local_path(table.location) is None:
            handle_foreign_commits(database, table, options(table.location))


def look_at_open(database: Database, table: Table) -> bool:
    """When a table is opened: adopt foreign commits or freeze the table; whether versions were adopted.

    Errors become warnings, so the table can be read even without permission to write, or if it is frozen.
    """
    try:
        options = database.engine.config.storage_options_for(table.location)
        return table.state == "active" and handle_foreign_commits(database, table, options)
    except DeltaSqlError as error:
        warnings.warn(f"{table.name}: {error.message}; {error.suggestion}", DivergedWarning, stacklevel=2)
        return False


def has_next(table: Table, version: int) -> bool:
    """Whether a log on local disk continues after a version; False for an object store."""
    # an unreadable log does not block a commit; publishing finds a foreign commit later
    root = local_path(table.location)
    if root is None:
        return False
    return os.path.lexists(f"{root}/{commit_path(version + 1)}") or _continues_after(str(root), version)


def _continues_after(root: str, version: int) -> bool:
    """Whether a log on local disk continues beyond a version whose next one was cleaned up."""
    try:
        hint = os.stat(f"{root}/{LAST_CHECKPOINT}")  # noqa: PTH116 - asked before every commit
        newest = _last_checkpoint(root, (hint.st_ino, hint.st_size, hint.st_mtime_ns, hint.st_ctime_ns))
        if newest is None or newest <= version:
            return False
        # a hint may be wrong
        return any(name.startswith(f"{newest:020}.") for name in os.listdir(f"{root}/{LOG_FOLDER}"))  # noqa: PTH208
    except (OSError, StorageError):
        return False


@lru_cache(maxsize=1024)
def _last_checkpoint(root: str, _stat: tuple[int, ...]) -> int | None:
    """The version that ``_last_checkpoint`` names; asked while a head is locked, so it is cached."""
    return last_checkpoint(open_store(root))


# ---- adopting or freezing --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Adoption:
    """Versions that were copied from the log."""

    versions: tuple[int, ...] = ()


def handle_foreign_commits(database: Database, table: Table, storage_options: Options = None) -> bool:
    """Adopt foreign commits beyond the head, or freeze the table, as its policy says; whether it adopted any.

    Raises:
        TableFrozenError: The log is ahead and the policy is to freeze.
        TableFollowedError: The table belongs to others: its log is always ahead.
    """
    registry.refuse_followed(table)
    try:
        store = open_store(table.location, storage_options)
        if (newest := newest_beyond(database, table, store)) is None:
            return False
    except StorageError as error:
        # an unreadable log does not block a commit; publishing finds a foreign commit later
        logger.warning("the log of %s could not be checked: %s", table.name, error.message)
        return False
    if table.settings.get(POLICY, FREEZE) == ADOPT:
        return bool(adopt(database, table.name, storage_options).versions)
    reason = f"_delta_log has version {newest}, which the catalog did not make"
    registry.freeze(database, table, reason, version=table.head.version)
    text = f"the table is frozen: {reason}"
    raise TableFrozenError(text, table=table.name, version=table.head.version, suggestion=ADVICE)


def adopt(
    database: Database, name: str, storage_options: Options = None, *, origin: str = "adopt"
) -> Adoption:
    """Copy every commit of the log beyond the head, in order, byte for byte, by the one commit path.

    ``origin`` names the operation that copies them, for the history.

    Raises:
        LogGapError: Versions were cleaned up before the catalog had copied them.
        LogCorruptError: The log was rewritten, and does not continue the catalog's versions.
        UnsupportedFeatureError: A commit enables a feature that cannot be read here.
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
                suggestion=f"`deltasql drop {name} --force` forgets what the catalog knows and leaves all "
                "files; then `deltasql import` imports the table again",
            )
    if done:
        level = logging.INFO if origin == "import" else logging.WARNING  # an import expects them
        logger.log(level, "%s: commits of other writers that were adopted: %d", name, len(done))
    return Adoption(tuple(done))


def _adopt_one(database: Database, name: str, reader: FileTxnLogReader, version: int, origin: str) -> bool:
    """Copy one commit; False if another process did so a moment ago."""
    opened = snapshots.open_table(database, name)
    # commit a copy only on top of its predecessor: otherwise it would get another version number
    if opened.snapshot.version == version - 1:
        actions, copy = read_foreign(reader, version, name, origin)
        if opened.table.state == registry.FOLLOWING:
            copy = replace(copy, txn_uuid=None)  # its owners' transactions are not this catalog's
        change = TableChange(opened.table, [actions], opened.snapshot, origin=copy)
        published = partial(outbox.advance, table_id=opened.table.table_id, version=version)
        outcome = commit(database, CommitRequest([change], statements=[published]))
        if not isinstance(outcome, Conflict):
            return True
    if commit_file_state(database, opened.table, reader.store, version) != "ours":
        raise ConflictError(
            f"another writer committed version {version} while it was adopted",
            table=name,
            version=version,
            suggestion="look at `deltasql mirror status`, then try again",
        )
    return False


def recover(database: Database, name: str, *, storage_options: Options = None) -> Adoption:
    """Catch up with a log that is ahead of the catalog, after the database came back from an older backup.

    Raises:
        TableFolderMissingError: The location has neither log nor data, for example an unmounted share.
        TableFrozenError: Both sides have a version that the other does not have.
    """
    table = registry.find(database, name)
    store = open_store(table.location, storage_options)
    require_data(database, table, store)
    found = log_differences(database, table, store)
    if foreign := next((f for f in found if f.kind == "foreign"), None):
        raise _both_sides(table, foreign.version)
    if damaged := next((f for f in found if f.kind == "commit"), None):
        raise CatalogCorruptError(damaged.detail, table=name, version=damaged.version)
    _acknowledge(database, table, store)
    adopted = adopt(database, name, storage_options, origin="recover")
    if table.state == "frozen":
        registry.unfreeze(database, table, f"versions recovered from the log: {len(adopted.versions)}")
    return adopted


def _acknowledge(database: Database, table: Table, store: Store) -> None:
    """Mark commits that are in the log as published: in an older backup they are still waiting."""
    known: list[int] = []
    for version in outbox.waiting_versions(database, table.table_id):
        state = commit_file_state(database, table, store, version)
        if state == "absent":
            if store.exists(commit_path(table.head.version + 1)):
                raise LogError(
                    f"version {version} of the catalog is not in the log, and later ones are",
                    table=table.name,
                    version=version,
                    suggestion="move the later ones away, then recover again, which publishes ours",
                )
            break  # it is only waiting to be published
        if state != "ours":
            raise _both_sides(table, version)
        known.append(version)
    if known:
        outbox.mark_published(database, {table.table_id: known})


def _both_sides(table: Table, version: int) -> TableFrozenError:
    return TableFrozenError(
        f"version {version} of the log is not the one in the catalog: both sides have new commits",
        table=table.name,
        version=version,
        suggestion="decide with `deltasql mirror resolve`",
    )
