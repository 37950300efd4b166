"""Groups: which published versions of several tables belong to one transaction, told to readers outside."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.delta_log.names import commit_path, manifest_path
from deltalakedb.exceptions import DeltaSqlError, StorageError, StorageMissingError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import commits, outbox, registry
from deltalakedb.mirror.backoff import wait_ms
from deltalakedb.protocol.codec import encode_json
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store
from deltalakedb.storage.together import NewObject

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import TypeAlias

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import Member
    from deltalakedb.storage.store import Store

    StoreOptions: TypeAlias = Mapping[str, Mapping[str, str] | None]

logger = logging.getLogger(__name__)

#: a look for manifests that could not be written costs a statement: at most one in so many seconds
_LOOK_S = 5.0
#: manifests of others that a writer tries at the most: the rest is for the reconciler
_HELPED = 8


@dataclass(frozen=True, slots=True)
class Group:
    """A transaction over several tables.

    Attributes:
        txn: Its id.
        members: What its tables became; None where that has to be asked for.
    """

    txn: str
    members: Sequence[Member] | None = None


def tell_all(
    database: Database,
    group: Group,
    put: Mapping[int, Collection[int]],
    options: StoreOptions,
    *,
    told: bool = False,
) -> None:
    """Write the manifest of a transaction that was just committed, where all its tables are published.

    Args:
        database: The catalog.
        group: The transaction.
        put: By table the versions that were just put.
        options: Storage options by location.
        told: It is there already; only what others could not write is looked for.
    """
    members = group.members
    if not told and members is not None and all(m.version in put.get(m.table_id, ()) for m in members):
        _write(database, group.txn, _in_order(members), options)
    elif not told:
        # somebody else may have published the others
        tell(database, [group.txn], put, options)
    if _is_time(database):
        write_missing(database, options=options, limit=_HELPED)


def tell(
    database: Database, groups: Collection[str], put: Mapping[int, Collection[int]], options: StoreOptions
) -> None:
    """Write the manifest of every transaction whose tables are all published.

    Called when commit files are there and their notes are not: whoever dies here is followed by one who finds
    them unnoted and comes here again, and of two that publish the last tables at the same moment at least one
    sees the file of the other.

    Args:
        database: The catalog.
        groups: Transactions that these versions belong to.
        put: By table the versions that were just put.
        options: Storage options by location, where the caller has some; else those of the settings.
    """
    noted = {one.txn: one.attempts for one in outbox.missing_manifests(database)}
    for txn in groups:
        members = outbox.group(database, txn)
        if len(members) > 1:
            _tell(database, txn, members, put, options, attempts=noted.get(txn))


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
        options: Storage options by location, where the caller has some; else those of the settings.
        limit: How many at the most.
    """
    missing = [
        one
        for one in outbox.missing_manifests(database)
        if (table_id is None or table_id in one.tables) and (force or one.retry_in <= 0)
    ]
    for one in missing[:limit]:
        members = outbox.group(database, one.txn)
        if len(members) > 1:
            _tell(database, one.txn, members, {}, options or {}, attempts=one.attempts)
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


def _tell(
    database: Database,
    txn: str,
    members: Sequence[Member],
    put: Mapping[int, Collection[int]],
    options: StoreOptions,
    *,
    attempts: int | None,
) -> None:
    """Write a manifest where all tables are published.

    Args:
        database: The catalog.
        txn: The transaction.
        members: What its tables became.
        put: By table the versions that were just put.
        options: Storage options by location.
        attempts: How often it failed; None where nothing is noted.
    """
    try:
        there = [m.version in put.get(m.table_id, ()) or _is_there(database, m, options) for m in members]
    except DeltaSqlError as error:
        # where two publish the last tables at the same moment, perhaps nobody else looks again
        _note(database, txn, dict.fromkeys(members, error), attempts or 0)
        return
    with database.read() as session:
        incomplete = commits.lost_tables(session, txn)
    if incomplete:  # a manifest would tell readers that they see all of it
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
    try:
        data = _store(database, member, options).get(commit_path(member.version))
    except StorageMissingError:
        return False
    table = registry.find(database, member.table)
    return data == commits.commit_bytes(database, table, member.version)


def manifest_of(group: Group, stores: Mapping[str, LocalStore]) -> NewObject | None:
    """The manifest beside the first table of a transaction, to be put with the last of its commit files.

    Args:
        group: The transaction.
        stores: By location the stores of all its tables; None is answered where some are missing.
    """
    if group.members is None or any(m.location not in stores for m in group.members):
        return None
    members = _in_order(group.members)
    return NewObject(stores[members[0].location], manifest_path(group.txn), *_content(group.txn, members))


def spread(database: Database, manifest: NewObject, group: Group, stores: Mapping[str, LocalStore]) -> None:
    """Put a manifest that is there beside the other tables of its transaction too."""
    first = manifest.store.name_of(manifest.path)
    failed: dict[Member, DeltaSqlError] = {}
    for member in _in_order(group.members or ())[1:]:
        failpoint("publish.manifest")
        try:
            _put(stores[member.location], manifest.path, manifest.data, manifest.mtime_ms, first)
        except DeltaSqlError as error:
            failed[member] = error
    if failed:
        _note(database, group.txn, failed, 0)


def _in_order(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda m: m.table)


def _content(txn: str, members: Sequence[Member]) -> tuple[bytes, int]:
    """What a manifest says, and its time."""
    at = max(m.timestamp for m in members)
    body = {
        "txnId": txn,
        "committedAt": at,
        "tables": [{"name": m.table, "location": m.location, "version": m.version} for m in members],
    }
    return (encode_json(body) + "\n").encode(), at


def _write(
    database: Database, txn: str, members: Sequence[Member], options: StoreOptions, *, attempts: int = 0
) -> bool:
    """Put a small file beside every table of a transaction that names the versions that belong together.

    Readers that want several tables at one moment look for it; losing it loses no data, so trouble is noted
    in the catalog, and whoever publishes later tries again.

    Returns:
        Whether it is beside every table.
    """
    data, at = _content(txn, members)
    first = None
    failed: dict[Member, DeltaSqlError] = {}
    for member in members:
        failpoint("publish.manifest")
        try:
            first = _put(_store(database, member, options), manifest_path(txn), data, at, first)
        except DeltaSqlError as error:
            failed[member] = error
    if failed:
        _note(database, txn, failed, attempts)
    return not failed


def _put(store: Store, path: str, data: bytes, at: int, first: str | None) -> str | None:
    """Put a manifest beside one table; the name of one on local disk, from which others can be linked."""
    if not isinstance(store, LocalStore):
        store.put_new(path, data, mtime_ms=at)
    elif first is None or not _linked(store, path, first):
        store.put_new(path, data, mtime_ms=at)
        return store.name_of(path)
    return first


def _note(database: Database, txn: str, failed: Mapping[Member, DeltaSqlError], attempts: int) -> None:
    for member, error in failed.items():
        logger.warning(
            "the manifest of transaction %s is missing at %s: %s", txn, member.table, error.message
        )
    error = next(iter(failed.values()))
    told = f"{type(error).__name__}: {error.message}"
    outbox.manifest_failed(
        database,
        txn,
        [member.table_id for member in failed],
        told,
        attempts=attempts + 1,
        retry_in_ms=wait_ms(attempts),
    )


def _linked(store: LocalStore, path: str, first: str) -> bool:
    """Whether the manifest of one table could become that of another too: a name costs less than a file."""
    try:
        store.link(path, first)
    except StorageError:
        return False  # another disk, or one without links
    return True
