"""SQLite's locks on the catalog's file outlive everything that this process does with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

READERS = 4
#: another process that opens the catalog, looks, and closes it
LOOK = "import sys; from deltalakedb import Catalog; c = Catalog(sys.argv[1]); c.tables(); c.close()"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which locks are held")
def test_another_process_that_closes_the_catalog_takes_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    uri, table = f"deltasql://sqlite/{path}", f"deltasql://sqlite/{path}?table=a&location={tmp_path / 'a'}"
    write_deltalake(table, ids(0))
    together = threading.Barrier(READERS)

    catalog = Catalog(uri)

    def read() -> None:
        with catalog.snapshot() as snapshot:
            together.wait(60)  # all of them hold a connection at this moment
            snapshot.table("a").to_pyarrow_table()
            together.wait(60)

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    inode = path.stat().st_ino
    held = [line for line in open("/proc/locks") if f":{inode} " in line and f" {os.getpid()} " in line]  # noqa: SIM115, PTH123
    assert held, "the process has no lock on its database any more"
    subprocess.run([sys.executable, "-c", LOOK, uri], check=True, timeout=120)
    assert path.with_name("meta.db-wal").exists()
    write_deltalake(table, ids(1), mode="append")
    seen = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from deltalakedb import DeltaTable; print(DeltaTable(sys.argv[1]).version())",
            table,
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert seen.stdout.strip() == "1"
    assert ids_of(DeltaTable(table)) == [0, 1]
    catalog.close()
