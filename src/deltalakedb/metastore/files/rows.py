"""Rows of files: how adds and removes become rows, and the one function that writes them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from deltalakedb.exceptions import ProtocolError
from deltalakedb.metastore.engines.base import arrow_array
from deltalakedb.metastore.rows import Head
from deltalakedb.protocol.actions import Add, DeletionVector, Metadata, Remove
from deltalakedb.protocol.arrow_values import int_array, int_values
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.packs import (
    PACK_SIZE,
    ColumnData,
    encode_block,
    pack_columns,
    path_hashes,
    stored_hashes,
)
from deltalakedb.protocol.paths import check_path
from deltalakedb.protocol.schema import StructType, parse_schema
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.protocol.packs import PackColumn

#: file ids are (table id << FILE_ID_BITS) | sequence number, so that a table's files are stored together
FILE_ID_BITS: Final = 40
#: columns of `dl_files` behind the id, with their Arrow types
COLUMNS: Final = pa.schema(
    [
        ("add_version", pa.int64()),
        ("remove_version", pa.int64()),
        ("deletion_timestamp", pa.int64()),
        ("size", pa.int64()),
        ("modification_time", pa.int64()),
        ("num_records", pa.int64()),
        ("data_change", pa.bool_()),
        ("path", pa.string()),
        ("dv_id", pa.string()),
        ("partition_values", pa.string()),
    ]
)
#: columns of a file that `more` holds as JSON, by their keys there
MORE: Final = {
    "tags": "tags",
    "base_row_id": "baseRowId",
    "default_row_commit_version": "defaultRowCommitVersion",
    "clustering_provider": "clusteringProvider",
    "add_extra": "extra",
}
_DETAILS: Final = ("file_id", "deletion_vector", "more", "remove_action")
#: a commit of so many files is packed by its writer
PACK_MIN: Final = 256
#: ids of one block of statistics
BLOCK_SIZE: Final = 4_096
#: and about so many bytes of their JSON, unless one file has more
_BLOCK_BYTES: Final = 8 << 20
#: rows that wait in memory before they are written
BATCH: Final = 20_000

#: of a file in a batch: its position, deletion vector, other rare fields and remove action, as JSON
Details = tuple[int, str | None, str | None, str | None]


def id_range(table_id: int) -> tuple[int, int]:
    """The first id of a table's files, and the first of the next table."""
    return table_id << FILE_ID_BITS, (table_id + 1) << FILE_ID_BITS


@dataclass(slots=True)
class Counts:
    """A head's counters while files come and go."""

    num_files: int = 0
    size_bytes: int = 0
    num_records: int = 0
    files_without_count: int = 0

    @classmethod
    def of(cls, head: Head) -> Counts:
        return cls(head.num_files, head.size_bytes, head.num_records, head.files_without_count)

    def change(self, sign: int, size: int, records: int | None) -> None:
        """Count a file in (1) or out (-1)."""
        self.num_files += sign
        self.size_bytes += sign * size
        if records is None:
            self.files_without_count += sign
        else:
            self.num_records += sign * records

    def add(self, other: Counts) -> None:
        self.num_files += other.num_files
        self.size_bytes += other.size_bytes
        self.num_records += other.num_records
        self.files_without_count += other.files_without_count

    def head(self, version: int, timestamp: int, first_version: int) -> Head:
        """A head with these counters.

        Raises:
            ProtocolError: They do not fit 64 bits, so some file has a size that no file can have.
        """
        if not -(2**63) <= self.size_bytes < 2**63:
            raise ProtocolError(
                f"version {version} makes the table {self.size_bytes} bytes large, which no table can be",
                version=version,
                suggestion="have the writer of the commit correct the sizes of its files",
            )
        counts = (self.num_files, self.size_bytes, self.num_records, self.files_without_count)
        return Head(version, timestamp, first_version, *counts)


# ---- batches ----


