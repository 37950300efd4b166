"""``format("deltasql")``: SQL-backed tables as a Python data source, planned and committed on the driver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from deltalakedb.exceptions import InvalidArgumentError, UnsupportedOperationError
from deltalakedb.spark.sight import check_here, read_present
from deltalakedb.spark.source_writer import BATCH, SINK, StreamWriter, Writer, write_options
from deltalakedb.spark.streaming import OPTIONS, StreamReader
from deltalakedb.table.arguments import instant_ms
from deltalakedb.table.handle import TableHandle
from deltalakedb.table.read.scan import arrow_schema, conformed, known, raw_table
from deltalakedb.table.roots import root_at
from deltalakedb.table.scratch import ErrorContext, translate_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.protocol.actions import Add, Metadata
    from deltalakedb.protocol.log import Snapshot
    from deltalakedb.protocol.paths import TablePaths

#: bytes of files that one task reads, as Spark's own sources have it
_TASK_BYTES: Final = 128 << 20
_OPTIONS: Final = frozenset({"path", "version", "timestamp", "where", "columns", *OPTIONS})
#: columns of the change feed, as delta-spark has them
_FEED: Final = (
    ("_change_type", StringType()),
    ("_commit_version", LongType()),
    ("_commit_timestamp", TimestampType()),
)


class DeltaSqlSource(DataSource):
    """Reads and writes tables by their ``deltasql://`` addresses.

    Options: ``version``, ``timestamp``, ``where`` (a condition on rows, in the SQL of `DeltaTable.scan`,
    since delta-rs reads them), ``columns`` (names with commas between them). Each method runs in a Python
    process of its own, so each opens the table anew.

    Spark's filters are not taken: Spark 4.2 keeps a reader with its filters for the next query on the same
    DataFrame, which would then miss rows.
    """

    _version: int | None = None

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return "deltasql"

    _metadata: Metadata | None = None

    def schema(self) -> StructType:
        """The table's schema at the version that is asked for, with the feed's columns where it is."""
        table = _open(self.options)
        # this object is kept for all queries on the DataFrame: they read the version that its schema is of
        self._version = table.version
        self._metadata = table.source.snapshot.metadata
        whole = StructType.fromJson(json.loads(self._metadata.schema_string))
        if self.options.get("readchangefeed", "false").lower() == "true":
            for name, kind in _FEED:
                whole = whole.add(name, kind)
        names = _columns(self.options, whole.names)
        if variant := next((name for name in names if _has_variant(whole[name].dataType)), None):
            raise UnsupportedOperationError(
                f"column {variant!r} holds variants, which do not pass through Python",
                table=table.name,
                suggestion="use deltalakedb.spark.read, or name other columns in the option columns",
            )
        # what Delta keeps beside a column says nothing to Spark, and must not differ from what is read
        return StructType([StructField(n, whole[n].dataType, nullable=True) for n in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the version that the schema is of."""
        options = {key.lower(): value for key, value in self.options.items()}
        if streams := sorted(OPTIONS & options.keys()):
            raise InvalidArgumentError(
                f"the option {streams[0]!r} is one of streams, and this is a batch read",
                suggestion="use readStream, or leave it out; DeltaTable.load_cdf reads changes at once",
            )
        if self._version is not None:
            options |= {"version": str(self._version)}
            options.pop("timestamp", None)
        return _Reader(options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream of the table's new files, or of its changes."""
        if self._metadata is None or self._version is None:
            snapshot = _open(self.options).snapshot
            self._metadata, self._version = snapshot.metadata, snapshot.version
        return StreamReader(dict(self.options), schema.names, self._metadata, self._version)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        """A sink that has every batch of a query once."""
        return StreamWriter(Writer.to(write_options(self.options, SINK), overwrite=overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Arrow has it
        """A writer to an existing table."""
        return Writer.to(write_options(self.options, BATCH), overwrite=overwrite)


@dataclass
class _Files(InputPartition):
    """What one task reads, so that it needs no database."""

    snapshot: Snapshot
    adds: list[Add]
    paths: TablePaths
    storage_options: Mapping[str, str] | None

    def __init__(
        self,
        snapshot: Snapshot,
        adds: list[Add],
        paths: TablePaths,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        super().__init__(None)
        self.snapshot, self.adds = snapshot, adds
        self.paths, self.storage_options = paths, storage_options


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: list[str]) -> None:
        self._options = dict(options)
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may match, in groups for one task each."""
        table = _open(self._options)
        adds = table.source.adds(table.where(self._options.get("where")))
        root = table.root
        return files_partitions(table.source.snapshot, adds, root.paths, root.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, by delta-rs."""
        return read_files(partition, self._columns, self._options.get("where"))


def files_partitions(
    snapshot: Snapshot, adds: Iterable[Add], paths: TablePaths, storage_options: Mapping[str, str] | None
) -> list[_Files]:
    """Files in groups for one task each."""
    return [_Files(snapshot, group, paths, storage_options) for group in _groups(adds, _TASK_BYTES)]


def read_files(
    partition: InputPartition, columns: list[str], predicate: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of some files that a predicate is true for, by delta-rs."""
    if not isinstance(partition, _Files):
        return iter(())  # Spark asks for one where there are none
    whole = arrow_schema(partition.snapshot.metadata.schema_string)
    schema = pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])
    paths = partition.paths
    check_here(paths.root)
    root = root_at(paths.root, partition.storage_options, table=paths.table, outside=paths.outside)
    snapshot = partition.snapshot

    def read() -> Iterator[pa.RecordBatch]:
        table = raw_table(snapshot, partition.adds, root)
        with translate_errors(ErrorContext(paths.table, root.location, snapshot.version, snapshot.metadata)):
            found = table.raw.scan(columns=columns, predicate=predicate)
        return conformed(pa.RecordBatchReader.from_stream(found), schema, table)

    return read_present(read, root, partition.adds)


def _open(options: Mapping[str, str]) -> TableHandle:
    unknown = sorted(key for key in options if key.lower() not in _OPTIONS)
    if unknown:
        raise InvalidArgumentError(
            f"deltasql does not know the option {unknown[0]!r}",
            suggestion=f"it knows {', '.join(sorted(_OPTIONS))}; deltalakedb.spark.read and write know more",
        )
    if "path" not in options:
        raise InvalidArgumentError("deltasql needs a table's address", suggestion="load('deltasql://…')")
    version, timestamp = options.get("version"), options.get("timestamp")
    if version is not None and timestamp is not None:
        raise InvalidArgumentError("a version and a timestamp exclude each other", suggestion="give one")
    if version is not None and not version.isdecimal():
        raise InvalidArgumentError(f"a version is a whole number from 0 on, not {version!r}")
    table = TableHandle.open(options["path"], version=None if version is None else int(version))
    if timestamp is not None:
        table.load_at(instant_ms(timestamp), strict=True)
    return table


def _has_variant(kind: DataType) -> bool:
    """Whether there are variants somewhere in a type."""
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    return isinstance(kind, VariantType) or any(map(_has_variant, inner))


def _columns(options: Mapping[str, str], names: list[str]) -> list[str]:
    chosen = options.get("columns")
    if chosen is None:
        return names
    wanted = [name.strip() for name in chosen.split(",")]
    if twice := next((name for n, name in enumerate(wanted) if name in wanted[:n]), None):
        raise InvalidArgumentError(f"columns names {twice!r} twice", suggestion="name each column once")
    return known(wanted, pa.schema([(n, pa.null()) for n in names]))


def _groups(adds: Iterable[Add], limit: int) -> Iterator[list[Add]]:
    group: list[Add] = []
    size = 0
    for add in adds:
        if group and size + add.size > limit:
            yield group
            group, size = [], 0
        group.append(add)
        size += add.size
    if group:
        yield group
