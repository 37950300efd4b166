"""Groups: manifests that say which published versions of several tables belong to one transaction."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.delta_log.names import manifest_path
from deltalakedb.exceptions import DeltaSqlError, StorageError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.mirror.commit_files import commit_file_state
from deltalakedb.protocol.codec import encode_json
from deltalakedb.retry import retry_in_ms
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import TypeAlias

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import Member
    from deltalakedb.storage.store import Store

    #: storage options by location, if the caller has some; else those of the settings
    StoreOptions: TypeAlias = Mapping[str, Mapping[str, str] | None]
    #: by table the versions that were just put
    Put: TypeAlias = Mapping[int, Collection[int]]

logger = logging.getLogger(__name__)

#: a look for manifests that could not be written costs a statement: at most one in so many seconds
_LOOK_S = 5.0
#: manifests of other transactions that a writer tries at most: the rest is for the reconciler
_HELPED = 8


@dataclass(frozen=True, slots=True)
class Group:
    """A transaction over several tables that was just committed.

    Attributes:
        txn: Its id.
        members: What its tables became; None if that has to be asked for.
    """

    txn: str
    members: Sequence[Member] | None = None


def write_manifests(
    database: Database, group: Group | None, others: Collection[str], put: Put, options: StoreOptions
) -> None:
    """Write the manifest of every transaction whose tables are all published.

    Called when commit files are there and not yet noted: a publisher that dies here is followed by one that
    finds them unnoted and comes here again, and of two that publish the last tables at the same moment at
    least one sees the file of the other.

    Args:
        database: The catalog.
        group: The transaction that was just committed.
        others: Ids of transactions that other versions belong to.
        put: By table the versions that were just put.
        options: Storage options by location.
    """
    asked = set(others)
    if group is not None:
        members = group.members
        if members is not None and all(m.version in put.get(m.table_id, ()) for m in members):
            _write(database, group.txn, members, options)
            asked.discard(group.txn)
        else:
            asked.add(group.txn)  # another process may have published the other tables
    if asked:
        failed = {one.txn: one.attempts for one in outbox.missing_manifests(database)}
        for txn in asked:
            members = outbox.group(database, txn)
            if len(members) > 1:
                _write_if_complete(database, txn, members, put, options, attempts=failed.get(txn))
    if group is not None and _is_time(database):
        write_missing(database, options=options, limit=_HELPED)


def write_missing(
    database: Database,
    *,
    table_id: int | None = None,
    force: bool = False,
    options: StoreOptions | None = None,
    limit: int | None = None,
) -> None:
    """Write manifests that could not be written before.

    Args:
        database: The catalog.
        table_id: Only those that are missing beside this table.
        force: Also those that failed a moment ago.
        options: Storage options by location.
        limit: How many at most.
    """
    missing = [
        one
        for one in outbox.missing_manifests(database)
        if (table_id is None or table_id in one.tables) and (force or one.retry_in <= 0)
    ]
    for one in missing[:limit]:
        members = outbox.group(database, one.txn)
        if len(members) > 1:
            _write_if_complete(database, one.txn, members, {}, options or {}, attempts=one.attempts)
        else:
            outbox.forget_manifest(database, one.txn)  # its tables were dropped


#: when this process last looked for manifests that could not be written
_looked: dict[Database, float] = {}
os.register_at_fork(after_in_child=_looked.clear)


def _is_time(database: Database) -> bool:
    now = time.monotonic()
    if now - _looked.get(database, -_LOOK_S) < _LOOK_S:
        return False
    _looked[database] = now
    return True


def _write_if_complete(
    database: Database,
    txn: str,
    members: Sequence[Member],
    put: Put,
    options: StoreOptions,
    *,
    attempts: int | None,
) -> None:
    """Write a manifest if all tables are published; ``attempts`` is None if no failure is noted."""
    try:
        there = [m.version in put.get(m.table_id, ()) or _is_there(database, m, options) for m in members]
    except DeltaSqlError as error:
        # if two processes publish the last tables at the same moment, perhaps neither looks again
        _note(database, txn, dict.fromkeys(members, error), attempts or 0)
        return
    with database.read() as session:
        incomplete = commits.lost_tables(session, txn)
    if incomplete:  # a manifest would say that readers see all of it
        outbox.forget_manifest(database, txn)
        return
    if not all(there) or not _write(database, txn, members, options, attempts=attempts or 0):
        return
    if attempts is not None:
        outbox.forget_manifest(database, txn)


def _store(database: Database, member: Member, options: StoreOptions) -> Store:
    config = database.engine.config
    found = config.storage_options_for(member.location, options.get(member.location))
    return open_store(member.location, found, durable=config.publish.fsync)


def _is_there(database: Database, member: Member, options: StoreOptions) -> bool:
    """Whether a member's version is in its log, noted or not."""
    if member.published:
        return True
    table, store = registry.find(database, member.table), _store(database, member, options)
    return commit_file_state(database, table, store, member.version) == "ours"


def _write(
    database: Database, txn: str, members: Sequence[Member], options: StoreOptions, *, attempts: int = 0
) -> bool:
    """Put a small file beside every table of a transaction that names the versions that belong together.

    Readers that want several tables at one moment look for it. Losing it loses no data, so a failure is noted
    in the catalog, and a later publisher tries again.

    Returns:
        Whether it is beside every table.
    """
    members = sorted(members, key=lambda m: m.table)
    at = max(m.timestamp for m in members)
    body = {
        "txnId": txn,
        "committedAt": at,
        "tables": [{"name": m.table, "location": m.location, "version": m.version} for m in members],
    }
    data, path = (encode_json(body) + "\n").encode(), manifest_path(txn)
    first: str | None = None
    failed: dict[Member, DeltaSqlError] = {}
    for member in members:
        failpoint("publish.manifest")
        try:
            store = _store(database, member, options)
            if not isinstance(store, LocalStore):
                store.put_new(path, data, mtime_ms=at)
            elif first is None or not _linked(store, path, first):
                store.put_new(path, data, mtime_ms=at)
                first = store.name_of(path)
        except DeltaSqlError as error:
            failed[member] = error
    if failed:
        _note(database, txn, failed, attempts)
    return not failed


def _linked(store: LocalStore, path: str, first: str) -> bool:
    """Whether the file of the first table got a second name: that needs no flush, as a new file would."""
    try:
        store.link(path, first)
    except StorageError:
        return False  # another disk, or one without links
    return True


def _note(database: Database, txn: str, failed: Mapping[Member, DeltaSqlError], attempts: int) -> None:
    for member, error in failed.items():
        logger.warning(
            "the manifest of transaction %s is missing at %s: %s", txn, member.table, error.message
        )
    error = next(iter(failed.values()))
    outbox.manifest_failed(
        database,
        txn,
        [member.table_id for member in failed],
        f"{type(error).__name__}: {error.message}",
        attempts=attempts + 1,
        retry_in_ms=retry_in_ms(attempts),
    )
