"""The direct writer: data into Parquet files under a table's root, and the add actions that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltalakedb.exceptions import (
    DeltaError,
    InvalidArgumentError,
    OperationError,
    SchemaError,
    UnsupportedOperationError,
)
from deltalakedb.protocol.properties import number_or
from deltalakedb.table.eligibility import eligible
from deltalakedb.table.file_set import FileSet
from deltalakedb.table.parquet_options import parquet_options
from deltalakedb.table.partition_split import split
from deltalakedb.table.roots import root_at
from deltalakedb.table.write_plan import casts_for, plan_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import deltalake

    from deltalakedb.protocol.actions import Add
    from deltalakedb.protocol.log import Snapshot
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.table.roots import Root
    from deltalakedb.table.write_plan import Column

__all__ = ["arrow_source", "not_direct", "write_files"]

TARGET_FILE_SIZE: Final = "delta.targetFileSize"
_DEFAULT_TARGET: Final = 100 * 1024 * 1024
#: data that is cast and split at a time
_PIECE_BYTES: Final = 32 * 1024 * 1024


def arrow_source(data: Any) -> pa.Table | pa.RecordBatch | pa.RecordBatchReader:
    """Data as Arrow with a schema to look at; a stream is not read yet.

    Args:
        data: Arrow data, anything that speaks the Arrow PyCapsule interface, or a sequence of record batches.

    Raises:
        InvalidArgumentError: It is none of these.
    """
    if isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.record_batch(data)
    if isinstance(data, list | tuple) and data and all(hasattr(part, "__arrow_c_array__") for part in data):
        return pa.Table.from_batches([pa.record_batch(part) for part in data])
    if isinstance(data, Sequence) and not isinstance(data, list | tuple | str | bytes):
        # somebody's own sequence may make its batches one after the other, and need not know how many
        return pa.RecordBatchReader.from_batches(
            pa.schema(data[0].schema), (pa.record_batch(part) for part in data)
        )
    raise InvalidArgumentError(
        f"data of type {type(data).__name__} cannot be read",
        suggestion="pass a pyarrow, pandas or polars table, or anything with __arrow_c_stream__",
    )


def write_files(
    data: Any,
    *,
    root: Root | str,
    snapshot: Snapshot,
    target_file_size: int | None = None,
    writer_properties: deltalake.WriterProperties | None = None,
    fsync: bool = True,
    also: Collection[str] = (),
    flushes: Flushes | None = None,
) -> list[Add]:
    """Write data for an append to a table and commit nothing.

    Files have a hidden name until they are whole. Data streams: what waits in memory is bounded. Where
    anything fails, every file written so far is removed again.

    Args:
        data: The rows; see `arrow_source`.
        root: The table's root, or its location where that is local or the settings know its options.
        snapshot: The table to write for.
        target_file_size: Bytes to aim at; by default the table's ``delta.targetFileSize``, or 100 MiB.
        writer_properties: How Parquet is written.
        fsync: Have files and folders on disk before returning.
        also: Writer features that the caller takes care of in the commit.
        flushes: Where the caller waits for files and folders to be on disk before it commits.

    Returns:
        One add action for each file, none where there are no rows.

    Raises:
        UnsupportedOperationError: The append is not `eligible`.
        SchemaError: The data breaks NOT NULL, or a value cannot be cast.
        StorageError: A file cannot be written.
    """
    root = root_at(root) if isinstance(root, str) else root
    source = arrow_source(data)
    reason = eligible(snapshot, source.schema, {"writer_properties": writer_properties}, also=also)
    options = parquet_options(writer_properties)
    plan, casts = plan_for(snapshot.metadata), casts_for(snapshot.metadata, source.schema)
    if reason is not None or isinstance(options, str) or isinstance(plan, str) or isinstance(casts, str):
        raise not_direct(str(reason))
    target = _target(target_file_size, snapshot.metadata.configuration)
    files = FileSet(root.new_files(fsync=fsync, flushes=flushes), plan, options, target=target)
    try:
        for batch in _pieces(source):
            rows = pa.RecordBatch.from_arrays(
                _cast(batch, casts.data, plan.data_columns), schema=plan.file_schema
            )
            if not casts.partition:
                files.put((), rows)
                continue
            values = _cast(batch, casts.partition, plan.partition_columns)
            for key, part in split(rows, values, plan.partition_columns, plan.partition_types):
                files.put(key, part)
        return files.finish()
    except BaseException:
        files.discard()
        raise


def not_direct(reason: str) -> UnsupportedOperationError:
    """The error of an append that is not `eligible`."""
    return UnsupportedOperationError(
        f"this append cannot be written directly: {reason}",
        suggestion="write it by deltalakedb.spark.write, or outside of Spark by write_deltalake",
    )


def _target(argument: int | None, settings: Mapping[str, str | None]) -> int:
    if argument is not None:
        if argument <= 0:
            raise InvalidArgumentError("target_file_size must be greater than 0")
        return argument
    size = number_or(settings.get(TARGET_FILE_SIZE), 0)
    return size if size > 0 else _DEFAULT_TARGET


def _pieces(source: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The data in batches that may be copied without a thought."""
    batches = (
        [source]
        if isinstance(source, pa.RecordBatch)
        else source.to_batches()
        if isinstance(source, pa.Table)
        else source
    )
    for batch in _read(batches):
        if (count := batch.num_rows) == 0:
            continue
        if (size := batch.nbytes) <= _PIECE_BYTES:
            yield batch
            continue
        step = max(1, count * _PIECE_BYTES // size)
        for start in range(0, count, step):
            yield batch.slice(start, step)


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The data's batches; what its maker raises comes out as what stock makes of it, and stays the cause."""
    try:
        yield from batches
    except DeltaError:
        raise
    except Exception as error:
        raise OperationError(
            f"the data could not be read: {type(error).__name__}: {error}",
            suggestion="nothing was written; look at what makes the batches",
        ) from error


def _cast(
    batch: pa.RecordBatch, casts: Sequence[tuple[int, pa.DataType | None]], columns: Sequence[Column]
) -> list[pa.Array]:
    """The columns in their table types; finer time units are cut, every other cast is exact."""
    made = []
    for (index, wanted), column in zip(casts, columns, strict=True):
        values = batch.column(index)
        if wanted is not None:
            try:
                values = values.cast(wanted, safe=not _cuts(values.type))
            except pa.ArrowInvalid as e:
                raise SchemaError(f"a value of the column {column.name!r} does not fit: {e}") from e
        if values.null_count and not column.nullable:
            raise SchemaError(
                f"Invalid data found: {values.null_count} rows failed validation check: "
                f"the column {column.name!r} is NOT NULL",
                suggestion="fill the nulls, or drop the column's NOT NULL",
            )
        made.append(values)
    return made


def _cuts(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(_cuts(kind.field(place).type) for place in range(kind.num_fields))
