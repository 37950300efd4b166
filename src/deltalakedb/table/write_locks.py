"""Locks that show which new files of a local table may still be committed.

From before its first new file until its commit is decided, an operation holds a shared lock on the table's
root, which ends with its process. Scratch tables, and operations on file systems without such locks, have a
folder `_deltasql/<name>` under the root instead. Its name has the start time and the process, so that a
clean-up knows which files may still be committed, and which folders were left behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from deltalakedb.storage.local import storage_error
from deltalakedb.storage.store import is_local

#: under the table's root, so that new files move by a rename
WORK_FOLDER: Final = "_deltasql"
#: how often another writer may remove the shared work folder before ours is made in it
_TIDY_RACES: Final = 20
_NAME: Final = re.compile(r"(\d{13})-([0-9a-f]{12})-(\d+)-[0-9a-f]{32}")
#: an operation of another machine that takes longer than this is considered dead
STALE_MS: Final = 7 * 86_400_000
#: how long to wait for a moment in which no operation holds a root
_PATIENCE_S: Final = 0.5
#: clocks of two machines, or of a disk and its machine, differ by less
_SKEW_MS: Final = 300_000


@dataclass(frozen=True, slots=True)
class OperationFolder:
    """The folder of one operation."""

    path: Path
    #: when the operation began, in epoch milliseconds; none of its files is older
    since: int
    #: whether it may still commit
    alive: bool
    #: whether the name is one of ours: no other folder is ever deleted
    ours: bool = True


def work_name() -> str:
    return f"{_now():013d}-{_machine()}-{os.getpid()}-{uuid.uuid4().hex}"


def make_folder(folder: Path) -> None:
    """Make a work folder and those above it, which another writer may be removing."""
    for _ in range(_TIDY_RACES):
        # another writer removes the folder above meanwhile
        with suppress(FileNotFoundError, FileExistsError):
            folder.mkdir(parents=True)
            return
    folder.mkdir(parents=True)


def remove_folder(folder: Path) -> None:
    """Remove a work folder; links in it are unlinked, never followed."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty: another writer is at work
        folder.parent.rmdir()


class WriteLocks:
    """Locks that show, until the block ends, that new files under some roots are not committed yet.

    For disks only: object stores have no such locks.
    """

    def __init__(self) -> None:
        self._held: dict[str, int | Path] = {}

    def at(self, root: str) -> None:
        if root in self._held or not is_local(root):
            return
        if (held := _hold(root)) is not None:
            self._held[root] = held
            return
        folder = Path(root) / WORK_FOLDER / work_name()
        try:
            make_folder(folder)
        except OSError as error:
            raise storage_error(error, "create", folder) from error
        self._held[root] = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        while self._held:
            held = self._held.popitem()[1]
            if isinstance(held, int):
                os.close(held)
            else:
                remove_folder(held)


def write_lock(root: str) -> WriteLocks:
    """Hold the lock of one root from now until the block ends."""
    locks = WriteLocks()
    locks.at(root)
    return locks


def operation_folders(root: str) -> list[OperationFolder]:
    """The folders of operations on the table at a root, alive or not; links do not count."""
    found = []
    above = Path(root) / WORK_FOLDER
    if above.is_symlink():
        return []
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(above):
            if not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(FileNotFoundError):
                found.append(_parsed(Path(entry.path), entry.name, entry.stat().st_mtime_ns // 1_000_000))
    return sorted(found, key=lambda folder: folder.path)


def oldest_pending_write(root: str) -> int | None:
    """Start time of the oldest write that has not committed yet, or None."""
    if not is_local(root):
        return None
    began = [folder.since for folder in operation_folders(root) if folder.alive]
    if _is_held(root):
        # the lock does not show when the operation began
        began.append(_now() - STALE_MS)
    return min(began, default=None)


def _hold(root: str) -> int | None:
    """The root, opened with a shared lock; None if the file system has none."""
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None  # making the folder reports what is wrong, or creates the root
    try:
        # a clean-up holds it alone, but only for a moment
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError:
        os.close(handle)
        return None
    return handle


def _is_held(root: str) -> bool:
    """Whether an operation holds the root's lock, after waiting for short ones."""
    if not Path(root).is_dir():
        return False
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return True
                time.sleep(_PATIENCE_S / 100)
            except OSError:
                return False  # the file system has no such locks
            else:
                return False
    finally:
        os.close(handle)


def _parsed(path: Path, name: str, modified: int) -> OperationFolder:
    match = _NAME.fullmatch(name)
    # the clock of the other machine is ahead, so the start time in the name is of no use
    since = int(match[1]) if match and int(match[1]) <= modified + _SKEW_MS else modified - STALE_MS
    if match and match[2] == _machine():
        return OperationFolder(path, since - _SKEW_MS, alive=_running(int(match[3])))
    alive = _now() - max(since, modified) < STALE_MS
    return OperationFolder(path, since - _SKEW_MS, alive=alive, ours=match is not None)


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@lru_cache(maxsize=1)
def _machine() -> str:
    """One text for all processes that see each other by their ids: a boot of a machine, or a container."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _now() -> int:
    return time.time_ns() // 1_000_000
