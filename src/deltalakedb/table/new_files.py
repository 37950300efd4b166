"""New files of a direct write while they grow: hidden on local disk, unfinished on an object store."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from deltalakedb.exceptions import StorageError
from deltalakedb.storage.durable import Translated, flush_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.storage.durable import Flushes
    from deltalakedb.storage.remote import RemoteStore
    from deltalakedb.storage.upload import Upload

logger = logging.getLogger(__name__)

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

    def remove(self, paths: Sequence[str]) -> None:
        """Remove finished files: nothing is to come of this write."""
        ...


class _LocalFile:
    def __init__(self, final: str, *, fsync: bool, flushes: Flushes | None) -> None:
        folder, _, name = final.rpartition("/")
        self._final = final
        self._hidden = f"{folder}/.{name}.tmp"
        self._fsync = fsync
        self._flushes = flushes
        self.file: IO[bytes] = open(self._hidden, "xb", buffering=_BUFFER)  # noqa: PTH123, SIM115

    def finish(self) -> tuple[int, int]:
        with Translated("write", self._final):
            self.file.flush()
            handle = self.file.fileno()
            stat = os.fstat(handle)
            # Nobody looks for the file before its commit, which waits until it is on disk. So it has its name
            # before it is flushed: the disk's journal then takes both in one go.
            os.rename(self._hidden, self._final)  # noqa: PTH104
            if self._fsync and self._flushes is None:
                os.fsync(handle)
            later = os.dup(handle) if self._fsync and self._flushes is not None else None
            self.file.close()
        if later is not None and self._flushes is not None:
            self._flushes.file(later, self._final)
        return stat.st_size, stat.st_mtime_ns // 1_000_000

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self.file.close()
        for path in (self._hidden, self._final):
            _unlink(path)


class LocalFiles:
    """New files below a local root.

    Args:
        root: The table's root.
        fsync: Have files and folders on disk when they are settled.
        flushes: Whoever waits until they are, where that is not to happen here.
    """

    most_open: Final = 64

    def __init__(self, root: str, *, fsync: bool, flushes: Flushes | None = None) -> None:
        self.location = root
        self._root = "" if root == "/" else root
        self._fsync = fsync
        self._flushes = flushes
        self._folders: dict[str, None] = {}

    def begin(self, path: str) -> NewFile:
        """Begin a file, with its folders."""
        final = f"{self._root}/{path}"
        folder = final.rpartition("/")[0]
        with Translated("write", self.location):
            if folder not in self._folders:
                self._make_folder(folder or "/")
            return _LocalFile(final, fsync=self._fsync, flushes=self._flushes)

    def settle(self) -> None:
        """Have the entries of all folders on disk."""
        for folder in self._folders if self._fsync else ():
            if self._flushes is not None:
                self._flushes.folder(folder)
                continue
            flush_folder(folder)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove finished files."""
        for path in paths:
            _unlink(f"{self._root}/{path}")

    def _make_folder(self, folder: str) -> None:
        """Make a folder and those above it, and remember whose entries must be on disk at the end."""
        made = folder
        while not os.path.isdir(made):  # noqa: PTH112
            above = os.path.dirname(made)  # noqa: PTH120
            self._folders.setdefault(above)
            made = above
        if made != folder:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        self._folders.setdefault(folder)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108


class _RemoteFile:
    def __init__(self, files: RemoteFiles, upload: Upload) -> None:
        self._files = files
        self._upload = upload
        self.file: Any = upload

    def finish(self) -> tuple[int, int]:
        self._files.complete(self._upload)
        return self._upload.tell(), time.time_ns() // 1_000_000

    def discard(self) -> None:
        with contextlib.suppress(StorageError):
            self._upload.discard()


class RemoteFiles:
    """New objects below a remote root, sent while they grow; the last of each is sent in the background.

    Args:
        store: The root.
        parallel: How many are completed at a time.
    """

    #: each holds some parts in memory that are on their way
    most_open: Final = 16

    def __init__(self, store: RemoteStore, *, parallel: int) -> None:
        self.location = store.location
        self._store = store
        self._parallel = parallel
        self._pool = ThreadPoolExecutor(parallel, "deltasql-upload")
        self._pending: deque[Future[None]] = deque()

    def begin(self, path: str) -> NewFile:
        """Begin an object."""
        return _RemoteFile(self, self._store.begin(path))

    def complete(self, upload: Upload) -> None:
        """Make an object appear soon; an error shows at the latest when all are settled."""
        while len(self._pending) >= self._parallel:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(_complete, upload))

    def settle(self) -> None:
        """Wait until every object is there."""
        while self._pending:
            self._pending.popleft().result()
        self._pool.shutdown()

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, once those on their way have arrived."""
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
        try:
            self._store.delete_all(paths)
        except StorageError as error:
            # no version names them: a full vacuum finds them by listing
            logger.warning("files of a failed write are left in %s: %s", self.location, error.message)


def _complete(upload: Upload) -> None:
    try:
        upload.finish()
    except BaseException:
        with contextlib.suppress(StorageError):
            upload.discard()
        raise
