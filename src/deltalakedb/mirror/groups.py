"""Groups: which published versions of several tables belong to one transaction, told to readers outside."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.catalog import commits, outbox, registry
from deltalakedb.exceptions import DeltaSqlError, StorageError, StorageMissingError
from deltalakedb.failpoints import failpoint
from deltalakedb.log.names import commit_path
from deltalakedb.protocol.codec import encode_json
from deltalakedb.storage.local import LocalStore
from deltalakedb.storage.store import open_store
from deltalakedb.storage.together import NewObject

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import TypeAlias

    from deltalakedb.catalog.database import Database
    from deltalakedb.catalog.outbox import Member
    from deltalakedb.storage.store import Store

    StoreOptions: TypeAlias = Mapping[str, Mapping[str, str] | None]

logger = logging.getLogger(__name__)

#: beside the data, in a folder that Delta's readers and vacuums leave alone
FOLDER = "_delta_transactions"


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
    database: Database, group: Group, put: Mapping[int, Collection[int]], options: StoreOptions
) -> None:
    """Write the manifest of a transaction that was just committed, where all its tables are published."""
    members = group.members
    if members is not None and all(m.version in put.get(m.table_id, ()) for m in members):
        _write(database, group.txn, _in_order(members), options)
    else:
        # somebody else may have published the others
        tell(database, [group.txn], put, options)


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
    for txn in groups:
        members = outbox.group(database, txn)
        there = [m.version in put.get(m.table_id, ()) or _is_there(database, m, options) for m in members]
        if len(members) > 1 and all(there):
            _write(database, txn, members, options)


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
        table = registry.find(database, member.table)
        return data == commits.commit_bytes(database, table, member.version)
    except StorageMissingError:
        return False
    except DeltaSqlError as error:
        # whoever publishes it looks again
        logger.info("version %d of %s was not looked at: %s", member.version, member.table, error.message)
        return False


def manifest_of(group: Group, stores: Mapping[str, LocalStore]) -> NewObject | None:
    """The manifest beside the first table of a transaction, to be put with the last of its commit files.

    Args:
        group: The transaction.
        stores: By location the stores of all its tables; None is answered where some are missing.
    """
    if group.members is None or any(m.location not in stores for m in group.members):
        return None
    members = _in_order(group.members)
    return NewObject(stores[members[0].location], _path(group.txn), *_content(group.txn, members))


def spread(manifest: NewObject, group: Group, stores: Mapping[str, LocalStore]) -> None:
    """Put a manifest that is there beside the other tables of its transaction too."""
    first = manifest.store.name_of(manifest.path)
    for member in _in_order(group.members or ())[1:]:
        _put(stores[member.location], group.txn, member, manifest.data, manifest.mtime_ms, first)


def _in_order(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda m: m.table)


def _path(txn: str) -> str:
    return f"{FOLDER}/{txn}.json"


def _content(txn: str, members: Sequence[Member]) -> tuple[bytes, int]:
    """What a manifest says, and its time."""
    at = max(m.timestamp for m in members)
    body = {
        "txnId": txn,
        "committedAt": at,
        "tables": [{"name": m.table, "location": m.location, "version": m.version} for m in members],
    }
    return (encode_json(body) + "\n").encode(), at


def _write(database: Database, txn: str, members: Sequence[Member], options: StoreOptions) -> None:
    """Put a small file beside every table of a transaction that names the versions that belong together.

    Readers that want several tables at one moment look for it; losing it loses no data, so trouble is only
    noted.
    """
    data, at = _content(txn, members)
    first = None
    for member in members:
        first = _put(_store(database, member, options), txn, member, data, at, first)


def _put(store: Store, txn: str, member: Member, data: bytes, at: int, first: str | None) -> str | None:
    """Put a manifest beside one table; the name of one on local disk, from which others can be linked."""
    failpoint("publish.manifest")
    path = _path(txn)
    try:
        if not isinstance(store, LocalStore):
            store.put_new(path, data, mtime_ms=at)
        elif first is None or not _linked(store, path, first):
            store.put_new(path, data, mtime_ms=at)
            return store.name_of(path)
    except DeltaSqlError as error:
        logger.warning(
            "the manifest of transaction %s is missing at %s: %s", txn, member.table, error.message
        )
    return first


def _linked(store: LocalStore, path: str, first: str) -> bool:
    """Whether the manifest of one table could become that of another too: a name costs less than a file."""
    try:
        store.link(path, first)
    except StorageError:
        return False  # another disk, or one without links
    return True
