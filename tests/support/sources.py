"""Plain Delta tables to import: small logs with everything that an import has to get right."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import digests
from deltalakedb.protocol.packs import decode_block, encode_block
from support.lake import ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: everything of a table that must not depend on how often its import was interrupted
_TABLES = ("dl_commits", "dl_commit_bytes", "dl_metadata", "dl_protocol", "dl_txns", "dl_domains")


def plain_table(root: Path, *, commits: int = 8, checkpoint: int | None = 4) -> Path:
    """A table with appends, a delete, an overwritten file, txns and a checkpoint."""
    for n in range(commits):
        once = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("app", n)])
        data = ids(3 * n, 3 * n + 1, part="ab"[n % 2])
        deltalake.write_deltalake(root, data, mode="append", partition_by=["part"], commit_properties=once)
        if n == 2:
            deltalake.DeltaTable(root).delete("id = 0")
        if checkpoint is not None and deltalake.DeltaTable(root).version() == checkpoint:
            deltalake.DeltaTable(root).create_checkpoint()
    return root


def many_files(root: Path, *, checkpointed: int = 40, commits: int = 6) -> Path:
    """A log without data files whose checkpoint holds several batches."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    first: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "00000000-0000-0000-0000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 1,
            }
        },
    ]
    _commit(log, 0, [*first, *(_add(n) for n in range(checkpointed))])
    _commit(log, 1, [_remove(0), _add(1000)])
    deltalake.DeltaTable(root).create_checkpoint()
    for version in range(2, 2 + commits):
        _commit(log, version, [_add(1000 + version), _remove(version)])
    return root


def _commit(log: Path, version: int, actions: Sequence[dict[str, Any]]) -> None:
    info = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE"}}
    text = "".join(json.dumps(a) + "\n" for a in [info, *actions])
    (log / f"{version:020}.json").write_text(text)


def _add(number: int) -> dict[str, Any]:
    stats = {
        "numRecords": 10,
        "minValues": {"id": number},
        "maxValues": {"id": number + 9},
        "nullCount": {"id": 0},
    }
    return {
        "add": {
            "path": f"part-{number:05}.parquet",
            "partitionValues": {},
            "size": 100 + number,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def _remove(number: int) -> dict[str, Any]:
    return {"remove": {"path": f"part-{number:05}.parquet", "deletionTimestamp": 2, "dataChange": True}}


def contents(uri: str) -> dict[str, list[Any]]:
    """Every row that a table has in the catalog, without ids and times of its own."""
    address = parse_address(uri)
    database = Database.open(address)
    with Catalog(address.catalog) as catalog:
        table_id = catalog.describe(address.table or "").table_id
    found: dict[str, list[Any]] = {}
    with database.read() as session:
        for name in _TABLES:
            shown = "*"
            if name == "dl_commits":
                shown = "version, timestamp, operation, num_added, num_removed, sha256, size_bytes, origin"
            rows = session.rows(f"SELECT {shown} FROM {name} WHERE table_id = ?", (table_id,))
            keep = rows if name == "dl_commits" else [r[1:] for r in rows]
            found[name] = sorted([repr(tuple(map(_plain, r))) for r in keep])
        pages = digests.interval_rows(session, table_id)
        files = [{**row, "file_id": None} for page in pages for row in page]
        found["files"] = sorted(repr(sorted(row.items())) for row in files)
        heads = "head_version, first_version, num_files, size_bytes, num_records, files_without_count"
        found["dl_heads"] = session.rows(f"SELECT {heads} FROM dl_heads WHERE table_id = ?", (table_id,))
    return found


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else bytes(value) if isinstance(value, memoryview) else value


def change(uri: str, sql: str, params: Sequence[Any] = ()) -> int:
    """Tamper with the catalog behind its back."""
    with Database.open(parse_address(uri)).write() as session:
        return session.run(sql, params)


def change_stats(uri: str, edit: Callable[[str, str | None], str | None]) -> None:
    """Tamper with the statistics of files, given their paths, in packs and beside them."""
    with Database.open(parse_address(uri)).write() as session:
        paths = dict(session.rows("SELECT file_id, path FROM dl_files"))
        for first, data in session.rows("SELECT first_id, data FROM dl_stats_blocks"):
            texts = enumerate(decode_block(data).to_pylist(), start=first)
            made = encode_block(pa.array([edit(paths.get(n, ""), text) for n, text in texts], pa.string()))
            statement = "UPDATE dl_stats_blocks SET crc = ?, data = ? WHERE first_id = ?"
            session.run(statement, (zlib.crc32(made), made, first))
        for file_id, text in session.rows("SELECT file_id, stats FROM dl_file_stats"):
            edited = edit(paths.get(file_id, ""), text)
            session.run("UPDATE dl_file_stats SET stats = ? WHERE file_id = ?", (edited, file_id))


def count(uri: str, table: str) -> int:
    """How many rows a table of the catalog has."""
    with Database.open(parse_address(uri)).read() as session:
        row = session.row(f"SELECT count(*) FROM {table}")
    assert row is not None
    return int(row[0])


def id_table(*numbers: int) -> pa.Table:
    """One column of numbers."""
    return pa.table({"id": pa.array(numbers, pa.int64())})
