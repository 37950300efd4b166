"""Where an open table's answers come from: SQL, the log before SQL's first version, or a transaction."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa

from deltalakedb.delta_log.listing import newest_at
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import ArgumentRangeError, ArgumentTypeError, LogError, VersionMissingError
from deltalakedb.metastore import commits, files, snapshots
from deltalakedb.metastore.engines.base import arrow_array
from deltalakedb.protocol.actions import Add, Metadata, Protocol, Remove, Txn
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import check_readable, check_schema
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.read_set import NOTHING, ReadSet
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.protocol.actions import Action, FileKey
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.protocol.txn_log import Commit

#: no version and no limit reaches it: databases count in 64 bits
LARGEST: Final = 2**63


class Source(ABC):
    """Answers about one version of a table."""

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The version's metadata and protocol."""

    @abstractmethod
    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Columns of the files that may hold what a predicate asks for."""

    @abstractmethod
    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions."""

    @abstractmethod
    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to this version, newest first."""

    @abstractmethod
    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""

    def committed_version(self, app_id: str) -> int | None:
        """An application's version as others see it, without what a transaction did itself."""
        return self.txn_version(app_id)

    def num_files(self) -> int:
        """How many files there are, without depending on what is in them."""
        with self.without_tracking():
            return int(self.scan(("path",)).num_rows)

    def num_records(self) -> int:
        """The number of rows according to the statistics."""
        return sum(n for n in self.scan(("num_records",)).column(0).to_pylist() if n is not None)

    @property
    def schema_changed(self) -> bool:
        """Whether a transaction changed the schema, so that its predicates mean nothing to the base."""
        return False

    def without_tracking(self) -> AbstractContextManager[None]:
        """Look at files without depending on them: a transaction does not note them as read."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class SqlSource(Source):
    """Everything from the database."""

    database: Database
    opened: OpenTable

    @property
    def snapshot(self) -> Snapshot:
        """The version's metadata and protocol."""
        return self.opened.snapshot

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Files, pruned inside the database; a whole list is read once and kept."""
        if where is None:
            return listed(self.database, self.opened, columns)
        found = files.scan_files(self.database, self.opened, with_order(columns), where=where)
        return newest_first(found).select(list(columns))

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions."""
        return (files.add_from_row(r) for b in self._batches(where) for r in b.to_pylist())

    def _batches(self, where: Expr | None) -> Iterator[pa.RecordBatch]:
        """Files, in pages where a whole list is too long to be held."""
        if where is None and self.opened.table.head.num_files > STREAMED_FROM:
            return files.stream_files(self.database, self.opened, columns=files.ADD_COLUMNS)
        return iter(self.scan(files.ADD_COLUMNS, where).to_batches(max_chunksize=10_000))

    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to this version, newest first."""
        rows = commits.history(
            self.database, self.opened.table, upto=self.opened.snapshot.version, limit=limit
        )
        return [row.commit() for row in rows]

    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""
        found = snapshots.txn(self.database, self.opened.table, self.opened.snapshot.version, app_id)
        return None if found is None else found.version

    def num_files(self) -> int:
        """How many files there are, from the table's counters."""
        return files.totals(self.database, self.opened)[0]

    def num_records(self) -> int:
        """The number of rows according to the statistics, from the table's counters."""
        return files.totals(self.database, self.opened)[2]


