"""The files of a table: one room knows how they are stored; functions see the caller's transaction."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import deltalakedb
from deltalakedb.address import parse_address
from deltalakedb.metastore import files, registry, snapshots
from deltalakedb.metastore.database import Database
from support.actions import add, metadata, protocol
from support.commits import Bench

#: what may name the tables of files and statistics
_ALLOWED = {
    "metastore/sql/files.sql",
    "metastore/sql/appends.sql",
    "metastore/sql/migrations/0001_catalog.sql",
    "metastore/engines/postgres.py",  # ANALYZE after a load
}


def test_only_the_room_of_files_names_their_tables() -> None:
    root = Path(deltalakedb.__file__).parent
    # in SQL, that is, not in prose
    tables = re.compile(
        r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|ON|ANALYZE)\s+dl_(?:files|file_details|file_stats|stats_blocks|packs|pack_columns)\b"
    )
    found = {
        str(path.relative_to(root))
        for path in (*root.rglob("*.py"), *root.rglob("*.sql"))
        if tables.search(path.read_text("utf-8")) and "metastore/files/" not in str(path)
    }
    assert found == _ALLOWED


def test_the_interface_is_documented() -> None:
    text = (resources.files("deltalakedb.metastore.files") / "__init__.py").read_text("utf-8")
    documented = text.split('"""')[1]
    missing = {name for name in files.__all__ if f"`{name}`" not in documented}
    assert missing <= {
        "ADD_COLUMNS", "FILE_ID_BITS", "FILE_SCHEMA", "STREAM_COLUMNS", "ConcurrentChange",
        "RemovedFile", "add_from_row", "FileRows", "readable_schema", "Details", "PackStatus", "live_schema",
        "PACK_MIN",
    }  # fmt: skip


def test_functions_take_the_catalog_or_the_session_of_a_transaction(catalog_uri: str, tmp_path: Path) -> None:
    database = Database.open(parse_address(catalog_uri))
    Bench.make(
        database,
        "t",
        str(tmp_path / "t"),
        protocol_=protocol(),
        metadata_=metadata(),
        adds=[add("a"), add("b")],
    )
    table = registry.find(database, "t")
    with database.write() as session:
        files.drop_range(session, table.table_id, 1)
        opened = snapshots.open_table(session, "t")
        assert [a.path for a in files.read_adds(session, opened)] == ["a"]
        assert files.totals_at(session, table.table_id, 0)[0] == 1
        registry.set_comment(session, "t", "inside")
        assert registry.find(session, "t").comment == "inside"
    assert registry.find(database, "t").comment == "inside", "the caller's transaction was the one to commit"
    assert [a.path for a in files.read_adds(database, opened)] == ["a"]
