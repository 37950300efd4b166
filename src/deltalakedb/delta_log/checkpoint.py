"""Reading checkpoints: Parquet or JSON, in parts, with sidecars; memory stays bounded.

Rows come as batches of Arrow columns (`Piece`) with a position, the same in every run, so that a reader can
go on after another one stopped. Actions are made of a batch on demand.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltalakedb.delta_log.names import SIDECAR_FOLDER
from deltalakedb.delta_log.struct_stats import stats_json
from deltalakedb.exceptions import (
    LogCorruptError,
    OutsidePathError,
    ProtocolError,
    StorageError,
    StorageMissingError,
)
from deltalakedb.protocol.actions import Action, Sidecar, UnknownAction, action_from_dict, kind_of
from deltalakedb.protocol.codec import decode_line
from deltalakedb.protocol.paths import decode_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.storage import Store

#: rows that are decoded at once
BATCH_ROWS = 16_384
_BUFFER_BYTES = 1 << 20
#: bytes that a batch may have when it is decoded: a small file can unpack to any size
BATCH_BYTES = 32 << 20
#: the longest text of an action, and the most entries of lists and maps beyond one a row
_VALUE_BYTES = 64 << 20
_ENTRIES = 10_000_000
#: a column that shrinks by more than this is not trusted to have rows of similar sizes
_PACKED = 100
_UNEVEN = 64
#: bytes of a text from which on its copies are worth sharing
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
    """Some rows of a checkpoint as one Parquet file has them.

    Attributes:
        batch: The rows; a column for each kind of action.
        utc: Statistics of the old INT96 type, which are instants without saying so.
        path: The file.
    """

    batch: pa.RecordBatch
    utc: frozenset[str]
    path: str

    def actions(self) -> list[Action]:
        """The actions in it; LogCorruptError if one is malformed."""
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
    """A run of a checkpoint's rows.

    Attributes:
        begin: The position of its first row, counted over all files of the checkpoint.
        end: The position after its last.
        parts: Its rows, in order.
    """

    begin: int
    end: int
    parts: tuple[Part, ...]


class CheckpointScan:
    """Reads the file actions of a checkpoint in windows of a fixed size.

    Args:
        store: The table's root.
        checkpoint: Which one.

    Raises:
        LogCorruptError: A file of it is missing or torn.
    """

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        paths = [meta.path for meta in checkpoint.files] + sorted(named_sidecars(store, checkpoint))
        self._store = store
        self._files = [_File(store, path) for path in paths]
        #: all rows, those of other actions too
        self.rows = sum(file.rows for file in self._files)
        #: bytes of its rows before compression, according to its writer
        self.raw_bytes = sum(file.raw_bytes for file in self._files)
        #: bytes that a row may have when it is decoded
        self.widest = max((width for file in self._files for width in file.widths.values()), default=0)

    @property
    def paths(self) -> Sequence[str]:
        """Its files in the order of their rows."""
        return [file.path for file in self._files]

    def parts(self) -> Iterator[Part]:
        """All rows, in parts that take little memory each."""
        return (part for part, _ in self._parts(0))

    def windows(self, size: int, *, after: int = 0) -> Iterator[Window]:
        """The windows of a size that are at or after a position, which must be the beginning of one."""
        begin, parts, have = after, [], 0
        for part, rows in self._parts(after):
            taken = 0
            while taken < rows:
                take = min(rows - taken, size - have)
                parts.append(_slice(part, taken, take))
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
                yield from _read(self._store, file.path, _SCANNED, skip=after, widths=file.widths)
            after = max(0, after - file.rows)


class _File:
    """What is known of a file before its rows are read."""

    def __init__(self, store: Store, path: str) -> None:
        self.path = path
        #: bytes of the widest row by row group; one that is torn inside is left out and shows when it is read
        self.widths: dict[int, int] = {}
        if path.endswith(".json"):
            with corrupt_errors(path), store.open(path) as lines:
                sizes = [len(line) for line in lines]
            self.rows, self.raw_bytes, self.widths[0] = len(sizes), sum(sizes), max(sizes, default=0)
            return
        with _open_parquet(store, path) as file:
            columns, metadata = _columns_for(file, _SCANNED), file.metadata
            groups = range(metadata.num_row_groups)
            self.rows = int(metadata.num_rows)
            self.raw_bytes = sum(metadata.row_group(n).total_byte_size for n in groups)
            for number in groups:
                with contextlib.suppress(LogCorruptError), corrupt_errors(path):
                    self.widths[number] = _widest_row(store, path, file, columns, number)


def iter_checkpoint(
    store: Store, checkpoint: Checkpoint, *, kinds: frozenset[str] | None = None
) -> Iterator[list[Action]]:
    """The actions of a checkpoint in batches, in no particular order.

    Args:
        store: The table's root.
        checkpoint: Which one.
        kinds: Only these action kinds; sidecars are read only if they can hold one of them.

    Raises:
        LogCorruptError: A file of it is missing or torn; batches may have been given before that shows.
    """
    sidecars: list[str] = []
    for meta in checkpoint.files:
        for batch in _actions(store, meta.path, None if kinds is None else kinds | _SIDECARS):
            sidecars += [sidecar_path(action) for action in batch if isinstance(action, Sidecar)]
            rest: list[Action] = [action for action in batch if not isinstance(action, Sidecar)]
            if rest:
                yield rest
    if kinds is None or kinds & _FILE_KINDS:
        for path in sidecars:
            yield from _actions(store, path, kinds)


def is_complete(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether all files of a checkpoint are there and end as they should; cheap, so not a full proof."""
    try:
        for path in named_sidecars(store, checkpoint):
            with _open_parquet(store, path):
                pass
    except LogCorruptError:
        return False
    return True


