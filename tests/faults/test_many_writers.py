"""Many writers at once: nobody fails, no row is lost, versions are contiguous."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from support.invariants import acknowledge, acknowledged, check_acknowledged, check_table, check_transactions
from support.lake import ids, ids_of
from support.processes import Child, results

if TYPE_CHECKING:
    from conftest import TableUri

WRITERS = 8
#: the whole number takes minutes: DELTASQL_STRESS=1 asks for it
APPENDS = 200 if os.environ.get("DELTASQL_STRESS") else 12


def append_rows(uri: str, folder: str, writer: int, count: int) -> dict[str, Any]:
    """Append one row at a time; how long the slowest took."""
    catalog = Catalog(uri)
    waits = []
    for number in range(writer * 10_000, writer * 10_000 + count):
        began = time.monotonic()
        catalog.write("t", ids(number), mode="append")
        waits.append(time.monotonic() - began)
        acknowledge(Path(folder, f"{writer}.acks"), table="t", id=number)
    return {"worst": max(waits), "total": sum(waits)}


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
@pytest.mark.timeout(1200)
def test_eight_processes_append_to_one_table(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(), location=tmp_path / "t")
    began = time.monotonic()
    writers = [
        Child(append_rows, catalog_uri, str(tmp_path), writer, APPENDS, folder=tmp_path, patience=1000)
        for writer in range(1, WRITERS + 1)
    ]
    told = results(writers)
    took = time.monotonic() - began

    with Catalog(catalog_uri) as catalog:
        found = check_table(catalog, "t", published=True)
        check_transactions(catalog)
        check_acknowledged(catalog, "t", acknowledged(tmp_path))
    assert found.versions == 1 + WRITERS * APPENDS
    assert found.ids == sorted(w * 10_000 + i for w in range(1, WRITERS + 1) for i in range(APPENDS))
    worst = max(t["worst"] for t in told)
    print(f"{WRITERS} x {APPENDS}: {WRITERS * APPENDS / took:.1f} commits/s, worst wait {worst:.2f} s")
    # no one starves: the slowest append of all is bounded by far less than one writer's whole work
    assert worst < 30


def append_and_delete(uri: str, folder: str, writer: int, count: int) -> int:
    """Append rows and delete each second one, again and again where somebody else was first."""
    catalog = Catalog(uri)
    conflicts = 0
    for number in range(writer * 10_000, writer * 10_000 + count):
        catalog.write("t", ids(number, part=str(writer)), mode="append")
        if number % 2:
            attempts = 0

            def work(tx: Any, number: int = number) -> None:
                nonlocal attempts
                attempts += 1
                tx.table("t").delete(f"part = '{writer}' and id = {number}")

            catalog.run(work, retries=50)
            conflicts += attempts - 1
    return conflicts


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_processes_delete_their_own_rows_while_others_append(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(), location=tmp_path / "t", partition_by=["part"])
    count = 6
    conflicts = results(
        [Child(append_and_delete, catalog_uri, str(tmp_path), w, count, folder=tmp_path) for w in range(1, 5)]
    )
    with Catalog(catalog_uri) as catalog:
        found = check_table(catalog, "t", published=True)
    assert found.ids == sorted(w * 10_000 + i for w in range(1, 5) for i in range(0, count, 2))
    assert sum(conflicts) == 0, "nobody touches another's partition"


def test_threads_share_one_table_object(
    engine_name: str, catalog_uri: str, table_uri: TableUri, tmp_path: Path
) -> None:
    threads, each = (4, 6) if engine_name == "duckdb" else (8, 5)
    write_deltalake(table_uri("t"), ids())
    table = DeltaTable(table_uri("t"))
    together = threading.Barrier(threads)

    def work(writer: int) -> None:
        together.wait(60)
        for i in range(each):
            write_deltalake(table, ids(writer * 1000 + i), mode="append")
            assert writer * 1000 + i in ids_of(table), "a writer sees its own row"

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, w) for w in range(threads)]:
            done.result()
    assert table.version() == threads * each
    with Catalog(catalog_uri) as catalog:
        found = check_table(catalog, "t", published=True)
    assert found.ids == sorted(w * 1000 + i for w in range(threads) for i in range(each))


def test_threads_share_one_catalog_and_write_across_tables(
    engine_name: str, catalog_uri: str, tmp_path: Path
) -> None:
    threads, each = 4, 3
    catalog = Catalog(catalog_uri)
    for name in ("a", "b"):
        catalog.write(name, ids(), location=tmp_path / name)
    together = threading.Barrier(threads)

    def work(writer: int) -> None:
        together.wait(60)
        for i in range(each):
            # two orders of touching the tables: heads are locked in one order all the same
            with catalog.transaction() as tx:
                for name in ("ab", "ba")[writer % 2]:
                    tx.write(name, ids(writer * 1000 + i))

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, w) for w in range(threads)]:
            done.result()
    with catalog:
        a, b = (check_table(catalog, name, published=True) for name in "ab")
        check_transactions(catalog)
    assert a.ids == b.ids == sorted(w * 1000 + i for w in range(threads) for i in range(each))
    assert a.versions == b.versions == 1 + threads * each
