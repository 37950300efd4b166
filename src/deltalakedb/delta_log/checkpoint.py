"""Read checkpoints, Parquet or JSON, in parts, with sidecars, in bounded memory.

Rows come as batches of Arrow columns (`Piece`) whose positions are the same in every run, so that a reader
can continue where another one stopped. A batch is decoded into actions on demand.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltalakedb.delta_log.names import SIDECAR_FOLDER
from deltalakedb.exceptions import (
    LogCorruptError,
    OutsidePathError,
    ProtocolError,
    StorageError,
    StorageMissingError,
)
from deltalakedb.protocol.actions import (
    Action,
    Sidecar,
    UnknownAction,
    action_from_dict,
    decode_line,
    kind_of,
)
from deltalakedb.protocol.paths import decode_path
from deltalakedb.protocol.stats_columns import stats_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.storage import Store

#: rows and bytes of a decoded batch: a small file can unpack to any size
BATCH_ROWS = 16_384
BATCH_BYTES = 32 << 20
_BUFFER_BYTES = 1 << 20
#: the longest text of an action, and the most entries of lists and maps beyond one a row
_VALUE_BYTES = 64 << 20
_ENTRIES = 10_000_000
#: a column that shrinks by more than this is not trusted to have rows of similar sizes
_PACKED = 100
_UNEVEN = 64
#: texts of at least so many bytes are worth sharing
_LONG = 1024
_PARSED = "stats_parsed"
#: read elsewhere or not at all: the strings of `partitionValues` are the truth
_SKIPPED = {"partitionValues_parsed", _PARSED}
_FILE_KINDS = frozenset({"add", "remove", "cdc"})
_SCANNED = frozenset({"add", "remove"})
_SIDECARS = frozenset({"sidecar"})
#: structs inside an action whose absent fields are nulls in Parquet
_NESTED = ("deletionVector", "format")
_TORN = "delete the broken checkpoint if the log holds the commits before it, or restore it from a copy"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one Parquet file of a checkpoint, a column for each kind of action.

    ``utc`` names statistics of the old INT96 type, which are instants although their type has no time zone.
    """

    batch: pa.RecordBatch
    utc: frozenset[str]
    path: str

    def actions(self) -> list[Action]:
        """Decode the actions; LogCorruptError if one is malformed."""
        with corrupt_errors(self.path):
            return [
                action
                for name, column in zip(self.batch.schema.names, self.batch.columns, strict=True)
                for action in column_actions(name, column, self.utc)
            ]


#: rows of a Parquet file, or actions that were JSON
Part: TypeAlias = "Piece | list[Action]"


@dataclass(frozen=True, slots=True)
class Window:
    """Rows ``begin`` to ``end`` (exclusive) of a checkpoint, counted over all of its files."""

    begin: int
    end: int
    parts: tuple[Part, ...]


class CheckpointScan:
    """Reads the file actions of a checkpoint; LogCorruptError if one of its files is missing or torn."""

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        paths = [meta.path for meta in checkpoint.files] + sorted(named_sidecars(store, checkpoint))
        self._files = [_File(store, path).measured() for path in paths]
        #: all rows, those of other actions too
        self.rows = sum(file.rows for file in self._files)
        #: bytes of its rows before compression, according to its writer
        self.raw_bytes = sum(file.raw_bytes for file in self._files)
        #: bytes that a decoded row may have
        self.widest = max((width for file in self._files for width in file.widths.values()), default=0)

    def parts(self) -> Iterator[Part]:
        return (part for part, _ in self._parts(0))

    def windows(self, size: int, *, after: int = 0) -> Iterator[Window]:
        """The windows of a size, from a position on that must be the beginning of one."""
        begin, parts, have = after, [], 0
        for part, rows in self._parts(after):
            taken = 0
            while taken < rows:
                take = min(rows - taken, size - have)
                # a part from JSON is a single row
                parts.append(
                    replace(part, batch=part.batch.slice(taken, take)) if isinstance(part, Piece) else part
                )
                taken += take
                have += take
                if have == size:
                    yield Window(begin, begin + size, tuple(parts))
                    begin, parts, have = begin + size, [], 0
        if have:
            yield Window(begin, begin + have, tuple(parts))

    def _parts(self, after: int) -> Iterator[tuple[Part, int]]:
        for file in self._files:
            if after < file.rows:
                yield from file.read(_SCANNED, skip=after)
            after = max(0, after - file.rows)


