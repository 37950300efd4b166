"""Commit files: small ones are read at once, large ones line by line in bounded memory; and their writer."""

from __future__ import annotations

import contextlib
import hashlib
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    ProtocolError,
    StorageMissingError,
)
from deltalakedb.protocol.actions import (
    BOM,
    Action,
    Add,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    decode_line,
    decode_lines,
    encode_commit,
)
from deltalakedb.protocol.txn_log import Committed, Conflict, TxnLogWriter
from deltalakedb.storage import ObjectMeta, Store, open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from io import BufferedReader
    from types import UnionType


#: size in bytes from which on a commit is read line by line
LARGE: Final = 32 * 1024 * 1024
#: files of a large commit in memory at once
PIECE: Final = 10_000

#: how lines of files begin in every known writer's commits; other lines are decoded
_FILES = (b'{"add":', b'{"remove":', b'{"cdc":')


class CommitDigest(NamedTuple):
    """The sha256 and the number of a commit's bytes."""

    sha256: str
    size: int


def is_large(meta: ObjectMeta | None) -> bool:
    return meta is not None and meta.size >= LARGE


def iter_actions(store: Store, path: str, *, size: int = LARGE) -> Iterator[Action]:
    """The actions of a commit, in the order written; a file that is known to be small takes one request.

    LogCorruptError if a line is broken or the file has no action at all.
    """
    return decode_lines(_lines(store, path, size), source=path)


def iter_state(store: Store, path: str) -> Iterator[Action]:
    """The actions of a large commit without most of those about files, which are not decoded."""
    for number, line in enumerate(_lines(store, path, LARGE), start=1):
        action = None if line.startswith(_FILES) else decode_line(line, source=path, number=number)
        if action is not None:
            yield action


def iter_pieces(
    store: Store, path: str, kind: type[Add | Remove] | UnionType = Add | Remove
) -> Iterator[list[Add | Remove]]:
    """The file actions of a commit, or those of one kind, in lists of a bounded length."""
    found = (action for action in iter_actions(store, path) if isinstance(action, kind))
    return iter(lambda: list(islice(found, PIECE)), [])


def read_commit_info(store: Store, path: str, *, size: int = LARGE) -> CommitInfo | None:
    """The commitInfo of a commit, or None; only lines that may contain it are decoded, and none after it."""
    for number, line in enumerate(_lines(store, path, size), start=1):
        if b'"commitInfo"' in line:
            action = decode_line(line, source=path, number=number)
            if isinstance(action, CommitInfo):
                return action
    return None


def commit_digest(store: Store, path: str) -> CommitDigest:
    with store.open(path) as file:
        return CommitDigest(
            hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest(), file.tell()
        )


def _lines(store: Store, path: str, size: int) -> Iterator[bytes]:
    if size < LARGE:
        yield from store.get(path).removeprefix(BOM).split(b"\n")
        return
    with store.open(path) as file:
        yield file.readline().removeprefix(BOM)
        yield from file


class LogFolder:
    """A table's ``_delta_log`` in a store."""

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        store: Store | None = None,
    ) -> None:
        #: the table's root
        self.store = open_store(location, storage_options) if store is None else store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def location(self) -> str:
        """The table's root, without credentials."""
        return self.store.location


class FileTxnLogWriter(LogFolder, TxnLogWriter):
    """Appends commits to a table's ``_delta_log``.

    Example:
        >>> writer = FileTxnLogWriter("/data/sales")  # doctest: +SKIP
        >>> writer.commit(0, [protocol, metadata])  # doctest: +SKIP
        Committed(version=0, committed_at=1700000000000, replayed=False)
    """

    def commit(self, version: int, actions: Sequence[Action]) -> Committed | Conflict:
        """Make ``actions`` the commit ``version``; a Conflict value if that version is taken.

        The commit's time is that of its commitInfo (in-commit or the writer's), else now. A local file gets
        that time, but at least one later than its predecessor's.

        Raises:
            LogGapError: The version before does not exist.
            ProtocolError: The protocol forbids such a commit.
        """
        self._check(version, actions)
        info = next((a for a in actions if isinstance(a, CommitInfo)), CommitInfo())
        own, now = info.in_commit_timestamp, time.time_ns() // 1_000_000
        timestamp = own or (now if info.timestamp is None else info.timestamp)
        before = None
        if version > 0:
            with contextlib.suppress(StorageMissingError):
                before = self.store.head(commit_path(version - 1)).modified_ms
        if before is not None:
            timestamp = max(timestamp, before + 1)
        path, data = commit_path(version), encode_commit(actions)
        # a clean-up deletes the oldest files first, so a version may exist although its file does not
        taken = before is None and self._is_taken(version)
        if not taken and self.store.put_new(path, data, mtime_ms=timestamp):
            return Committed(version, own or self.store.head(path).modified_ms)
        return self._winner(version, data)

    def _winner(self, version: int, data: bytes) -> Committed | Conflict:
        """The outcome of a commit whose version is taken: by an earlier attempt of its own, or by another."""
        path, info, detail = commit_path(version), None, "another commit has that version"
        try:
            winner = self.store.get(path)
            if winner == data:
                return Committed(version, self.store.head(path).modified_ms, replayed=True)
            with contextlib.suppress(LogCorruptError):  # a torn commit has the version all the same
                info = read_commit_info(self.store, path, size=len(winner))
        except StorageMissingError:
            detail = "a checkpoint has it, its commit file was deleted"
        operation = None if info is None else info.operation
        return Conflict("version_taken", version, operation=operation, detail=detail)

    def _is_taken(self, version: int) -> bool:
        latest = list_log(self.store).latest
        if latest < version - 1:
            newest = f"the newest version is {latest}" if latest >= 0 else "the table has no version yet"
            raise LogGapError(
                f"version {version} cannot be committed: {newest}",
                table=self.location,
                version=version,
                suggestion=f"commit version {latest + 1} first",
            )
        return latest >= version

    def _check(self, version: int, actions: Sequence[Action]) -> None:
        """Refuse a commit that no reader could read; the caller checks finer rules."""
        if version < 0:
            raise InvalidArgumentError(f"Expected a version from 0 on, got {version}", table=self.location)
        error = partial(ProtocolError, table=self.location, version=version)
        if not actions:
            raise error("a commit needs at least one action")
        for kind, name in ((Metadata, "metaData"), (Protocol, "protocol")):
            count = sum(isinstance(action, kind) for action in actions)
            if count > 1 or (version == 0 and count == 0):
                wanted = "one" if version == 0 else "at most one"
                hint = "split the commit" if count > 1 else "start with protocol and metaData"
                raise error(f"expected {wanted} {name} action, got {count}", suggestion=hint)
