"""How far the log is behind while many writers commit and publish in the background."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mirror import _spread

_NAMES: Final = "SELECT table_name, version, committed_at, published_at FROM dl_v_mirror"


def _write(uri: str, table: str, writer: int, commits: int) -> dict[str, Any]:
    """One writer: small appends, each returning before its file is in the log."""
    import pyarrow as pa

    from deltalakedb import Catalog
    from deltalakedb.settings import Config

    took = []
    with Catalog(uri, config=Config(publish={"mode": "background"})) as catalog:
        for number in range(commits):
            rows = pa.table({"id": [writer * 1_000_000 + number], "name": ["a"]})
            begun = time.perf_counter()
            catalog.write(table, rows, mode="append")
            took.append((time.perf_counter() - begun) * 1000)
    return {"write_ms": took}


def _threads(uri: str, tables: int, writers: int, commits: int) -> list[float]:
    """All writers as threads of this process: DuckDB knows no other way."""
    found: list[float] = []

    def work(number: int) -> None:
        found.extend(_write(uri, f"t{number % tables}", number, commits)["write_ms"])

    crowd = [threading.Thread(target=work, args=(n,)) for n in range(writers)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return found


def _processes(uri: str, tables: int, writers: int, commits: int) -> list[float]:
    command = [sys.executable, __file__, "--uri", uri, "--commits", str(commits)]
    crowd = [
        subprocess.Popen(
            [*command, "--table", f"t{n % tables}", "--writer", str(n)], stdout=subprocess.PIPE, text=True
        )
        for n in range(writers)
    ]
    found: list[float] = []
    for process in crowd:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit("a writer failed")
        found += json.loads(out.splitlines()[-1])["write_ms"]
    return found


def measure(engine: str, uri: str, work: Path, tables: int, writers: int, commits: int) -> dict[str, Any]:
    """Let writers commit side by side; the lag of every version when all is done."""
    import pyarrow as pa

    from deltalakedb import Catalog
    from deltalakedb.mirror.reconciler import PUBLISHER

    catalog = Catalog(uri)
    for number in range(tables):
        catalog.write(f"t{number}", pa.table({"id": [0], "name": ["a"]}), location=work / f"t{number}")
    begun = time.perf_counter()
    way = _threads if engine == "duckdb" else _processes
    took = way(uri, tables, writers, commits)
    PUBLISHER.flush()
    seconds = time.perf_counter() - begun
    rows = catalog.query(_NAMES).to_pylist()
    late = [r for r in rows if r["published_at"] is None]
    if late or len(rows) != tables + writers * commits:
        raise SystemExit(f"{len(late)} of {len(rows)} versions are not published")
    lag = [max(0, r["published_at"] - r["committed_at"]) for r in rows if r["version"] > 0]
    return {
        "engine": engine,
        "writers": writers,
        "tables": tables,
        "commits": writers * commits,
        "seconds": seconds,
        "per_second": writers * commits / seconds,
        "write_ms": _spread(took),
        "lag_ms": _spread(lag),
    }


def main() -> None:
    """Measure the engines one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["sqlite", "postgres", "duckdb"])
    parser.add_argument("--writers", type=int, default=16, help="writers side by side")
    parser.add_argument("--tables", type=int, default=4, help="tables they write to")
    parser.add_argument("--commits", type=int, default=50, help="commits of each writer")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    for hidden in ("--uri", "--table", "--writer"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.uri:
        print(json.dumps(_write(chosen.uri, chosen.table, int(chosen.writer), chosen.commits)))
        return
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="deltasql-bench-") as folder:
        for engine in chosen.engines:
            work = Path(folder) / engine
            work.mkdir()
            uri = f"deltasql://{engine}/{work}/catalog.{engine}"
            if engine == "postgres":
                from server import serve

                sockets = quote(serve(Path(folder)), safe="")
                uri = f"deltasql://postgres/postgres@{sockets}/postgres/lag"
            before = os.getloadavg()[0]
            found = measure(engine, uri, work, chosen.tables, chosen.writers, chosen.commits)
            figures.append({**found, "load_before": before, "load_after": os.getloadavg()[0]})
            print(json.dumps(figures[-1]))
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
