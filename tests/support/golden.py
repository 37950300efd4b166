"""The golden tables: real Delta tables with the truth about every version, which lie beside the project."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb.exceptions import DeltaSqlError
from support.catalogs import ENGINES

if TYPE_CHECKING:
    from deltalakedb import Catalog

BESIDE_THE_PROJECT = Path(__file__).resolve().parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class GoldenTable:
    """One golden table.

    Attributes:
        name: Its name, such as ``basic-decimal-table``.
        path: Its root folder.
        truth: What it holds at every version; ``truth["expect"]`` is ok, may_refuse or must_fail.
    """

    name: str
    path: Path
    truth: dict[str, Any]


def golden_root() -> Path | None:
    """The folder with ``tables`` and ``truth``: ``DELTASQL_GOLDEN`` or ``../shared/golden``, else None."""
    root = Path(os.environ.get("DELTASQL_GOLDEN", BESIDE_THE_PROJECT))
    return root if (root / "truth").is_dir() else None


def missing_reason() -> str:
    """Why the golden tests are skipped."""
    wanted = os.environ.get("DELTASQL_GOLDEN")
    return (
        f"no golden tables in DELTASQL_GOLDEN={wanted}" if wanted else "no golden tables; set DELTASQL_GOLDEN"
    )


def golden_tables() -> list[GoldenTable]:
    """Every golden table, sorted by name; empty where they are not at hand."""
    root = golden_root()
    if root is None:
        return []
    truths = [json.loads(path.read_text()) for path in sorted((root / "truth").glob("*.json"))]
    return [GoldenTable(truth["name"], root / "tables" / truth["path"], truth) for truth in truths]


def golden_params() -> list[Any]:
    """The golden tables for ``pytest.mark.parametrize``, or one skipped case that says why."""
    tables = golden_tables()
    if not tables:
        skip = pytest.mark.skip(reason=missing_reason())
        return [pytest.param(None, id="missing", marks=[pytest.mark.golden, skip])]
    return [pytest.param(table, id=table.name, marks=pytest.mark.golden) for table in tables]


def golden_params_on_engines() -> list[Any]:
    """Every golden table on SQLite; on the others one for each trait, all with DELTASQL_TEST_ENGINES=all."""
    params, seen = [], set[str]()
    for param in golden_params():
        table = param.values[0]
        is_table = table is not None and table.truth["expect"] != "must_fail"
        traits = set(table.truth["tags"]) if is_table else set()
        chosen = bool(traits - seen) or os.environ.get("DELTASQL_TEST_ENGINES") == "all"
        for engine in ENGINES if chosen else ("sqlite",):
            params.append(pytest.param(engine, table, id=f"{engine}-{param.id}", marks=param.marks))
        seen |= traits
    return params


def copy_of(table: GoldenTable, folder: Path) -> Path:
    """The table with links to its data, and a log of its own that can be written."""
    root = folder / table.path.name

    def put(source: str, target: str) -> None:
        (shutil.copyfile if "_delta_log" in source else os.symlink)(source, target)

    shutil.copytree(table.path, root, copy_function=put)
    return root


def go_on(catalog: Catalog, name: str) -> tuple[list[str], list[DeltaSqlError]]:
    """Append a row of nulls, then delete every row: what worked, and what was refused."""
    table = catalog.table(name)
    schema = pa.schema(table.schema().to_arrow())
    row = pa.table({f.name: pa.nulls(1, f.type) for f in schema}, schema=schema)
    done, refused = [], []
    for operation, work in (
        ("append", lambda: catalog.write(name, row, mode="append")),
        ("delete", lambda: catalog.table(name).delete()),
    ):
        try:
            work()
            done.append(operation)
        except DeltaSqlError as error:
            refused.append(error)
    return done, refused