def iter_checkpoint(
    store: Store, checkpoint: Checkpoint, *, kinds: frozenset[str] | None = None
) -> Iterator[list[Action]]:
    """The actions of a checkpoint, or those of some kinds, in batches and in no particular order.

    LogCorruptError if a file is missing or torn; batches may have been yielded before that shows.
    """
    sidecars: list[str] = []
    for meta in checkpoint.files:
        for batch in _File(store, meta.path).actions(None if kinds is None else kinds | _SIDECARS):
            sidecars += [sidecar_path(action) for action in batch if isinstance(action, Sidecar)]
            yield [action for action in batch if not isinstance(action, Sidecar)]
    if kinds is None or kinds & _FILE_KINDS:
        for path in sidecars:
            yield from _File(store, path).actions(kinds)


def is_complete(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether all files of a checkpoint exist and have whole footers; cheap, so not a full proof."""
    try:
        for path in named_sidecars(store, checkpoint):
            with _File(store, path).open():
                pass
    except LogCorruptError:
        return False
    return True


def named_sidecars(store: Store, checkpoint: Checkpoint) -> set[str]:
    """The paths of a checkpoint's sidecars; LogCorruptError if one of its own files is missing or torn."""
    return {
        sidecar_path(action)
        for meta in checkpoint.files
        for batch in _File(store, meta.path).actions(_SIDECARS)
        for action in batch
        if isinstance(action, Sidecar)
    }


def sidecar_path(sidecar: Sidecar) -> str:
    """Where a sidecar is: always in the table's folder, so that a copied table finds its own."""
    return f"{SIDECAR_FOLDER}/{decode_path(sidecar.path).rpartition('/')[2]}"


class _File:
    """One file of a checkpoint."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self.path = store, path
        self.rows = self.raw_bytes = 0
        #: bytes of the widest decoded row by row group, as far as they are known
        self.widths: dict[int, int] = {}

    def measured(self) -> Self:
        """Count rows and bytes; a row group that is torn inside raises only when it is read."""
        if self.path.endswith(".json"):
            with corrupt_errors(self.path), self._store.open(self.path) as lines:
                sizes = [len(line) for line in lines]
            self.rows, self.raw_bytes, self.widths[0] = len(sizes), sum(sizes), max(sizes, default=0)
            return self
        with self.open() as file:
            columns, metadata = _columns_for(file, _SCANNED), file.metadata
            groups = range(metadata.num_row_groups)
            self.rows = int(metadata.num_rows)
            self.raw_bytes = sum(metadata.row_group(n).total_byte_size for n in groups)
            for number in groups:
                with contextlib.suppress(LogCorruptError), corrupt_errors(self.path):
                    self.widths[number] = self._widest_row(file, columns, number)
        return self

    def actions(self, kinds: frozenset[str] | None) -> Iterator[list[Action]]:
        for part, _ in self.read(kinds):
            yield part.actions() if isinstance(part, Piece) else part

    def read(self, kinds: frozenset[str] | None, *, skip: int = 0) -> Iterator[tuple[Part, int]]:
        """The rows of some action kinds in parts, with the number of rows of each, after those to skip."""
        return self._json(kinds, skip) if self.path.endswith(".json") else self._parquet(kinds, skip)

    def _json(self, kinds: frozenset[str] | None, skip: int) -> Iterator[tuple[Part, int]]:
        with corrupt_errors(self.path), self._store.open(self.path) as file:
            number = skip
            for number, line in enumerate(islice(file, skip, None), start=skip + 1):
                # lines of other kinds are decoded too, to find torn ones
                action = decode_line(line, source=self.path, number=number)
                yield [a for a in (action,) if a is not None and (kinds is None or kind_of(a) in kinds)], 1
            if not number:
                raise LogCorruptError(f"the checkpoint file {self.path} is empty", suggestion=_TORN)

    def _parquet(self, kinds: frozenset[str] | None, skip: int) -> Iterator[tuple[Part, int]]:
        with self.open() as file:
            columns, utc = _columns_for(file, kinds), _int96_columns(file)
            for number in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                if skip >= rows:
                    skip -= rows
                elif not columns:
                    yield [], rows - skip
                    skip = 0
                else:
                    for batch in self._batches(file, columns, number):
                        if skip < batch.num_rows:
                            yield Piece(batch.slice(skip), utc, self.path), batch.num_rows - skip
                        skip = max(0, skip - batch.num_rows)

    def _batches(self, file: pq.ParquetFile, columns: list[str], group: int) -> Iterator[pa.RecordBatch]:
        """Batches of a row group, so small that they take little memory whatever the file unpacks to."""
        with corrupt_errors(self.path):
            if (width := self.widths.get(group)) is None:
                width = self._widest_row(file, columns, group)
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))
            found = file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
        while True:
            with corrupt_errors(self.path):
                if (batch := next(found, None)) is None:
                    return
                if batch.nbytes > _VALUE_BYTES and batch.num_rows == 1:
                    raise self._absurd(batch.nbytes)
                batch.validate(full=True)  # text that is not UTF-8 would fail wherever it is used
            yield batch

    def _widest_row(self, file: pq.ParquetFile, columns: list[str], group: int) -> int:
        """The bytes that a decoded row of a row group may have, by footer and dictionaries.

        LogCorruptError if a text is absurdly long, or there are too many.
        """
        chunks, leaves = file.metadata.row_group(group), file.schema
        wanted = tuple(f"{name}." for name in columns)
        total, named = 0, dict[str, int]()
        for at in range(chunks.num_columns):
            chunk = chunks.column(at)
            if not f"{chunk.path_in_schema}.".startswith(wanted):
                continue
            if chunk.num_values - chunks.num_rows * _UNEVEN > _ENTRIES:
                raise self._absurd(chunk.num_values, "entries")
            entries = max(1, -(-chunk.num_values // max(1, chunks.num_rows)))
            unpacked = chunk.total_uncompressed_size
            uneven = _UNEVEN if unpacked > _PACKED * max(1, chunk.total_compressed_size) else 1
            each = min(unpacked, uneven * unpacked // max(1, chunks.num_rows))
            if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
                each = max(each, leaves.column(at).length * entries)
            elif chunk.physical_type == "BYTE_ARRAY":
                if "DELTA_BYTE_ARRAY" in chunk.encodings:
                    each = unpacked * entries  # every value may repeat the one before
                if chunk.has_dictionary_page:
                    named[chunk.path_in_schema] = entries
            total += each
        longest = self._longest_values(file, list(named), group) if named else []
        return total + sum(length * entries for length, entries in zip(longest, named.values(), strict=True))

    def _longest_values(self, file: pq.ParquetFile, leaves: list[str], group: int) -> list[int]:
        """The length of the longest text in each dictionary of a row group; one row loads them whole."""
        with self.open(dictionaries=leaves, metadata=file.metadata) as opened:
            rows = opened.iter_batches(batch_size=1, row_groups=[group], columns=leaves, use_threads=False)
            columns = [column for row in islice(rows, 1) for column in row.columns]
            found = [each for column in columns for each in _dictionaries(column)]
        longest = [pc.max(pc.binary_length(each)).as_py() or 0 for each in found]
        if (most := max(longest, default=0)) > _VALUE_BYTES:
            raise self._absurd(most)
        # decimals are not read as dictionaries
        return longest if len(longest) == len(leaves) else [most] * len(leaves)

    def _absurd(self, size: int, what: str = "bytes in one row") -> LogCorruptError:
        return LogCorruptError(
            f"the checkpoint file {self.path} unpacks to {size:,} {what}, more than any table needs",
            suggestion="do not read this log, which may exhaust memory; have its writer checkpoint it again",
        )

    @contextlib.contextmanager
    def open(self, *, dictionaries: Any = None, metadata: Any = None) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file; LogCorruptError if it is missing or has no whole footer."""
        options: dict[str, Any] = {"read_dictionary": dictionaries, "coerce_int96_timestamp_unit": "us"}
        options |= {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
        with contextlib.ExitStack() as stack:
            with corrupt_errors(self.path):
                handle = stack.enter_context(self._store.open(self.path))
                file = stack.enter_context(pq.ParquetFile(handle, metadata=metadata, **options))
            yield file


def _dictionaries(column: pa.Array) -> Iterator[pa.Array]:
    """The dictionaries in a column, in the order of its leaves."""
    children: list[pa.Array] = []
    if pa.types.is_dictionary(column.type):
        yield column.dictionary
    elif pa.types.is_struct(column.type):
        children = [column.field(number) for number in range(column.type.num_fields)]
    elif pa.types.is_map(column.type):
        children = [column.keys, column.items]
    elif isinstance(column, pa.ListArray | pa.LargeListArray):
        children = [column.values]
    for child in children:
        yield from _dictionaries(child)


@contextlib.contextmanager
def corrupt_errors(path: str) -> Iterator[None]:
    """Turn the errors of a broken file into LogCorruptError; storage errors pass through unchanged."""
    try:
        yield
    except StorageMissingError as e:
        raise LogCorruptError(f"the checkpoint file {path} is missing", suggestion=_TORN) from e
    except (StorageError, LogCorruptError, OutsidePathError):
        raise
    except ProtocolError as e:
        raise LogCorruptError(f"the checkpoint file {path}: {e.message}", suggestion=_TORN) from e
    except (pa.ArrowException, OSError, ValueError, OverflowError) as e:
        raise LogCorruptError(f"the checkpoint file {path} cannot be read: {e}", suggestion=_TORN) from e


def _columns_for(file: pq.ParquetFile, kinds: frozenset[str] | None) -> list[str]:
    """The columns to read for some action kinds; statistics as structs only if some have no other form."""
    columns = []
    for top in file.schema_arrow:
        if kinds is not None and top.name not in kinds:
            continue
        if not pa.types.is_struct(top.type):
            columns.append(top.name)
            continue
        columns += [f"{top.name}.{child.name}" for child in top.type if child.name not in _SKIPPED]
        if top.name == "add" and top.type.get_field_index(_PARSED) >= 0 and _lacks_json_stats(file):
            columns.append(f"add.{_PARSED}")
    return columns


def _lacks_json_stats(file: pq.ParquetFile) -> bool:
    """Whether some add may have no JSON statistics, by the footer's null counts."""
    leaves = {file.schema.column(i).path: i for i in range(len(file.schema))}
    if "add.stats" not in leaves or "add.path" not in leaves:
        return True
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        found = [group.column(leaves[name]).statistics for name in ("add.stats", "add.path")]
        nulls = {None if s is None or not s.has_null_count else s.null_count for s in found}
        if None in nulls or len(nulls) > 1:
            return True
    return False


def _int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    prefix = f"add.{_PARSED}."
    columns = (file.schema.column(i) for i in range(len(file.schema)))
    return frozenset(
        column.path.removeprefix(prefix)
        for column in columns
        if column.physical_type == "INT96" and column.path.startswith(prefix)
    )


def column_actions(kind: str, column: Any, utc: frozenset[str]) -> Iterator[Action]:
    if not len(column := column.drop_null()):
        return
    if not pa.types.is_struct(column.type):
        yield from (UnknownAction(kind=kind, value=value) for value in column.to_pylist())
        return
    children = {field.name: child for field, child in zip(column.type, column.flatten(), strict=True)}
    parsed: list[str | None] = [None] * len(column)
    if kind == "add" and _PARSED in children:
        parsed = stats_json(children.pop(_PARSED), utc=utc)
    for value, stats in zip(_rows(children, len(column)), parsed, strict=True):
        if not value or (kind in _FILE_KINDS and "path" not in value):
            continue  # some writers write an absent action as a struct of nulls
        if stats is not None:
            value.setdefault("stats", stats)
        if (action := action_from_dict({kind: value})) is not None:
            yield action


def _rows(columns: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Columns as rows without nulls; column by column, since Arrow's `to_pylist` is several times slower."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        if column.null_count == len(column):
            continue
        values = _maps(column) if pa.types.is_map(column.type) else _values(column)
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
        for row in rows if name in _NESTED else ():
            if isinstance(value := row.pop(name, None), dict):
                value = {key: item for key, item in value.items() if item is not None}
            if value:
                row[name] = value
    return rows


def _values(column: pa.Array) -> list[Any]:
    """A column's values; long texts that repeat are one object."""
    if pa.types.is_string(column.type) and column.nbytes > _LONG * len(column):
        encoded = column.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        return [None if n is None else words[n] for n in encoded.indices.to_pylist()]
    return list(column.to_pylist(maps_as_pydicts="lossy"))


def _maps(column: pa.MapArray) -> Iterator[dict[str, Any] | None]:
    keys, items, offsets = _values(column.keys), _values(column.items), column.offsets.to_pylist()
    for row, present in enumerate(column.is_valid().to_pylist()):
        at = slice(offsets[row], offsets[row + 1])
        yield dict(zip(keys[at], items[at], strict=True)) if present else None