class LogSource(Source):
    """A version that only `_delta_log` still knows."""

    def __init__(self, reader: FileTxnLogReader, version: int) -> None:
        self._reader = reader
        self._snapshot = reader.snapshot(version)

    @property
    def snapshot(self) -> Snapshot:
        """The version's metadata and protocol."""
        return self._snapshot

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Files of the replayed log, pruned here."""
        schema = pa.schema([files.FILE_SCHEMA.field(c) for c in columns])
        return pa.Table.from_pylist([add_row(a) for a in self.adds(where)], schema=schema)

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions."""
        found = self._reader.files(self.snapshot.version)
        if where is None:
            return found
        schema = parse_schema(self.snapshot.metadata.schema_string)
        files = FileFilter(to_physical(where, schema), column_types(schema))
        return (a for a in found if files.may_match(parse_stats(a.stats), a.partition_values))

    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to this version, newest first."""
        older = [c for c in self._reader.history() if c.version <= self.snapshot.version]
        return older[:limit]

    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""
        found = self._reader.txns(self.snapshot.version).get(app_id)
        return None if found is None else found.version


def check_version(version: object) -> int:
    """A version as an int; what cannot be one is refused."""
    number = whole_number(version)
    if number is None:
        raise ArgumentTypeError(f"a version is a whole number, not {version!r}")
    if not 0 <= number < LARGEST:
        raise ArgumentRangeError(f"a version is a whole number from 0 to 2⁶³, not {version}")
    return number


def from_log(
    table: Table, version: int | None, error: VersionMissingError, options: Mapping[str, str] | None = None
) -> LogSource:
    """A version older than SQL's first, while the log still holds it; else the error."""
    if version is None or not version < table.head.first_version:
        raise error
    try:
        reader = FileTxnLogReader(table.location, options)
        return LogSource(reader, version)
    except (LogError, VersionMissingError):
        raise error from None


def before_sql(
    table: Table,
    moment: int,
    error: VersionMissingError,
    options: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
) -> int:
    """The newest version at a time before SQL's first, while the log still holds it; else the error.

    As in stock, a time before the first commit means version 0; as in delta-spark it is an error if strict.
    """
    if (first := table.head.first_version) == 0:
        if strict:
            raise error
        return 0
    reader = FileTxnLogReader(table.location, options)
    try:
        older = [v for v in reader.versions() if v < first]
        at = newest_at(older, moment, reader.timestamp_of)
    except (LogError, VersionMissingError):
        raise error from None
    if at is None and (strict or 0 not in older):
        raise error
    return at or 0


def open_older(database: Database, session: Session, name: str, version: int) -> tuple[Table, Source]:
    """A table that a session sees, at a version up to the one that it sees."""
    version = check_version(version)
    source: Source
    try:
        opened = snapshots.open_table(session, name, version)
        source = SqlSource(database, opened)
    except VersionMissingError as error:
        opened = snapshots.open_table(session, name)
        options = database.engine.config.storage_options_for(opened.table.location)
        source = from_log(opened.table, version, error, options)
    check_open(source.snapshot, table=name)
    return opened.table, source


def check_open(snapshot: Snapshot, *, table: str) -> None:
    """Refuse a version that cannot be read rightly."""
    check_readable(snapshot.protocol, table=table)
    check_schema(snapshot.metadata, table=table, version=snapshot.version)


def add_row(add: Add) -> dict[str, Any]:
    """An add action as the columns that a scan of files yields."""
    stats = parse_stats(add.stats)
    vector = add.deletion_vector
    return {
        "path": add.path,
        "dv_id": add.dv_id,
        "size": add.size,
        "modification_time": add.modification_time,
        "data_change": add.data_change,
        "num_records": None if stats is None else stats.num_records,
        "stats": add.stats,
        "partition_values": encode_json(dict(add.partition_values)),
        "tags": None if add.tags is None else encode_json(dict(add.tags)),
        "deletion_vector": None if vector is None else encode_json(vector.to_dict()),
        "base_row_id": add.base_row_id,
        "default_row_commit_version": add.default_row_commit_version,
        "clustering_provider": add.clustering_provider,
        "add_extra": encode_json(dict(add.extra)) if add.extra else None,
    }


