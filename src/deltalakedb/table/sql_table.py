"""A DeltaTable whose metadata lives in SQL."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import TYPE_CHECKING, Any

import deltalake
from arro3.core import RecordBatchReader, Table
from deltalake.table import Metadata as StockMetadata
from deltalake.table import ProtocolVersions

from deltalakedb.catalog import registry, snapshots
from deltalakedb.catalog.database import Database
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogError,
    PredicateError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.log.reader import FileTxnLogReader
from deltalakedb.protocol.features import check_readable
from deltalakedb.table import add_actions, scan
from deltalakedb.table.arrow_types import arrow_schema
from deltalakedb.table.delta_table import DeltaTable
from deltalakedb.table.filters import both, predicate_of
from deltalakedb.table.hooks import run_hooks
from deltalakedb.table.places import normal_location
from deltalakedb.table.raw import RawProxy
from deltalakedb.table.shapes import MetadataView, epoch_ms, one_of
from deltalakedb.table.source import LogSource, Source, SqlSource
from deltalakedb.table.work import AutoCommit, after_commit
from deltalakedb.uri import Address, parse_uri

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

    from deltalakedb.catalog.values import OpenTable
    from deltalakedb.catalog.values import Table as TableRow
    from deltalakedb.protocol.log import Committed
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.work import Sink, Work


class SqlDeltaTable(DeltaTable):
    """A table opened from a catalog by one query; files, statistics and history come when asked for.

    Made by ``DeltaTable("deltasql://…")``; never needs `_delta_log`.
    """

    def __init__(
        self,
        table_uri: str | Path | os.PathLike[str] | Address,
        version: int | None = None,
        storage_options: dict[str, str] | None = None,
        without_files: bool = False,
        log_buffer_size: int | None = None,
        skip_stats: bool = False,
    ) -> None:
        for name, given in (
            ("without_files", without_files),
            ("log_buffer_size", log_buffer_size is not None),
            ("skip_stats", skip_stats),
        ):
            if given:
                warnings.warn(f"{name!r} is ignored: files are always read lazily", DeprecationWarning, 2)
        address = parse_uri(table_uri if isinstance(table_uri, Address) else str(table_uri))
        if address.table is None:
            raise InvalidArgumentError(
                f"{address.to_uri()} is a catalog's address, not a table's",
                suggestion="add ?table=NAME, or open it as Catalog(…)",
            )
        self._address = address
        self._storage_options = storage_options
        self._database = Database.open(address)
        self._sink: Sink = AutoCommit(self._database)
        self._source: Source
        self._row: TableRow
        self._chosen = version is not None
        #: nobody will look at this object after its next operation
        self._passing = False
        #: what is to follow the commit of the operation that runs
        self._hooks: deltalake.PostCommitHookProperties | None = None
        self._open(version)
        self._check_location(address.location)

    # ---- opening ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return self._address.table or ""

    def _check_location(self, location: str | None) -> None:
        """Refuse an address that names another location than the table's."""
        if location and normal_location(location) != self._row.location:
            raise InvalidArgumentError(
                f"the address says location={location}, but the table lies at {self._row.location}",
                table=self.name,
                suggestion="leave location= out: it is needed only where a table is created",
            )

    def _open(self, version: int | None) -> None:
        if version is not None and (not isinstance(version, int) or version < 0):
            raise InvalidArgumentError(f"a version is a whole number from 0 on, not {version!r}")
        try:
            opened = snapshots.open_table(self._database, self.name, version)
        except VersionMissingError as error:
            self._row = registry.find(self._database, self.name)
            self._source = self._from_log(version, error)
        else:
            self._use(opened)
        check_readable(self._source.snapshot.protocol, table=self.name)
        self._raw: scan.RawScan | None = None

    def _use(self, opened: OpenTable) -> None:
        self._row = opened.table
        self._source = SqlSource(self._database, opened)

    def _from_log(self, version: int | None, error: VersionMissingError) -> Source:
        """A version older than SQL's first, while the log still holds it."""
        if version is None or not version < self._row.head.first_version:
            raise error
        try:
            reader = FileTxnLogReader(self._row.location, self._storage_options)
            return LogSource(reader, reader.snapshot(version))
        except (LogError, VersionMissingError):
            raise error from None

    @property
    def _table(self) -> Any:  # type: ignore[override]  # stock sets it once, ours follows the snapshot
        return RawProxy(self)

    def _raw_scan(self) -> scan.RawScan:
        """delta-rs's own table over a scratch log of the open version."""
        if self._raw is None:
            self._raw = scan.RawScan(self._source, self._row.location)
        return self._raw

    def _pass_by(self) -> SqlDeltaTable:
        """Say that nobody will look at this object after its next operation, which saves a query."""
        self._passing = True
        return self

    def _refresh(self) -> None:
        """Move to the newest version before an operation, unless the user chose a version."""
        if isinstance(self._sink, AutoCommit) and not self._chosen:
            self._open(None)

    def _hand_on(self, work: Work) -> Committed | None:
        """Give work on this table to where its work goes, and show what became of it."""
        outcome = self._sink.submit(work)
        self._raw = None
        if outcome is not None and not outcome.replayed:
            run_hooks(self, outcome.version)
        if outcome is not None and not self._passing:
            self._chosen = False
            with after_commit(f"{self.name} could not be opened at its new version"):
                self._open(None)
        return outcome

    def update_incremental(self) -> None:
        """Move to the newest version."""
        if not isinstance(self._sink, AutoCommit):
            return  # a transaction's view of its tables does not move
        self._chosen = False
        self._open(None)

    def load_as_version(self, version: int | str | datetime) -> None:
        """Travel to a version, or to the newest version at a time.

        Args:
            version: A version number, a datetime (naive ones are UTC), or an ISO 8601 text.
        """
        if isinstance(version, bool) or not isinstance(version, int | str | datetime):
            raise TypeError("Invalid datatype provided for version, only int, str or datetime are accepted.")
        if not isinstance(self._sink, AutoCommit):
            raise UnsupportedOperationError(
                "a table inside a transaction stays at the transaction's snapshot",
                table=self.name,
                suggestion="open it outside of the transaction to travel in time",
            )
        self._chosen = True
        if isinstance(version, int):
            self._open(version)
            return
        self._open(self._version_at(epoch_ms(version)))

    def _version_at(self, moment: int) -> int:
        """The newest version at a time."""
        try:
            return snapshots.version_at(self._database, self._row, moment)
        except VersionMissingError:
            # as in stock, a time before the first commit means the first version, where SQL has it
            if self._row.head.first_version > 0:
                raise
            return 0

    # ---- facts -----------------------------------------------------------------------------------------

    def version(self) -> int:
        """The version that is open."""
        return self._source.snapshot.version

    @property
    def table_uri(self) -> str:
        """The table's root: where its files lie."""
        return self._row.location

    @property
    def address(self) -> str:
        """The table's ``deltasql://`` address, without its password."""
        return self._address.to_uri()

    def schema(self) -> deltalake.Schema:
        """The table's schema."""
        return deltalake.Schema.from_json(self._source.snapshot.metadata.schema_string)

    def metadata(self) -> StockMetadata:
        """The table's metadata."""
        found = self._source.snapshot.metadata
        view = MetadataView(
            found.id,
            found.name,
            found.description,
            list(found.partition_columns),
            found.created_time,
            dict(found.configuration),
        )
        return StockMetadata(view)  # type: ignore[arg-type]  # it only asks for .metadata()

    def protocol(self) -> ProtocolVersions:
        """The protocol's versions and features."""
        found = self._source.snapshot.protocol
        features = [None if f is None else list(f) for f in (found.writer_features, found.reader_features)]
        return ProtocolVersions(found.min_reader_version, found.min_writer_version, *features)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Commits up to the open version, newest first, as their writers described them."""
        if limit is not None and limit < 0:
            raise InvalidArgumentError(f"a limit is a whole number from 0 on, not {limit}")
        out = []
        for commit in self._source.history(limit):
            info = {} if commit.info is None else commit.info.to_dict()
            out.append({"timestamp": commit.timestamp, **info, "version": commit.version})
        return out

    def transaction_version(self, app_id: str) -> int | None:
        """The version that an application recorded for itself."""
        return self._source.txn_version(app_id)

    # ---- files -----------------------------------------------------------------------------------------

    def _where(self, predicate: Any) -> Expr | None:
        metadata = self._source.snapshot.metadata
        return predicate_of(predicate, metadata, arrow_schema(metadata.schema_string))

    def _predicate_or_all(self, predicate: str | None) -> Expr | None:
        """What an operation reads; None, for every row, also where only delta-rs understands it."""
        try:
            return self._where(predicate)
        except PredicateError:
            return None

    def file_uris(self, partition_filters: Any = None, *, file_pruning_predicate: Any = None) -> list[str]:
        """Absolute paths of the files that may hold what the filters ask for.

        Args:
            partition_filters: The older name of ``file_pruning_predicate``.
            file_pruning_predicate: A SQL predicate, or filters in disjunctive normal form.
        """
        where = self._where(one_of(partition_filters, file_pruning_predicate))
        return scan.file_uris(self._source, self._row.location, where)

    def partitions(
        self, partition_filters: Any = None, *, file_pruning_predicate: Any = None
    ) -> list[dict[str, str]]:
        """The partitions of the files that may hold what the filters ask for."""
        where = self._where(one_of(partition_filters, file_pruning_predicate))
        return list(scan.partitions(self._source, where))  # type: ignore[arg-type]  # null values, as in stock

    def get_add_actions(self, flatten: bool = False) -> Table:
        """The live files with their sizes, statistics and partition values, as Arrow.

        Args:
            flatten: One column per statistic (``min.id``) instead of nested structs.
        """
        found = self._source.scan(add_actions.COLUMNS)
        return Table.from_arrow(
            add_actions.add_actions(found, self._source.snapshot.metadata, flatten=flatten)
        )

    # ---- rows ------------------------------------------------------------------------------------------

    def scan(self, columns: list[str] | None = None, predicate: str | None = None) -> RecordBatchReader:
        """Rows as a stream of Arrow batches, read by delta-rs from candidate files only."""
        reader = scan.scan(
            self._source,
            self._row.location,
            where=self._where(predicate),
            columns=columns,
            predicate=predicate,
        )
        return RecordBatchReader.from_arrow(reader)

    def to_pyarrow_dataset(
        self,
        partitions: Any = None,
        filesystem: str | pafs.FileSystem | None = None,
        parquet_read_options: ds.ParquetReadOptions | None = None,
        schema: pa.Schema | None = None,
        as_large_types: bool = False,
        file_pruning_predicate: Any = None,
    ) -> ds.Dataset:
        """The rows as a pyarrow dataset over candidate files.

        Args:
            partitions: The older name of ``file_pruning_predicate``.
            filesystem: A pyarrow file system rooted at the table.
            parquet_read_options: How Parquet files are read.
            schema: The schema to read with instead of the table's.
            as_large_types: Use Arrow's large types.
            file_pruning_predicate: A SQL predicate or filters by which the database picks files.
        """
        from deltalakedb.table.dataset import dataset

        where = self._where(one_of(partitions, file_pruning_predicate, "partitions"))
        return dataset(
            self._source,
            self._row.location,
            where=where,
            schema=schema,
            filesystem=filesystem,
            read_options=parquet_read_options,
            large=as_large_types,
        )

    def to_pyarrow_table(
        self,
        partitions: Any = None,
        columns: list[str] | None = None,
        filesystem: str | pafs.FileSystem | None = None,
        filters: Any = None,
    ) -> pa.Table:
        """The rows as a pyarrow table; ``filters`` go to the database first, then to the files.

        Besides what stock takes, ``filters`` may be a SQL predicate.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        from deltalakedb.table.dataset import dataset, typed_reading

        if isinstance(filters, str):
            return pa.RecordBatchReader.from_stream(self.scan(columns=columns, predicate=filters)).read_all()
        where = both(self._where(one_of(partitions, None, "partitions")), self._where(filters))
        rows = dataset(self._source, self._row.location, where=where, filesystem=filesystem)
        expression = pq.filters_to_expression(filters) if isinstance(filters, list) and filters else filters
        if isinstance(expression, list):
            expression = None
        if isinstance(columns, list):
            scan.known(columns, rows.schema)
        with typed_reading(self.name, self.version()):
            return rows.to_table(columns=columns, filter=expression)

    def to_pandas(
        self,
        partitions: Any = None,
        columns: list[str] | None = None,
        filesystem: str | pafs.FileSystem | None = None,
        filters: Any = None,
        types_mapper: Any = None,
    ) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        table = self.to_pyarrow_table(
            partitions=partitions, columns=columns, filesystem=filesystem, filters=filters
        )
        return table.to_pandas(types_mapper=types_mapper)

    # ---- as an object ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"DeltaTable({self.address!r}, version={self.version()})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SqlDeltaTable):
            return NotImplemented
        mine, theirs = self._address.resolved().catalog, other._address.resolved().catalog
        return (mine, self.name, self.version()) == (theirs, other.name, other.version())

    __hash__ = None  # type: ignore[assignment]  # a table moves between versions

    @classmethod
    def _inside(
        cls, address: Address, database: Database, row: TableRow, source: Source, sink: Sink
    ) -> SqlDeltaTable:
        """A table inside a transaction: its answers come from there, its work goes there."""
        made = object.__new__(cls)
        made._address, made._storage_options, made._database = address, None, database
        made._row, made._source, made._sink, made._raw = row, source, sink, None
        made._chosen = made._passing = False
        made._hooks = None
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickled table must open elsewhere: the password travels, as it does in the address
        uri = self._address.to_uri(redact=False)
        return DeltaTable, (uri, self.version(), self._storage_options)
