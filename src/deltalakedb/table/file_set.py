"""The files of one direct write: row groups gathered by partition, hidden until they are whole."""

from __future__ import annotations

import contextlib
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.partition import partition_path
from deltalakedb.protocol.paths import encode_path
from deltalakedb.storage.durable import Translated
from deltalakedb.table.parquet_stats import FloatColumn, LongStrings, file_stats, float_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.table.new_files import NewFile, NewFiles
    from deltalakedb.table.parquet_options import ParquetOptions
    from deltalakedb.table.partition_split import Key
    from deltalakedb.table.write_plan import WritePlan

__all__ = ["FileSet"]

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
