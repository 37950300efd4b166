"""Reading commit files: small ones at once, large ones line by line, so that memory stays bounded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.actions import Add, CommitInfo, Remove
from deltalakedb.protocol.codec import decode_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import UnionType

    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage import ObjectMeta, Store

#: bytes from which on a commit is not held in memory as a whole
LARGE: Final = 32 * 1024 * 1024

#: files of a large commit in memory at once
PIECE: Final = 10_000

_BOM = b"\xef\xbb\xbf"
#: how lines of files begin, as every known writer spells them; others are decoded and looked at
_FILES = (b'{"add":', b'{"remove":', b'{"cdc":')


@dataclass(frozen=True, slots=True)
class CommitDigest:
    """The sha256 of a commit's bytes, and how many there are."""

    sha256: str
    size: int


def is_large(meta: ObjectMeta | None) -> bool:
    """Whether a commit is read line by line."""
    return meta is not None and meta.size >= LARGE


def iter_actions(store: Store, path: str, *, size: int = LARGE) -> Iterator[Action]:
    """The actions of a commit, in the order written.

    Args:
        store: The table's root.
        path: The commit's file.
        size: Its size, if it is known; a small file is fetched by one request.

    Raises:
        LogCorruptError: A line is broken, or the file holds no action at all.
        StorageMissingError: There is no such file.
    """
    nothing = True
    for number, line in _lines(store, path, size):
        if (action := decode_line(line, source=path, number=number)) is not None:
            nothing = False
            yield action
    if nothing:
        raise LogCorruptError(f"{path} holds no action", suggestion="restore the file from a copy")


def iter_state(store: Store, path: str) -> Iterator[Action]:
    """The same without most of the lines about files, which are not even decoded."""
    for number, line in _lines(store, path, LARGE):
        if (
            not line.startswith(_FILES)
            and (action := decode_line(line, source=path, number=number)) is not None
        ):
            yield action


def iter_pieces(
    store: Store, path: str, kind: type[Add | Remove] | UnionType = Add | Remove
) -> Iterator[list[Add | Remove]]:
    """The file actions of a commit, or those of one kind, in lists of a bounded length."""
    found: list[Add | Remove] = []
    for action in iter_actions(store, path):
        if isinstance(action, kind):
            found.append(action)
            if len(found) >= PIECE:
                yield found
                found = []
    if found:
        yield found


def read_commit_info(store: Store, path: str, *, size: int = LARGE) -> CommitInfo | None:
    """The commitInfo of a commit, or None; only lines that may hold it are decoded, and none after it.

    Raises:
        LogCorruptError: Such a line is broken.
        StorageMissingError: There is no such file.
    """
    for number, line in _lines(store, path, size):
        if b'"commitInfo"' in line:
            action = decode_line(line, source=path, number=number)
            if isinstance(action, CommitInfo):
                return action
    return None


def commit_digest(store: Store, path: str) -> CommitDigest:
    """The digest of a commit's bytes."""
    hashed, size = hashlib.sha256(), 0
    with store.open(path) as file:
        while piece := file.read(1 << 20):
            hashed.update(piece)
            size += len(piece)
    return CommitDigest(hashed.hexdigest(), size)


def _lines(store: Store, path: str, size: int) -> Iterator[tuple[int, bytes]]:
    if size < LARGE:
        yield from enumerate(store.get(path).removeprefix(_BOM).split(b"\n"), start=1)
        return
    with store.open(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removeprefix(_BOM) if number == 1 else line
