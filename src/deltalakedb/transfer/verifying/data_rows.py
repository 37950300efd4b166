"""The rows of data, in any order: read through the catalog, and by stock ``deltalake`` or Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from deltalakedb.exceptions import VerificationError
from deltalakedb.metastore.files import digests
from deltalakedb.metastore.rows import Head, OpenTable, Table
from deltalakedb.mirror.drift import Difference
from deltalakedb.protocol.actions import Metadata, Protocol
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.drop_in.delta_table import DeltaTable
from deltalakedb.table.read.scan import scan
from deltalakedb.table.roots import root_at
from deltalakedb.table.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.transfer.importing.engines import LoadEngine
    from deltalakedb.transfer.verifying.report import VerifyReport

_LANE = (1 << 64) - 1


@dataclass(slots=True)
class RowDigest:
    """Rows counted and summed up by their hashes, so that their order does not matter."""

    count: int = 0
    lane: int = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> RowDigest:
        """Count rows in."""
        for batch in batches:
            names = batch.schema.names
            order = sorted(range(len(names)), key=names.__getitem__)
            columns = [batch.column(i).to_pylist() for i in order]
            for row in zip(*columns, strict=True) if columns else [()] * batch.num_rows:
                digest = hashlib.md5(
                    repr(_plain(row)).encode("utf-8", "surrogatepass"), usedforsecurity=False
                )
                self.lane = (self.lane + int.from_bytes(digest.digest()[:8], "big")) & _LANE
                self.count += 1
        return self

    def join(self, count: int, lane: int) -> None:
        """Count in what was summed up elsewhere."""
        self.count += count
        self.lane = (self.lane + lane) & _LANE


def check_rows(
    report: VerifyReport,
    uri: str,
    location: str,
    storage_options: Mapping[str, str] | None,
    own_options: Mapping[str, str] | None,
    engine: LoadEngine | None = None,
) -> VerifyReport:
    """A report with the comparison of the rows at its version added.

    Args:
        report: What was found so far.
        uri: The table in the catalog.
        location: The plain table.
        storage_options: The options for its location.
        own_options: What the caller gave, for the catalog's table.
        engine: Who reads the plain table if it can; otherwise stock ``deltalake`` does.
    """
    mine = None if own_options is None else dict(own_options)

    def own() -> Iterable[pa.RecordBatch]:
        return _batches(DeltaTable(uri, version=report.version, storage_options=mine))

    return _compared(report, own, location, storage_options, engine)


def check_loaded_rows(
    report: VerifyReport,
    database: Database,
    row: ImportRow,
    storage_options: Mapping[str, str] | None,
    engine: LoadEngine | None = None,
) -> VerifyReport:
    """The same for a table that is loaded and not visible yet.

    Args:
        report: What was found so far.
        database: The catalog.
        row: The import.
        storage_options: The options for its location.
        engine: Who reads the plain table if it can; otherwise stock ``deltalake`` does.

    Raises:
        VerificationError: The rows differ, or cannot be compared.
    """
    table_id, location = row.table_id, row.location

    def own() -> Iterable[pa.RecordBatch]:
        state = {
            kind: decode_json(raw)
            for kind, _, since, until, raw in digests.small_rows(database, table_id)
            if since <= report.version and (until is None or until > report.version)
        }
        # a time of its own: cached file lists of an earlier load must not be found
        now = time.time_ns() // 1000
        head = Head(report.version, now, report.first_version, report.num_files, report.size_bytes, 0, 0)
        table = Table(table_id, "", location, "importing", None, None, {}, {}, now, now, head)
        protocol, metadata = Protocol.from_dict(state["protocol"]), Metadata.from_dict(state["metaData"])
        snapshot = Snapshot(report.version, now, protocol, metadata)
        root = root_at(location, storage_options, database.engine.config, table=row.name)
        source = SqlSource(database, OpenTable(table, snapshot))
        rows: Iterable[pa.RecordBatch] = scan(source, root, where=None, columns=None, predicate=None)
        return rows

    checked = _compared(report, own, location, storage_options, engine)
    if not checked.ok:
        raise VerificationError(
            checked.differences[-1].detail,
            table=row.name,
            version=report.version,
            suggestion="nothing was made visible, and what is loaded stays: if data files are gone, "
            "bring them back and import again, or import with a lower level of verification; "
            f"`deltasql rollback {row.name}` drops what was loaded",
            report=checked,
        )
    return checked


def _compared(
    report: VerifyReport,
    own: Callable[[], Iterable[pa.RecordBatch]],
    location: str,
    storage_options: Mapping[str, str] | None,
    engine: LoadEngine | None,
) -> VerifyReport:
    found = None
    count = 0
    try:
        ours = RowDigest().add(own())
        count = ours.count
        theirs, who = None if engine is None else engine.row_digest(location, report.version), "Spark"
        if theirs is None:
            options = None if storage_options is None else dict(storage_options)
            stock = deltalake.DeltaTable(location, version=report.version, storage_options=options)
            theirs, who = RowDigest().add(_batches(stock)), "deltalake"
        if ours.count != theirs.count:
            found = f"{ours.count} rows through the catalog, {theirs.count} by {who}"
        elif ours != theirs:
            found = f"{ours.count} rows on both sides, but not the same ones"
    except Exception as error:  # a file that was vacuumed, a feature that stock does not read
        found = f"the rows could not be compared: {_reason(error)}"
    checked = replace(report, rows_checked=count)
    if found is None:
        return checked
    more = (*report.differences, Difference("rows", report.version, found))
    return replace(checked, num_differences=report.num_differences + 1, differences=more)


def _reason(error: Exception) -> str:
    """What an error says in one line, without the traceback that Arrow adds of a reader in Python."""
    text = " ".join(str(error).split())
    for mark in (" Detail: Python exception", "Traceback (most recent call last)"):
        text = text.partition(mark)[0]
    return (text.strip() or type(error).__name__)[:300]


def _batches(table: Any) -> Iterable[pa.RecordBatch]:
    reader: Iterable[pa.RecordBatch] = pa.RecordBatchReader.from_stream(table.scan())
    return reader


def _plain(value: Any) -> Any:
    """A value with one spelling, whichever Arrow type it came in."""
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in sorted(value.items())}
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value
