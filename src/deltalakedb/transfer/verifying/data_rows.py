"""The rows of data, in any order: read through the catalog, and by stock ``deltalake`` or Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import deltalake
import pyarrow as pa

from deltalakedb.metastore.files import digests
from deltalakedb.metastore.rows import Head, OpenTable, Table
from deltalakedb.mirror.drift import Difference
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.read.scan import scan
from deltalakedb.table.roots import root_at
from deltalakedb.table.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.transfer.importing.options import LoadEngine
    from deltalakedb.transfer.reports import VerifyReport

_LANE = (1 << 64) - 1

#: a table's root, and the options for its object store
Place: TypeAlias = "tuple[str, Mapping[str, str] | None]"


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


def check_rows(
    report: VerifyReport,
    database: Database,
    table_id: int,
    own: Place,
    plain: Place,
    engine: LoadEngine | None = None,
) -> VerifyReport:
    """A report with the comparison of the rows at its version added; the table need not be visible yet.

    The engine reads the plain table if it can; otherwise stock ``deltalake`` does.
    """
    found, count = None, 0
    try:
        ours = RowDigest().add(_catalog_rows(report, database, table_id, own))
        count = ours.count
        location, storage = plain
        theirs, reader = None if engine is None else engine.row_digest(location, report.version), "Spark"
        if theirs is None:
            options = None if storage is None else dict(storage)
            stock = deltalake.DeltaTable(location, version=report.version, storage_options=options)
            theirs = RowDigest().add(pa.RecordBatchReader.from_stream(stock.scan()))
            reader = "deltalake"
        if ours.count != theirs.count:
            found = f"{ours.count} rows through the catalog, {theirs.count} by {reader}"
        elif ours != theirs:
            found = f"{ours.count} rows on both sides, but not the same ones"
    except Exception as error:  # a file that was vacuumed, a feature that stock does not read
        found = f"the rows could not be compared: {_reason(error)}"
    checked = replace(report, rows_checked=count)
    if found is None:
        return checked
    more = (*report.differences, Difference("rows", report.version, found))
    return replace(checked, num_differences=report.num_differences + 1, differences=more)


def _catalog_rows(
    report: VerifyReport, database: Database, table_id: int, own: Place
) -> Iterable[pa.RecordBatch]:
    location, storage = own
    state = {
        kind: decode_json(raw)
        for kind, _, since, until, raw in digests.small_rows(database, table_id)
        if since <= report.version and (until is None or until > report.version)
    }
    # a unique time, so that no cached file list of an earlier load is found
    now = time.time_ns() // 1000
    head = Head(report.version, now, report.first_version, report.num_files, report.size_bytes, 0, 0)
    table = Table(table_id, "", location, "importing", None, None, {}, {}, now, now, head)
    protocol, metadata = Protocol.from_dict(state["protocol"]), Metadata.from_dict(state["metaData"])
    source = SqlSource(database, OpenTable(table, Snapshot(report.version, now, protocol, metadata)))
    root = root_at(location, storage, database.engine.config, table=report.table)
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
