"""Sources: an open table reads from the metastore, from `_delta_log`, or from a transaction's overlay."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa

from deltalakedb.delta_log.listing import newest_at
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import LogError, VersionMissingError
from deltalakedb.metastore import commits, files, registry, snapshots
from deltalakedb.metastore.engines.base import Session, arrow_array
from deltalakedb.protocol.actions import Action, Add, FileKey, Remove
from deltalakedb.protocol.features import check_readable, check_schema
from deltalakedb.protocol.json_text import encode_json
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.predicate import Expr, to_physical
from deltalakedb.protocol.read_set import NOTHING, ReadSet
from deltalakedb.protocol.replay import Replay
from deltalakedb.protocol.schema import column_types, parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.protocol.txn_log import Commit, Committed, Snapshot
from deltalakedb.table.arguments import checked_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import OpenTable, Table


class Source(ABC):
    """Reads one version of a table."""

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The version's metadata and protocol."""

    @abstractmethod
    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Columns of the files that may have rows that a predicate matches."""

    @abstractmethod
    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions."""

    @abstractmethod
    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to this version, newest first."""

    @abstractmethod
    def txn_version(self, app_id: str) -> int | None:
        """The newest version in the ``txn`` actions of an application."""

    def committed_version(self, app_id: str) -> int | None:
        """The same without the changes of an open transaction."""
        return self.txn_version(app_id)

    def num_files(self) -> int:
        """The number of files; a transaction does not record this as a read."""
        with self.without_tracking():
            return int(self.scan(("path",)).num_rows)

    def num_records(self) -> int:
        return sum(n for n in self.scan(("num_records",)).column(0).to_pylist() if n is not None)

    @property
    def schema_changed(self) -> bool:
        """Whether a transaction changed the schema, so that its predicates do not apply to the base."""
        return False

    def without_tracking(self) -> AbstractContextManager[None]:
        """Read files without recording that: a transaction does not depend on them."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class SqlSource(Source):
    """A version in the metastore."""

    database: Database
    opened: OpenTable

    @property
    def snapshot(self) -> Snapshot:
        return self.opened.snapshot

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        # a complete list is read once and cached
        if where is None:
            return cached_files(self.database, self.opened, columns)
        found = files.scan_files(self.database, self.opened, with_order(columns), where=where)
        return newest_first(found).select(list(columns))

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        batches: Iterable[pa.RecordBatch]
        if where is None and self.opened.table.head.num_files > STREAMED_FROM:
            batches = files.stream_files(self.database, self.opened, columns=files.ADD_COLUMNS)
        else:
            batches = self.scan(files.ADD_COLUMNS, where).to_batches(max_chunksize=10_000)
        return (files.add_from_row(r) for b in batches for r in b.to_pylist())

    def history(self, limit: int | None) -> Sequence[Commit]:
        rows = commits.history(self.database, self.opened.table, upto=self.snapshot.version, limit=limit)
        return [row.commit() for row in rows]

    def txn_version(self, app_id: str) -> int | None:
        found = snapshots.txn(self.database, self.opened.table, self.snapshot.version, app_id)
        return None if found is None else found.version

    def num_files(self) -> int:
        return files.totals(self.database, self.opened)[0]

    def num_records(self) -> int:
        return files.totals(self.database, self.opened)[2]


class LogSource(Source):
    """A version from before the metastore's first, in `_delta_log`."""

    def __init__(self, reader: FileTxnLogReader, version: int) -> None:
        self._reader = reader
        self._snapshot = reader.snapshot(version)

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        return _file_table(self.adds(where), columns)

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        return _candidates(self._reader.files(self.snapshot.version), where, self.snapshot)

    def history(self, limit: int | None) -> Sequence[Commit]:
        return [c for c in self._reader.history() if c.version <= self.snapshot.version][:limit]

    def txn_version(self, app_id: str) -> int | None:
        found = self._reader.txns(self.snapshot.version).get(app_id)
        return None if found is None else found.version


def open_source(
    database: Database,
    name: str,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    session: Session | None = None,
) -> tuple[Table, Source]:
    """Open a table at a version (None: the newest), in the log if it is older than the metastore's first."""
    if version is not None:
        version = checked_number(version, "version")
    try:
        opened = snapshots.open_table(session or database, name, version)
        return opened.table, SqlSource(database, opened)
    except VersionMissingError as error:
        row = registry.find(session or database, name)
        if version is None or version >= row.head.first_version:
            raise
        try:
            return row, LogSource(_log_of(database, row, storage_options), version)
        except (LogError, VersionMissingError):
            raise error from None


def version_at(
    database: Database,
    row: Table,
    moment: int,
    storage_options: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
) -> int:
    """The newest version at a time, in the log if it is older than the metastore's first.

    A time before the first commit means version 0, as in stock; with ``strict`` it raises
    VersionMissingError, as in delta-spark.
    """
    try:
        return snapshots.version_at(database, row, moment)
    except VersionMissingError as error:
        if (first := row.head.first_version) == 0:
            if strict:
                raise
            return 0
        reader = _log_of(database, row, storage_options)
        try:
            older = [v for v in reader.versions() if v < first]
            at = newest_at(older, moment, reader.timestamp_of)
        except (LogError, VersionMissingError):
            raise error from None
        if at is None and (strict or 0 not in older):
            raise
        return at or 0


