"""The golden tables: real Delta tables with the truth about every version, which lie beside the project."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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
