"""What importing the package must not bring along."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from deltalakedb import write_deltalake

if TYPE_CHECKING:
    from conftest import TableUri

PLAN = """
import sys
from deltalakedb import DeltaTable
table = DeltaTable(sys.argv[1])
assert len(table.file_uris(file_pruning_predicate="x >= 2 AND p = 'a'")) == 1
assert len(table.file_uris()) == 2
sys.exit("pandas" in sys.modules)
"""


def test_importing_every_name_leaves_heavy_modules_alone() -> None:
    heavy = ("pandas", "polars", "pyarrow.dataset", "duckdb", "psycopg")
    every = "[getattr(deltalakedb, name) for name in deltalakedb.__all__]"
    code = f"import sys, deltalakedb; {every}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_planning_does_without_pandas(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, pa.table({"x": [2, 2], "p": ["a", "b"]}), partition_by=["p"])
    assert subprocess.run([sys.executable, "-c", PLAN, uri], check=False).returncode == 0
