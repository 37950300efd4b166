"""What a store is, and how a location becomes one."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from deltalakedb.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/", re.ASCII)
_NO_PARTS: Final = frozenset({"", ".", ".."})


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """A file or an object: its path under the store's root, its size and when it was last written."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        """The last part of the path."""
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
        ...

    def get(self, path: str) -> bytes:
        """The whole content."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A seekable reader that fetches as it goes."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def head(self, path: str) -> ObjectMeta:
        """Size and time of one file."""
        ...

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The files in the folder ``prefix``, sorted by path; nothing where there is no such folder.

        Args:
            prefix: A folder; empty for the root.
            recursive: Also the files of folders below.
            start_after: Only files whose path sorts after this one.
        """
        ...

    def folders(self) -> Sequence[str]:
        """The names of the folders right below the root, sorted."""
        ...

    def unfinished(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Files in a folder that their writers have not finished, or never will; `list` leaves them out.

        Their time is when a writer last touched them, whatever time they were given.
        """
        ...

    def put_new(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> bool:
        """Create a file, whole or not at all; False where there is one already, which stays as it is.

        Args:
            path: The file to create; missing folders are made.
            data: Its content.
            mtime_ms: Its modification time, where the store lets a writer choose (local disk does).
        """
        ...

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:
        """Create or replace a file, whole or not at all; its time as for `put_new`."""
        ...

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        """Copy a local file of any size into the store, whole or not at all, with bounded memory.

        Args:
            path: The file to create; missing folders are made.
            source: The local file, which stays.
            new: Leave a file that is there already as it is and return False. An object store decides that
                for files of one request; a larger one may replace what a writer put at the same moment.
        """
        ...

    def fetch(self, path: str, target: Path) -> int:
        """Copy a file of any size to a local path, with bounded memory; its size."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; it may be gone already."""
        ...

    def now_ms(self) -> int:
        """The store's own clock: the time that it gives to a file written now."""
        ...

    def delete_all(self, paths: Iterable[str]) -> None:
        """Delete many files in as few requests as the store needs; some may be gone already."""
        ...


class RangeFile(io.RawIOBase):
    """A file of a store whose reads are ranged requests.

    Args:
        store: The store.
        path: The file.
        size: Its size.
    """

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        """It is only read."""
        return True

    def seekable(self) -> bool:
        """Reads may begin anywhere."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, or all that are left, by one request."""
        left = self._size - self._at
        length = left if size is None or size < 0 else min(size, left)
        if length <= 0:
            return b""
        data = self._store.get_range(self._path, self._at, length)
        self._at += len(data)
        return data

    readall = read

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_store(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
) -> Store:
    """The store at a location. Nothing is read, written or checked yet.

    Args:
        location: A local path, a ``file://`` URL, or the URL of an object store (``s3://``, ``gs://``, ``az://``,
            ``abfss://`` …).
        storage_options: Credentials and settings, spelled as `deltalake` spells them.
        durable: Local writes reach the disk before they count (fsync of file and folder).

    Raises:
        InvalidArgumentError: The location is no path and no URL of a known store.
        ConfigError: A storage option is unknown or has a wrong value.

    Example:
        >>> open_store("s3://bucket/table", {"AWS_REGION": "eu-central-1"})
        RemoteStore('s3://bucket/table')
    """
    from deltalakedb.storage.local import LocalStore

    text = os.fspath(location)
    if (local := local_path(text)) is not None:
        return LocalStore(local, durable=durable)
    # obstore costs time to import and a local table does without
    from deltalakedb.storage.remote import RemoteStore

    return RemoteStore.from_location(text, storage_options or {})


@lru_cache(maxsize=1024)
def _here(location: str, _folder: str) -> Path:
    """An absolute path; the current folder is part of the question."""
    return Path(os.path.abspath(location))  # noqa: PTH100 - resolve() would follow links


def local_path(location: str) -> Path | None:
    """The absolute local path that a location names, or None where it is the URL of an object store.

    Raises:
        InvalidArgumentError: The location is empty, or a ``file:`` URL of another machine.
    """
    if not location or "\0" in location:
        raise InvalidArgumentError(
            "a location must be a path or a URL, and this one is empty or holds a zero byte",
            suggestion="give the table's folder, or a URL such as s3://bucket/table",
        )
    if (scheme := _SCHEME.match(location)) is None:
        return _here(location, "" if location.startswith("/") else os.getcwd())  # noqa: PTH109
    if scheme[1].lower() != "file":
        return None
    parts = urlsplit(location)
    if parts.netloc not in {"", "localhost"}:
        raise InvalidArgumentError(
            f"the file URL names the machine {parts.netloc!r}, and only local files can be read",
            suggestion="write file:///absolute/path, with three slashes",
        )
    return Path(os.path.abspath("/" + unquote(parts.path).lstrip("/")))  # noqa: PTH100


def checked_path(path: str) -> str:
    """A path under a store's root as it is, unless it would leave the root.

    Raises:
        InvalidArgumentError: The path is empty, absolute, or climbs out.
    """
    if "\0" in path or not _NO_PARTS.isdisjoint(path.split("/")):
        raise InvalidArgumentError(f"{path!r} is not a path under a store's root")
    return path


class RealPlaces:
    """Resolves symbolic links in local locations; the folders above them are resolved once."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def of(self, location: str) -> str:
        """The location without links; a URL of an object store, and a missing folder, as it is."""
        above, name = os.path.split(location)
        if not location.startswith(os.sep) or not name:
            return location
        if os.path.islink(location):  # noqa: PTH114 - asked for every table of a catalog
            return os.path.realpath(location)
        if (real := self._above.get(above)) is None:
            real = self._above[above] = os.path.realpath(above)
        return os.path.join(real, name)  # noqa: PTH118


def real_location(location: str) -> str:
    """One location without symbolic links."""
    return RealPlaces().of(location)
