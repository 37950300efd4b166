"""Where an opened table's answers come from: SQL, or the file log for versions older than SQL's first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from deltalakedb.delta_log.listing import newest_at
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import ArgumentRangeError, ArgumentTypeError, LogError, VersionMissingError
from deltalakedb.metastore import commits, files, snapshots
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import check_readable, check_schema
from deltalakedb.protocol.predicate import to_physical
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import column_types
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.table.file_lists import STREAMED_FROM, listed, newest_first, with_order
from deltalakedb.table.whole_numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.values import OpenTable, Table
    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.log import Commit, Snapshot
    from deltalakedb.protocol.predicate import Expr


#: no version and no limit reaches it: databases count in 64 bits
LARGEST: Final = 2**63


class Source(Protocol):
    """Answers about one version of a table."""

    @property
    def snapshot(self) -> Snapshot:
        """The version's metadata and protocol."""
        ...

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Columns of the files that may hold what a predicate asks for."""
        ...

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions."""
        ...

    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to this version, newest first."""
        ...

    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""
        ...

    def num_records(self) -> int:
        """The rows that statistics tell."""
        ...


@dataclass(frozen=True, slots=True)
class SqlSource:
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

    def num_records(self) -> int:
        """The rows that statistics tell, from the table's counters."""
        return files.totals(self.database, self.opened)[2]


@dataclass(frozen=True, slots=True)
class LogSource:
    """A version that only `_delta_log` still knows."""

    reader: FileTxnLogReader
    snapshot: Snapshot

    def scan(self, columns: Sequence[str], where: Expr | None = None) -> pa.Table:
        """Files of the replayed log, pruned here."""
        schema = pa.schema([files.FILE_SCHEMA.field(c) for c in columns])
        return pa.Table.from_pylist([add_row(a) for a in self.adds(where)], schema=schema)

    def adds(self, where: Expr | None = None) -> Iterator[Add]:
        """The same files as add actions."""
        found = self.reader.files(self.snapshot.version)
        if where is None:
            return found
        schema = parse_schema(self.snapshot.metadata.schema_string)
        files = FileFilter(to_physical(where, schema), column_types(schema))
        return (a for a in found if files.may_match(parse_stats(a.stats), a.partition_values))

    def history(self, limit: int | None) -> Sequence[Commit]:
        """Commits up to this version, newest first."""
        older = [c for c in self.reader.history() if c.version <= self.snapshot.version]
        return older[:limit]

    def txn_version(self, app_id: str) -> int | None:
        """An application's own version."""
        found = self.reader.txns(self.snapshot.version).get(app_id)
        return None if found is None else found.version

    def num_records(self) -> int:
        """The rows that statistics tell."""
        return counted(self)


def counted(source: Source) -> int:
    """The rows that the statistics of a source's files tell."""
    return sum(n for n in source.scan(("num_records",)).column(0).to_pylist() if n is not None)


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
        return LogSource(reader, reader.snapshot(version))
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
