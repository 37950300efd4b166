"""Copying the files that a table's versions need, each once; what is there already is not copied again."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.config import get_config
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.metastore.files import digests
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.paths import relative_to
from deltalakedb.storage.store import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalakedb.metastore.values import Table
    from deltalakedb.storage.store import Store
    from deltalakedb.transfer.log_copies import LogToCopy

#: copies that may be under way or done before their outcomes are looked at
_WAITING = 32

#: bytes that are compared at a time
_BLOCK = 8 * 1024 * 1024

DataMode: TypeAlias = Literal["copy", "link", "none"]


@dataclass(slots=True)
class Copied:
    """What was copied."""

    files: int = 0
    size: int = 0
    outside: int = 0
    gone: int = 0


def copy_files(
    log: LogToCopy,
    goal: Store,
    *,
    mode: DataMode,
    progress: Callable[[int, int], None] | None,
) -> Copied:
    """Copy every file that a version of a log names, with its deletion vectors and change data.

    `count_files` is what it would do.

    Raises:
        LogError: A file of the newest version is gone.
        InvalidArgumentError: Another file lies where one is to be copied to.
    """
    done, table, source = Copied(), log.table, log.source
    far = local_path(source.location) is None or local_path(goal.location) is None
    with ThreadPoolExecutor(get_config().remote.parallel if far else 1) as pool:
        waiting: deque[tuple[str, bool, Future[int]]] = deque()

        def settle(most: int) -> None:
            while len(waiting) > most:
                _count(done, table, *waiting.popleft())
                if progress is not None and done.files % 100 == 0:
                    progress(done.files, max(table.head.num_files, done.files))

        for relative, live in _to_copy(log, done):
            waiting.append((relative, live, pool.submit(_copy, source, goal, relative, mode)))
            settle(_WAITING)
        settle(0)
    if progress is not None:
        progress(done.files, done.files)
    return done


def top_level(log: LogToCopy) -> set[str]:
    """The names of files and folders right below the root that a copy has."""
    return {relative.partition("/")[0] for relative, _ in _to_copy(log, Copied())}


def count_files(log: LogToCopy, goal: Store) -> Copied:
    """What `copy_files` would copy, from listings of both places.

    Raises:
        LogError, InvalidArgumentError: As `copy_files`; that files of one size differ is found by copying.
    """
    done = Copied()
    sizes = {meta.path: meta.size for meta in log.source.list(recursive=True)}
    there = {meta.path: meta.size for meta in goal.list(recursive=True)}
    for path, live in _to_copy(log, done):
        if (size := sizes.get(path)) is None:
            _gone(done, log.table, path, live)
        elif there.get(path, size) != size:
            raise _occupied(goal, path)
        else:
            done.size += size
            done.files += 1
    return done


def _to_copy(log: LogToCopy, done: Copied) -> Iterator[tuple[str, bool]]:
    """Paths below the root, each once, and whether the newest version needs them."""
    seen: set[str] = set()
    for path, live in _needed(log):
        # an absolute path into the table would still name the old place
        relative = None if _is_absolute(path) else relative_to(log.table.location, path)
        if relative is None:
            done.outside += 1
            continue
        if relative in seen:
            continue
        seen.add(relative)
        yield relative, live


def _count(done: Copied, table: Table, path: str, live: bool, copied: Future[int]) -> None:
    try:
        done.size += copied.result()
        done.files += 1
    except StorageMissingError:
        _gone(done, table, path, live)


def _gone(done: Copied, table: Table, path: str, live: bool) -> None:
    if live:
        raise LogError(
            f"the data file {path} of the newest version is gone",
            table=table.name,
            version=table.head.version,
            suggestion="restore it from a copy, or export with data='none'",
        )
    done.gone += 1


def _needed(log: LogToCopy) -> Iterator[tuple[str, bool]]:
    """Paths as the log spells them, and whether the newest version needs them."""
    table = log.table
    for rows in digests.interval_rows(log.database, table.table_id):
        for row in rows:
            _, _, since, until, tombstone, path, *_ = row
            buried = since == until and tombstone
            if buried or (until is not None and until <= log.first) or since > table.head.version:
                continue
            live = until is None or until > table.head.version
            yield path, live
            if row[14] is not None:
                vector = dv_path(DeletionVector.from_dict(decode_json(row[14])))
                if vector is not None:
                    yield vector, live
    for path in log.change_files():
        yield path, False


def _is_absolute(path: str) -> bool:
    return "://" in path or path.startswith(("/", "file:"))


def _copy(source: Store, goal: Store, path: str, mode: DataMode) -> int:
    """Copy or link one file; its size."""
    meta = source.head(path)
    here, there = local_path(source.location), local_path(goal.location)
    if here is None:
        with tempfile.TemporaryDirectory(prefix="deltalakedb-export-") as folder:
            fetched = Path(folder) / "file"
            source.fetch(path, fetched)
            _put(fetched, goal, path)
    elif mode != "link" or there is None or not _link(here / path, there / path):
        _put(here / path, goal, path)
    return meta.size


def _put(file: Path, goal: Store, path: str) -> None:
    """Copy a file; what an earlier attempt left is fine, and anything else stays as it is."""
    if not goal.put_file(path, file) and not _is_same(file, goal, path):
        raise _occupied(goal, path)


def _occupied(goal: Store, path: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"another file lies at {goal.location}/{path}; nothing was overwritten",
        suggestion="move it away, or choose an empty place",
    )


def _link(source: Path, goal: Path) -> bool:
    """Make a hard link; False where that is not possible, or where there is another file."""
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, goal)
    except OSError:  # another file system, one without links, or a file that is there
        return _is_one(source, goal)
    return True


def _is_one(source: Path, goal: Path) -> bool:
    try:
        return source.samefile(goal)
    except OSError:
        return False


def _is_same(file: Path, goal: Store, path: str) -> bool:
    """Whether a file that was there has the same bytes."""
    try:
        if goal.head(path).size != file.stat().st_size:
            return False
        with file.open("rb") as content:
            at = 0
            while block := content.read(_BLOCK):
                if goal.get_range(path, at, len(block)) != block:
                    return False
                at += len(block)
    except StorageUnavailableError:
        raise
    except StorageError:  # a folder, or a link that leads nowhere
        return False
    return True
