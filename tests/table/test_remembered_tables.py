"""An append by address does not look its table up again; whatever changed in the meantime is noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake.exceptions import SchemaMismatchError

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import DeltaSqlError
from support.lake import root_of
from support.statements import count_statements

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

ROWS = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(["x"])})


def elsewhere(code: str, *arguments: str) -> None:
    """Another process changes something that this one remembers."""
    head = "import sys, pyarrow as pa\nfrom deltalakedb import Catalog, DeltaTable, write_deltalake\n"
    subprocess.run([sys.executable, "-c", head + code, *arguments], check=True)


@pytest.fixture
def uri(table_uri: TableUri, engine_name: str) -> str:
    """A table that this process has appended to."""
    if engine_name == "duckdb":
        pytest.skip("DuckDB lets one process in at a time")
    found = table_uri("t")
    write_deltalake(found, ROWS)
    write_deltalake(found, ROWS, mode="append")
    return found


def test_the_second_append_asks_for_the_lock_at_once(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ROWS)
    write_deltalake(uri, ROWS, mode="append")
    with count_statements() as counted:
        write_deltalake(uri, ROWS, mode="append")
    assert "snapshots.open" not in counted.statements
    assert "outbox.open" not in counted.statements
    locks = ("snapshots.lock", "appends.ratify")  # a server has both steps in one statement
    assert sum(counted.statements.count(name) for name in locks) == 1
    assert DeltaTable(uri).version() == 2


def test_a_column_added_elsewhere_is_noticed(uri: str) -> None:
    elsewhere(
        "write_deltalake(sys.argv[1], pa.table({'id': [2], 'v': ['y'], 'w': [5]}), mode='append',"
        " schema_mode='merge')",
        uri,
    )
    with pytest.raises(SchemaMismatchError):  # as a fresh look would say
        write_deltalake(uri, ROWS, mode="append")
    write_deltalake(uri, pa.table({"id": [3], "v": ["z"], "w": [6]}), mode="append")
    table = DeltaTable(uri)
    assert table.version() == 3
    assert sorted(w for w in table.to_pyarrow_table()["w"].to_pylist() if w is not None) == [5, 6]


def test_a_table_renamed_elsewhere_gets_nothing_under_its_old_name(uri: str, catalog_uri: str) -> None:
    elsewhere("Catalog(sys.argv[1]).rename_table('t', 'u')", catalog_uri)
    with pytest.raises(DeltaSqlError):
        write_deltalake(uri, ROWS, mode="append")
    assert Catalog(catalog_uri).table("u").version() == 1


def test_a_table_dropped_and_made_anew_elsewhere_gets_the_rows(
    uri: str, catalog_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = str(tmp_path_factory.mktemp("anew") / "t")
    elsewhere(
        "lake = Catalog(sys.argv[1]); lake.drop_table('t')\n"
        "lake.create_table('t', pa.schema({'id': pa.int64(), 'v': pa.string()}), location=sys.argv[2])",
        catalog_uri,
        where,
    )
    write_deltalake(uri.split("&location")[0], ROWS, mode="append")
    table = Catalog(catalog_uri).table("t")
    assert (str(root_of(table)), table.version(), table.to_pyarrow_table().num_rows) == (where, 1, 1)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_catalog_deleted_under_the_process_is_begun_anew(table_uri: TableUri, tmp_path: Path) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ROWS)
    write_deltalake(uri, ROWS, mode="append")
    root = root_of(DeltaTable(uri))
    for file in tmp_path.glob("catalog*"):
        file.unlink()
    shutil.rmtree(root)
    write_deltalake(uri, ROWS, mode="append")
    assert DeltaTable(uri).version() == 0
    elsewhere("assert DeltaTable(sys.argv[1]).version() == 0", uri)