class Overlay(Source):
    """A source that shows a transaction its own work, and remembers what was read beneath it.

    Args:
        base: The table at the transaction's snapshot; None for a table that the transaction creates.
        created: The snapshot of a new table.
    """

    def __init__(self, base: Source | None, created: Snapshot | None = None) -> None:
        self._base = base
        self._snapshot = created if base is None else base.snapshot
        self._added: dict[FileKey, Add] = {}
        self._removed: set[FileKey] = set()
        self._txns: dict[str, int] = {}
        self.reads: ReadSet = NOTHING

    @property
    def snapshot(self) -> Snapshot:
        """Metadata and protocol as the transaction has made them."""
        if self._snapshot is None:
            raise LookupError("a new table has no snapshot before its first operation")
        return self._snapshot

    @property
    def schema_changed(self) -> bool:
        """Whether the transaction changed the schema, so that its predicates mean nothing to the base."""
        base = None if self._base is None else self._base.snapshot.metadata.schema_string
        return base is not None and base != self.snapshot.metadata.schema_string

    def apply(self, actions: Sequence[Action]) -> None:
        """Put an operation's actions on top."""
        for action in actions:
            if isinstance(action, Metadata):
                self._snapshot = replace(self.snapshot, metadata=action)
            elif isinstance(action, Protocol):
                self._snapshot = replace(self.snapshot, protocol=action)
            elif isinstance(action, Txn):
                self._txns[action.app_id] = action.version
            elif isinstance(action, Remove) and self._added.pop(action.key, None) is None:
                self._removed.add(action.key)
        for action in actions:
            if isinstance(action, Add):
                self._added[action.key] = action

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Columns of the files that may hold what a predicate asks for."""
        schema = pa.schema([files.FILE_SCHEMA.field(c) for c in columns])
        mine = pa.Table.from_pylist([add_row(a) for a in self._own(where)], schema=schema)
        if self._base is None:
            return mine
        wanted = [*columns, *(c for c in ("path", "dv_id") if c not in columns)]
        where = None if self.schema_changed else where
        found = self._base.scan(wanted, where)
        paths, vectors = found.column("path").to_pylist(), found.column("dv_id").to_pylist()
        pairs = zip(paths, vectors, strict=True) if where is not None or self._removed else ()
        keys = [(canonical_path(p), d) for p, d in pairs]
        self._note(where, iter(keys))
        if self._removed:
            found = found.filter(pa.array([k not in self._removed for k in keys], pa.bool_()))
        return pa.concat_tables([mine, found.select(list(columns))])

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions, the transaction's own first as in a log that is read."""
        yield from self._own(where)
        if self._base is not None:
            beneath = None if self.schema_changed else where
            below = list(self._base.adds(beneath))
            self._note(beneath, (a.key for a in below))
            yield from (a for a in below if a.key not in self._removed)

    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to the transaction's snapshot; its own are still to come."""
        return [] if self._base is None else self._base.history(limit)

    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""
        if (mine := self._txns.get(app_id)) is not None:
            return mine
        return self.committed_version(app_id)

    def committed_version(self, app_id: str) -> int | None:
        """An application's version beneath the transaction, whatever its own operations noted."""
        return None if self._base is None else self._base.txn_version(app_id)

    @contextmanager
    def without_tracking(self) -> Iterator[None]:
        """Look at files without noting them as read."""
        noted = self.reads
        try:
            yield
        finally:
            self.reads = noted

    def _own(self, where: Expr | None) -> list[Add]:
        if where is None or not self._added:
            return list(self._added.values())
        schema = parse_schema(self.snapshot.metadata.schema_string)
        files = FileFilter(to_physical(where, schema), column_types(schema))
        return [a for a in self._added.values() if files.may_match(parse_stats(a.stats), a.partition_values)]

    def _note(self, where: Expr | None, keys: Iterator[FileKey]) -> None:
        if where is None:
            self.reads |= ReadSet(whole=True)
        else:
            self.reads |= ReadSet(predicates=(where,), files=frozenset(keys))


def created(actions: Sequence[Action]) -> Snapshot:
    """A new table as its first operation makes it."""
    metadata = next(a for a in actions if isinstance(a, Metadata))
    protocol = next(a for a in actions if isinstance(a, Protocol))
    return Snapshot(0, 0, protocol, metadata)


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
