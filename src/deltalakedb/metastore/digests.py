"""Digests of what the catalog holds: summed in the database where it can, else hashed here page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from deltalakedb.metastore.file_rows import FILE_ID_BITS
from deltalakedb.metastore.files import ADD_COLUMNS, FILE_SCHEMA, add_from_row
from deltalakedb.metastore.pruning import EngineFacts, plan_page
from deltalakedb.protocol.digest import FileDigest, bucket_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Row
    from deltalakedb.protocol.actions import Add

#: rows fetched at once
PAGE = 20_000


def table_digest(database: Database, table_id: int, version: int) -> FileDigest:
    """The digest of the files that live at a version; the table need not be visible yet."""
    made = FileDigest()
    after, last = (table_id << FILE_ID_BITS) - 1, (table_id + 1) << FILE_ID_BITS
    if database.dialect.hashes:
        bounds = after, last
        with database.read() as session:
            for row in session.rows(database.sql("files", "bucket digests"), (*bounds, version, version)):
                made.add_sums(*(int(v) for v in row))
        return made
    while True:
        with database.read() as session:
            rows = session.rows(database.sql("files", "digest texts"), (after, last, version, version, PAGE))
        if rows:
            ids, hashes, sizes, texts = zip(*rows, strict=True)
            made.add_texts(np.array(hashes, np.int64), np.array(sizes, np.int64), texts)
            after = ids[-1]
        if len(rows) < PAGE:
            return made


def files_in(database: Database, table_id: int, version: int, buckets: Collection[int]) -> Iterator[Add]:
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
            facts=_facts(database),
        )
        with database.read() as session:
            found = session.arrow(plan.sql, plan.params, shape)
        hashes = found.column("path_hash").to_pylist()
        for number in (n for n, h in enumerate(hashes) if bucket_of(h) in wanted):
            yield add_from_row(found.slice(number, 1).to_pylist()[0])
        if found.num_rows < PAGE:
            return
        after = found.column("file_id")[-1].as_py()


def interval_rows(database: Database, table_id: int) -> Iterator[list[Row]]:
    """Every file row of a table in pages: its interval, and all columns of its actions."""
    after, last = (table_id << FILE_ID_BITS) - 1, (table_id + 1) << FILE_ID_BITS
    while True:
        with database.read() as session:
            rows = session.rows(database.sql("files", "interval rows"), (after, last, PAGE))
        if rows:
            yield rows
        if len(rows) < PAGE:
            return
        after = rows[-1][0]


def small_rows(database: Database, table_id: int) -> list[Row]:
    """Metadata, protocol, txns and domains: kind, name, first version, version it ended with, JSON."""
    with database.read() as session:
        return session.rows(database.sql("files", "small rows"), (table_id,) * 4)


def _facts(database: Database) -> EngineFacts:
    return EngineFacts(indexed=database.dialect.indexed, side_table=database.dialect.side_table)
