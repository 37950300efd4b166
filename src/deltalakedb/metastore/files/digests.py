"""Digests of the files in the catalog: summed by the database if it has md5, else hashed here in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deltalakedb.metastore.files.listing import ADD_COLUMNS, PAGE, add_from_row, pages
from deltalakedb.metastore.files.rows import FILE_ID_BITS
from deltalakedb.protocol.digest import FileDigest, bucket_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from deltalakedb.metastore.engines.base import Row, SessionSource
    from deltalakedb.protocol.actions import Add


def table_digest(db: SessionSource, table_id: int, version: int) -> FileDigest:
    """The digest of the files that live at a version; the table need not be visible yet."""
    made = FileDigest()
    after, last = (table_id << FILE_ID_BITS) - 1, (table_id + 1) << FILE_ID_BITS
    if db.dialect.sql_md5:
        for row in db.rows(db.sql("files", "bucket digests"), (after, last, version, version)):
            made.add_sums(*(int(v) for v in row))
        return made
    while True:
        rows = db.rows(db.sql("files", "digest texts"), (after, last, version, version, PAGE))
        if rows:
            ids, hashes, sizes, texts = zip(*rows, strict=True)
            made.add_texts(np.array(hashes, np.int64), np.array(sizes, np.int64), texts)
            after = ids[-1]
        if len(rows) < PAGE:
            return made


def files_in(db: SessionSource, table_id: int, version: int, buckets: Collection[int]) -> Iterator[Add]:
    """The files of some buckets that live at a version."""
    wanted = frozenset(buckets)
    for found in pages(db, table_id, version, [*ADD_COLUMNS, "path_hash"]):
        hashes = found.column("path_hash").to_pylist()
        for number in (n for n, h in enumerate(hashes) if bucket_of(h) in wanted):
            yield add_from_row(found.slice(number, 1).to_pylist()[0])


def interval_rows(db: SessionSource, table_id: int) -> Iterator[list[Row]]:
    """Every file row of a table in pages: its interval, and all columns of its actions."""
    after, last = (table_id << FILE_ID_BITS) - 1, (table_id + 1) << FILE_ID_BITS
    while True:
        rows = db.rows(db.sql("files", "interval rows"), (after, last, PAGE))
        if rows:
            yield rows
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def small_rows(db: SessionSource, table_id: int) -> list[Row]:
    """Metadata, protocol, txns and domains: kind, name, first version, version it ended with, JSON."""
    return db.rows(db.sql("files", "small rows"), (table_id,) * 4)
