"""The direct writer: data into Parquet files under a table's root, and the add actions that name them."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltalakedb.exceptions import (
    DeltaError,
    InvalidArgumentError,
    OperationError,
    SchemaError,
    UnsupportedOperationError,
)
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.codec import ExactFloat, encode_json
from deltalakedb.protocol.partition import partition_path, serialize
from deltalakedb.protocol.paths import encode_path
from deltalakedb.protocol.properties import number_or
from deltalakedb.storage.durable import Translated
from deltalakedb.table.roots import root_at
from deltalakedb.table.write.plan import casts_for, eligible, parquet_options, plan_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import deltalake

    from deltalakedb.protocol.schema import PrimitiveType
    from deltalakedb.protocol.txn_log import Snapshot
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.table.roots import NewFile, NewFiles, Root
    from deltalakedb.table.write.plan import Column, ParquetOptions, StatLeaf, WritePlan


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
        # a user's own sequence may make its batches one after the other, without knowing how many
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


_MIB: Final = 1024 * 1024
#: data in memory that becomes a row group, even where the rows are fewer than allowed
GROUP_BYTES: Final = 64 * _MIB
#: data in memory that waits for its row groups, over all partitions
PENDING_BYTES: Final = 256 * _MIB
#: files that grow at a time; a partition beyond that begins a second file later
MOST_OPEN: Final = 64
#: a file this near to its target is full
_NEARLY: Final = 0.9


class _Pending:
    """Rows of one partition that wait to become a row group."""

    __slots__ = ("batches", "rows", "size")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size = 0


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self,
        path: str,
        new: NewFile,
        values: Mapping[str, str | None],
        plan: WritePlan,
        options: ParquetOptions,
        odd: frozenset[int],
    ) -> None:
        self.path = path
        self.file = new.file
        self.values = values
        self.long = LongStrings(plan.leaves)
        self.floats: dict[int, FloatColumn] = {}
        self.odd = odd
        self.footers: list[pq.FileMetaData] = []
        self._new = new
        try:
            self.writer = pq.ParquetWriter(
                self.file,
                plan.file_schema,
                metadata_collector=self.footers,
                **options.without(plan.parquet_columns, odd),
            )
        except BaseException:
            new.discard()
            raise

    def finish(self) -> tuple[int, int]:
        """Make the file whole and visible; its size and time."""
        self.writer.close()
        return self._new.finish()

    def discard(self) -> None:
        """Remove the file, in whatever state it is."""
        with contextlib.suppress(Exception):
            self.writer.close()
        # a writer that could not close tries again when it is collected, and complains
        self.writer.is_open = False
        self._new.discard()


class FileSet:
    """The files of one write, by partition."""

    def __init__(self, files: NewFiles, plan: WritePlan, options: ParquetOptions, *, target: int) -> None:
        self._files = files
        self._plan = plan
        self._options = options
        self._target = target
        self._names = [column.name for column in plan.partition_columns]
        self._pending: dict[Key, _Pending] = {}
        self._waiting = 0
        self._open: OrderedDict[Key, _OpenFile] = OrderedDict()
        self._numbers: dict[Key, int] = {}
        #: by partition, the columns that are written without statistics and dictionary
        self._odd: dict[Key, frozenset[int]] = {}
        self._written: list[str] = []
        self._adds: list[Add] = []
        #: bytes in memory for a byte in a file, learned on the way
        self._ratio = 1.0

    def put(self, key: Key, rows: pa.RecordBatch) -> None:
        """Take rows of a partition; row groups are written as they become full."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
        size = rows.nbytes
        pending.batches.append(rows)
        pending.rows += rows.num_rows
        pending.size += size
        self._waiting += size
        while pending.rows and (full := self._full(key, pending)):
            self._flush(key, pending, full)
        while self._waiting > PENDING_BYTES:
            largest = max(self._pending, key=lambda k: self._pending[k].size)
            self._flush(largest, self._pending[largest], self._pending[largest].rows)

    def finish(self) -> list[Add]:
        """Write what waits, close every file and answer what was written."""
        for key, pending in self._pending.items():
            if pending.rows:
                self._flush(key, pending, pending.rows)
            if key in self._open:
                self._close(key)
        self._files.settle()
        return self._adds

    def discard(self) -> None:
        """Remove everything written so far."""
        for opened in self._open.values():
            opened.discard()
        self._files.remove(self._written)

    def _full(self, key: Key, pending: _Pending) -> int:
        """How many of the rows that wait fill a row group or a file; 0 while they do not."""
        opened = self._open.get(key)
        left = self._target - (opened.file.tell() if opened is not None else 0)
        limit = max(min(GROUP_BYTES, int(left * self._ratio)), 1)
        if pending.size >= limit:
            return min(self._options.rows, max(1, pending.rows * limit // pending.size))
        return pending.rows - pending.rows % self._options.rows

    def _flush(self, key: Key, pending: _Pending, count: int) -> None:
        """Write the first rows that wait."""
        table = pa.Table.from_batches(pending.batches)
        self._waiting -= pending.size
        if count < pending.rows:
            table, rest = table.slice(0, count), table.slice(count)
            pending.batches, pending.rows, pending.size = rest.to_batches(), rest.num_rows, rest.nbytes
            self._waiting += pending.size
        else:
            pending.batches, pending.rows, pending.size = [], 0, 0
        floats = float_columns(table, self._plan.floats)
        odd = self._odd.get(key, frozenset()).union(column for column, f in floats.items() if f.odd)
        self._odd[key] = odd
        if key in self._open and not odd <= self._open[key].odd:
            self._close(key)
        opened = self._open.get(key) or self._begin(key, odd)
        opened.floats = {c: opened.floats[c] | f if c in opened.floats else f for c, f in floats.items()}
        with Translated("write", f"{self._files.location}/{opened.path}"):
            before = opened.file.tell()
            opened.long.look(table)
            opened.writer.write_table(table, row_group_size=self._options.rows)
            made = opened.file.tell()
        self._ratio = min(max(table.nbytes / max(made - before, 1), 0.5), 64.0)
        self._open.move_to_end(key)
        if made >= self._target * _NEARLY:
            self._close(key)

    def _begin(self, key: Key, odd: frozenset[int]) -> _OpenFile:
        while len(self._open) >= min(MOST_OPEN, self._files.most_open):
            self._close(next(iter(self._open)))
        values = dict(zip(self._names, key, strict=True))
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        name = f"part-{number:05d}-{uuid.uuid4()}-c000{self._options.suffix}"
        path = f"{partition_path(values)}/{name}" if key else name
        with Translated("write", f"{self._files.location}/{path}"):
            opened = _OpenFile(path, self._files.begin(path), values, self._plan, self._options, odd)
        self._open[key] = opened
        return opened

    def _close(self, key: Key) -> None:
        opened = self._open[key]
        with Translated("write", f"{self._files.location}/{opened.path}"):
            size, modified = opened.finish()
        self._written.append(opened.path)
        del self._open[key]
        self._adds.append(
            Add(
                path=encode_path(opened.path),
                partition_values=opened.values,
                size=size,
                modification_time=modified,
                data_change=True,
                stats=file_stats(
                    opened.footers[0],
                    self._plan.leaves,
                    opened.long.bounds,
                    {column: opened.floats[column] for column in opened.odd},
                    truncate=self._options.truncate,
                ),
            )
        )


#: a partition's values, in the order of the partition columns
Key: TypeAlias = tuple[str | None, ...]


def split(
    rows: pa.RecordBatch,
    values: Sequence[pa.Array],
    columns: Sequence[Column],
    types: Sequence[PrimitiveType],
) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each partition; one partition may come more than once.

    Args:
        rows: The data columns.
        values: The partition columns, in their table types.
        columns: What the partition columns are.
        types: Their Delta types.

    Raises:
        SchemaError: A value cannot be a partition value, or is null where null is refused.
    """
    if rows.num_rows == 1:
        yield _key([column[0] for column in values], columns, types), rows
        return
    codes = _codes(values)
    order = pc.array_sort_indices(codes)  # stable, so rows keep their order
    runs = pc.run_end_encode(codes.take(order))
    start = 0
    for end in runs.run_ends.to_pylist():
        first = order[start].as_py()
        key = _key([column[first] for column in values], columns, types)
        whole = start == 0 and end == rows.num_rows
        yield key, rows if whole else rows.take(order.slice(start, end - start))
        start = end


def _codes(values: Sequence[pa.Array]) -> pa.Array:
    """One number for each combination of values."""
    codes: pa.Array | None = None
    for column in values:
        encoded = column.dictionary_encode(null_encoding="encode")
        numbers = encoded.indices.cast(pa.int64())
        if codes is None:
            codes = numbers
            continue
        mixed = pc.add(pc.multiply(codes, len(encoded.dictionary)), numbers)
        # numbered anew, so that many columns cannot overflow
        codes = mixed.dictionary_encode().indices.cast(pa.int64())
    return codes


def _key(scalars: Sequence[pa.Scalar], columns: Sequence[Column], types: Sequence[PrimitiveType]) -> Key:
    key = []
    for scalar, column, type_ in zip(scalars, columns, types, strict=True):
        try:
            text = serialize(scalar.as_py(), type_)
        except (ValueError, OverflowError) as e:
            raise SchemaError(
                f"a value of the partition column {column.name!r} cannot be written: {e}",
                suggestion="dates and times must lie in the years 1 to 9999",
            ) from e
        if text is None and not column.nullable:
            raise SchemaError(
                f"Invalid data found: the partition column {column.name!r} is NOT NULL and gets a null",
                suggestion="an empty string counts as null in a partition column",
            )
        key.append(text)
    return tuple(key)


#: Parquet writers drop the bounds of longer values
_LONGEST: Final = 4096
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Pair: TypeAlias = tuple[Any, Any]


class LongStrings:
    """The bounds of strings too long for a footer, gathered while a file is written."""

    def __init__(self, leaves: Sequence[StatLeaf]) -> None:
        self._leaves = [leaf for leaf in leaves if leaf.kind == "string"]
        self.bounds: dict[int, _Pair] = {}

    def look(self, table: pa.Table) -> None:
        """Notice what is written."""
        for leaf in self._leaves:
            values = table.column(leaf.steps[0])
            if values.nbytes <= _LONGEST:
                continue
            if len(leaf.steps) > 1:
                values = pc.struct_field(values, leaf.steps[1:])
            longest = pc.max(pc.binary_length(values)).as_py()
            if longest is not None and longest > _LONGEST:
                found = pc.min_max(values).as_py()
                pair = found["min"].encode(), found["max"].encode()
                self.bounds[leaf.column] = _wider(self.bounds.get(leaf.column), pair)


class FloatColumn(NamedTuple):
    """What a column of floating point holds in a file."""

    nulls: int
    bounds: _Pair | None
    nan: bool
    #: it holds NaN, which Parquet's statistics leave out, or a negative zero, which dictionaries tell from
    #: zero: Spark would skip row groups with rows for ``x > 5`` or ``x = 0``, so there is neither
    odd: bool

    def __or__(self, other: FloatColumn) -> FloatColumn:
        bounds = self.bounds or other.bounds
        if self.bounds is not None and other.bounds is not None:
            bounds = _wider(self.bounds, other.bounds)
        nan = self.nan or other.nan
        return FloatColumn(self.nulls + other.nulls, bounds, nan, self.odd or other.odd)


def float_columns(table: pa.Table, leaves: Sequence[StatLeaf]) -> dict[int, FloatColumn]:
    """What the columns of floating point hold in some rows, by Parquet column."""
    found = {}
    for leaf in leaves:
        values = table.column(leaf.steps[0])
        if len(leaf.steps) > 1:
            values = pc.struct_field(values, leaf.steps[1:])
        nan = bool(pc.any(pc.is_nan(values)).as_py())
        ends = pc.min_max(values).as_py()
        low, high = ends["min"], ends["max"]
        minus = False
        if low is not None and low <= 0 <= high:
            inverse = pc.divide(pa.scalar(1, values.type), values)
            minus = bool(pc.any(pc.equal(inverse, pa.scalar(-math.inf, values.type))).as_py())
        pair = None if low is None else (low or -0.0, high or 0.0)
        found[leaf.column] = FloatColumn(values.null_count, pair, nan, nan or minus)
    return found


def file_stats(
    footer: pq.FileMetaData,
    leaves: Sequence[StatLeaf],
    long: Mapping[int, _Pair],
    floats: Mapping[int, FloatColumn],
    *,
    truncate: int,
) -> str:
    """The ``stats`` of an add action.

    Args:
        footer: The file's metadata.
        leaves: The columns to describe.
        long: Bounds that the footer does not have, by Parquet column.
        floats: Columns that the footer has no statistics of, by Parquet column.
        truncate: Bytes to keep of a string.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for leaf in leaves:
        pair = long.get(leaf.column)
        missing = 0
        if (known := floats.get(leaf.column)) is not None:
            missing, pair = known.nulls, known.bounds
        for group in groups if known is None else ():
            found = group.column(leaf.column).statistics
            missing += found.null_count
            if found.has_min_max:
                pair = _wider(pair, _plain(leaf, found.min_raw, found.max_raw))
        _put(nulls, leaf.path, missing)
        if pair is not None:
            low, high = _written(leaf, pair, truncate)
            if low is not None:
                _put(lowest, leaf.path, low)
            if high is not None and not (known is not None and known.nan):
                _put(highest, leaf.path, high)
    return encode_json(
        {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    )


def _wider(one: _Pair | None, other: _Pair) -> _Pair:
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))


def _plain(leaf: StatLeaf, low: Any, high: Any) -> _Pair:
    """Bounds in an order that Python knows: long decimals come as bytes."""
    if leaf.kind == "decimal" and isinstance(low, bytes):
        return int.from_bytes(low, "big", signed=True), int.from_bytes(high, "big", signed=True)
    return low, high


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _written(leaf: StatLeaf, pair: _Pair, truncate: int) -> _Pair:
    """A pair of bounds as JSON values, None where there is no true one."""
    low, high = pair
    kind = leaf.kind
    if kind == "string":
        return _cut(low, truncate), _cut_up(high, truncate)
    if kind in ("float", "double"):
        return low if math.isfinite(low) else None, high if math.isfinite(high) else None
    if kind == "date":
        return _day(low), _day(high)
    if kind in ("timestamp", "timestamp_ntz"):
        return _moment(low, kind), _moment(high, kind)
    if kind == "decimal":
        return _decimal(low, leaf.scale), _decimal(high, leaf.scale)
    return low, high


def _day(days: int) -> str | None:
    try:
        return date.fromordinal(_EPOCH_ORDINAL + days).isoformat()
    except (ValueError, OverflowError):
        return None


def _moment(micros: int, kind: str) -> str | None:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    unit = "microseconds" if micros % 1000 else "milliseconds"
    text = moment.replace(tzinfo=None).isoformat("T" if kind == "timestamp" else " ", unit)
    return f"{text}Z" if kind == "timestamp" else text


def _decimal(unscaled: int, scale: int) -> Any:
    if scale <= 0:
        return unscaled * 10**-scale
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return ExactFloat(f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}")


def _cut(value: bytes, length: int) -> str | None:
    """The longest whole characters in so many bytes: never more than the value itself."""
    text = value[:length].decode("utf-8", "ignore")
    # a first character longer than that leaves nothing to cut to
    return text if text or not value else value.decode()


def _cut_up(value: bytes, length: int) -> str:
    """A text of so many bytes that is not less than the value, or the whole value where there is none."""
    if len(value) <= length:
        return value.decode()
    text = value[:length].decode("utf-8", "ignore")
    for end in range(len(text), 0, -1):
        letter = text[end - 1]
        code = ord(letter) + 1
        if (
            code < 0x110000
            and not 0xD800 <= code < 0xE000
            and len(chr(code).encode()) == len(letter.encode())
        ):
            return text[: end - 1] + chr(code)
    return value.decode()
