"""What importing the package must not bring along."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["pandas", "polars", "pyarrow.dataset", "duckdb", "psycopg"])
def test_importing_the_package_leaves_heavy_modules_alone(module: str) -> None:
    code = f"import sys, deltalakedb; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
