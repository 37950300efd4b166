"""What importing the package must not bring along."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa

from deltalakedb import write_deltalake

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

PLAN = """
import sys
from deltalakedb import DeltaTable
table = DeltaTable(sys.argv[1])
assert len(table.file_uris(file_pruning_predicate="x >= 2 AND p = 'a'")) == 1
assert len(table.file_uris()) == 2
sys.exit("pandas" in sys.modules)
"""


HEAVY = ("pyarrow", "numpy", "pydantic", "yaml", "msgspec", "duckdb", "psycopg", "pyspark", "obstore")


def imported(code: str) -> str:
    """Which of the heavy modules a program has imported."""
    program = f"import sys; {code}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_names_of_deltalake_bring_nothing_that_stock_does_not() -> None:
    assert imported("from deltalakedb import DeltaTable, write_deltalake") == "[]\n"


def test_plain_tables_bring_nothing_that_stock_does_not(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    use = f"t = deltalakedb.DeltaTable({str(tmp_path)!r}); t.load_as_version(0); t.count()"
    assert imported(f"import deltalakedb; {use}") == "[]\n"


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
