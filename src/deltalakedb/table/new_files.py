"""New files of a direct write while they grow: hidden on local disk, unfinished on an object store."""

from __future__ import annotations

import contextlib
import os
import time
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from deltalakedb.exceptions import StorageError
from deltalakedb.storage.local import storage_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltalakedb.storage.remote import RemoteStore

_BUFFER: Final = 128 * 1024


class NewFile(Protocol):
    """A file that nobody sees before it is finished."""

    @property
    def file(self) -> IO[bytes]:
        """What to write to."""
        ...

    def finish(self) -> tuple[int, int]:
        """Make the file whole and visible; its size, and its time in epoch milliseconds."""
        ...

    def discard(self) -> None:
        """Remove the file, in whatever state it is."""
        ...


class NewFiles(Protocol):
    """The new files of one write."""

    @property
    def location(self) -> str:
        """The root that they lie under, for messages."""
        ...

    @property
    def most_open(self) -> int:
        """How many may grow at a time."""
        ...

    def begin(self, path: str) -> NewFile:
        """Begin a file at a path below the table's root."""
        ...

    def settle(self) -> None:
        """Make sure that every finished file stays."""
        ...

    def remove(self, path: str) -> None:
        """Remove a finished file."""
        ...


class _LocalFile:
    def __init__(self, final: Path, *, fsync: bool) -> None:
        self._final = final
        self._hidden = final.with_name(f".{final.name}.tmp")
        self._fsync = fsync
        self.file: IO[bytes] = self._hidden.open("xb", buffering=_BUFFER)

    def finish(self) -> tuple[int, int]:
        with translated(self._final):
            self.file.flush()
            if self._fsync:
                os.fsync(self.file.fileno())
            stat = os.fstat(self.file.fileno())
            self.file.close()
            self._hidden.rename(self._final)
        return stat.st_size, stat.st_mtime_ns // 1_000_000

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self.file.close()
        for path in (self._hidden, self._final):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


class LocalFiles:
    """New files below a local root.

    Args:
        root: The table's root.
        fsync: Have files and folders on disk when they are settled.
    """

    most_open: Final = 64

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self.location = str(root)
        self._root = root
        self._fsync = fsync
        self._folders: dict[Path, None] = {}

    def begin(self, path: str) -> NewFile:
        """Begin a file, with its folders."""
        final = self._root / path
        with translated(self._root):
            if final.parent not in self._folders:
                self._make_folder(final.parent)
            return _LocalFile(final, fsync=self._fsync)

    def settle(self) -> None:
        """Have the entries of all folders on disk."""
        for folder in self._folders if self._fsync else ():
            with translated(folder):
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def remove(self, path: str) -> None:
        """Remove a finished file."""
        with contextlib.suppress(OSError):
            (self._root / path).unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, and remember whose entries must be on disk at the end."""
        made = folder
        while not made.is_dir():
            self._folders.setdefault(made.parent)
            made = made.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._folders.setdefault(folder)


class _RemoteFile:
    def __init__(self, store: RemoteStore, path: str) -> None:
        self._upload = store.begin(path)
        self.file: Any = self._upload

    def finish(self) -> tuple[int, int]:
        return self._upload.finish(), time.time_ns() // 1_000_000

    def discard(self) -> None:
        with contextlib.suppress(StorageError):
            self._upload.discard()


class RemoteFiles:
    """New objects below a remote root, sent while they grow."""

    #: each holds some parts in memory that are on their way
    most_open: Final = 16

    def __init__(self, store: RemoteStore) -> None:
        self.location = store.location
        self._store = store

    def begin(self, path: str) -> NewFile:
        """Begin an object."""
        return _RemoteFile(self._store, path)

    def settle(self) -> None:
        """A finished object stays."""

    def remove(self, path: str) -> None:
        """Remove a finished object."""
        with contextlib.suppress(StorageError):
            self._store.delete(path)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """What the operating system says about writing, as a typed error."""
    try:
        yield
    except StorageError:
        raise
    except OSError as e:
        raise storage_error(e, "write", path) from e