def named_sidecars(store: Store, checkpoint: Checkpoint) -> set[str]:
    """The paths of the sidecars that a checkpoint names.

    Raises:
        LogCorruptError: A file of the checkpoint itself is missing or torn.
    """
    return {
        sidecar_path(action)
        for meta in checkpoint.files
        for batch in _actions(store, meta.path, _SIDECARS)
        for action in batch
        if isinstance(action, Sidecar)
    }


def sidecar_path(sidecar: Sidecar) -> str:
    """Where a sidecar is: always in the table's own folder, so that a copied table finds its own."""
    return f"{SIDECAR_FOLDER}/{decode_path(sidecar.path).rpartition('/')[2]}"


def _actions(store: Store, path: str, kinds: frozenset[str] | None) -> Iterator[list[Action]]:
    for part, _ in _read(store, path, kinds):
        yield part.actions() if isinstance(part, Piece) else part


def _read(
    store: Store,
    path: str,
    kinds: frozenset[str] | None,
    *,
    skip: int = 0,
    widths: dict[int, int] | None = None,
) -> Iterator[tuple[Part, int]]:
    """The rows of one file in parts, with the number of rows of each.

    Args:
        store: The table's root.
        path: The file.
        kinds: Only these action kinds.
        skip: Rows to leave out at the beginning.
        widths: Bytes of the widest row by row group, as far as they are known.
    """
    if path.endswith(".json"):
        return _read_json(store, path, kinds, skip)
    return _read_parquet(store, path, kinds, skip, widths or {})


def _read_json(
    store: Store, path: str, kinds: frozenset[str] | None, skip: int
) -> Iterator[tuple[list[Action], int]]:
    with corrupt_errors(path), store.open(path) as file:
        number = skip
        for number, line in enumerate(islice(file, skip, None), start=skip + 1):
            # lines of other kinds are decoded too: a torn one must show
            action = decode_line(line, source=path, number=number)
            wanted = action is not None and (kinds is None or kind_of(action) in kinds)
            yield ([action] if action is not None and wanted else []), 1
        if not number:
            raise LogCorruptError(f"the checkpoint file {path} is empty", suggestion=_TORN)


