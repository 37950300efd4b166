"""What is read from a SQL-backed table: its files, its rows, and what changed them."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from arro3.core import RecordBatchReader, Table

from deltalakedb.exceptions import PredicateError
from deltalakedb.table import add_actions, change_feed, scan
from deltalakedb.table.delta_table import DeltaTable
from deltalakedb.table.filters import (
    both,
    merged,
    names_of,
    predicate_of,
    sql_text,
    typed_filtering,
)
from deltalakedb.table.unreadable import reading
from deltalakedb.table.vectors import VECTOR_SCHEMA, Vectors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import pandas as pd
    import pyarrow.dataset as ds
    import pyarrow.fs as pafs

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table as TableRow
    from deltalakedb.protocol.predicate import Expr
    from deltalakedb.table.roots import Root
    from deltalakedb.table.source import Source


class SqlReads(DeltaTable):
    """The reading half of a SQL-backed table: every answer comes from its source, never from `_delta_log`."""

    _source: Source
    _row: TableRow
    _database: Database

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The table's name in its catalog."""

        @property
        def _moves(self) -> bool: ...

        @property
        def _root(self) -> Root: ...

    # ---- files -----------------------------------------------------------------------------------------

    def _where(self, predicate: Any, *, files_only: bool = False) -> Expr | None:
        return predicate_of(predicate, self._source.snapshot.metadata, files_only=files_only)

    def _pruning(self, predicate: Any) -> Expr | None:
        """What the filters of files ask for, whose values are written as partition values are."""
        return self._where(predicate, files_only=True)

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
        where = self._pruning(merged(partition_filters, file_pruning_predicate, "partition_filters"))
        return scan.file_uris(self._source, self._root, where)

    def partitions(
        self, partition_filters: Any = None, *, file_pruning_predicate: Any = None
    ) -> list[dict[str, str]]:
        """The partitions of the files that may hold what the filters ask for."""
        where = self._pruning(merged(partition_filters, file_pruning_predicate, "partition_filters"))
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

    def count(self) -> int:
        """The number of rows that the files' statistics tell, deletion vectors not minded."""
        return self._source.num_records()

    # ---- rows ------------------------------------------------------------------------------------------

    def scan(self, columns: list[str] | None = None, predicate: str | None = None) -> RecordBatchReader:
        """Rows as a stream of Arrow batches, read by delta-rs from candidate files only."""
        return RecordBatchReader.from_arrow(self._rows(names_of(columns), predicate))

    def _rows(self, columns: list[str] | None, predicate: str | None) -> pa.RecordBatchReader:
        where = self._where(sql_text(predicate))
        return scan.scan(self._source, self._root, where=where, columns=columns, predicate=predicate)

    def _reading(self) -> AbstractContextManager[None]:
        """Report a data file that cannot be read as a typed error."""
        return reading(self._root, self._sized, table=self.name, version=self.version())

    def _sized(self) -> Iterable[tuple[str, int]]:
        found = self._source.scan(("path", "size"))
        return zip(*(column.to_pylist() for column in found.columns), strict=True)

    def load_cdf(
        self,
        starting_version: int | None = 0,
        ending_version: int | None = None,
        starting_timestamp: str | None = None,
        ending_timestamp: str | None = None,
        columns: list[str] | None = None,
        predicate: str | None = None,
        allow_out_of_range: bool = False,
    ) -> RecordBatchReader:
        """The rows that a range of versions changed, as a stream of Arrow batches.

        Args:
            starting_version: The first version; None to go by ``starting_timestamp`` alone.
            ending_version: The last version; by default the newest.
            starting_timestamp: Leave out what was committed before this ISO 8601 time.
            ending_timestamp: Leave out what was committed after this time.
            columns: Names to read; those of the feed are among them.
            predicate: Which rows, in SQL.
            allow_out_of_range: No rows instead of an error where the range begins after the newest version.
        """
        wanted = change_feed.Range(
            starting_version, ending_version, starting_timestamp, ending_timestamp, allow_out_of_range
        )
        return RecordBatchReader.from_arrow(
            change_feed.load_cdf(self, wanted, columns=columns, predicate=predicate)
        )

    def deletion_vectors(self) -> RecordBatchReader:
        """The files that have a deletion vector, each with the rows that stay (``True``) and go."""
        scan.check_files(self._source, self._root)  # an error of the stream would lose its type
        vectors = Vectors(self._root)
        reader = pa.RecordBatchReader.from_batches(VECTOR_SCHEMA, vectors.kept(self._source.adds()))
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

        where = self._pruning(merged(partitions, file_pruning_predicate, "partitions"))
        with self._reading():
            return dataset(
                self._source,
                self._root,
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
        import pyarrow.parquet as pq

        from deltalakedb.table.dataset import dataset

        if isinstance(filters, str):
            return self._rows(names_of(columns), filters).read_all()
        if partitions is not None:
            note = "`partitions` is deprecated; use `filters` instead"
            warnings.warn(note, DeprecationWarning, stacklevel=2)
        with typed_filtering():
            where = both(self._pruning(partitions), self._where(filters))
        with self._reading():
            rows = dataset(self._source, self._root, where=where, filesystem=filesystem)
        with typed_filtering():
            if isinstance(columns, list):
                scan.known(columns, rows.schema)
        with typed_filtering():
            expression = filters
            if isinstance(filters, list | tuple):
                expression = pq.filters_to_expression(filters) if filters else None
        # without filters it is the files that Arrow complains of
        filtering = typed_filtering() if expression is not None else nullcontext()
        with self._reading(), filtering:
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
