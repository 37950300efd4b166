"""One fresh process of a benchmark: opens one table on one system, or imports it, and prints JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from generated_log import Truth

if TYPE_CHECKING:
    from collections.abc import Callable

#: what each system imports before its clock starts
MODULES: Final = {
    "stock": ("deltalake",),
    "sqlite": (
        "deltalakedb",
        "deltalakedb.table.drop_in.raw_table",
        "deltalakedb.metastore.engines.sqlite",
    ),
    "duckdb": (
        "deltalakedb",
        "deltalakedb.table.drop_in.raw_table",
        "deltalakedb.metastore.engines.duckdb",
        "duckdb",
    ),
    "postgres": (
        "deltalakedb",
        "deltalakedb.table.drop_in.raw_table",
        "deltalakedb.metastore.engines.postgres",
        "psycopg",
    ),
}
PLANS: Final = ("partition", "range", "unclustered", "string")
#: one operation repeats until this much time is spent on it
SECONDS_EACH: Final = 4.0


def main() -> None:
    """Do what the command line says."""
    options = argparse.ArgumentParser()
    options.add_argument("task", choices=(*PLANS, "import", "load"))
    options.add_argument("system", choices=tuple(MODULES))
    options.add_argument("address")
    options.add_argument("source", help="truth.json of the generated log; the table's root to import")
    options.add_argument("--repeats", type=int, default=0, help="warm repeats; 0 measures only what is cold")
    options.add_argument("--history", default="full", help="of an import")
    options.add_argument("--verify", default="digest", help="of an import")
    asked = options.parse_args()
    began = time.perf_counter()
    for name in MODULES[asked.system]:
        importlib.import_module(name)
    imports = _ms(began)
    if asked.task == "import":
        out = _import(asked.source, asked.address, asked.history, asked.verify)
    elif asked.task == "load":
        out = _load(asked.source)
    else:
        truth = Truth(**json.loads(Path(asked.source).read_text()))
        out = _Measured(asked.system, asked.address, truth).run(asked.task, asked.repeats)
        out["imports"] = [imports]
    print(json.dumps({"figures": out, "peak_mb": _peak_mb()}))


def _import(path: str, uri: str, history: Any, verify: Any) -> dict[str, list[float]]:
    from deltalakedb import import_table

    began = time.perf_counter()
    report = import_table(path, uri, history=history, verify=verify, engine="local")
    out = {"import": [_ms(began)], "files": [report.num_files], "versions": [report.num_versions]}
    return out | {phase: [seconds * 1000] for phase, seconds in report.phases.items()}


def _load(path: str) -> dict[str, list[float]]:
    """What stock does to know every file of the newest version, with its statistics."""
    import deltalake

    began = time.perf_counter()
    files = deltalake.DeltaTable(path).get_add_actions(flatten=True).num_rows
    return {"load": [_ms(began)], "files": [files]}


class _Measured:
    """The same calls on every system: only the class and the address differ."""

    def __init__(self, system: str, address: str, truth: Truth) -> None:
        self._table_class: Any = importlib.import_module(
            "deltalake" if system == "stock" else "deltalakedb"
        ).DeltaTable
        self._address = address
        self._truth = truth
        self._plans = {
            "partition": (truth.partition_predicate, truth.partition_files),
            "range": (truth.range_predicate, truth.range_files),
            "unclustered": (truth.unclustered_predicate, truth.amount_files),
            "string": (truth.string_predicate, truth.name_files),
        }

    def run(self, first: str, repeats: int) -> dict[str, list[float]]:
        """Open and plan for the first time, then everything else while warm."""
        began = time.perf_counter()
        table = self._open()
        opened = _ms(began)
        self._plan(table, first)
        out = {f"cold {first}": [_ms(began)], "cold open": [opened]}
        if not repeats:
            return out
        warm: dict[str, Callable[[], None]] = {
            "warm open": lambda: self._check(self._open().version(), self._truth.version),
            **{f"warm {plan}": partial(self._plan, table, plan) for plan in PLANS},
            "list": lambda: self._check(len(table.file_uris()), self._truth.files),
            "add actions": lambda: self._check(
                table.get_add_actions(flatten=True).num_rows, self._truth.files
            ),
            "travel": self._travel,
            "history": lambda: self._check(len(table.history(10)), min(10, self._truth.version + 1)),
        }
        for name, operation in warm.items():
            out[name] = _repeat(operation, repeats)
        return out

    def _open(self) -> Any:
        table = self._table_class(self._address)
        table.version()
        table.schema()
        return table

    def _plan(self, table: Any, which: str) -> None:
        predicate, expected = self._plans[which]
        self._check(len(table.file_uris(file_pruning_predicate=predicate)), expected)

    def _travel(self) -> None:
        table = self._table_class(self._address, version=self._truth.middle_version)
        found = table.file_uris(file_pruning_predicate=self._truth.partition_predicate)
        self._check(len(found), self._truth.middle_partition_files)

    def _check(self, found: int, expected: int) -> None:
        if found != expected:
            raise SystemExit(f"{self._address}: found {found}, the truth is {expected}")


def _repeat(operation: Callable[[], None], repeats: int) -> list[float]:
    times: list[float] = []
    while len(times) < repeats and sum(times) < SECONDS_EACH * 1000:
        began = time.perf_counter()
        operation()
        times.append(_ms(began))
    return times


def _peak_mb() -> float:
    """The most memory this program held. What getrusage tells on Linux counts the parent's before exec."""
    if (ours := sys.modules.get("deltalakedb.transfer.importing.options")) is not None:
        return round(ours.peak_bytes() / 2**20, 1)  # with the second process of an import
    status = Path("/proc/self/status")
    if not status.exists():
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
    return round(int(line.split()[1]) / 1024, 1)


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


if __name__ == "__main__":
    main()