def _log_of(database: Database, row: Table, options: Mapping[str, str] | None) -> FileTxnLogReader:
    return FileTxnLogReader(row.location, database.engine.config.storage_options_for(row.location, options))


def check_open(snapshot: Snapshot, *, table: str) -> None:
    check_readable(snapshot.protocol, table=table)
    check_schema(snapshot.metadata, table=table, version=snapshot.version)


def _candidates(adds: Iterable[Add], where: Expr | None, snapshot: Snapshot) -> Iterator[Add]:
    """The files that may have rows that a predicate matches."""
    if where is None:
        return iter(adds)
    schema = parse_schema(snapshot.metadata.schema_string)
    pruning = FileFilter(to_physical(where, schema), column_types(schema))
    return (a for a in adds if pruning.may_match(parse_stats(a.stats), a.partition_values))


def _file_table(adds: Iterable[Add], columns: Sequence[str]) -> pa.Table:
    schema = pa.schema([files.FILE_SCHEMA.field(c) for c in columns])
    return pa.Table.from_pylist([_file_row(a) for a in adds], schema=schema)


#: columns of files that are attributes of an add action
_ATTRIBUTES: Final = ("path", "dv_id", "size", "modification_time", "data_change", "stats", "base_row_id")


def _file_row(add: Add) -> dict[str, Any]:
    stats, vector = parse_stats(add.stats), add.deletion_vector
    return {name: getattr(add, name) for name in _ATTRIBUTES} | {
        "default_row_commit_version": add.default_row_commit_version,
        "clustering_provider": add.clustering_provider,
        "num_records": None if stats is None else stats.num_records,
        "partition_values": encode_json(dict(add.partition_values)),
        "tags": None if add.tags is None else encode_json(dict(add.tags)),
        "deletion_vector": None if vector is None else encode_json(vector.to_dict()),
        "add_extra": encode_json(dict(add.extra)) if add.extra else None,
    }


class Overlay(Source):
    """A transaction's view of a table: its own changes on top of a source, whose reads are recorded.

    The base is the table at the transaction's snapshot; None for a table that the transaction creates.
    """

    def __init__(self, base: Source | None) -> None:
        self._base = base
        self._snapshot = None if base is None else base.snapshot
        self._changes = Replay()
        self._removed: set[FileKey] = set()
        self.reads: ReadSet = NOTHING

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise LookupError("a new table has no snapshot before its first operation")
        return self._snapshot

    @property
    def schema_changed(self) -> bool:
        base = None if self._base is None else self._base.snapshot.metadata.schema_string
        return base is not None and base != self.snapshot.metadata.schema_string

    def apply(self, actions: Sequence[Action]) -> None:
        made = self._changes.commit(actions)
        self._removed |= {a.key for a in actions if isinstance(a, Remove)}
        if (old := self._snapshot) is None:
            self._snapshot = Snapshot(0, 0, *made.require())
        elif made.protocol is not None or made.metadata is not None:
            self._snapshot = replace(
                old, protocol=made.protocol or old.protocol, metadata=made.metadata or old.metadata
            )

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        mine = _file_table(self._own(where), columns)
        if self._base is None:
            return mine
        wanted = [*columns, *(c for c in ("path", "dv_id") if c not in columns)]
        where = None if self.schema_changed else where
        found = self._base.scan(wanted, where)
        paths, vectors = found.column("path").to_pylist(), found.column("dv_id").to_pylist()
        pairs = zip(paths, vectors, strict=True) if where is not None or self._removed else ()
        keys = [(canonical_path(p), d) for p, d in pairs]
        self._record_read(where, keys)
        if self._removed:
            found = found.filter(pa.array([k not in self._removed for k in keys], pa.bool_()))
        return pa.concat_tables([mine, found.select(list(columns))])

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        yield from self._own(where)  # the newest first, as in a log
        if self._base is not None:
            beneath = None if self.schema_changed else where
            below = list(self._base.adds(beneath))
            self._record_read(beneath, (a.key for a in below))
            yield from (a for a in below if a.key not in self._removed)

    def history(self, limit: int | None) -> Sequence[Commit]:
        return [] if self._base is None else self._base.history(limit)

    def txn_version(self, app_id: str) -> int | None:
        mine = self._changes.txns.get(app_id)
        return self.committed_version(app_id) if mine is None else mine.version

    def committed_version(self, app_id: str) -> int | None:
        return None if self._base is None else self._base.txn_version(app_id)

    @contextmanager
    def without_tracking(self) -> Iterator[None]:
        before = self.reads
        try:
            yield
        finally:
            self.reads = before

    def _own(self, where: Expr | None) -> list[Add]:
        mine = list(self._changes.files.values())
        return list(_candidates(mine, where, self.snapshot)) if mine else []

    def _record_read(self, where: Expr | None, keys: Iterable[FileKey]) -> None:
        if where is None:
            self.reads |= ReadSet(whole=True)
        else:
            self.reads |= ReadSet(predicates=(where,), files=frozenset(keys))


