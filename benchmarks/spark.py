"""Spark through the catalog beside Spark alone: read, write, merge, import, in one session, in turns.

The ratios are of processor time (this process, Spark, its Python workers, Postgres), which other work on the
machine does not change much, and of elapsed time.

Example:
    python benchmarks/spark.py --rows 200000 --parts 8 --files 49000 --commits 100 --checkpoint-every 45
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import psycopg
from pyspark.sql import functions as f

from deltalakedb import import_table
from deltalakedb.address import parse_address
from deltalakedb.delta_log.listing import list_log
from deltalakedb.metastore.database import Database
from deltalakedb.settings import Config, use_config
from deltalakedb.spark import merge, read, session, write
from deltalakedb.storage.store import open_store
from generated_log import Shape, ensure_log
from server import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE: Final = Path(__file__).resolve().parent
#: what we may take at the most, in times of Spark alone
GOALS: Final = {"read": 1.15, "import": 4.0}
SYSTEMS: Final = ("postgres", "sqlite", "duckdb")


def main() -> int:
    """Measure, print a table, write JSON."""
    asked = _options()
    work = asked.data / "spark"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    spark = session(
        f"local[{asked.cores}]",
        config={
            "spark.driver.memory": "3g",
            "spark.sql.shuffle.partitions": "4",
            "spark.local.dir": str(work),
        },
    )
    before = os.getloadavg()
    figures: dict[str, dict[str, list[Cost]]] = {}
    for name in asked.only:
        print(f"{name} …", flush=True)
        figures[name] = _PARTS[name](spark, work, asked)
    result = {
        "cores": asked.cores,
        "rounds": asked.rounds,
        "load": {"before": before, "after": os.getloadavg()},
        "seconds": figures,
    }
    _print(result)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    spark.stop()
    return 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rows", type=int, default=5_000_000, help="rows of the table that is read")
    options.add_argument("--parts", type=int, default=40, help="its files")
    options.add_argument(
        "--files", type=int, default=1_000_000, help="live files of the log that is imported"
    )
    options.add_argument("--commits", type=int, default=1_000)
    options.add_argument("--checkpoint-every", type=int, default=495)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--systems", type=lambda t: tuple(t.split(",")), default=SYSTEMS)
    options.add_argument("--no-local", action="store_true", help="import by Spark alone")
    options.add_argument("--only", type=lambda t: tuple(t.split(",")), default=tuple(_PARTS))
    options.add_argument("--data", type=Path, default=HERE / "data")
    options.add_argument("--json", type=Path, help="where to write all figures")
    asked = options.parse_args()
    asked.data = asked.data.resolve()
    return asked


class Cost(NamedTuple):
    """What one run took, in seconds."""

    elapsed: float
    processor: float


def processor_seconds(*roots: int) -> float:
    """The processor time of processes and all of their children, ended ones too (on Linux)."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))
    total, left = 0, list(roots)
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def rotated(
    ways: dict[str, Callable[[], object]], rounds: int, servers: Sequence[int] = ()
) -> dict[str, list[Cost]]:
    """The cost of each way, in every round in another order; a first round to warm up is not counted.

    A way may return what is to be called afterwards, outside of the measured time.
    """
    names, found = list(ways), {name: list[Cost]() for name in ways}
    for turn in range(rounds + 1):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            began, spent = time.perf_counter(), processor_seconds(os.getpid(), *servers)
            clean = ways[name]()
            spent = processor_seconds(os.getpid(), *servers) - spent
            if turn:
                found[name].append(Cost(round(time.perf_counter() - began, 3), round(spent, 2)))
            if callable(clean):
                clean()
    return found


def _rows(spark: Any, count: int, parts: int) -> Any:
    return spark.range(0, count, 1, parts).select(
        "id", (f.col("id") % 1000).alias("k"), f.rand(7).alias("x"), f.concat(f.lit("t"), "id").alias("t")
    )


