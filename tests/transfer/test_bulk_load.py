"""The bulk way into each database: the same rows as one by one, and indexes that come back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_status, import_table, rollback_import, verify_table
from deltalakedb.address import parse_address
from deltalakedb.doctor import examine
from deltalakedb.exceptions import VerificationError
from deltalakedb.failpoints import FailpointError
from deltalakedb.metastore import imports
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.engines import sqlite
from deltalakedb.settings import Config
from deltalakedb.transfer.importing import encoding
from support.lake import ids
from support.processes import arm
from support.sources import many_files

if TYPE_CHECKING:
    from collections.abc import Mapping
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
INDEXES = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND tbl_name = 'dl_files'",
    "postgres": "SELECT count(*) FROM pg_indexes WHERE tablename='dl_files' AND schemaname=current_schema",
}


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


def rows_of(uri: str) -> list[Any]:
    """Every column of every file row but its ids, and what lies beside it."""
    database = Database.open(parse_address(uri))
    with database.read_only() as session:
        files = session.query("SELECT * FROM dl_files ORDER BY path")
        found = files.drop_columns(["file_id", "table_id"]).to_pylist()
        if database.dialect.side_table:
            ordered = "JOIN dl_files f ON f.file_id = j.file_id ORDER BY f.path"
            found += (
                session.query(f"SELECT j.* FROM dl_file_json j {ordered}")
                .drop_columns(["file_id"])
                .to_pylist()
            )
        levels = session.query("SELECT slot, level, n, lo, hi FROM dl_levels ORDER BY slot, level")
        return found + levels.to_pylist()


def test_rows_by_columns_are_those_written_one_by_one(
    tmp_path: Path, catalog_uri: str, engine_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = awkward_table(tmp_path / "awkward"), f"{catalog_uri}?table=t"
    monkeypatch.setattr(sqlite, "_IMAGE_FROM", 1)
    blocks: list[int] = []
    whole = encoding.block_of

    def counted(files: Any, encoders: Any) -> Any:
        made = whole(files, encoders)
        blocks.append(0 if made is None else made.counts.num_files)
        return made

    monkeypatch.setattr(encoding, "block_of", counted)
    import_table(str(root), uri, history="checkpoint", verify="full")
    assert blocks == [len(AWKWARD)]
    by_columns = rows_of(uri)
    assert len(DeltaTable(uri).file_uris(file_pruning_predicate="n = 2")) < len(AWKWARD)
    rollback_import(uri)
    monkeypatch.setattr(encoding, "plain_files", lambda _: None)
    import_table(str(root), uri, history="checkpoint", verify="full")
    assert rows_of(uri) == by_columns
    # width levels beside the files, which DuckDB does without
    assert (len(by_columns) > len(AWKWARD)) == (engine_name != "duckdb")


def test_the_digest_does_not_depend_on_the_way_in(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    made = import_table(str(root), uri, history="checkpoint", batch_size=10)
    checked = verify_table(uri)
    assert made.digest == checked.digest == checked.log_digest
    monkeypatch.setattr(encoding, "plain_files", lambda _: None)
    other = import_table(str(many_files(tmp_path / "other")), f"{catalog_uri}?table=o", history="checkpoint")
    assert other.digest == made.digest


def test_a_file_that_was_written_wrongly_is_found(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = encoding.write_columns

    def wrong(session: Any, table_id: int, columns: Mapping[str, pa.Array], *rest: Any) -> None:
        times = columns["modification_time"].to_pylist()
        times[30] += 1
        write(session, table_id, {**columns, "modification_time": pa.array(times, pa.int64())}, *rest)

    monkeypatch.setattr(encoding, "write_columns", wrong)
    with pytest.raises(VerificationError, match=r"1 differences.*modification_time"):
        import_table(str(many_files(tmp_path / "many")), f"{catalog_uri}?table=t", history="checkpoint")


def index_count(uri: str) -> int:
    database = Database.open(parse_address(uri))
    with database.read() as session:
        row = session.row(INDEXES[database.dialect.name])
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_indexes_are_built_after_a_large_load_whatever_happens(
    tmp_path: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_WORTHWHILE", 10)
    root, uri = many_files(tmp_path / "many"), f"{catalog_uri}?table=t"
    Database.open(parse_address(catalog_uri)).ensure()
    all_of_them = index_count(uri)
    for then in ("resume", "undo"):
        arm("import.batch_done=error@3")
        try:
            with pytest.raises(FailpointError):
                import_table(str(root), uri, history="checkpoint", batch_size=15)
        finally:
            arm("")
        assert index_count(uri) < all_of_them
        if then == "resume":
            assert import_table(str(root), uri).action == "resumed"
            assert verify_table(uri, "full").ok
            assert index_count(uri) == all_of_them
        rollback_import(uri)
        assert index_count(uri) == all_of_them
    # one that nobody goes on with: told by the doctor, mended by whoever writes next
    arm("import.batch_done=error@3")
    try:
        with pytest.raises(FailpointError):
            import_table(str(root), uri, history="checkpoint", batch_size=15)
    finally:
        arm("")
    assert index_count(uri) < all_of_them
    told = [c for c in examine(parse_address(catalog_uri), Config()) if c.title == "indexes"]
    assert [(c.status, "interrupted import of t" in c.detail) for c in told] == [("warning", True)]
    Database.open(parse_address(catalog_uri)).close()
    assert index_count(uri) < all_of_them
    Catalog(catalog_uri).create_table("new", schema=ids(1).schema, location=str(tmp_path / "new"))
    assert index_count(uri) == all_of_them
    told = [c for c in examine(parse_address(catalog_uri), Config()) if c.title == "indexes"]
    assert told == []
    assert import_table(str(root), uri).action == "resumed"
    assert verify_table(uri, "full").ok
    rollback_import(uri)
    # with other files in the catalog, nobody's indexes are touched
    import_table(str(many_files(tmp_path / "other")), f"{catalog_uri}?table=other", history="checkpoint")
    arm("import.batch_done=error@3")
    try:
        with pytest.raises(FailpointError):
            import_table(str(root), uri, history="checkpoint", batch_size=15)
    finally:
        arm("")
    assert index_count(uri) == all_of_them
    assert import_status(uri)[0].batches_done == 3