def _read_parquet(
    store: Store, path: str, kinds: frozenset[str] | None, skip: int, widths: dict[int, int]
) -> Iterator[tuple[Part, int]]:
    with _open_parquet(store, path) as file:
        columns, utc = _columns_for(file, kinds), _int96_columns(file)
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if skip >= rows:
                skip -= rows
            elif not columns:
                yield [], rows - skip
                skip = 0
            else:
                width = widths.get(number)
                for batch in _decoded(store, path, file, columns, number, width):
                    if skip < batch.num_rows:
                        yield Piece(batch.slice(skip), utc, path), batch.num_rows - skip
                    skip = max(0, skip - batch.num_rows)


def _decoded(
    store: Store, path: str, file: pq.ParquetFile, columns: list[str], group: int, width: int | None
) -> Iterator[pa.RecordBatch]:
    """Batches of a row group, so small that they take little memory whatever the file unpacks to.

    Raises:
        LogCorruptError: The file is torn, or holds a text of an absurd length.
    """
    with corrupt_errors(path):
        if width is None:
            width = _widest_row(store, path, file, columns, group)
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))
        batches = file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
    while True:
        with corrupt_errors(path):
            if (batch := next(batches, None)) is None:
                return
            if batch.nbytes > _VALUE_BYTES and batch.num_rows == 1:
                raise _absurd(path, batch.nbytes)
            batch.validate(full=True)  # text that is not UTF-8 would fail wherever it is used
        yield batch


def _slice(part: Part, start: int, rows: int) -> Part:
    """Rows of a part; one of JSON is a single row, or has nothing in it."""
    return replace(part, batch=part.batch.slice(start, rows)) if isinstance(part, Piece) else part


