"""Commits for an export: from the catalog, else from the table's own log where the digest agrees."""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb.delta_log.commit_file import commit_digest, iter_actions
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import LogCorruptError, StorageMissingError
from deltalakedb.metastore import commits
from deltalakedb.protocol.actions import Cdc
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.storage.store import local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table
    from deltalakedb.storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogToCopy:
    """The commits that an export writes.

    Attributes:
        database: The catalog.
        table: The table.
        source: Where the table lies.
        first: The version that the log begins with.
        bare: True where there is no commit of that version to be had, and a checkpoint stands for it.
        in_log: Versions whose bytes only the table's own log has.
    """

    database: Database
    table: Table
    source: Store
    first: int
    bare: bool
    in_log: frozenset[int]

    @classmethod
    def find(cls, database: Database, table: Table, source: Store, *, newest_only: bool) -> LogToCopy:
        """The longest log that ends with the newest version and can be had whole."""
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
                self._copy(goal, version, row)
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

    def _copy(self, goal: Store, version: int, row: CommitRow | None) -> None:
        """Copy a commit of any size; what is copied is what is checked."""
        path = commit_path(version)
        with tempfile.TemporaryDirectory(prefix="deltalakedb-export-") as folder:
            fetched = Path(folder) / "commit"
            self.source.fetch(path, fetched)
            if not _is_same(fetched, row):
                raise LogCorruptError(
                    f"{path} has changed since the catalog took it in",
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


def _is_same(file: Path, row: CommitRow | None) -> bool:
    return row is not None and commit_digest(open_store(file.parent), file.name).sha256 == row.sha256
