"""The file-backed transaction log's pen: a commit is a file that was not there before."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb.delta_log.commit_file import read_commit_info
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    ProtocolError,
    StorageMissingError,
)
from deltalakedb.protocol.actions import Action, CommitInfo, Metadata
from deltalakedb.protocol.actions import Protocol as ProtocolAction
from deltalakedb.protocol.codec import encode_commit
from deltalakedb.protocol.log import Committed, Conflict
from deltalakedb.storage import Store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence


class FileTxnLogWriter:
    """Appends commits to a table's ``_delta_log``; implements `protocol.log.TxnLogWriter`.

    Example:
        >>> writer = FileTxnLogWriter("/data/sales")  # doctest: +SKIP
        >>> writer.commit(0, [protocol, metadata])  # doctest: +SKIP
        Committed(version=0, timestamp=1700000000000, replayed=False)
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        store: Store | None = None,
    ) -> None:
        self._store = open_store(location, storage_options) if store is None else store

    def __repr__(self) -> str:
        return f"FileTxnLogWriter({self.location!r})"

    @property
    def location(self) -> str:
        """The table's root, without credentials."""
        return self._store.location

    def commit(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """Make ``actions`` the commit ``version``; a Conflict value where that version is taken.

        The commit's time is the one that its commitInfo gives (in-commit or the writer's), else now.

        Raises:
            LogGapError: The version before is not there.
            ProtocolError: The protocol forbids such a commit.
        """
        _check(version, actions, self.location)
        info = next((a for a in actions if isinstance(a, CommitInfo)), None)
        own = None if info is None else info.in_commit_timestamp or info.timestamp
        outcome = self.commit_bytes(version, encode_commit(actions), timestamp_ms=own)
        if isinstance(outcome, Committed) and info is not None and info.in_commit_timestamp:
            return replace(outcome, timestamp=info.in_commit_timestamp)
        return outcome

    def commit_bytes(
        self, version: int, data: bytes, *, timestamp_ms: int | None = None
    ) -> Committed | Conflict:
        """The same with bytes that are fixed already, so that a commit can be copied as it is.

        Args:
            version: The newest version plus one.
            data: The file's content.
            timestamp_ms: When it was committed; local files carry it, made later than their predecessor's.
        """
        timestamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        before = self._before(version)
        if before is not None:
            timestamp = max(timestamp, before + 1)
        path = commit_path(version)
        if not self._taken_without_file(version, before) and self._store.put_new(
            path, data, mtime_ms=timestamp
        ):
            return Committed(version, self._store.head(path).modified_ms)
        try:
            winner = self._store.get(path)
        except StorageMissingError:
            return Conflict(
                "version_taken", version, detail="its commit file was cleaned up, a checkpoint has it"
            )
        if winner == data:
            # a lost answer or a retry: the commit that is there is this one
            return Committed(version, self._store.head(path).modified_ms, replayed=True)
        info = None
        with contextlib.suppress(LogCorruptError):  # a torn winner has won all the same
            info = read_commit_info(self._store, path, size=len(winner))
        return Conflict(
            "version_taken",
            version,
            operation=None if info is None else info.operation,
            detail="another commit has that version",
        )

    def _before(self, version: int) -> int | None:
        """The time of the commit before, or None where there is none to be seen."""
        if version < 0:
            raise InvalidArgumentError(
                f"a version counts from 0, and {version} is below", table=self.location
            )
        if version == 0:
            return None
        try:
            return self._store.head(commit_path(version - 1)).modified_ms
        except StorageMissingError:
            return None

    def _taken_without_file(self, version: int, before: int | None) -> bool:
        """Whether a version exists although its file may not; a clean-up deletes the oldest files first."""
        if before is not None:
            return False
        listing = list_log(self._store)
        if listing.latest >= version:
            return True
        if listing.latest != version - 1:
            raise LogGapError(
                f"version {version} cannot be committed: the newest version is {listing.latest}"
                if listing.latest >= 0
                else f"version {version} cannot be committed: the table has no version yet",
                table=self.location,
                version=version,
                suggestion=f"commit version {listing.latest + 1} first",
            )
        return False


def _check(version: int, actions: Sequence[Action], table: str) -> None:
    """What makes a commit unreadable whoever reads it; the finer rules belong to the one who makes it."""
    if not actions:
        raise ProtocolError("a commit without actions is none", table=table, version=version)
    for kind, name in ((Metadata, "metaData"), (ProtocolAction, "protocol")):
        count = sum(isinstance(action, kind) for action in actions)
        if count > 1 or (version == 0 and count == 0):
            raise ProtocolError(
                f"a commit may hold one {name} action, and version 0 must: this one holds {count}",
                table=table,
                version=version,
                suggestion="split the commit" if count > 1 else "begin the table with protocol and metaData",
            )