def measure_read(spark: Any, work: Path, asked: argparse.Namespace) -> dict[str, list[Cost]]:
    """An aggregate over all rows, of the same files: published, and ahead of the log."""
    uri, root = _table(spark, work, "read", asked)
    silent = f"{uri.partition('?')[0]}?table=silent"
    with use_config(Config(publish={"mode": "off"})):
        write(_rows(spark, asked.rows, asked.parts), f"{silent}&location={quote(str(work / 'silent'))}")

    def total(frame: Any) -> object:
        return frame.groupBy("k").agg(f.sum("x"), f.max("t")).agg(f.count("*")).collect()

    return rotated(
        {
            "format(delta)": lambda: total(spark.read.format("delta").load(str(root))),
            "spark.read": lambda: total(read(spark, uri)),
            "spark.read, where": lambda: total(read(spark, uri, where="id >= 0")),
            "spark.read, own log": lambda: total(read(spark, silent)),
        },
        asked.rounds,
    )


def measure_write(spark: Any, work: Path, asked: argparse.Namespace) -> dict[str, list[Cost]]:
    """Appends of a fifth of the rows."""
    uri, _ = _table(spark, work, "write", asked, rows=1000)
    plain = work / "plain"
    rows = _rows(spark, asked.rows // 5, asked.parts // 5 or 1)
    rows.limit(1000).write.format("delta").save(str(plain))
    return rotated(
        {
            "format(delta)": lambda: rows.write.format("delta").mode("append").save(str(plain)),
            "spark.write": lambda: write(rows, uri, mode="append"),
        },
        asked.rounds,
    )


def measure_merge(spark: Any, work: Path, asked: argparse.Namespace) -> dict[str, list[Cost]]:
    """A merge that changes one row in a thousand."""
    from delta.tables import DeltaTable

    uri, root = _table(spark, work, "merge", asked, rows=asked.rows // 5)
    plain = work / "merged"
    shutil.copytree(root, plain)
    news = _rows(spark, asked.rows // 5, 4).where("id % 1000 = 7").withColumn("x", f.lit(0.5))

    def ours() -> None:
        merge(spark, uri, news, "target.id = source.id").whenMatchedUpdateAll().execute()

    def theirs() -> None:
        table = DeltaTable.forPath(spark, str(plain)).alias("t")
        table.merge(news.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()

    return rotated({"format(delta)": theirs, "spark.merge": ours}, asked.rounds)


def measure_import(spark: Any, work: Path, asked: argparse.Namespace) -> dict[str, list[Cost]]:
    """A large log: replayed by plain Spark, warm, and imported with verification at ``digest``."""
    shape = Shape(asked.files, asked.commits, asked.checkpoint_every)
    truth = ensure_log(asked.data / shape.name, shape)
    table = asked.data / shape.name / "table"
    catalogs = {"sqlite": "deltasql://sqlite/{}/i.db", "duckdb": "deltasql://duckdb/{}/i.duckdb"}
    numbers = iter(range(1_000_000))
    servers: list[int] = []
    if "postgres" in asked.systems:
        sockets = serve(asked.data)
        servers.append(int((asked.data / "postgres" / "postmaster.pid").read_text().split()[0]))

    def imported(system: str, engine: Any) -> Callable[[], object]:
        def run() -> object:
            folder = work / f"import{next(numbers)}"
            folder.mkdir()
            if system == "postgres":
                server = f"deltasql://postgres/postgres@{quote(sockets, safe='')}/postgres"
                uri = f"{server}/{folder.name}{os.getpid()}/t"
            else:
                uri = f"{catalogs[system].format(quote(str(folder)))}?table=t"
            done = import_table(
                str(table),
                uri,
                history="checkpoint",
                engine=engine,
                spark=spark if engine == "spark" else None,
            )
            print(f"  {system} {engine}: {done.seconds:.1f} s, {dict(done.phases)}", flush=True)
            if done.num_files != truth.files:
                raise SystemExit(f"{done.num_files} files were imported, the truth is {truth.files}")

            def clean() -> None:
                Database.open(parse_address(uri)).close()
                shutil.rmtree(folder)
                if system == "postgres":
                    with psycopg.connect(host=sockets, user="postgres", autocommit=True) as connection:
                        connection.execute(f"DROP SCHEMA {folder.name}{os.getpid()} CASCADE")

            return clean

        return run

    ways: dict[str, Callable[[], object]] = {"plain replay": lambda: replay(spark, table, truth.files)}
    for system in asked.systems:
        ways[f"{system} by Spark"] = imported(system, "spark")
        if not asked.no_local:
            ways[f"{system} local"] = imported(system, "local")
    return rotated(ways, asked.rounds, servers)


def replay(spark: Any, table: Path, files: int) -> None:
    """The live files of a log by Spark's own readers: the checkpoint without the tail's, and the tail's."""
    plan = list_log(open_store(str(table))).plan(list_log(open_store(str(table))).latest)
    fields = "path:string,partitionValues:map<string,string>,size:bigint,modificationTime:bigint,stats:string"
    add = f"struct<{fields}>"
    tail = spark.read.schema(f"add {add}, remove struct<path:string>").json(
        [str(table / meta.path) for meta in plan.files]
    )
    tail = tail.where("add is not null or remove is not null").select(
        "add",
        f.coalesce("add.path", "remove.path").alias("path"),
        f.regexp_extract(f.col("_metadata.file_name"), r"^(\d+)", 1).cast("long").alias("v"),
    )
    last = tail.groupBy("path").agg(f.max_by("add", f.struct("v", f.col("add").isNotNull())).alias("add"))
    base = spark.read.schema(f"add {add}").parquet(*(str(table / m.path) for m in plan.checkpoint.files))
    base = base.where("add is not null").select("add", f.col("add.path").alias("path"))
    live = base.join(f.broadcast(last.select("path")), "path", "left_anti").select("add")
    live = live.unionByName(last.where("add is not null").select("add"))
    # the rows are made, as an import has to; counting alone would read nothing but paths
    row = live.select(f.count("*"), f.sum(f.hash("add.path", "add.stats", "add.size"))).collect()[0]
    if row[0] != files:
        raise SystemExit(f"the replay found {row[0]} files, the truth is {files}")


def _table(
    spark: Any, work: Path, name: str, asked: argparse.Namespace, rows: int | None = None
) -> tuple[str, Path]:
    uri, root = f"deltasql://sqlite/{quote(str(work))}/{name}.db?table=t", work / name
    count = asked.rows if rows is None else rows
    write(_rows(spark, count, asked.parts if rows is None else 4), f"{uri}&location={quote(str(root))}")
    return uri, root


_PARTS: Final = {
    "read": measure_read,
    "write": measure_write,
    "merge": measure_merge,
    "import": measure_import,
}


def _print(result: dict[str, Any]) -> None:
    load = result["load"]
    print(f"load average of {os.cpu_count()} cores: {load['before'][0]:.1f}, then {load['after'][0]:.1f}")
    print("| what | way | processor time | elapsed | times Spark alone: processor | elapsed |")
    print("|---|---|---|---|---|---|")
    for name, ways in result["seconds"].items():
        first = next(iter(ways), None)
        for way, costs in ways.items():
            cells, times = [], []
            for kind in Cost._fields[::-1]:
                spent = [getattr(cost, kind) for cost in costs]
                middle = statistics.median(spent)
                cells.append(f"{middle:.2f} s [{min(spent):.2f} .. {max(spent):.2f}]")
                times.append(middle / statistics.median(getattr(cost, kind) for cost in ways[first]))
            print(f"| {name} | {way} | {' | '.join(cells)} | {' | '.join(f'{t:.2f}' for t in times)} |")
            if way != first and name in GOALS:
                goal = GOALS[name]
                print(f"  goal: at most {goal:g}: {'reached' if times[0] <= goal else 'MISSED'}")


if __name__ == "__main__":
    raise SystemExit(main())
