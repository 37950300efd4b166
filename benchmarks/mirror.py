"""How fast commits reach `_delta_log`, how fast a backlog drains, and what a checkpoint costs."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES_PER_COMMIT: Final = 10_000
_SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "long"), ("name", "string"), ("day", "string"))
        ],
    }
)


def _table(work: Path) -> Any:
    """A writer of a table's log, publishing nothing by itself, with version 0 made."""
    from deltalakedb import Catalog
    from deltalakedb.commit.committer import commit
    from deltalakedb.commit.txn_log import SqlTxnLogWriter
    from deltalakedb.protocol.actions import Metadata, Protocol

    catalog = Catalog(f"deltasql://sqlite/{work}/catalog.db")
    catalog.namespaces()
    writer = SqlTxnLogWriter(catalog._database, "t", str(work / "t"), partial(commit, catalog._database))
    metadata = Metadata(
        id="5f1c3c5e-0000-4000-8000-000000000000",
        schema_string=_SCHEMA,
        partition_columns=("day",),
        created_time=1_767_225_600_000,
    )
    writer.commit(0, [Protocol(min_reader_version=1, min_writer_version=2), metadata])
    return writer


def _adds(start: int, count: int) -> list[Any]:
    from deltalakedb.protocol.actions import Add

    return [
        Add(
            path=f"day=2026-01-{n % 28 + 1:02}/part-{n:08}-6f9619ff-8b86-d011-b42d-00cf4fc964ff.parquet",
            partition_values={"day": f"2026-01-{n % 28 + 1:02}"},
            size=10_000 + n,
            modification_time=1_767_225_600_000,
            data_change=True,
            stats=(
                f'{{"numRecords":1000,"minValues":{{"id":{n * 1000},"name":"a{n}"}},'
                f'"maxValues":{{"id":{n * 1000 + 999},"name":"z{n}"}},"nullCount":{{"id":0,"name":3}}}}'
            ),
        )
        for n in range(start, start + count)
    ]


def _open(work: Path) -> Any:
    from deltalakedb import Catalog

    return Catalog(f"deltasql://sqlite/{work}/catalog.db")


def latency(work: Path, commits: int) -> dict[str, Any]:
    """From a ratified commit to its file in the log, one after the other, as a writer does it."""
    from deltalakedb.metastore import registry
    from deltalakedb.mirror.publisher import publish

    writer = _table(work)
    table = registry.find(writer.database, "t")
    publish(writer.database, table)
    ratify, put = [], []
    for version in range(1, commits + 1):
        adds = _adds(version, 1)
        begun = time.perf_counter()
        writer.commit(version, adds)
        ratified = time.perf_counter()
        done = publish(writer.database, table)
        put.append((time.perf_counter() - ratified) * 1000)
        ratify.append((ratified - begun) * 1000)
        if done.versions != (version,):
            raise SystemExit(f"version {version} was not published: {done}")
    return {"commits": commits, "commit_ms": _spread(ratify), "publish_ms": _spread(put)}


def backlog(work: Path, commits: int) -> dict[str, Any]:
    """Make commits that nobody publishes."""
    writer = _table(work)
    begun = time.perf_counter()
    for version in range(1, commits):
        writer.commit(version, _adds(version, 1))
    return {"commits": commits, "seconds": time.perf_counter() - begun}


def drain(work: Path, commits: int) -> dict[str, Any]:
    """Publish a backlog in one pass."""
    catalog = _open(work)
    catalog.mirror.status()
    before = _peak_mb()
    begun = time.perf_counter()
    from deltalakedb.mirror.reconciler import run_once

    done = run_once(catalog._database, checkpoints=False)
    seconds = time.perf_counter() - begun
    files = len(list((work / "t" / "_delta_log").glob("*.json")))
    if (done.published, files) != (commits, commits):
        raise SystemExit(f"{done.published} of {commits} were published, {files} files are there")
    return {"seconds": seconds, "per_second": commits / seconds, "peak_mb": _peak_mb(), "before_mb": before}


