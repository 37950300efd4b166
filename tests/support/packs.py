"""Packs of a few files, and all that a catalog knows of a table's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.metastore import files, snapshots
from deltalakedb.metastore.files import digests, listing, packs, rows
from deltalakedb.protocol.schema import parse_schema
from support.actions import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.files.packs import PackRow
    from deltalakedb.metastore.rows import OpenTable
    from deltalakedb.protocol.schema import Leaf


def make_packs_small(monkeypatch: pytest.MonkeyPatch, size: int = 16) -> None:
    """Packs of up to so many files, blocks of a quarter of it; commits of half a pack pack themselves."""
    for module in (packs, rows):
        monkeypatch.setattr(module, "PACK_SIZE", size)
    monkeypatch.setattr(rows, "BLOCK_SIZE", size // 4)
    monkeypatch.setattr(rows, "PACK_MIN", size // 2)
    monkeypatch.setattr(packs, "_STEP", 2 * size)
    monkeypatch.setattr(packs, "_SMALL", size // 2)
    monkeypatch.setattr(packs, "_MERGED", 3)
    monkeypatch.setattr(listing, "_RANGE_FROM", 2)


def packs_of(database: Database, table_id: int) -> list[PackRow]:
    with database.read() as session:
        return packs.packs_of(session, table_id)


def recent_ids(database: Database, table_id: int) -> list[int]:
    """Sequence numbers of the files that are not packed."""
    sql = "SELECT file_id & 1099511627775 FROM dl_file_stats WHERE file_id >> 40 = ? ORDER BY file_id"
    return [row[0] for row in database.rows(sql, (table_id,))]


def state_of(database: Database, name: str) -> dict[str, Any]:
    """Everything that readers can ask about a table's files, at a few versions."""
    found: dict[str, Any] = {}
    head = snapshots.open_table(database, name)
    table = head.table
    first, last = table.head.first_version, table.head.version
    for version in sorted({first, (first + last) // 2, max(first, last - 2), max(first, last - 1), last}):
        opened = snapshots.open_table(database, name, version)
        digest = digests.table_digest(database, table.table_id, version).hex()
        found[f"version {version}"] = (
            list(files.read_adds(database, opened)),
            digest,
            files.totals_at(database, table.table_id, version),
            sorted(files.tombstones(database, table, version), key=lambda r: (r.path, r.dv_id)),
            statistics_of(database, opened, list(parse_schema(SCHEMA).leaves())[:1]),
        )
    found["rows"] = [row for page in digests.interval_rows(database, table.table_id) for row in page]
    paths = {row["path"] for row in found["rows"]}
    with database.read() as session:
        found["live"] = dict(files.live_files(session, table.table_id, paths))
    return found


def statistics_of(database: Database, opened: OpenTable, leaves: Sequence[Leaf]) -> dict[str, list[Any]]:
    """The statistics of all files of a version, by column, newest file first."""
    ids = files.scan_files(database, opened, ("file_id",)).column("file_id")
    backwards = pa.array(range(len(ids) - 1, -1, -1), pa.int64())
    found = files.statistics(database, opened, ids.take(backwards), leaves)
    groups = {"nulls": found.nulls, "lows": found.lows, "highs": found.highs}
    columns = {f"{name} {path}": array for name, group in groups.items() for path, array in group.items()}
    return {name: array.to_pylist() for name, array in {"rows": found.num_records, **columns}.items()}


def drop_columns(database: Database, table_id: int) -> None:
    """Delete the columns of all packs of a table, which are derived."""
    with database.write() as session:
        session.run("DELETE FROM dl_pack_columns WHERE first_id >> 40 = ?", (table_id,))