def _widest_row(store: Store, path: str, file: pq.ParquetFile, columns: list[str], group: int) -> int:
    """The bytes that a row of a row group may have when it is decoded, by footer and dictionaries.

    Raises:
        LogCorruptError: A text is of an absurd length, or there are too many.
    """
    chunks, leaves = file.metadata.row_group(group), file.schema
    wanted = tuple(f"{name}." for name in columns)
    total, named = 0, dict[str, int]()
    for at in range(chunks.num_columns):
        chunk, leaf = chunks.column(at), leaves.column(at)
        if not f"{chunk.path_in_schema}.".startswith(wanted):
            continue
        if chunk.num_values - chunks.num_rows * _UNEVEN > _ENTRIES:
            raise _absurd(path, chunk.num_values, "entries")
        entries = max(1, -(-chunk.num_values // max(1, chunks.num_rows)))
        unpacked = chunk.total_uncompressed_size
        uneven = _UNEVEN if unpacked > _PACKED * max(1, chunk.total_compressed_size) else 1
        each = min(unpacked, uneven * unpacked // max(1, chunks.num_rows))
        if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
            each = max(each, leaf.length * entries)
        elif chunk.physical_type == "BYTE_ARRAY":
            if "DELTA_BYTE_ARRAY" in chunk.encodings:
                each = unpacked * entries  # every value may repeat the one before
            if chunk.has_dictionary_page:
                named[chunk.path_in_schema] = entries
        total += each
    longest = _longest_values(store, path, file, list(named), group) if named else []
    return total + sum(length * entries for length, entries in zip(longest, named.values(), strict=True))


def _longest_values(
    store: Store, path: str, file: pq.ParquetFile, leaves: list[str], group: int
) -> list[int]:
    """The length of the longest text in each dictionary of a row group; one row brings them whole."""
    with _open_parquet(store, path, dictionaries=leaves, metadata=file.metadata) as opened:
        rows = opened.iter_batches(batch_size=1, row_groups=[group], columns=leaves, use_threads=False)
        found = [each for row in islice(rows, 1) for column in row.columns for each in _dictionaries(column)]
    longest = [pc.max(pc.binary_length(each)).as_py() or 0 for each in found]
    absurd = max(longest, default=0)
    if absurd > _VALUE_BYTES:
        raise _absurd(path, absurd)
    # decimals stay as they are
    return longest if len(longest) == len(leaves) else [absurd] * len(leaves)


def _dictionaries(column: pa.Array) -> Iterator[pa.Array]:
    """The dictionaries in a column, in the order of its leaves."""
    if pa.types.is_dictionary(column.type):
        yield column.dictionary
    elif pa.types.is_struct(column.type):
        for number in range(column.type.num_fields):
            yield from _dictionaries(column.field(number))
    elif pa.types.is_map(column.type):
        yield from _dictionaries(column.keys)
        yield from _dictionaries(column.items)
    elif isinstance(column, pa.ListArray | pa.LargeListArray):
        yield from _dictionaries(column.values)


def _absurd(path: str, size: int, what: str = "bytes in one row") -> LogCorruptError:
    return LogCorruptError(
        f"the checkpoint file {path} unpacks to {size:,} {what}, more than any table needs",
        suggestion="do not read this log, which may exhaust memory; have its writer write a new checkpoint",
    )


@contextlib.contextmanager
def _open_parquet(
    store: Store,
    path: str,
    *,
    dictionaries: list[str] | None = None,
    metadata: pq.FileMetaData | None = None,
) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a checkpoint.

    Args:
        store: The table's root.
        path: The file's path.
        dictionaries: Leaf columns to read as dictionaries.
        metadata: Its footer, if it was read before.

    Raises:
        LogCorruptError: It is missing or has no whole footer.
    """
    with contextlib.ExitStack() as stack:
        with corrupt_errors(path):
            handle = stack.enter_context(store.open(path))
            file = stack.enter_context(
                pq.ParquetFile(
                    handle,
                    metadata=metadata,
                    read_dictionary=dictionaries,
                    buffer_size=_BUFFER_BYTES,
                    pre_buffer=False,
                    coerce_int96_timestamp_unit="us",
                    page_checksum_verification=True,
                )
            )
        yield file


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
    paths = {file.schema.column(i).path: i for i in range(len(file.schema))}
    if "add.stats" not in paths or "add.path" not in paths:
        return True
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        counts = []
        for name in ("add.stats", "add.path"):
            statistics = group.column(paths[name]).statistics
            if statistics is None or not statistics.has_null_count:
                return True
            counts.append(statistics.null_count)
        if counts[0] != counts[1]:
            return True
    return False


def _int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    """Timestamps of the old INT96 kind, which are instants without saying so."""
    prefix = f"add.{_PARSED}."
    columns = (file.schema.column(i) for i in range(len(file.schema)))
    return frozenset(
        column.path.removeprefix(prefix)
        for column in columns
        if column.physical_type == "INT96" and column.path.startswith(prefix)
    )


def column_actions(kind: str, column: Any, utc: frozenset[str]) -> Iterator[Action]:
    """The actions of one kind in a column of a checkpoint."""
    if not len(column := column.drop_null()):
        return
    if not pa.types.is_struct(column.type):
        yield from (UnknownAction(kind=kind, value=value) for value in column.to_pylist())
        return
    parsed: list[str | None] | None = None
    children, fields = column.flatten(), list(column.type)
    if kind == "add" and (at := column.type.get_field_index(_PARSED)) >= 0:
        parsed = stats_json(children.pop(at), utc=utc)
        fields.pop(at)
    for row, value in enumerate(_rows([field.name for field in fields], children)):
        if not value or (kind in _FILE_KINDS and "path" not in value):
            continue  # some writers spell an absent action as a struct of nulls
        if parsed is not None and "stats" not in value and parsed[row] is not None:
            value["stats"] = parsed[row]
        if (action := action_from_dict({kind: value})) is not None:
            yield action


def _rows(names: list[str], columns: list[Any]) -> list[dict[str, Any]]:
    """Columns as rows without nulls; column by column, since Arrow's own way is several times slower."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(columns[0]))] if columns else []
    for name, column in zip(names, columns, strict=True):
        if column.null_count == len(column):
            continue
        values = _maps(column) if pa.types.is_map(column.type) else _values(column)
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
        if name in _NESTED:
            _drop_nulls(rows, name)
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


def _drop_nulls(rows: list[dict[str, Any]], name: str) -> None:
    for row in rows:
        if isinstance(value := row.get(name), dict):
            row[name] = {key: item for key, item in value.items() if item is not None}
            if not row[name]:
                del row[name]
