"""What an export copies: a table's commits, and the files that its versions need, each once."""

from __future__ import annotations

import logging
import os
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from deltalakedb.delta_log.commit_file import commit_digest, iter_actions
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.metastore import commits
from deltalakedb.metastore.files import digests
from deltalakedb.protocol.actions import Cdc, DeletionVector
from deltalakedb.protocol.codec import decode_commit, decode_json
from deltalakedb.protocol.dv import dv_path
from deltalakedb.protocol.paths import relative_to
from deltalakedb.settings import get_config
from deltalakedb.storage.store import local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)

#: copies that run or wait for their outcome to be read
_WAITING = 32

#: bytes that are compared at a time
_BLOCK = 8 * 1024 * 1024

DataMode: TypeAlias = Literal["copy", "link", "none"]


# ---- commits ----


@dataclass(frozen=True, slots=True)
class LogToCopy:
    """The commits that an export writes.

    Attributes:
        database: The catalog.
        table: The table.
        source: The table's root.
        first: The version that the log begins with.
        bare: Whether there is no commit of that version, so that a checkpoint takes its place.
        in_log: Versions whose bytes only the table's own log has; their digests agree.
    """

    database: Database
    table: Table
    source: Store
    first: int
    bare: bool
    in_log: frozenset[int]

    @classmethod
    def find(cls, database: Database, table: Table, source: Store, *, newest_only: bool) -> LogToCopy:
        """The longest log that ends with the newest version and has no gap."""
        oldest = table.head.version if newest_only else table.head.first_version
        in_log: set[int] = set()
        for version in commits.without_bytes(database, table):
            if version < oldest:
                break
            if not _is_in_log(source, commits.one(database, table, version)):
                if version > oldest:
                    logger.warning(
                        "the exported log of %s begins with version %d, not %d: the commit of that version "
                        "is neither in the catalog nor, unchanged, in _delta_log",
                        table.name,
                        version,
                        oldest,
                    )
                return cls(database, table, source, version, True, frozenset(in_log))
            in_log.add(version)
        bare = commits.one(database, table, oldest) is None
        return cls(database, table, source, oldest, bare, frozenset(in_log))

    def write(self, goal: Store) -> None:
        """Write every commit, byte for byte and with its time."""
        for version in range(self.first + self.bare, self.table.head.version + 1):
            row = commits.one(self.database, self.table, version)
            if version in self.in_log:
                self._copy_commit(goal, version, row)
            else:
                data = commits.commit_bytes(self.database, self.table, version)
                goal.put_new(commit_path(version), data, mtime_ms=None if row is None else row.timestamp)

    def change_files(self) -> Iterator[str]:
        """The paths of the files with change data that the commits name."""
        for version in range(self.first + self.bare, self.table.head.version + 1):
            if version in self.in_log:
                for action in iter_actions(self.source, commit_path(version)):
                    if isinstance(action, Cdc):
                        yield action.path
                continue
            data = commits.commit_bytes(self.database, self.table, version)
            if b'"cdc"' in data:
                for action in decode_commit(data, source=f"version {version}"):
                    if isinstance(action, Cdc):
                        yield action.path

    def _copy_commit(self, goal: Store, version: int, row: CommitRow | None) -> None:
        """Copy a commit of any size; the copy is what is checked."""
        path = commit_path(version)
        with tempfile.TemporaryDirectory(prefix="deltalakedb-export-") as folder:
            fetched = Path(folder) / "commit"
            self.source.fetch(path, fetched)
            if not _has_digest(fetched, row):
                raise LogCorruptError(
                    f"{path} has changed since it was imported",
                    table=self.table.name,
                    version=version,
                    suggestion="restore the file from a copy, or export with history='newest'",
                )
            is_new = goal.put_file(path, fetched)
        there = local_path(goal.location)
        if is_new and there is not None and row is not None:
            os.utime(there / path, (row.timestamp / 1000, row.timestamp / 1000))


def _is_in_log(source: Store, row: CommitRow | None) -> bool:
    """Whether the table's own log has a commit as the catalog knows it."""
    if row is None or row.sha256 is None:
        return False  # imported from a checkpoint: there never were bytes
    path = commit_path(row.version)
    try:
        return source.head(path).size == row.size_bytes and commit_digest(source, path).sha256 == row.sha256
    except StorageMissingError:
        return False


def _has_digest(file: Path, row: CommitRow | None) -> bool:
    return row is not None and commit_digest(open_store(file.parent), file.name).sha256 == row.sha256


# ---- data files ----


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

    Raises:
        LogError: A file of the newest version is gone.
        InvalidArgumentError: Another file has the place of one that is to be copied.
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
    """Copy a file, unless an earlier attempt did; another file in its place is an error."""
    if not goal.put_file(path, file) and not _is_same(file, goal, path):
        raise _occupied(goal, path)


def _occupied(goal: Store, path: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"there is another file at {goal.location}/{path}; nothing was overwritten",
        suggestion="move it away, or choose an empty place",
    )


def _link(source: Path, goal: Path) -> bool:
    """Make a hard link; False if that is not possible, or if there is another file."""
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
