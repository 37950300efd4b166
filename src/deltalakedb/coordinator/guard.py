"""Checks around a commit: whether a table may be written to, and whether its log has foreign commits."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from deltalakedb.commit.request import Adopted
from deltalakedb.commit.versions import own_transaction
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_pieces, iter_state
from deltalakedb.delta_log.names import LAST_CHECKPOINT, LOG_FOLDER, commit_path
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.exceptions import StorageError
from deltalakedb.metastore import registry
from deltalakedb.metastore.ratify import Streamed
from deltalakedb.mirror.folder import require_folder
from deltalakedb.protocol.actions import Action, Add, Cdc, Protocol, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.features import check_readable
from deltalakedb.storage.store import Store, local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table


def require_writable(database: Database, table: Table, store: Store, *, log: bool = False) -> None:
    """Check, before data files are written, that a table may be written to.

    Table operations, transactions, Spark and the HTTP service all call this, so a new precondition of writing
    belongs here. Whatever may change between this check and the commit is checked again under the lock of the
    table's head, in `commit/committer.py`. With ``log``, a folder on local disk must also have its
    `_delta_log`: an engine that has already written its data may have created the missing folder itself.

    Raises:
        TableFollowedError: The table belongs to another catalog and is only followed.
        TableFolderMissingError: Versions were published, and the folder is missing or holds no data.
    """
    registry.refuse_followed(table)
    require_folder(database, table, store, log=log)


def log_is_ahead(table: Table, version: int) -> bool:
    """Whether a log on local disk continues after a version; False for an object store.

    A committer calls this while it locks the head. An unreadable log does not block a commit: publishing
    finds a foreign commit later.
    """
    root = local_path(table.location)
    if root is None:
        return False
    if os.path.lexists(f"{root}/{commit_path(version + 1)}"):
        return True
    # the next version may have been cleaned up after a later checkpoint
    try:
        hint = os.stat(f"{root}/{LAST_CHECKPOINT}")  # noqa: PTH116 - checked before every commit
        newest = _last_checkpoint(str(root), (hint.st_ino, hint.st_size, hint.st_mtime_ns, hint.st_ctime_ns))
        if newest is None or newest <= version:
            return False
        # the hint may be wrong, so look for the checkpoint itself
        return any(name.startswith(f"{newest:020}.") for name in os.listdir(f"{root}/{LOG_FOLDER}"))  # noqa: PTH208
    except (OSError, StorageError):
        return False


@lru_cache(maxsize=1024)
def _last_checkpoint(root: str, _stat: tuple[int, ...]) -> int | None:
    """The version that ``_last_checkpoint`` names; cached, since it is read while a head is locked."""
    return last_checkpoint(open_store(root))


def read_foreign_commit(
    reader: FileTxnLogReader, version: int, table: str, origin: str = "adopt"
) -> tuple[Sequence[Action], Adopted]:
    """Read a commit of the log that is to be adopted; the files of a very large one are streamed later.

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
