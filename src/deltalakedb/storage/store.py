"""The interface of a store, and how a location becomes one."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from deltalakedb.exceptions import InvalidArgumentError, StorageMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/", re.ASCII)
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+://")
_FORBIDDEN_PARTS: Final = frozenset({"", ".", ".."})


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """A file or an object: its path under the store's root, its size and when it was last written."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@runtime_checkable
class Store(Protocol):
    """Files under one root; paths are relative to it, with ``/`` between their parts, and never encoded.

    A missing file is a StorageMissingError, a store that may answer later a StorageUnavailableError, any
    other refusal a StorageError.
    """

    @property
    def location(self) -> str:
        """The root as a path or URL, without credentials."""

    def get(self, path: str) -> bytes: ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on."""

    def open(self, path: str) -> BinaryIO:
        """A seekable reader that fetches as it goes."""

    def exists(self, path: str) -> bool:
        try:
            self.head(path)
        except StorageMissingError:
            return False
        return True

    def head(self, path: str) -> ObjectMeta: ...

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The files in a folder (by default the root), sorted by path; nothing if there is no such folder.

        ``recursive`` adds the files of folders below; ``start_after`` omits those up to a path.
        """

    def folders(self) -> Sequence[str]:
        """The names of the folders right below the root, sorted; links to folders are left out."""

    def temporary_files(self, prefix: str = "") -> Iterator[ObjectMeta]:  # noqa: ARG002
        """Temporary files of writers in a folder, with the time of their last change; `list` omits them."""
        return iter(())

    def put_new(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> bool:
        """Create a file and missing folders, whole or not at all; False if it exists, and then it stays.

        ``mtime_ms`` is its modification time; object stores set their own.
        """

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:
        """Create or replace a file, whole or not at all; its time as for `put_new`."""

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        """Copy a local file of any size into the store, whole or not at all, in bounded memory.

        With ``new`` an existing file stays, and the result is False. An object store decides that for a file
        of one request; a larger one may replace a file that another writer put at the same moment.
        """

    def fetch(self, path: str, target: Path) -> int:
        """Copy a file of any size to a local path, in bounded memory; its size."""

    def delete(self, path: str) -> None:
        """Delete a file, which need not exist."""

    def now_ms(self) -> int:
        """The store's clock: the time that it gives to a file written now."""

    def delete_all(self, paths: Iterable[str]) -> None:
        """Delete many files in as few requests as possible; they need not exist."""
        for path in paths:
            self.delete(path)


class RangeFile(io.RawIOBase):
    """A file of a store whose reads are ranged requests."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = self._size - self._at
        length = left if size is None or size < 0 else min(size, left)
        if length <= 0:
            return b""
        data = self._store.get_range(self._path, self._at, length)
        self._at += len(data)
        return data

    readall = read

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_store(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
) -> Store:
    """The store at a location: a local path, a ``file://`` URL or the URL of an object store.

    Nothing is read, written or checked yet. Storage options are spelled as in `deltalake`; with ``durable``
    local writes reach the disk before they count (fsync of file and folder).

    Raises:
        InvalidArgumentError: The location is neither a path nor a URL of a known store.
        ConfigError: A storage option is unknown or has a wrong value.

    Example:
        >>> open_store("s3://bucket/table", {"AWS_REGION": "eu-central-1"})
        RemoteStore('s3://bucket/table')
    """
    from deltalakedb.storage.local import LocalStore

    text = os.fspath(location)
    if (local := local_path(text)) is not None:
        return LocalStore(local, durable=durable)
    # obstore takes time to import, and a local table does not need it
    from deltalakedb.storage.remote import RemoteStore

    return RemoteStore.from_location(text, storage_options or {})


def is_local(location: str) -> bool:
    """Whether a location in the form that the catalog keeps is a path, not the URL of an object store."""
    return not _URL.match(location)


def local_path(location: str) -> Path | None:
    """The absolute local path that a location names, or None if it is the URL of an object store."""
    if not location or "\0" in location:
        raise InvalidArgumentError(
            "the location is empty or contains a NUL byte",
            suggestion="give the table's folder, or a URL such as s3://bucket/table",
        )
    if (scheme := _SCHEME.match(location)) is None:
        return Path(os.path.abspath(location))  # noqa: PTH100 - resolve() would follow links
    if scheme[1].lower() != "file":
        return None
    parts = urlsplit(location)
    if parts.netloc not in {"", "localhost"}:
        raise InvalidArgumentError(
            f"the file URL names the machine {parts.netloc!r}; only local files can be read",
            suggestion="write file:///absolute/path, with three slashes",
        )
    return Path(os.path.abspath("/" + unquote(parts.path).lstrip("/")))  # noqa: PTH100


def checked_path(path: str) -> str:
    """Return a path under a store's root; InvalidArgumentError if it is empty, absolute or climbs out."""
    if "\0" in path or not _FORBIDDEN_PARTS.isdisjoint(path.split("/")):
        raise InvalidArgumentError(f"{path!r} is not a path under a store's root")
    return path


class LinkResolver:
    """Resolves symbolic links in local locations, those of the folders above them once."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def resolve(self, location: str) -> str:
        """The location without links; the URL of an object store and a missing folder stay as they are."""
        above, name = os.path.split(location)
        if not location.startswith(os.sep) or not name:
            return location
        if os.path.islink(location):  # noqa: PTH114 - called for every table of a catalog
            return os.path.realpath(location)
        if (real := self._above.get(above)) is None:
            real = self._above[above] = os.path.realpath(above)
        return os.path.join(real, name)  # noqa: PTH118


def real_location(location: str) -> str:
    return LinkResolver().resolve(location)
