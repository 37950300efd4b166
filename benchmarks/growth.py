"""How times grow: imports with a catalog's tables, plans with a table's files, and all with many tables.

Every scenario runs in one process on one engine and prints a table. A flat line is the goal.

Example:
    python benchmarks/growth.py tables --engine sqlite --sizes 10,100
    python benchmarks/growth.py imports --engine postgres --tables 3 --files 100000
    python benchmarks/growth.py plans --sizes 10000,100000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from generated_log import Shape, ensure_log
from server import serve

if TYPE_CHECKING:
    from collections.abc import Callable

HERE: Final = Path(__file__).resolve().parent
REPEATS: Final = 25

Point = dict[str, float]


def main() -> int:
    """Measure one scenario, print it, and write JSON if asked."""
    asked = _options()
    asked.data.mkdir(parents=True, exist_ok=True)
    before = os.getloadavg()
    points: list[Point] = {"tables": _tables, "imports": _imports, "plans": _plans}[asked.scenario](asked)
    names = list(points[0])
    print(f"\n{asked.scenario} on {asked.engine}; load average before {before}, after {os.getloadavg()}")
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    for point in points:
        print("| " + " | ".join(f"{point[name]:,.10g}" for name in names) + " |")
    if asked.json:
        asked.json.write_text(
            json.dumps({"engine": asked.engine, "load": before, "points": points}, indent=1)
        )
    return 0


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("scenario", choices=("tables", "imports", "plans"))
    options.add_argument("--engine", choices=("sqlite", "postgres", "duckdb"), default="sqlite")
    options.add_argument("--sizes", help="tables of the catalog, or files of the table, separated by commas")
    options.add_argument("--files", type=int, default=1_000_000, help="files of each imported table")
    options.add_argument("--tables", type=int, default=3, help="imports into one catalog")
    options.add_argument("--data", type=Path, default=HERE / "data", help="folder for logs and catalogs")
    options.add_argument("--json", type=Path, help="write the figures to this file")
    asked = options.parse_args()
    asked.data = asked.data.resolve()
    default = "10,100,1000,10000" if asked.scenario == "tables" else "10000,100000,1000000"
    asked.sizes = sorted(int(size) for size in (asked.sizes or default).split(","))
    return asked


def _address(asked: argparse.Namespace) -> str:
    """A catalog that did not exist before."""
    name = f"growth_{asked.scenario}_{os.getpid()}"
    if asked.engine == "postgres":
        return f"deltasql://postgres/postgres@{quote(serve(asked.data), safe='')}/postgres/{name}"
    return f"deltasql://{asked.engine}/{quote(str(asked.data))}/{name}.{asked.engine}"


def _tables(asked: argparse.Namespace) -> list[Point]:
    """Small tables in one catalog: the times of everyday calls on one of them."""
    import pyarrow as pa

    from deltalakedb import Catalog, DeltaTable

    rows = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array(["x"])})
    points: list[Point] = []
    with Catalog(_address(asked), create=True) as catalog:
        made = 0
        for size in asked.sizes:
            began = time.perf_counter()
            for number in range(made, size):
                place = asked.data / f"growth-{os.getpid()}" / str(number)
                catalog.create_table(f"ns{number % 100}.t{number}", rows.schema, location=place)
            each = (time.perf_counter() - began) * 1000 / (size - made)
            made = size
            name = f"ns{(size // 2) % 100}.t{size // 2}"
            uri = catalog.table_uri(name)
            catalog.write(name, rows, mode="append")
            table = DeltaTable(uri)
            point = {"tables": size, "create ms": round(each, 2)}
            point["open ms"] = _median(lambda uri=uri: DeltaTable(uri).version())
            point["plan ms"] = _median(lambda t=table: t.file_uris(file_pruning_predicate="id = 1"))
            point["append ms"] = _median(lambda n=name: catalog.write(n, rows, mode="append"))
            point["list a namespace ms"] = _median(lambda: catalog.tables(namespace="ns7"))
            point["list µs per table"] = round(_median(catalog.tables) * 1000 / size, 1)
            points.append(point)
            print(point, flush=True)
    return points


def _imports(asked: argparse.Namespace) -> list[Point]:
    """The same log imported again and again into one catalog, beside stock's load of it."""
    import deltalake

    from deltalakedb import import_table

    log, _ = _log(asked.data, asked.files)
    uri = _address(asked)
    points: list[Point] = []
    for number in range(1, asked.tables + 1):
        began = time.perf_counter()
        deltalake.DeltaTable(log).get_add_actions(flatten=True)
        stock = time.perf_counter() - began
        copy = asked.data / f"growth-copy-{number}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(log, copy, copy_function=os.link)
        began = time.perf_counter()
        import_table(str(copy), f"{uri}?table=t{number}", history="checkpoint", engine="local")
        seconds = time.perf_counter() - began
        points.append({"table": number, "import s": round(seconds, 2), "stock's load s": round(stock, 2)})
        print(points[-1], flush=True)
    return points


def _plans(asked: argparse.Namespace) -> list[Point]:
    """Warm plans of one table per size, beside stock's."""
    import deltalake

    from deltalakedb import DeltaTable, import_table

    catalog, points = _address(asked), []
    for size in asked.sizes:
        log, truth = _log(asked.data, size)
        uri = f"{catalog}?table=t{size}"
        import_table(log, uri, history="checkpoint", engine="local")
        point: Point = {"files": size}
        for kind, table in (("stock", deltalake.DeltaTable(log)), ("ours", DeltaTable(uri))):
            for name, predicate in (
                ("partition", truth.partition_predicate),
                ("range", truth.range_predicate),
            ):
                plan = lambda t=table, p=predicate: t.file_uris(file_pruning_predicate=p)  # noqa: E731
                point[f"{kind}, {name} ms"] = _median(plan)
        points.append(point)
        print(point, flush=True)
    return points


def _log(data: Path, files: int) -> tuple[str, Any]:
    shape = Shape(files, max(10, files // 1000), max(5, files // 2000 - 5))
    truth = ensure_log(data / shape.name, shape)
    return str(data / shape.name / "table"), truth


def _median(call: Callable[[], Any]) -> float:
    """Milliseconds of one call: the median of several after one that warms up, for at most four seconds."""
    call()
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < 4_000:
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times), 3)


if __name__ == "__main__":
    raise SystemExit(main())
