"""A tour on SQLite: write, look into SQL and the log, read with other engines, one transaction, an import.

`make demo` runs it. What it shows it also checks: the exit code is 1 if two readers disagree.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deltalakedb import Catalog, DeltaTable, import_table, verify_table, write_deltalake

MARK = ".deltasql-demo"
CITIES = ["Lima", "Oslo", "Rome", "Suva"]


class DisagreementError(Exception):
    """Two readers returned different rows."""


class Tour:
    """Shows each step, runs it, and checks the result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
        self.catalog = f"deltasql://sqlite/{quote(str(folder))}/meta.db"
        self.steps = self.checks = 0

    def address(self, name: str) -> str:
        return f"{self.catalog}?table={name}"

    def step(self, title: str) -> None:
        self.steps += 1
        self.console.print()
        self.console.print(Rule(Text(f"{self.steps}. {title}", style="bold"), align="left", style="cyan"))

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def code(self, text: str) -> None:
        for line in text.strip().splitlines():
            self.console.print(Text(f"  >>> {line}", style="green"))

    def check(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise DisagreementError(f"{what}: found {found!r}, expected {expected!r}")
        self.checks += 1
        self.console.print(Text.assemble(("  ✓ ", "bold green"), what))

    def rows(self, table: pa.Table) -> None:
        if not self.console.is_terminal:
            lines = [table.column_names, *([str(v) for v in row.values()] for row in table.to_pylist())]
            widths = [max(len(line[i]) for line in lines) for i in range(table.num_columns)]
            for line in lines:
                self.say("    " + "  ".join(v.rjust(w) for v, w in zip(line, widths, strict=True)))
            return
        shown = Table(box=None, header_style="cyan", padding=(0, 2))
        for name, kind in zip(table.column_names, table.schema.types, strict=True):
            shown.add_column(name, justify="right" if pa.types.is_integer(kind) else "left", overflow="fold")
        for row in table.to_pylist():
            shown.add_row(*(Text(str(value)) for value in row.values()))
        self.console.print(shown)


def orders(day: int, count: int = 200) -> pa.Table:
    """A day's orders; ids grow from day to day, so that files can be pruned by id."""
    ids = range(day * count, (day + 1) * count)
    return pa.table(
        {
            "id": list(ids),
            "city": [CITIES[i % len(CITIES)] for i in ids],
            "cents": [(i * 37) % 5000 for i in ids],
        }
    )


def ids(table: pa.Table) -> list[int]:
    """The ids of a table in order: readers may return rows in any order."""
    found: list[int] = table.column("id").to_pylist()
    return sorted(found)


def write(tour: Tour) -> None:
    tour.step("Two tables in one SQLite catalog")
    tour.say("The address names the database and the table; location= is the folder of a new table.")
    places = {
        name: f"{tour.address(name)}&location={quote(str(tour.folder / name))}"
        for name in ("orders", "customers")
    }
    tour.code(f'write_deltalake("{places["orders"]}", data, partition_by="city")')
    write_deltalake(places["orders"], orders(0), partition_by="city")
    write_deltalake(places["customers"], pa.table({"id": [1, 2, 3], "name": ["Ada", "Ben", "Cleo"]}))
    tour.check("both tables are at version 0", [DeltaTable(p).version() for p in places.values()], [0, 0])

    tour.step("Append three times, then overwrite the other table")
    tour.code('write_deltalake("…?table=orders", data, mode="append")')
    for day in (1, 2, 3):
        write_deltalake(tour.address("orders"), orders(day), mode="append")
    tour.code('write_deltalake("…?table=customers", data, mode="overwrite")')
    write_deltalake(tour.address("customers"), pa.table({"id": [7], "name": ["Grace"]}), mode="overwrite")
    table = DeltaTable(tour.address("orders"))
    tour.check(
        "orders is at version 3 with 800 rows", (table.version(), table.to_pyarrow_table().num_rows), (3, 800)
    )
    names = DeltaTable(tour.address("customers")).to_pyarrow_table().column("name").to_pylist()
    tour.check("customers holds only Grace now", names, ["Grace"])


def travel(tour: Tour) -> None:
    tour.step("Travel in time")
    tour.code('DeltaTable("…?table=orders", version=1).to_pyarrow_table().num_rows')
    counts = [DeltaTable(tour.address("orders"), version=v).to_pyarrow_table().num_rows for v in range(4)]
    tour.check(f"rows at versions 0 to 3: {counts}", counts, [200, 400, 600, 800])
    before = DeltaTable(tour.address("customers"), version=0).to_pyarrow_table().column("name").to_pylist()
    tour.check("the customers before the overwrite are still there", before, ["Ada", "Ben", "Cleo"])


def plan(tour: Tour) -> None:
    tour.step("Plan a query inside the database")
    table = DeltaTable(tour.address("orders"))
    where = "city = 'Rome' AND id >= 650"
    tour.code(f'table.file_uris(file_pruning_predicate="{where}")')
    everything, candidates = table.file_uris(), table.file_uris(file_pruning_predicate=where)
    tour.check(
        f"{len(candidates)} of {len(everything)} files may hold such rows",
        (len(candidates), len(everything)),
        (1, 16),
    )
    found = table.to_pyarrow_table(filters=[("city", "=", "Rome"), ("id", ">=", 650)])
    wanted = [i for i in range(650, 800) if CITIES[i % 4] == "Rome"]
    tour.check(f"and that one file has all {len(wanted)} of them", ids(found), wanted)


def look_into_sql(tour: Tour, catalog: Catalog) -> None:
    tour.step("The metadata in SQL: query the views")
    tour.code(f'catalog = Catalog("{tour.catalog}")')
    sql = "SELECT name, version, num_files, num_records FROM dl_v_tables ORDER BY name"
    tour.code(f'catalog.query("{sql}")')
    tables = catalog.query(sql)
    tour.rows(tables)
    tour.check("SQL knows the number of rows", tables.column("num_records").to_pylist(), [1, 800])
    sql = "SELECT add_version, count(*) AS files FROM dl_v_files WHERE table_name = ? GROUP BY 1 ORDER BY 1"
    tour.code(f'catalog.query("{sql}", ("orders",))')
    added = catalog.query(sql, ("orders",))
    tour.rows(added)
    tour.check("each version added one file per city", added.column("files").to_pylist(), [4, 4, 4, 4])


def look_into_log(tour: Tour, catalog: Catalog) -> None:
    tour.step("The log: the same commits, byte for byte")
    log = sorted((tour.folder / "orders" / "_delta_log").glob("*.json"))
    for path in log:
        kinds = [next(iter(json.loads(line))) for line in path.read_text().splitlines()]
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        tour.say(f"  {path.relative_to(tour.folder)}  {path.stat().st_size:>5} bytes  {counted}")
    ours = [catalog.log("orders").commit_bytes(version) for version in range(4)]
    tour.check("the log has exactly the bytes that SQL has", [path.read_bytes() for path in log], ours)


def read_with_others(tour: Tour) -> None:
    tour.step("Other engines read the folder as before")
    place = str(tour.folder / "orders")
    table = DeltaTable(tour.address("orders"))
    tour.code(f'deltalake.DeltaTable("{place}").to_pyarrow_table()   # the unmodified deltalake package')
    stock = deltalake.DeltaTable(place)
    expected = ids(table.to_pyarrow_table())
    tour.check("stock deltalake reads the same rows", ids(stock.to_pyarrow_table()), expected)
    stock.load_as_version(1)
    past = ids(DeltaTable(tour.address("orders"), version=1).to_pyarrow_table())
    tour.check("at an older version too", ids(stock.to_pyarrow_table()), past)
    try:
        import duckdb
    except ImportError:
        tour.say("  (DuckDB is not installed: pip install 'deltalakedb[duckdb]')")
        return
    sql = "SELECT city, count(*) AS n, sum(cents)::BIGINT AS cents FROM sales GROUP BY city ORDER BY city"
    tour.code(f'sales = table.to_pyarrow_dataset()\nduckdb.sql("{sql}")')
    with duckdb.connect() as connection:
        connection.register("sales", table.to_pyarrow_dataset())
        answer: pa.Table = connection.sql(sql).to_arrow_table()
    tour.rows(answer)
    paid = dict.fromkeys(CITIES, 0)
    for row in table.to_pyarrow_table().to_pylist():
        paid[row["city"]] += row["cents"]
    tour.check(
        "DuckDB computes the same sums",
        dict(zip(answer["city"].to_pylist(), answer["cents"].to_pylist(), strict=True)),
        paid,
    )


def change_together(tour: Tour, catalog: Catalog) -> None:
    tour.step("Two tables in one transaction: both change, or neither")
    tour.code(
        "with catalog.transaction() as tx:\n"
        '    tx.write("customers", new_customer, mode="append")\n'
        '    tx.write("orders", first_orders, mode="append")'
    )
    with catalog.transaction() as tx:
        tx.write("customers", pa.table({"id": [8], "name": ["Hedy"]}), mode="append")
        tx.write("orders", orders(4), mode="append")

    def versions() -> list[int]:
        """As stock sees the tables, from their logs."""
        return [deltalake.DeltaTable(tour.folder / name).version() for name in ("customers", "orders")]

    tour.check("both went up by one version, stock sees it too", versions(), [2, 4])
    tour.say("The same with a mistake: the second table has no such column.")
    try:
        with catalog.transaction() as tx:
            tx.write("customers", pa.table({"id": [9], "name": ["Ivan"]}), mode="append")
            tx.write("orders", pa.table({"no_such_column": [1]}), mode="append")
    except Exception as error:
        tour.say(f"    {type(error).__name__}: {str(error).splitlines()[0]}")
    tour.check("neither table changed", versions(), [2, 4])


def import_in_place(tour: Tour) -> None:
    tour.step("Import an existing Delta table in place")
    plain = tour.folder / "visits"
    for day in range(4):
        deltalake.write_deltalake(plain, orders(day, 50), mode="append")
    tour.code('import_table("visits", "…?table=visits")   # no file is moved or rewritten')
    report = import_table(plain, tour.address("visits"))
    tour.check("all 4 versions are in SQL", report.num_versions, 4)
    tour.check("the catalog matches the log", verify_table(tour.address("visits")).ok, True)
    tour.check(
        "and has the same rows", ids(DeltaTable(tour.address("visits")).to_pyarrow_table()), [*range(200)]
    )


def say_what_next(tour: Tour, seconds: float) -> None:
    tour.step("Open what the tour made")
    program, folder = (_short(path) for path in (Path(sys.executable).with_name("deltasql"), tour.folder))
    tour.say(f"  export DELTASQL_CATALOG='{tour.catalog}'")
    for words in (
        "list",
        "show orders",
        "history orders",
        "files orders --where \"city = 'Rome' AND id >= 650\"",
        "doctor",
    ):
        tour.say(f"  {program} {words}")
    tour.say("\nIn Python:")
    tour.say(f"  {_short(Path(sys.executable))} -i -c 'from deltalakedb import *'")
    tour.code(f'DeltaTable("{tour.address("orders")}").to_pyarrow_table()')
    tour.say("\nWithout deltalakedb, as a plain Delta table:")
    tour.code(f'deltalake.DeltaTable("{folder}/orders").to_pyarrow_table()')
    tour.say("\ndocs/start/tutorial.md has the next steps; `make demo-spark` shows an import by PySpark.")
    tour.console.print(Text(f"\n{tour.checks} checks passed in {seconds:.1f} s.", style="bold green"))


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def fresh(folder: Path) -> Path:
    """An empty folder; only one that an earlier tour made is removed."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise SystemExit(f"{folder} is not empty and was not made by the tour: name another folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="A tour of deltalakedb on SQLite.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("demo-lake"), help="where to work (default: %(default)s)"
    )
    tour = Tour(fresh(parser.parse_args().folder.absolute()))
    began = time.perf_counter()
    try:
        write(tour)
        travel(tour)
        plan(tour)
        with Catalog(tour.catalog) as catalog:
            look_into_sql(tour, catalog)
            look_into_log(tour, catalog)
        read_with_others(tour)
        with Catalog(tour.catalog) as catalog:
            change_together(tour, catalog)
        import_in_place(tour)
    except DisagreementError as error:
        Console(stderr=True, markup=False).print(f"✗ {error}", style="bold red")
        return 1
    say_what_next(tour, time.perf_counter() - began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
