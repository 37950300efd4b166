"""Atomic transfers between two tables: whoever looks, the sum is the same."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb import Catalog
from support.invariants import check_table, check_transactions
from support.processes import Child, results

ACCOUNTS = 6
EACH = 100
SUM = 2 * ACCOUNTS * EACH
WRITERS = 4
TRANSFERS = 25 if os.environ.get("DELTASQL_STRESS") else 5


def accounts() -> pa.Table:
    numbers = list(range(ACCOUNTS))
    return pa.table({"id": numbers, "amount": [EACH] * ACCOUNTS, "part": [str(n % 3) for n in numbers]})


def transfer(catalog: Catalog, writer: int, count: int) -> int:
    """Move money between the tables; how often somebody else was first."""
    dice = random.Random(writer)
    attempts = 0
    for _ in range(count):
        giver, taker, amount = dice.randrange(ACCOUNTS), dice.randrange(ACCOUNTS), dice.randrange(1, 9)
        names = dice.sample(["left", "right"], 2)

        def work(
            tx: Any, giver: int = giver, taker: int = taker, amount: int = amount, names: list[str] = names
        ) -> None:
            nonlocal attempts
            attempts += 1
            for name, who, change in ((names[0], giver, f"- {amount}"), (names[1], taker, f"+ {amount}")):
                where = f"part = '{who % 3}' and id = {who}"
                tx.table(name).update(predicate=where, updates={"amount": f"amount {change}"})

        catalog.run(work, retries=100)
    return attempts - count


def transfer_in_process(uri: str, writer: int, count: int) -> int:
    return transfer(Catalog(uri), writer, count)


def sums(catalog: Catalog, stop: Path) -> dict[str, Any]:
    """Look again and again; what was seen, and how many different moments."""
    seen, moments, last = set(), set(), (0, 0)
    while not seen or not stop.exists():
        with catalog.snapshot() as snapshot:
            tables = [snapshot.table(name) for name in ("left", "right")]
            seen.add(sum(sum(t.to_pyarrow_table()["amount"].to_pylist()) for t in tables))
            moment = tuple(t.version() for t in tables)
        assert moment >= last, f"time went back from {last} to {moment}"
        last = moment
        moments.add(moment)
    return {"sums": sorted(seen), "moments": len(moments)}


def sums_in_process(uri: str, stop: str) -> dict[str, Any]:
    return sums(Catalog(uri), Path(stop))


def check(uri: str, told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["sums"] == [SUM]
    assert max(one["moments"] for one in told) > 3, "a reader that sees one moment only proves nothing"
    with Catalog(uri) as catalog:
        left, right = (check_table(catalog, name, published=True) for name in ("left", "right"))
        check_transactions(catalog)
        amounts = [catalog.table(n).to_pyarrow_table()["amount"].to_pylist() for n in ("left", "right")]
    assert left.versions == right.versions == 1 + WRITERS * TRANSFERS
    assert sum(map(sum, amounts)) == SUM


def prepare(uri: str, folder: Path) -> None:
    with Catalog(uri) as catalog:
        for name in ("left", "right"):
            catalog.write(name, accounts(), location=folder / name, partition_by=["part"])


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_the_sum_holds_in_every_snapshot_while_processes_transfer(catalog_uri: str, tmp_path: Path) -> None:
    prepare(catalog_uri, tmp_path)
    stop = tmp_path / "stop"
    readers = [Child(sums_in_process, catalog_uri, str(stop), folder=tmp_path) for _ in range(2)]
    writers = [Child(transfer_in_process, catalog_uri, w, TRANSFERS, folder=tmp_path) for w in range(WRITERS)]
    try:
        results(writers)
    finally:
        stop.touch()
    check(catalog_uri, results(readers))


@pytest.mark.parametrize("engine_name", ["duckdb"])
def test_the_sum_holds_in_every_snapshot_while_threads_transfer(catalog_uri: str, tmp_path: Path) -> None:
    prepare(catalog_uri, tmp_path)
    stop = tmp_path / "stop"
    catalog = Catalog(catalog_uri)
    with ThreadPoolExecutor(WRITERS + 2) as pool:
        readers = [pool.submit(sums, catalog, stop) for _ in range(2)]
        try:
            for writer in [pool.submit(transfer, catalog, w, TRANSFERS) for w in range(WRITERS)]:
                writer.result()
        finally:
            stop.touch()
        told = [r.result() for r in readers]
    catalog.close()
    check(catalog_uri, told)
