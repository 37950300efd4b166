"""Files and folders on their way to the disk while others are written, and the wait until all have arrived.

One after the other, since the disk's journal takes what comes together in one go: threads were measured to
cost more than they save.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

from deltalakedb.storage.local import Translated

#: files that are held open at the most
_MOST_OPEN: Final = 64


class Flushes:
    """What has to be on disk before something else says that it is there. Not for several threads at once."""

    def __init__(self) -> None:
        self._files: list[tuple[int, str]] = []
        self._folders: dict[str, None] = {}

    def file(self, handle: int, path: str) -> None:
        """Take an open file over: it is flushed and closed later."""
        start_writing(handle)
        self._files.append((handle, path))
        if len(self._files) >= _MOST_OPEN:
            self._flush_files()

    def folder(self, path: str) -> None:
        """Flush a folder's entries later, once for all the files in it."""
        self._folders.setdefault(path)

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
            StorageError: Something could not be written.
        """
        self._flush_files()
        folders, self._folders = self._folders, {}
        for folder in folders:
            flush_folder(folder)

    def forget(self) -> None:
        """Nothing needs to be on disk any more."""
        files, self._files, self._folders = self._files, [], {}
        for handle, _ in files:
            os.close(handle)

    def _flush_files(self) -> None:
        files, self._files = self._files, []
        left = iter(files)
        try:
            for handle, path in left:
                with Translated("write", path):
                    try:
                        os.fsync(handle)
                    finally:
                        os.close(handle)
        finally:
            for handle, _ in left:
                os.close(handle)


def start_writing(handle: int) -> None:
    """Have the disk begin with a file that is flushed later, together with others."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def flush_folder(path: str) -> None:
    """Have a folder's entries on disk."""
    with Translated("write", path):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
