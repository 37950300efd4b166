"""Digests of the files in the catalog, and whole rows, to compare the catalog with a log."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deltalakedb.metastore.files.listing import ADD_COLUMNS, FIRST_PAGE, next_page, pages
from deltalakedb.metastore.files.packs import stats_of
from deltalakedb.metastore.files.rows import add_from_row, id_range, more_columns
from deltalakedb.protocol.arrow_values import int_values, joined_lines
from deltalakedb.protocol.digest import FIELDS, FileDigest, bucket_of
from deltalakedb.protocol.packs import path_hashes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from deltalakedb.metastore.engines.base import Row, SessionSource
    from deltalakedb.metastore.files.rows import FileBatch
    from deltalakedb.protocol.actions import Add

#: the columns of the statement "interval rows"
_INTERVAL = (
    "file_id", "add_version", "remove_version", "path", "dv_id", "size", "modification_time", "data_change",
    "num_records", "partition_values", "deletion_vector", "more", "remove_action",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowSums:
    """What rows of files add up to; texts are checksums of all of them, one a line."""

    count: int
    size: int
    modified: int
    records: int
    counted: int
    changes: int
    paths: int
    vectors: int
    partitions: int


def sums_of(batch: FileBatch) -> RowSums:
    """What new files add up to before they are written."""
    columns = batch.columns
    records = columns["num_records"].drop_null()
    size, modified = (int(int_values(columns[name]).sum()) for name in ("size", "modification_time"))
    texts = [_checksum(columns[name]) for name in ("path", "dv_id", "partition_values")]
    counted = (int(int_values(records).sum()), len(records), columns["data_change"].true_count)
    return RowSums(batch.num_files, size, modified, *counted, *texts)


def _checksum(texts: pa.Array) -> int:
    return zlib.crc32(joined_lines(texts))


def range_sums(db: SessionSource, table_id: int, begin: int, count: int) -> tuple[RowSums, int]:
    """What the files with sequence numbers in a range add up to, and how many of them were removed."""
    first = id_range(table_id)[0] + begin
    row = db.row(db.sql("files", "range sums"), (first, first + count))
    many, removed, *sums = row or (0, 0)
    if not many:
        return RowSums(0, *(0,) * 8), 0
    texts = (zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in sums[5:])
    return RowSums(int(many), *(int(value) for value in sums[:5]), *texts), int(removed)


def has_whole_packs(db: SessionSource, table_id: int) -> bool:
    """Whether all packs and blocks of a table have their checksums."""
    first, end = id_range(table_id)
    with db.read() as session:
        packs = [row[0] for row in session.rows(session.sql("files", "packs"), (first, end))]
        for pack in packs:
            rows = session.blobs(session.sql("files", "pack blobs"), (pack,))
            if any(zlib.crc32(data) != crc for _, crc, data in rows):
                return False
        while rows := session.blobs(session.sql("files", "blobs"), (first, end)):
            if any(zlib.crc32(data) != crc for _, crc, data in rows):
                return False
            first = rows[-1][0] + 1
    return True


def table_digest(db: SessionSource, table_id: int, version: int) -> FileDigest:
    """The digest of the files that live at a version; the table need not be visible yet."""
    made = FileDigest()
    for page in pages(db, table_id, version, FIELDS):
        hashes = path_hashes(page.column("path").combine_chunks()).astype(np.int64)
        made.add_columns({name: page.column(name) for name in FIELDS}, hashes)
    return made


def files_in(db: SessionSource, table_id: int, version: int, buckets: Collection[int]) -> Iterator[Add]:
    """The files of some buckets that live at a version."""
    wanted = frozenset(buckets)
    for found in pages(db, table_id, version, ADD_COLUMNS):
        for number, path in enumerate(found.column("path").to_pylist()):
            if bucket_of(path) in wanted:
                yield add_from_row(found.slice(number, 1).to_pylist()[0])


def interval_rows(db: SessionSource, table_id: int) -> Iterator[list[dict[str, Any]]]:
    """Every file row of a table in pages: its interval, and all columns of its actions."""
    first, end = id_range(table_id)
    after, size = first - 1, FIRST_PAGE
    while True:
        with db.read() as session:
            rows = session.rows(session.sql("files", "interval rows"), (after, end, size))
            ids = np.array([row[0] for row in rows], np.int64)
            texts = stats_of(session, ids)
        stats = texts.to_pylist()
        found = [dict(zip(_INTERVAL, row, strict=True)) for row in rows]
        for row, text in zip(found, stats, strict=True):
            row.update(more_columns(row.pop("more")), stats=text, data_change=bool(row["data_change"]))
        if found:
            yield found
        if len(rows) < size:
            return
        after, size = rows[-1][0], next_page(texts.nbytes, len(rows))


def small_rows(db: SessionSource, table_id: int) -> list[Row]:
    """Metadata, protocol, txns and domains: kind, name, first version, version it ended with, JSON."""
    return db.rows(db.sql("files", "small rows"), (table_id,) * 4)
