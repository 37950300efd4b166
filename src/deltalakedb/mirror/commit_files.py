"""Commit files: is the file of a version in `_delta_log` the commit that the catalog made?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.delta_log.commit_file import commit_digest, iter_actions
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import LogCorruptError, StorageMissingError
from deltalakedb.metastore import commits
from deltalakedb.protocol.actions import CommitInfo

if TYPE_CHECKING:
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store

CommitFileState: TypeAlias = Literal["absent", "ours", "damaged", "foreign"]


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
    if (
        version > table.published_version
        or damage(database, table.table_id, store, row, table=table.name) is None
    ):
        return "foreign"
    return "damaged"


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