def prepare(work: Path, files: int) -> dict[str, Any]:
    """A table of many files, published, without a checkpoint."""
    writer = _table(work)
    for version, start in enumerate(range(0, files, FILES_PER_COMMIT), start=1):
        writer.commit(version, _adds(start, min(FILES_PER_COMMIT, files - start)))
    catalog = _open(work)
    from deltalakedb.mirror.reconciler import run_once

    return {"published": run_once(catalog._database, checkpoints=False).published}


def ours(work: Path, files: int) -> dict[str, Any]:
    """A checkpoint streamed from SQL."""
    catalog = _open(work)
    catalog.mirror.status()
    before, begun = _peak_mb(), time.perf_counter()
    written = catalog.mirror.checkpoint("t")
    seconds = time.perf_counter() - begun
    if written.num_add_files != files:
        raise SystemExit(f"{written.num_add_files} of {files} files are in the checkpoint")
    kind, size = written.kind, written.size_in_bytes
    return {"seconds": seconds, "peak_mb": _peak_mb(), "before_mb": before, "bytes": size, "kind": kind}


def stock(work: Path, files: int) -> dict[str, Any]:
    """A checkpoint by `deltalake` of the same log: opening it is part of the work, and told apart."""
    import deltalake

    before, begun = _peak_mb(), time.perf_counter()
    table = deltalake.DeltaTable(work / "t")
    opened = time.perf_counter() - begun
    table.create_checkpoint()
    seconds = time.perf_counter() - begun
    (made,) = (work / "t" / "_delta_log").glob("*.checkpoint.parquet")
    found = {"seconds": seconds, "open_seconds": opened, "peak_mb": _peak_mb(), "before_mb": before}
    if len(deltalake.DeltaTable(work / "t").file_uris()) != files:
        raise SystemExit("stock's checkpoint has other files")
    return {**found, "bytes": made.stat().st_size}


def _spread(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"p50": cuts[49], "p95": cuts[94], "max": max(values)}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_STEPS: Final = {f.__name__: f for f in (latency, backlog, drain, prepare, ours, stock)}


def _step(name: str, work: Path, count: int) -> dict[str, Any]:
    """One step in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--step", name, "--work", str(work), "--count", str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _lag(figures: Path) -> Any:
    """How far the log is behind under many writers, on every engine."""
    command = [sys.executable, str(Path(__file__).with_name("mirror_lag.py")), "--json", str(figures)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(figures.read_text())


def _forget_checkpoint(work: Path) -> None:
    log = work / "t" / "_delta_log"
    for pattern in ("*.checkpoint*", "_last_checkpoint", "*.crc"):
        for file in log.glob(pattern):
            file.unlink()
    shutil.rmtree(log / "_sidecars", ignore_errors=True)


def main() -> None:
    """Run all steps and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=500, help="commits whose way to the log is timed")
    parser.add_argument("--backlog", type=int, default=10_000, help="commits in the backlog")
    parser.add_argument("--files", type=int, default=200_000, help="files in the checkpoint")
    parser.add_argument("--full", action="store_true", help="a checkpoint of 1,000,000 files")
    parser.add_argument("--no-lag", action="store_true", help="leave out the lag under many writers")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--step", choices=sorted(_STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step:
        print(json.dumps(_STEPS[chosen.step](chosen.work, chosen.count)))
        return
    files = 1_000_000 if chosen.full else chosen.files
    figures: dict[str, Any] = {"files": files, "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="deltasql-bench-") as folder:
        for name in ("latency", "backlog", "checkpoint"):
            (Path(folder) / name).mkdir()
        figures["latency"] = _step("latency", Path(folder) / "latency", chosen.commits)
        figures["backlog"] = _step("backlog", Path(folder) / "backlog", chosen.backlog)
        figures["drain"] = _step("drain", Path(folder) / "backlog", chosen.backlog)
        work = Path(folder) / "checkpoint"
        figures["prepare"] = _step("prepare", work, files)
        figures["ours"] = _step("ours", work, files)
        _forget_checkpoint(work)
        figures["stock"] = _step("stock", work, files)
        if not chosen.no_lag:
            figures["lag"] = _lag(Path(folder) / "lag.json")
    figures["load_after"] = os.getloadavg()[0]
    text = json.dumps(figures, indent=1)
    print(text)
    if chosen.json:
        chosen.json.write_text(text)


if __name__ == "__main__":
    main()
