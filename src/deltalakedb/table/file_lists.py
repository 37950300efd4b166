"""Whole file lists as this process has read them.

A version never changes, so its list is kept by table and version, up to a number of bytes that a setting
gives. The list of a newer version is made from that of an older one and what changed between them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa

from deltalakedb.metastore import commits, files
from deltalakedb.metastore.engines.base import arrow_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import OpenTable

#: files from which on a list of whole actions is read in pages and not kept
STREAMED_FROM: Final = 100_000
#: memory of one column of one chunk beside its values, as measured: Arrow's objects, and buffers' rounding
_CHUNK_BYTES: Final = 1_800
#: pieces of a list that is made from older ones before they are laid together
_MOST_CHUNKS: Final = 64


class _Which(NamedTuple):
    """A table that no other can be taken for: not one of the same name, nor one of a restored database."""

    table_id: int
    created_at: int
    metadata_id: str
    exchanges: int


@dataclass(frozen=True, slots=True)
class _Key:
    table: _Which
    columns: tuple[str, ...]
    version: int
    timestamp: int  # a version that was taken back and made anew has another


class FileLists:
    """Lists of one catalog, the least recently used forgotten first.

    Args:
        limit: The bytes that all of them may take.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lists: OrderedDict[_Key, pa.Table] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> pa.Table | None:
        """The list of a version."""
        with self._lock:
            if (found := self._lists.get(key)) is not None:
                self._lists.move_to_end(key)
            return found

    def newest_before(self, key: _Key) -> _Key | None:
        """The newest earlier version of the same list."""
        with self._lock:
            earlier = [
                k
                for k in self._lists
                if (k.table, k.columns) == (key.table, key.columns) and k.version < key.version
            ]
        return max(earlier, key=lambda k: k.version, default=None)

    def put(self, key: _Key, found: pa.Table) -> None:
        """Keep a list, where it leaves room for others."""
        size = held_bytes(found)
        with self._lock:
            if size > self._limit // 2 or key in self._lists:
                return
            self._lists[key] = found
            self._size += size
            while self._size > self._limit:
                self._size -= held_bytes(self._lists.popitem(last=False)[1])

    @property
    def size_bytes(self) -> int:
        """The bytes that are taken."""
        return self._size

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._lists.clear()
            self._size = 0


def held_bytes(found: pa.Table) -> int:
    """The memory that a list takes: of a short one, the objects around the values are most of it."""
    chunks: int = sum(column.num_chunks for column in found.columns)
    return int(found.nbytes) + chunks * _CHUNK_BYTES


_of_databases: WeakKeyDictionary[Database, FileLists] = WeakKeyDictionary()
_lock = threading.Lock()


def lists_of(database: Database) -> FileLists:
    """The lists of a catalog."""
    with _lock:
        if (found := _of_databases.get(database)) is None:
            found = _of_databases[database] = FileLists(database.engine.config.cache.snapshot_bytes)
        return found


def listed(database: Database, opened: OpenTable, columns: Sequence[str]) -> pa.Table:
    """Columns of every file of a version, from memory where they are there."""
    wanted = with_order(columns)
    snapshot, kept = opened.snapshot, lists_of(database)
    table = opened.table
    which = _Which(table.table_id, table.created_at, snapshot.metadata.id, database.exchanges)
    key = _Key(which, wanted, snapshot.version, snapshot.timestamp)
    found = kept.get(key)
    if found is None:
        found = _from_earlier(database, opened, key, kept)
        if found is None:
            found = newest_first(files.scan_files(database, opened, wanted))
        kept.put(key, found)
    return found.select(list(columns))


def with_order(columns: Sequence[str]) -> tuple[str, ...]:
    """Columns, and those that say in which order the files go."""
    return tuple(dict.fromkeys((*columns, "add_version", "file_id")))


def newest_first(found: pa.Table) -> pa.Table:
    """Files in the order in which a log is read: the newest commit first, each as it was written.

    Long lists, which are not held but read in pages elsewhere, stay as the database gives them.
    """
    if not 1 < found.num_rows <= STREAMED_FROM:
        return found
    return found.sort_by([("add_version", "descending"), ("file_id", "ascending")])


def _from_earlier(database: Database, opened: OpenTable, key: _Key, kept: FileLists) -> pa.Table | None:
    """The list of a version from an earlier one, where that still is what it was."""
    base = kept.newest_before(key)
    before = None if base is None else kept.get(base)
    if base is None or before is None:
        return None
    row = commits.one(database, opened.table, base.version)
    if row is None or row.timestamp != base.timestamp:
        return None
    new, lost = files.files_since(database, opened, base.version, key.columns)
    if lost:
        ids = before.column("file_id").to_pylist()
        before = before.filter(arrow_array([number not in lost for number in ids], pa.bool_()))
    found = pa.concat_tables([newest_first(new), before])
    return found.combine_chunks() if found.column(0).num_chunks > _MOST_CHUNKS else found