class Pack(NamedTuple):
    """The columns of consecutive files, and the JSON of their statistics in blocks.

    ``begin`` and ``end`` are sequence numbers relative to the first of the batch; ids between them that no
    file has are packed as files of which nothing is known.
    """

    begin: int
    end: int
    num_files: int
    columns: Sequence[PackColumn]
    #: by the relative number of the first id
    blocks: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class FileBatch:
    """New files of a table as columns, computed without the database.

    Attributes:
        columns: Columns of `dl_files` by name, except ``file_id``; those left out are null.
        stats: Their statistics as JSON; null without any.
        details: What only few of them have.
        counts: What those add up to that are live after the batch.
        packs: Their packs; without them, the files stay recent.
    """

    columns: Mapping[str, pa.Array]
    stats: pa.Array
    details: Sequence[Details]
    counts: Counts
    packs: tuple[Pack, ...] = ()

    @property
    def num_files(self) -> int:
        return len(self.stats)

    def without_stats(self) -> FileBatch:
        """The same files without the JSON of their statistics, which packs hold."""
        return replace(self, stats=pa.nulls(self.num_files))

    def path_hashes(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The hashes of their paths; packs hold them."""
        found = [stored_hashes(c.data) for p in self.packs for c in p.columns if c.name == "path"]
        return np.concatenate(found) if found else path_hashes(self.columns["path"])


def details_of(add: Add) -> tuple[str | None, str | None]:
    """The deletion vector and the other rare fields of a file, as JSON; None if it has none."""
    vector = None if add.deletion_vector is None else encode_json(add.deletion_vector.to_dict())
    more: dict[str, Any] = {
        "tags": None if add.tags is None else dict(add.tags),
        "baseRowId": add.base_row_id,
        "defaultRowCommitVersion": add.default_row_commit_version,
        "clusteringProvider": add.clustering_provider,
        "extra": dict(add.extra) or None,
    }
    more = {key: value for key, value in more.items() if value is not None}
    return vector, encode_json(more) if more else None


def batch_of_adds(adds: Sequence[tuple[int, Add]]) -> FileBatch:
    """A batch of files, each given with the version that adds it.

    Raises:
        ProtocolError: A path is not one of a data file.
    """
    rows = [file_values(version, add) for version, add in adds]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in COLUMNS]
    arrays = {f.name: arrow_array(c, f.type) for f, c in zip(COLUMNS, columns, strict=True)}
    counts = Counts()
    for row in rows:
        counts.change(1, row[_SIZE], row[_RECORDS])
    details = [
        (position, *found, None) for position, (_, add) in enumerate(adds) if any(found := details_of(add))
    ]
    return FileBatch(arrays, arrow_array([add.stats for _, add in adds], pa.string()), details, counts)


_SIZE: Final = COLUMNS.get_field_index("size")
_RECORDS: Final = COLUMNS.get_field_index("num_records")


def file_values(version: int, add: Add) -> list[Any]:
    """The values of a new file for `COLUMNS`."""
    check_path(add.path)
    stats = parse_stats(add.stats)
    values = encode_json(dict(add.partition_values))
    records = None if stats is None else stats.num_records
    return [
        version, None, None, add.size, add.modification_time, records, add.data_change, add.path, add.dv_id,
        values,
    ]  # fmt: skip


def packed(batch: FileBatch, schema: StructType, metadata: Metadata) -> FileBatch:
    """The same files with their packs; if ``num_records`` is missing, it is taken from the statistics."""
    if not batch.num_files:
        return batch
    numbers = np.arange(batch.num_files)
    packs, records = [], []
    for begin, end in pack_ranges(numbers):
        part = slice(begin, end)
        found = make_pack(
            numbers[part],
            batch.columns["path"][part],
            batch.stats[part],
            batch.columns["partition_values"][part],
            schema,
            metadata,
        )
        packs.append(found)
        if "num_records" not in batch.columns:
            records.append(_records_of(found, numbers[part]))
    if not records:
        return replace(batch, packs=tuple(packs))
    counted = pa.concat_arrays(records)
    counts = replace(batch.counts)
    known = int_values(counted.drop_null())
    counts.num_records, counts.files_without_count = int(known.sum()), counted.null_count
    return replace(
        batch, columns={**batch.columns, "num_records": counted}, counts=counts, packs=tuple(packs)
    )


def _records_of(pack: Pack, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    for column in pack.columns:
        if column.name == "rows":
            return ColumnData(column.data).values().take(int_array(numbers - pack.begin))
    return pa.nulls(len(numbers), pa.int64())


def pack_ranges(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[tuple[int, int]]:
    """Positions at which files with these ids are split into packs: by size, and at large gaps."""
    breaks = [0, *(np.flatnonzero(np.diff(numbers) > BLOCK_SIZE) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(breaks):
        while start < stop:
            end = int(np.searchsorted(numbers[start:stop], numbers[start] + PACK_SIZE)) + start
            yield start, end
            start = end


def make_pack(
    numbers: np.ndarray[Any, np.dtype[np.int64]],
    paths: pa.Array,
    stats: pa.Array,
    partition_values: pa.Array,
    schema: StructType,
    metadata: Metadata,
) -> Pack:
    """The pack of files with these ascending numbers."""
    begin, end = int(numbers[0]), int(numbers[-1])
    many = len(numbers)
    if end - begin + 1 != many:  # a number without a file is one of which nothing is known
        at = np.full(end - begin + 1, -1)
        at[numbers - begin] = np.arange(many)
        take = pa.array(at, mask=at < 0)
        paths, stats, partition_values = (a.take(take) for a in (paths, stats, partition_values))
        paths = paths.fill_null("")
    blocks = {begin + at: encode_block(stats[at:to]) for at, to in pairwise(_block_ends(stats))}
    columns = pack_columns(paths, stats, partition_values, schema, metadata)
    return Pack(begin, end, many, columns, blocks)


def _block_ends(stats: pa.Array) -> list[int]:
    """Positions at which statistics are split into blocks: by number, and by bytes if they are long."""
    if stats.nbytes <= _BLOCK_BYTES:
        return [*range(0, len(stats), BLOCK_SIZE), len(stats)]
    ends, size = [0], 0
    for at, length in enumerate(len(text or "") for text in stats.to_pylist()):
        size += length
        if at > ends[-1] and (size > _BLOCK_BYTES or at - ends[-1] >= BLOCK_SIZE):
            ends.append(at)
            size = length
    return [*ends, len(stats)]


def write_batch(session: Session, table_id: int, first_seq: int, batch: FileBatch) -> None:
    """Write new files: rows, details, and packs or recent statistics."""
    if not batch.num_files:
        return
    first = (table_id << FILE_ID_BITS) | first_seq
    ids = int_array(np.arange(first, first + batch.num_files))
    if batch.num_files < PACK_MIN and not batch.packs:
        names = tuple(batch.columns)
        rows = zip(ids.to_pylist(), *(c.to_pylist() for c in batch.columns.values()), strict=True)
        session.insert("dl_files", ("file_id", *names), list(rows))
    else:
        session.insert_arrow("dl_files", pa.table({"file_id": ids, **batch.columns}))
    session.insert("dl_file_details", _DETAILS, [(ids[at].as_py(), *rest) for at, *rest in batch.details])
    if batch.packs:
        write_packs(session, first, batch.packs)
    else:
        recent = zip(ids.to_pylist(), batch.stats.to_pylist(), strict=True)
        session.insert("dl_file_stats", ("file_id", "stats"), list(recent))


def write_packs(session: Session, first: int, packs: Iterable[Pack]) -> None:
    """Write packs whose numbers are counted from an id."""
    for pack in packs:
        begin = first + pack.begin
        session.insert(
            "dl_packs", ("first_id", "last_id", "num_files"), [(begin, first + pack.end, pack.num_files)]
        )
        session.insert(
            "dl_pack_columns",
            ("first_id", "name", "low", "high", "crc", "data"),
            [(begin, c.name, c.low, c.high, zlib.crc32(c.data), c.data) for c in pack.columns],
        )
        starts = sorted(pack.blocks)
        ends = [at - 1 for at in starts[1:]] + [pack.end]
        session.insert(
            "dl_stats_blocks",
            ("first_id", "last_id", "crc", "data"),
            [
                (first + at, first + end, zlib.crc32(pack.blocks[at]), pack.blocks[at])
                for at, end in zip(starts, ends, strict=True)
            ],
        )


def live_schema(session: Session, table_id: int) -> tuple[StructType, Metadata] | None:
    """Schema and metadata of the newest version that the session sees; None if they cannot be read."""
    row = session.row(session.sql("snapshots", "live metadata"), (table_id,))
    if row is None:
        return None
    metadata = Metadata.from_dict(decode_json(row[0]))
    return readable_schema(metadata), metadata


def readable_schema(metadata: Metadata) -> StructType:
    """The schema, or an empty one if it cannot be read: files of such a table are never pruned."""
    try:
        return parse_schema(metadata.schema_string)
    except ProtocolError:
        return StructType(())


# ---- one by one ----


class FileRows:
    """Collects new and ended files of one table and writes them in batches.

    Args:
        session: Inside the transaction that changes the table.
        table_id: The table.
        next_seq: The first free sequence number.
    """

    def __init__(self, session: Session, table_id: int, next_seq: int) -> None:
        self._session = session
        self._table_id = table_id
        self.next_seq = next_seq
        self._first = next_seq
        self._new: list[tuple[list[Any], str | None, list[str | None]]] = []
        #: by id: version, time and action that end files which are written already
        self._ended: dict[int, tuple[int, int | None, str | None]] = {}

    def add(self, add: Add, version: int) -> tuple[int, int | None]:
        """A file that lives from a version on; its id and its number of rows.

        Raises:
            ProtocolError: Its path is not one of a data file.
        """
        values = file_values(version, add)
        return self._put(values, add.stats, [*details_of(add), None]), values[_RECORDS]

    def close(self, file_id: int, version: int, remove: Remove | None) -> None:
        """End a file: removed, or replaced by a newer row of the same identity (None)."""
        action = None if remove is None else encode_json(remove.to_dict())
        when = None if remove is None else remove.deletion_timestamp
        at = (file_id & ((1 << FILE_ID_BITS) - 1)) - self._first
        if 0 <= at < len(self._new):
            values, _, details = self._new[at]
            values[1:3], details[2] = [version, when], action
        else:
            self._ended[file_id] = version, when, action

    def bury(self, remove: Remove, version: int) -> None:
        """A tombstone of a file that never lived in this catalog: an empty interval."""
        values: list[Any] = [
            version, version, remove.deletion_timestamp, remove.size or 0, 0, None, remove.data_change,
            remove.path, remove.dv_id, "{}",
        ]  # fmt: skip
        self._put(values, None, [None, None, encode_json(remove.to_dict())])

    def flush(self) -> None:
        """Write everything that waits."""
        self._write_new()
        self._write_ended()

    def _put(self, values: list[Any], stats: str | None, details: list[str | None]) -> int:
        if len(self._new) >= BATCH:
            self._write_new()
        self._new.append((values, stats, details))
        self.next_seq += 1
        return (self._table_id << FILE_ID_BITS) | (self.next_seq - 1)

    def _write_new(self) -> None:
        new, self._new = self._new, []
        first, self._first = self._first, self.next_seq
        if not new:
            return
        begin = (self._table_id << FILE_ID_BITS) | first
        if len(new) < PACK_MIN or (found := live_schema(self._session, self._table_id)) is None:
            rows = [[begin + at, *values] for at, (values, _, _) in enumerate(new)]
            self._session.insert("dl_files", ("file_id", *COLUMNS.names), rows)
            stats = [(begin + at, text) for at, (_, text, _) in enumerate(new)]
            self._session.insert("dl_file_stats", ("file_id", "stats"), stats)
            details = [(begin + at, *rare) for at, (_, _, rare) in enumerate(new) if any(rare)]
            self._session.insert("dl_file_details", _DETAILS, details)
            return
        columns = zip(*(values for values, _, _ in new), strict=True)
        batch = FileBatch(
            {f.name: arrow_array(list(c), f.type) for f, c in zip(COLUMNS, columns, strict=True)},
            arrow_array([text for _, text, _ in new], pa.string()),
            [(at, *rare) for at, (_, _, rare) in enumerate(new) if any(rare)],  # type: ignore[misc]
            Counts(),
        )
        write_batch(self._session, self._table_id, first, packed(batch, *found))

    def _write_ended(self) -> None:
        if not (ended := self._ended):
            return
        self._ended = {}
        session = self._session
        session.update_rows(
            "dl_files",
            ("remove_version", "deletion_timestamp"),
            "file_id",
            [(version, when, file_id) for file_id, (version, when, _) in ended.items()],
        )
        actions = {file_id: action for file_id, (_, _, action) in ended.items() if action is not None}
        known: set[int] = set()
        ids = sorted(actions)
        for at in range(0, len(ids), _AT_ONCE):
            part = ids[at : at + _AT_ONCE]
            rows = session.rows(session.sql("files", "known details").expand(len(part)), part)
            known |= {row[0] for row in rows}
        updates = [(actions[i], i) for i in ids if i in known]
        session.update_rows("dl_file_details", ("remove_action",), "file_id", updates)
        new = [(i, None, None, actions[i]) for i in ids if i not in known]
        session.insert("dl_file_details", _DETAILS, new)


#: ids in one statement
_AT_ONCE: Final = 500


def add_from_row(row: Mapping[str, Any]) -> Add:
    vector, tags, extra = row["deletion_vector"], row["tags"], row["add_extra"]
    return Add(
        path=row["path"],
        partition_values=decode_json(row["partition_values"]),
        size=row["size"],
        modification_time=row["modification_time"],
        data_change=bool(row["data_change"]),
        stats=row["stats"],
        tags=None if tags is None else decode_json(tags),
        deletion_vector=None if vector is None else DeletionVector.from_dict(decode_json(vector)),
        base_row_id=row["base_row_id"],
        default_row_commit_version=row["default_row_commit_version"],
        clustering_provider=row["clustering_provider"],
        extra={} if extra is None else decode_json(extra),
    )


def more_columns(more: str | None) -> dict[str, Any]:
    """The rare fields of a file by the names of their columns; objects stay JSON."""
    found = decode_json(more) if more else {}
    values = {column: found.get(key) for column, key in MORE.items()}
    return {n: encode_json(v) if isinstance(v, dict) else v for n, v in values.items()}
