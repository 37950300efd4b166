"""Digests of what the catalog holds: summed in the database where it can, else hashed here page by page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from deltalakedb.metastore.files.listing import ADD_COLUMNS, FILE_SCHEMA, add_from_row
from deltalakedb.metastore.files.pruning import plan_page
from deltalakedb.metastore.files.rows import FILE_ID_BITS
from deltalakedb.protocol.digest import FileDigest, bucket_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from deltalakedb.metastore.engines.base import Row, SessionSource
    from deltalakedb.protocol.actions import Add

#: rows fetched at once
PAGE = 20_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Files that follow each other.

    Attributes:
        begin: The first sequence number.
        end: The one after the last.
        files: How many of them were live.
        md5: Of their texts in order, as `protocol.digest` spells them, with a separator in between.
    """

    begin: int
    end: int
    files: int
    md5: str


def holds(db: SessionSource, table_id: int, version: int, stretch: Stretch) -> bool:
    """Whether the files of a stretch that lived at a version are those."""
    first = table_id << FILE_ID_BITS
    bounds = first + stretch.begin - 1, first + stretch.end
    row = db.row(db.sql("files", "stretch"), (*bounds, *bounds, version, version))
    files, found = row if row is not None else (0, b"")
    if not db.dialect.hashes:
        found = hashlib.md5(found or b"", usedforsecurity=False).hexdigest()
    return (int(files), found) == (stretch.files, stretch.md5)


def changed_digest(
    db: SessionSource, table_id: int, base: FileDigest, first_version: int, version: int, next_seq: int
) -> FileDigest:
    """The digest of the files that live at a version, by what became of those of an earlier one.

    Args:
        db: The catalog, or a session on it.
        table_id: The table.
        base: The digest of the files that lived at the earlier version.
        first_version: That version.
        version: The version.
        next_seq: The first sequence number after their files.
    """
    params = table_id, first_version, version, first_version
    closed = db.rows(db.sql("files", "closed between"), params)
    gone = FileDigest()
    gone.add_rows(closed)
    later = table_digest(db, table_id, version, since=next_seq)
    return FileDigest().merge(base).without(gone).merge(later)


def table_digest(db: SessionSource, table_id: int, version: int, *, since: int = 0) -> FileDigest:
    """The digest of the files that live at a version; the table need not be visible yet.

    Args:
        db: The catalog, or a session on it.
        table_id: The table.
        version: The version.
        since: The first sequence number to look at.
    """
    made = FileDigest()
    after, last = (table_id << FILE_ID_BITS) + since - 1, (table_id + 1) << FILE_ID_BITS
    if db.dialect.hashes:
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
    columns = [*ADD_COLUMNS, "path_hash", "file_id"]
    after = (table_id << FILE_ID_BITS) - 1
    shape = pa.schema([FILE_SCHEMA.field(c) for c in columns])
    while True:
        plan = plan_page(
            table_id=table_id,
            version=version,
            after=after,
            limit=PAGE,
            columns=columns,
            facts=db.dialect,
        )
        with db.read() as session:
            found = session.arrow(plan.sql, plan.params, shape)
        hashes = found.column("path_hash").to_pylist()
        for number in (n for n, h in enumerate(hashes) if bucket_of(h) in wanted):
            yield add_from_row(found.slice(number, 1).to_pylist()[0])
        if found.num_rows < PAGE:
            return
        after = found.column("file_id")[-1].as_py()


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
