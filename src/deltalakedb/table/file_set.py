"""The files of one direct write: row groups gathered by partition, hidden until they are whole."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.exceptions import StorageError
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.partition import partition_path
from deltalakedb.protocol.paths import encode_path
from deltalakedb.storage.local import storage_error
from deltalakedb.table.parquet_stats import LongStrings, file_stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from deltalakedb.table.parquet_options import ParquetOptions
    from deltalakedb.table.partition_split import Key
    from deltalakedb.table.write_plan import WritePlan

__all__ = ["FileSet"]

_MIB: Final = 1024 * 1024
#: data in memory that becomes a row group, even where the rows are fewer than allowed
GROUP_BYTES: Final = 64 * _MIB
#: data in memory that waits for its row groups, over all partitions
PENDING_BYTES: Final = 256 * _MIB
#: files that are open at a time; a partition beyond that begins a second file later
MOST_OPEN: Final = 64
_BUFFER: Final = 128 * 1024
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
    """A file that is being written under a hidden name."""

    def __init__(
        self, final: Path, values: Mapping[str, str | None], plan: WritePlan, options: ParquetOptions
    ) -> None:
        self.final = final
        self.hidden = final.with_name(f".{final.name}.tmp")
        self.values = values
        self.long = LongStrings(plan.leaves)
        self.footers: list[pq.FileMetaData] = []
        self.file = self.hidden.open("xb", buffering=_BUFFER)
        try:
            self.writer = pq.ParquetWriter(
                self.file, plan.file_schema, metadata_collector=self.footers, **options.writer
            )
        except BaseException:
            self.file.close()
            _remove(self.hidden)
            raise

    def finish(self, *, fsync: bool) -> os.stat_result:
        """Make the file whole and give it its name."""
        self.writer.close()
        self.file.flush()
        if fsync:
            os.fsync(self.file.fileno())
        stat = os.fstat(self.file.fileno())
        self.file.close()
        self.hidden.rename(self.final)
        return stat

    def discard(self) -> None:
        """Remove the file, in whatever state it is."""
        for close in (self.writer.close, self.file.close):
            with contextlib.suppress(Exception):
                close()
        # a writer that could not close tries again when it is collected, and complains
        self.writer.is_open = False
        _remove(self.hidden)
        _remove(self.final)


class FileSet:
    """The files of one write, by partition."""

    def __init__(
        self, root: Path, plan: WritePlan, options: ParquetOptions, *, target: int, fsync: bool
    ) -> None:
        self._root = root
        self._plan = plan
        self._options = options
        self._target = target
        self._fsync = fsync
        self._names = [column.name for column in plan.partition_columns]
        self._pending: dict[Key, _Pending] = {}
        self._waiting = 0
        self._open: OrderedDict[Key, _OpenFile] = OrderedDict()
        self._numbers: dict[Key, int] = {}
        self._folders: dict[Path, None] = {}
        self._written: list[Path] = []
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
        if self._fsync:
            for folder in self._folders:
                _sync(folder)
        return self._adds

    def discard(self) -> None:
        """Remove everything written so far."""
        for opened in self._open.values():
            opened.discard()
        for path in self._written:
            _remove(path)

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
        with _translated(self._root):
            opened = self._open.get(key) or self._begin(key)
            before = opened.file.tell()
            opened.long.look(table)
            opened.writer.write_table(table, row_group_size=self._options.rows)
            made = opened.file.tell()
        self._ratio = min(max(table.nbytes / max(made - before, 1), 0.5), 64.0)
        self._open.move_to_end(key)
        if made >= self._target * _NEARLY:
            self._close(key)

    def _begin(self, key: Key) -> _OpenFile:
        while len(self._open) >= MOST_OPEN:
            self._close(next(iter(self._open)))
        values = dict(zip(self._names, key, strict=True))
        folder = self._root / partition_path(values) if key else self._root
        if folder not in self._folders:
            self._make_folder(folder)
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        name = f"part-{number:05d}-{uuid.uuid4()}-c000{self._options.suffix}"
        opened = self._open[key] = _OpenFile(folder / name, values, self._plan, self._options)
        return opened

    def _close(self, key: Key) -> None:
        opened = self._open[key]
        with _translated(opened.final):
            stat = opened.finish(fsync=self._fsync)
        self._written.append(opened.final)
        del self._open[key]
        name = opened.final.name
        self._adds.append(
            Add(
                path=encode_path(f"{partition_path(opened.values)}/{name}" if key else name),
                partition_values=opened.values,
                size=stat.st_size,
                modification_time=stat.st_mtime_ns // 1_000_000,
                data_change=True,
                stats=file_stats(
                    opened.footers[0], self._plan.leaves, opened.long.bounds, truncate=self._options.truncate
                ),
            )
        )

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, and remember whose entries must be on disk at the end."""
        made = folder
        while not made.is_dir():
            self._folders.setdefault(made.parent)
            made = made.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._folders.setdefault(folder)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    with _translated(folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as e:
        raise storage_error(e, "write", path) from e
