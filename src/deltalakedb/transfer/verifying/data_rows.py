"""The rows of data, in any order: read through the catalog, and by stock ``deltalake`` or Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from deltalakedb.metastore.files import digests
from deltalakedb.metastore.rows import Head, OpenTable, Table
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.settings import get_config
from deltalakedb.table.read.scan import scan
from deltalakedb.table.roots import root_at
from deltalakedb.table.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.transfer.reports import VerifyReport
    from deltalakedb.transfer.verifying.verifier import Subject

_LANE = (1 << 64) - 1


@dataclass(slots=True)
class RowDigest:
    """Rows counted and summed up by their hashes, so that their order does not matter."""

    count: int = 0
    lane: int = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> RowDigest:
        for batch in batches:
            names = batch.schema.names
            order = sorted(range(len(names)), key=names.__getitem__)
            columns = [batch.column(i).to_pylist() for i in order]
            for row in zip(*columns, strict=True) if columns else [()] * batch.num_rows:
                text = repr(_plain(row)).encode("utf-8", "surrogatepass")
                digest = hashlib.md5(text, usedforsecurity=False).digest()
                self.join(1, int.from_bytes(digest[:8], "big"))
        return self

    def join(self, count: int, lane: int) -> None:
        """Add what was summed up elsewhere."""
        self.count += count
        self.lane = (self.lane + lane) & _LANE


def row_difference(subject: Subject, report: VerifyReport) -> tuple[int, str | None]:
    """The number of rows through the catalog, and how those of the log's table differ, if they do.

    The engine reads the log's table if it can; otherwise stock ``deltalake`` does.
    """
    count, version, location = 0, subject.version, subject.reader.location
    try:
        ours = RowDigest().add(_catalog_rows(subject, report))
        count = ours.count
        theirs, reader = None, "Spark"
        if subject.engine is not None:
            theirs = subject.engine.row_digest(location, version)
        if theirs is None:
            options = get_config().storage_options_for(location, subject.storage_options)
            stock = deltalake.DeltaTable(location, version=version, storage_options=options)
            theirs, reader = RowDigest().add(pa.RecordBatchReader.from_stream(stock.scan())), "deltalake"
    except Exception as error:  # a file that was vacuumed, a feature that stock does not read
        return count, f"the rows could not be compared: {_reason(error)}"
    if count != theirs.count:
        return count, f"{count} rows through the catalog, {theirs.count} by {reader}"
    return count, None if ours == theirs else f"{count} rows on both sides, but not the same ones"


def _catalog_rows(subject: Subject, report: VerifyReport) -> Iterable[pa.RecordBatch]:
    """The rows through the catalog; the table need not be visible yet."""
    database, table_id, version = subject.database, subject.table.table_id, subject.version
    state = {
        kind: decode_json(raw)
        for kind, _, since, until, raw in digests.small_rows(database, table_id)
        if since <= version and (until is None or until > version)
    }
    # a unique time, so that no cached file list of an earlier load is found
    now, location = time.time_ns() // 1000, subject.table.location
    head = Head(version, now, subject.first_version, report.num_files, report.size_bytes, 0, 0)
    table = Table(table_id, "", location, "importing", None, None, {}, {}, now, now, head)
    protocol, metadata = Protocol.from_dict(state["protocol"]), Metadata.from_dict(state["metaData"])
    source = SqlSource(database, OpenTable(table, Snapshot(version, now, protocol, metadata)))
    options = get_config().storage_options_for(location, subject.storage_options)
    root = root_at(location, options, database.engine.config, table=subject.table.name)
    rows: Iterable[pa.RecordBatch] = scan(source, root, where=None, columns=None, predicate=None)
    return rows


def _reason(error: Exception) -> str:
    """The message of an error in one line, without the Python traceback that Arrow adds."""
    text = " ".join(str(error).split())
    for mark in (" Detail: Python exception", "Traceback (most recent call last)"):
        text = text.partition(mark)[0]
    return (text.strip() or type(error).__name__)[:300]


def _plain(value: Any) -> Any:
    """A value with one spelling, whichever Arrow type it came in."""
    match value:
        case tuple() | list():
            return [_plain(v) for v in value]
        case dict():
            return {k: _plain(v) for k, v in sorted(value.items())}
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC)
        case float() if math.isnan(value):
            return "nan"
    return value
