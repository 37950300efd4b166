"""The bulk way into each database: the same rows and packs as file by file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, rollback_import, verify_table
from deltalakedb.address import parse_address
from deltalakedb.exceptions import VerificationError
from deltalakedb.metastore.database import Database
from deltalakedb.transfer.importing import encoding
from support.sources import contents, many_files

if TYPE_CHECKING:
    from pathlib import Path

AWKWARD = [
    'say "hi"',
    "a,b",
    "line\nbreak",
    "tab\t",
    "",
    None,
    "é😀",
    "\\N",
    "NULL",
    "'",
    "back\\slash",
    "{}",
]


def awkward_table(root: Path) -> Path:
    """A log whose texts are hard on anything that quotes, with a checkpoint in which they stand."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    names = {"s": "string", "n": "long", "x": "double", "kind": "string"}
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in names.items()]
    lines: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "00000000-0000-0000-0000-000000000002",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": ["kind"],
                "configuration": {},
            }
        },
    ]
    for number, text in enumerate(AWKWARD):
        bounds = {"s": text or "", "n": number - 5, "x": number / 3}
        stats = {
            "numRecords": number,
            "minValues": bounds,
            "maxValues": bounds,
            "nullCount": {"s": number % 2},
        }
        add = {
            "path": f'{number}-"q",{text or ""}\u00e9.parquet',
            "partitionValues": {"kind": text},
            "size": number,
            "modificationTime": number,
            "dataChange": True,
        }
        lines.append({"add": add | ({} if number == 3 else {"stats": json.dumps(stats, ensure_ascii=False)})})
    (log / f"{0:020}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (log / f"{1:020}.json").write_text('{"commitInfo":{"operation":"WRITE"}}\n')
    deltalake.DeltaTable(root).create_checkpoint()
    return root


def rows_of(uri: str) -> dict[str, list[Any]]:
    """Everything that the catalog has of a table, and its packs."""
    with Database.open(parse_address(uri)).read() as session:
        packs = session.rows("SELECT name, low, high, crc FROM dl_pack_columns ORDER BY first_id, name")
    return {**contents(uri), "packs": [tuple(row) for row in packs]}


def test_rows_by_columns_are_those_made_file_by_file(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = awkward_table(tmp_path / "awkward"), f"{catalog_uri}?table=t"
    made: list[int] = []
    plain = encoding.plain_batch

    def counted(*args: Any) -> Any:
        batch = plain(*args)
        made.append(0 if batch is None else batch.num_files)
        return batch

    monkeypatch.setattr(encoding, "plain_batch", counted)
    import_table(str(root), uri, history="checkpoint", verify="full")
    assert made == [len(AWKWARD)]
    by_columns = rows_of(uri)
    assert by_columns["packs"]
    assert len(DeltaTable(uri).file_uris(file_pruning_predicate="n = 2")) < len(AWKWARD)
    rollback_import(uri)
    monkeypatch.setattr(encoding, "plain_batch", lambda *_: None)
    import_table(str(root), uri, history="checkpoint", verify="full")
    assert rows_of(uri) == by_columns


def test_the_digest_does_not_depend_on_the_way_in(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    made = import_table(str(root), uri, history="checkpoint", batch_size=10)
    checked = verify_table(uri)
    assert made.digest == checked.digest == checked.log_digest
    monkeypatch.setattr(encoding, "plain_batch", lambda *_: None)
    other = import_table(str(many_files(tmp_path / "other")), f"{catalog_uri}?table=o", history="checkpoint")
    assert other.digest == made.digest


def test_a_file_that_was_written_wrongly_is_found(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = encoding.write_batch

    def wrong(session: Any, table_id: int, first: int, batch: Any) -> None:
        times = batch.columns["modification_time"].to_pylist()
        if batch.num_files > 30:
            times[30] += 1
        columns = {**batch.columns, "modification_time": pa.array(times, pa.int64())}
        write(session, table_id, first, replace(batch, columns=columns))

    monkeypatch.setattr(encoding, "write_batch", wrong)
    with pytest.raises(VerificationError, match=r"1 differences.*modification_time"):
        import_table(str(many_files(tmp_path / "many")), f"{catalog_uri}?table=t", history="checkpoint")


def test_windows_with_rare_fields_and_tombstones(tmp_path: Path, catalog_uri: str) -> None:
    """Files with tags, with deletion vectors and plain ones in one checkpoint, each with its own pack row."""
    root, uri = tmp_path / "mixed", f"{catalog_uri}?table=t"
    log = root / "_delta_log"
    awkward_table(root)
    more = {"size": 1, "modificationTime": 1, "dataChange": False, "stats": '{"numRecords":7}'}
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "sizeInBytes": 4,
        "cardinality": 1,
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
                      "writerFeatures": ["deletionVectors"]}},
        {"add": {"path": "tags.parquet", "partitionValues": {"kind": "a"}, "tags": {"x": "y"}, **more}},
        {"add": {"path": "dv.parquet", "partitionValues": {"kind": "b"}, "deletionVector": vector, **more}},
        {"remove": {"path": "never.parquet", "deletionTimestamp": 1 << 42, "dataChange": True}},
    ]  # fmt: skip
    (log / f"{2:020}.json").write_text("".join(json.dumps(a) + "\n" for a in actions))
    import_table(str(root), uri, history="full", verify="full")
    full = contents(uri)["dl_heads"]
    with Catalog(catalog_uri) as catalog:
        catalog.mirror.checkpoint("t")
    rollback_import(uri)
    made = import_table(str(root), uri, history="checkpoint", verify="full", batch_size=5)
    assert made.first_version == 2
    assert [row[2:] for row in contents(uri)["dl_heads"]] == [row[2:] for row in full]
