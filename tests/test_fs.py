"""The handler of ``deltalakedb.fs`` takes plain tables and SQL-backed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake.fs
import pyarrow as pa
import pyarrow.fs as pafs

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.fs import DeltaStorageHandler, fs_handler

if TYPE_CHECKING:
    from pathlib import Path


def test_a_handler_of_a_table_reads_its_files(tmp_path: Path) -> None:
    sql = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    for uri in (sql, str(tmp_path / "plain")):
        write_deltalake(uri, pa.table({"id": [1, 2]}))
        table = DeltaTable(uri)
        files = pafs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
        assert table.to_pyarrow_dataset(filesystem=files).to_table().to_pydict() == {"id": [1, 2]}
    assert issubclass(DeltaStorageHandler, deltalake.fs.DeltaStorageHandler)
    assert fs_handler.DeltaStorageHandler is DeltaStorageHandler
