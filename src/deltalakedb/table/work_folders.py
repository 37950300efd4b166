"""Folders that scratch tables are made in: under a local table's root, or in the temporary folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from deltalakedb.table.in_flight import WORK_FOLDER, make_folder, remove_folder, work_name

_FETCHED: Final = "deltasql-fetched-"
_LOCK: Final = ".held"


class WorkFolder(Protocol):
    """A folder that is cleared away after use."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    def close(self) -> None:
        """Delete it with all that is in it; links are unlinked, never followed."""
        ...


class BesideFiles:
    """A folder under a local table's root, so that new files move by a rename."""

    def __init__(self, root: str) -> None:
        self.path = Path(root) / WORK_FOLDER / work_name()
        self._new_root = None if Path(root).exists() else Path(root)
        make_folder(self.path)

    def close(self) -> None:
        """Delete it, and the folders above it that hold nothing else."""
        remove_folder(self.path)
        if self._new_root is not None:
            with suppress(OSError):  # not empty: the table was made
                self._new_root.rmdir()


class Temporary:
    """A folder in the system's temporary folder: nothing is written near the table."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="deltasql-"))

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)


class Fetched:
    """A folder for fetched files. One that a killed process left behind is cleared away by the next.

    Args:
        parent: Where to make it; by default the system's temporary folder.
    """

    def __init__(self, parent: str | None) -> None:
        above = Path(parent or tempfile.gettempdir())
        above.mkdir(parents=True, exist_ok=True)
        _sweep(above)
        self.path = Path(tempfile.mkdtemp(prefix=_FETCHED, dir=above))
        # locked before it has its name: whoever sees the name and gets the lock knows that nobody is there
        unnamed = self.path / f"{_LOCK}-new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK)

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)


def _sweep(above: Path) -> None:
    """Delete folders of processes that are gone."""
    for folder in above.glob(f"{_FETCHED}*"):
        with contextlib.suppress(OSError):  # not ours, or swept by somebody else
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
