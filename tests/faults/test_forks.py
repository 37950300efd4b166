"""Forked processes: they go on with what they inherit, and nothing that either side commits is lost."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog, write_deltalake
from deltalakedb.exceptions import CatalogError
from support.invariants import check_table
from support.lake import ids, ids_of
from support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def in_fork(work: Callable[[], object]) -> int:
    """Start work in a forked process; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def fork_and_close(uri: str, folder: str) -> None:
    """The parent closes the catalog while its child is writing: the child's commits must stay."""
    catalog = Catalog(uri)
    catalog.write("t", ids(1), location=f"{folder}/t")
    said_r, said_w = os.pipe()
    closed_r, closed_w = os.pipe()

    def child() -> None:
        catalog.write("t", ids(2), mode="append")
        os.write(said_w, b".")
        os.read(closed_r, 1)
        catalog.write("t", ids(3), mode="append")

    pid = in_fork(child)
    os.read(said_r, 1)
    catalog.close()
    os.write(closed_w, b".")
    assert ended_well(pid)
    assert ids_of(catalog.table("t")) == [1, 2, 3]
    catalog.write("t", ids(4), mode="append")


def test_what_a_forked_process_commits_stays_although_its_parent_closes(
    catalog_uri: str, tmp_path: Path
) -> None:
    Child(fork_and_close, catalog_uri, str(tmp_path), folder=tmp_path).result()
    with Catalog(catalog_uri) as catalog:
        assert check_table(catalog, "t", published=True).ids == [1, 2, 3, 4]


def fork_inside(uri: str, folder: str) -> None:
    """A fork in the middle of a transaction: there is no safe way to go on in the child, and it says so."""
    catalog = Catalog(uri)
    catalog.write("t", ids(1), location=f"{folder}/t")

    def child() -> None:
        try:
            catalog.write("t", ids(2), mode="append")
        except CatalogError as error:
            assert "forked" in error.message  # noqa: PT017 - in another process
        else:
            raise AssertionError("it went on")

    with catalog.snapshot() as snapshot:
        pid = in_fork(child)
        assert ids_of(snapshot.table("t")) == [1]
    assert ended_well(pid)
    catalog.write("t", ids(3), mode="append")


@pytest.mark.parametrize("engine_name", ["sqlite", "duckdb"])
def test_a_process_forked_inside_a_transaction_is_refused(catalog_uri: str, tmp_path: Path) -> None:
    Child(fork_inside, catalog_uri, str(tmp_path), folder=tmp_path).result()
    with Catalog(catalog_uri) as catalog:
        assert check_table(catalog, "t", published=True).ids == [1, 3]


def fork_while_writing(uri: str, folder: str) -> list[int]:
    """Write by threads and fork in the middle: children go on with the objects they inherited."""
    catalog = Catalog(uri)
    catalog.write("t", ids(), location=f"{folder}/t")
    table = catalog.table("t")
    stop = threading.Event()
    written: list[int] = []

    def busy(first: int) -> None:
        number = first
        while not stop.is_set():
            write_deltalake(table, ids(number), mode="append")
            written.append(number)
            number += 1

    threads = [threading.Thread(target=busy, args=(n * 1000,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    fine = []
    for child in range(4):
        rows = {100_000 * (child + 1) + i for i in range(3)}

        def work(rows: set[int] = rows) -> None:
            for row in sorted(rows):
                catalog.write("t", ids(row), mode="append")
            assert rows <= set(ids_of(catalog.table("t")))

        fine.append(ended_well(in_fork(work)))
    stop.set()
    for thread in threads:
        thread.join()
    write_deltalake(table, ids(9999), mode="append")
    assert all(fine)
    return [*written, 9999, *(100_000 * (c + 1) + i for c in range(4) for i in range(3))]


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_a_forked_process_goes_on_with_what_it_inherited(catalog_uri: str, tmp_path: Path) -> None:
    written = Child(fork_while_writing, catalog_uri, str(tmp_path), folder=tmp_path).result()
    with Catalog(catalog_uri) as catalog:
        found = check_table(catalog, "t", published=True)
    assert found.ids == sorted(written)