# ---- the caches of this process ------------------------------------------------------------------------

#: longer lists of whole actions are streamed and not cached
STREAMED_FROM: Final = 100_000
#: measured overhead per column and chunk: Arrow's objects and the padding of buffers
_CHUNK_BYTES: Final = 1_800
#: a list with more chunks is copied into one
_MOST_CHUNKS: Final = 64


class _Key(NamedTuple):
    table: tuple[object, ...]  # differs for tables of the same name and of restored databases
    columns: tuple[str, ...]
    version: int
    timestamp: int  # differs if the version was reverted and recommitted


class FileLists:
    """An LRU cache of the lists of files of one catalog, limited in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lists: OrderedDict[_Key, pa.Table] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def newest(self, key: _Key) -> tuple[_Key, pa.Table] | None:
        """The list of a version, else of the newest one before it."""
        with self._lock:
            earlier = (k for k in self._lists if k[:2] == key[:2] and k.version < key.version)
            best = key if key in self._lists else max(earlier, key=lambda k: k.version, default=None)
            if best is None:
                return None
            self._lists.move_to_end(best)
            return best, self._lists[best]

    def put(self, key: _Key, found: pa.Table) -> None:
        size = memory_size(found)
        with self._lock:
            if size > self._limit // 2 or key in self._lists:
                return
            self._lists[key] = found
            self._size += size
            while self._size > self._limit:
                self._size -= memory_size(self._lists.popitem(last=False)[1])


def memory_size(found: pa.Table) -> int:
    """The memory of a list, with the overhead of its chunks."""
    chunks: int = sum(column.num_chunks for column in found.columns)
    return int(found.nbytes) + chunks * _CHUNK_BYTES


@dataclass(slots=True)
class CatalogCache:
    """What this process caches of a catalog.

    A blind append depends only on a table's schema and protocol, and the commit checks under the lock whether
    these or the table's name have changed. So an append can use a cached table.
    """

    lists: FileLists
    #: tables as they were last appended to
    tables: dict[str, OpenTable] = field(default_factory=dict)
    #: the tables of the last transaction, which the next one likely uses again
    together: frozenset[str] = frozenset()

    def appended(self, opened: OpenTable, done: Committed) -> None:
        """Cache a table after an append, which only changed its version."""
        if len(self.tables) >= _MOST_TABLES:
            self.tables.clear()
        snapshot = replace(opened.snapshot, version=done.version, timestamp=done.committed_at)
        self.tables[opened.table.name] = replace(opened, snapshot=snapshot)

    def transaction(self, names: Sequence[str]) -> None:
        """Record the tables of a transaction, unless they are too many to prefetch."""
        if len(names) <= _MOST_TOGETHER:
            self.together = frozenset(names)


_MOST_TABLES: Final = 256
_MOST_TOGETHER: Final = 32
_caches: WeakKeyDictionary[Database, CatalogCache] = WeakKeyDictionary()


def cache_of(database: Database) -> CatalogCache:
    """The cache of a catalog. It needs no lock: a cache that is lost in a race costs a query."""
    if (found := _caches.get(database)) is None:
        found = CatalogCache(FileLists(database.engine.config.cache.snapshot_bytes))
        _caches[database] = found
    return found


def cached_files(database: Database, opened: OpenTable, columns: Sequence[str]) -> pa.Table:
    snapshot, table, cache = opened.snapshot, opened.table, cache_of(database).lists
    which = (table.table_id, table.created_at, snapshot.metadata.id, database.exchanges)
    key = _Key(which, with_order(columns), snapshot.version, snapshot.timestamp)
    base = cache.newest(key)
    if base is not None and base[0] == key:
        return base[1].select(list(columns))
    found = None if base is None else _advanced(database, opened, key, *base)
    if found is None:
        found = newest_first(files.scan_files(database, opened, key.columns))
    cache.put(key, found)
    return found.select(list(columns))


def with_order(columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*columns, "add_version", "file_id")))


def newest_first(found: pa.Table) -> pa.Table:
    """Files in the order of a log: the newest commit first. Long lists stay as the database returns them."""
    if not 1 < found.num_rows <= STREAMED_FROM:
        return found
    return found.sort_by([("add_version", "descending"), ("file_id", "ascending")])


def _advanced(
    database: Database, opened: OpenTable, key: _Key, base: _Key, before: pa.Table
) -> pa.Table | None:
    """Bring the list of an earlier version up to date; None if that version was reverted."""
    row = commits.one(database, opened.table, base.version)
    if row is None or row.timestamp != base.timestamp:
        return None
    new, lost = files.files_since(database, opened, base.version, key.columns)
    if lost:
        ids = before.column("file_id").to_pylist()
        before = before.filter(arrow_array([number not in lost for number in ids], pa.bool_()))
    found = pa.concat_tables([newest_first(new), before])
    return found.combine_chunks() if found.column(0).num_chunks > _MOST_CHUNKS else found
