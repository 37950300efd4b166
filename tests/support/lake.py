"""Small tables and questions about them, for tests that write and read whole tables."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import deltalake

UTC = dt.UTC


def ids(*numbers: int, part: str = "a") -> pa.Table:
    """One row for each number, in one partition."""
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "part": pa.array([part] * len(numbers), pa.string())}
    )


def ids_of(table: deltalake.DeltaTable) -> list[int]:
    """The numbers in a table, sorted."""
    found: list[int] = table.to_pyarrow_table(columns=["id"])["id"].to_pylist()
    return sorted(found)


def every_type(start: int = 0, count: int = 6) -> pa.Table:
    """Rows with a column of every type, nulls and awkward partition values among them."""
    n = range(start, start + count)
    parts = ["x", "y", None, "x y", "a/b", "é%=:"]
    return pa.table(
        {
            "id": pa.array(n, pa.int64()),
            "byte": pa.array([i % 100 - 50 for i in n], pa.int8()),
            "short": pa.array([-i for i in n], pa.int16()),
            "int": pa.array([None if i % 5 == 4 else i for i in n], pa.int32()),
            "float": pa.array([i / 2 for i in n], pa.float32()),
            "double": pa.array([0.1 * i for i in n], pa.float64()),
            "bool": pa.array([None if i % 3 == 2 else i % 2 == 0 for i in n], pa.bool_()),
            "text": pa.array([None if i % 4 == 3 else f"t'{i}\"ä%" for i in n], pa.string()),
            "bytes": pa.array([bytes([i % 256, 0]) for i in n], pa.binary()),
            "date": pa.array([dt.date(2020, 1, 1) + dt.timedelta(i) for i in n], pa.date32()),
            "at": pa.array(
                [dt.datetime(2020, 1, 1, microsecond=i + 1, tzinfo=UTC) for i in n], pa.timestamp("us", "UTC")
            ),
            "local": pa.array([dt.datetime(1969, 1, 1, second=i % 60) for i in n], pa.timestamp("us")),
            "money": pa.array([Decimal(i) / 100 for i in n], pa.decimal128(20, 2)),
            "big": pa.array([Decimal(10) ** 30 + i for i in n], pa.decimal128(38, 0)),
            "nested": pa.array([{"a": i, "b": {"c": str(i)}} for i in n]),
            "list": pa.array([[i, None] for i in n], pa.list_(pa.int64())),
            "map": pa.array([[("k", i)] for i in n], pa.map_(pa.string(), pa.int64())),
            "part": pa.array([parts[i % len(parts)] for i in n], pa.string()),
            "day": pa.array([dt.date(2024, 1, 1 + i % 2) for i in n], pa.date32()),
        }
    )


def root_of(table: deltalake.DeltaTable) -> Path:
    """The folder of a local table."""
    return Path(unquote(urlsplit(table.table_uri).path))


def files_below(root: str | Path) -> set[str]:
    """Every file below a folder, by its path relative to it; links are not followed."""
    return {str(p.relative_to(root)) for p in Path(root).rglob("*") if p.is_file()}


@contextmanager
def hidden_log(root: str | Path) -> Iterator[None]:
    """A table without its `_delta_log`, which lies elsewhere for the time being."""
    log, aside = Path(root) / "_delta_log", Path(root).parent / f"{Path(root).name}.log-aside"
    log.rename(aside)
    try:
        yield
    finally:
        aside.rename(log)


def child(script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A Python process that runs a script; its arguments are in ``sys.argv[1:]``."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)


def finish(process: subprocess.Popen[str]) -> str:
    """What a child printed, once it has ended well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out
