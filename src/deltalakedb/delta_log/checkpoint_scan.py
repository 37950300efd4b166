"""A checkpoint as windows of rows: the same ones in every run, so that a reader can go on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from deltalakedb.delta_log.checkpoint import (
    as_torn,
    column_actions,
    decoded_batches,
    instants,
    named_sidecars,
    open_parquet,
    wanted_columns,
    widest_row,
)
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.codec import decode_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from deltalakedb.delta_log.listing import Checkpoint
    from deltalakedb.protocol.actions import Action
    from deltalakedb.storage import Store

_FILES = frozenset({"add", "remove"})
#: rows that Arrow decodes at once
_DECODED_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a window as one Parquet file has them."""

    batch: pa.RecordBatch
    utc: frozenset[str]
    path: str

    def actions(self) -> list[Action]:
        """The file actions in it; LogCorruptError where one is malformed."""
        with as_torn(self.path):
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
        self._store = store
        self._paths = [meta.path for meta in checkpoint.files]
        self._paths += sorted(named_sidecars(store, checkpoint))
        measured = [_measure(store, path) for path in self._paths]
        self._rows = [rows for rows, _, _ in measured]
        #: bytes of its rows before compression, as its writer tells
        self.raw_bytes = sum(size for _, size, _ in measured)
        #: bytes that a row may have when it is decoded
        self.widest = max((widest for _, _, widest in measured), default=0)

    @property
    def rows(self) -> int:
        """All rows, those of other actions too."""
        return sum(self._rows)

    @property
    def paths(self) -> Sequence[str]:
        """Its files in the order of their rows."""
        return self._paths

    def parts(self) -> Iterator[Part]:
        """All rows, in parts that take little memory each."""
        return (part for part, _ in self._parts(0))

    def windows(self, size: int, *, after: int = 0) -> Iterator[Window]:
        """The windows of a size that lie at or after a position, which must be the beginning of one."""
        begin, parts, have = after, [], 0
        for part, rows in self._parts(after):
            while rows:
                take = min(rows, size - have)
                parts.append(part if take == rows else _head(part, take))
                part = _rest(part, take)
                rows -= take
                have += take
                if have == size:
                    yield Window(begin, begin + size, tuple(parts))
                    begin, parts, have = begin + size, [], 0
        if have:
            yield Window(begin, begin + have, tuple(parts))

    def _parts(self, after: int) -> Iterator[tuple[Part, int]]:
        at = 0
        for path, rows in zip(self._paths, self._rows, strict=True):
            skip = min(rows, max(0, after - at))
            at += rows
            if skip < rows:
                read = _json_parts if path.endswith(".json") else _parquet_parts
                yield from read(self._store, path, skip)


def _measure(store: Store, path: str) -> tuple[int, int, int]:
    """The rows of a file, their bytes before compression, and the bytes of the widest when it is decoded."""
    if path.endswith(".json"):
        with as_torn(path), store.open(path) as file:
            sizes = [len(line) for line in file]
        return len(sizes), sum(sizes), max(sizes, default=0)
    with open_parquet(store, path) as file:
        numbers = range(file.metadata.num_row_groups)
        columns, widest = wanted_columns(file, _FILES), 0
        for number in numbers:
            # one that is torn inside shows when it is read
            with contextlib.suppress(LogCorruptError), as_torn(path):
                widest = max(widest, widest_row(store, path, file, columns, number))
        size = sum(file.metadata.row_group(n).total_byte_size for n in numbers)
        return int(file.metadata.num_rows), size, widest


def _parquet_parts(store: Store, path: str, skip: int) -> Iterator[tuple[Part, int]]:
    with open_parquet(store, path) as file:
        columns = wanted_columns(file, _FILES)
        groups: list[int] = []
        utc = instants(file)
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if not groups and skip >= rows:
                skip -= rows
            else:
                groups.append(number)
        if not columns:
            left = sum(file.metadata.row_group(n).num_rows for n in groups) - skip
            if left:
                yield [], left
            return
        for batch in decoded_batches(store, path, file, columns, groups, most=_DECODED_AT_ONCE):
            with as_torn(path):
                batch.validate(full=True)  # texts that are not UTF-8 would be found by those who read them
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            batch, skip = batch.slice(skip), 0
            yield Piece(batch, utc, path), batch.num_rows


def _json_parts(store: Store, path: str, skip: int) -> Iterator[tuple[Part, int]]:
    with as_torn(path), store.open(path) as file:
        number = skip
        for line in islice(file, skip, None):
            number += 1
            action = decode_line(line, source=path, number=number)
            yield ([] if action is None else [action]), 1


def _head(part: Part, rows: int) -> Part:
    return replace(part, batch=part.batch.slice(0, rows)) if isinstance(part, Piece) else part


def _rest(part: Part, rows: int) -> Any:
    return replace(part, batch=part.batch.slice(rows)) if isinstance(part, Piece) else part
