"""Writers side by side: threads, processes, forks, and two that cannot both be right."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.exceptions import CatalogBusyError, ConflictError
from deltalakedb.metastore.database import Database
from deltalakedb.table.roots import root_at
from deltalakedb.table.scratch import ScratchTable
from support.lake import child, files_below, finish, ids, ids_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import TableUri


def assert_whole(uri: str, numbers: set[int], versions: int) -> None:
    """No row lost or doubled, no version missing, and the log says the same."""
    table = DeltaTable(uri)
    assert table.version() == versions - 1
    assert ids_of(table) == sorted(numbers)
    history = table.history()
    assert [h["version"] for h in history] == list(range(versions - 1, -1, -1))
    times = [h["timestamp"] for h in history]
    assert times == sorted(set(times), reverse=True)
    stock = deltalake.DeltaTable(table.table_uri)
    assert stock.version() == versions - 1
    assert ids_of(stock) == sorted(numbers)
    assert not (root_of(table) / "_deltasql").exists()


def test_threads_append_side_by_side(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))

    def append(writer: int) -> None:
        for number in range(10):
            write_deltalake(uri, ids(1 + writer * 10 + number), mode="append")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    write_deltalake(uri, ids(41), mode="append")
    assert_whole(uri, set(range(42)), 42)


def test_threads_create_one_table(table_uri: TableUri) -> None:
    uri = table_uri("t")

    def create(writer: int) -> str:
        try:
            write_deltalake(uri, ids(writer))
        except FileExistsError:
            return "exists"
        return "created"

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(create, range(4)))
    assert sorted(outcomes) == ["created", "exists", "exists", "exists"]
    root = root_of(DeltaTable(uri))
    assert DeltaTable(uri).version() == 0
    assert [p.name for p in (root / "_delta_log").iterdir()] == [f"{0:020}.json"]
    assert len([f for f in files_below(root) if f.endswith(".parquet")]) == 1


def test_threads_write_to_tables_of_their_own(table_uri: TableUri) -> None:
    def fill(writer: int) -> None:
        for number in range(5):
            write_deltalake(table_uri(f"t{writer}"), ids(number), mode="append")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))
    for writer in range(4):
        assert_whole(table_uri(f"t{writer}"), set(range(5)), 5)


def test_scratch_folders_come_and_go_side_by_side(tmp_path: Path) -> None:
    def come_and_go(_: int) -> None:
        for _ in range(150):
            ScratchTable(root_at(str(tmp_path))).remove()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert list(tmp_path.iterdir()) == []


APPEND = """
    import sys
    import pyarrow as pa
    from deltalakedb import write_deltalake

    uri, first = sys.argv[1], int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(first, first + int(sys.argv[3])):
        write_deltalake(uri, pa.table({"id": [number], "part": ["a"]}), mode="append")
"""


def go(process: Any) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


# DuckDB lets one process in at a time: see the test in which they take turns
@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_processes_append_side_by_side(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    children = [child(APPEND, uri, str(1 + 10 * number), "10") for number in range(3)]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        go(process)
    for process in children:
        finish(process)
    write_deltalake(uri, ids(31), mode="append")
    assert_whole(uri, set(range(32)), 32)


def test_processes_take_turns_on_any_engine(table_uri: TableUri) -> None:
    uri = table_uri("t", **({"idle_release": "0.05"} if "duckdb" in table_uri("t") else {}))
    write_deltalake(uri, ids(0))
    process = child(APPEND, uri, "1", "2")
    assert process.stdout is not None
    process.stdout.readline()
    go(process)
    finish(process)
    assert ids_of(DeltaTable(uri)) == [0, 1, 2]
    write_deltalake(uri, ids(3), mode="append")
    assert_whole(uri, {0, 1, 2, 3}, 4)


HOLD = """
    import sys
    import duckdb

    connection = duckdb.connect(sys.argv[1])
    print("held", flush=True)
    sys.stdin.readline()
    connection.close()
"""


@pytest.fixture
def holder(catalog_uri: str) -> Iterator[Callable[[], Any]]:
    started: list[Any] = []

    def hold() -> Any:
        process = child(HOLD, parse_address(catalog_uri).path or "")
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", process.communicate()
        started.append(process)
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


# only DuckDB's file can be held by another process
@pytest.mark.parametrize("engine_name", ["duckdb"])
def test_a_held_duckdb_file_names_its_holder(
    catalog_uri: str, table_uri: TableUri, holder: Callable[[], Any]
) -> None:
    write_deltalake(table_uri("t"), ids(0))
    Catalog(catalog_uri).close()
    process = holder()
    patient = table_uri("t", wait="0.2")
    with pytest.raises(CatalogBusyError) as caught:
        DeltaTable(patient)
    assert str(process.pid) in caught.value.message
    assert caught.value.transient
    assert caught.value.suggestion
    process.communicate("go\n")
    assert ids_of(DeltaTable(patient)) == [0]


def test_a_forked_child_reads_and_writes(table_uri: TableUri, engine_name: str) -> None:
    uri = table_uri("t", **({"idle_release": "0.01"} if engine_name == "duckdb" else {}))
    write_deltalake(uri, ids(0))
    before = DeltaTable(uri)
    assert ids_of(before) == [0]
    if engine_name == "duckdb":
        Database.open(parse_address(uri)).close()  # the file is one process's at a time
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child, where nothing may reach pytest
        outcome: list[Any] = []
        try:
            # by subprocess-free means: delta-rs's runtime does not survive a fork, SQL must
            table = DeltaTable(uri)
            outcome.append([table.version(), len(table.file_uris()), table.history()[0]["version"]])
            catalog = Catalog(uri.split("?")[0])
            catalog.set_comment("t", "from the child")
            catalog.close()
        except BaseException as error:
            outcome.append(repr(error))
        os.write(write_end, json.dumps(outcome).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end) as pipe:
        assert json.loads(pipe.read()) == [[0, 1, 0]]
    write_deltalake(uri, ids(1), mode="append")
    assert ids_of(DeltaTable(uri)) == [0, 1]
    assert Catalog(uri.split("?")[0]).describe("t").comment == "from the child"
    assert before.version() == 0
    assert len(before.file_uris()) == 1


def interloper(rows: pa.Table, meanwhile: Callable[[], object]) -> pa.RecordBatchReader:
    """Data whose reading lets somebody else commit first: the race, without a clock."""

    def batches() -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(1) as other:  # delta-rs cannot run inside of delta-rs
            other.submit(meanwhile).result()
        yield from rows.to_batches()

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def test_a_blind_append_rebases_over_a_concurrent_append(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    late = interloper(ids(2), lambda: write_deltalake(uri, ids(1), mode="append"))
    write_deltalake(uri, late, mode="append")
    assert_whole(uri, {0, 1, 2}, 3)
    newest = DeltaTable(uri).history(1)[0]
    assert (newest["readVersion"], newest["isBlindAppend"]) == (0, True)


def test_a_blind_append_rebases_over_a_concurrent_overwrite(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    late = interloper(ids(2), lambda: write_deltalake(uri, ids(1), mode="overwrite"))
    write_deltalake(uri, late, mode="append")
    assert_whole(uri, {1, 2}, 3)


@pytest.mark.parametrize("winner", ["append", "overwrite"])
def test_a_concurrent_overwrite_loses_and_leaves_no_files(table_uri: TableUri, winner: Any) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0), partition_by=["part"])
    late = interloper(ids(2, part="z"), lambda: write_deltalake(uri, ids(1), mode=winner))
    with pytest.raises(ConflictError) as caught:
        write_deltalake(uri, late, mode="overwrite")
    assert (caught.value.table, caught.value.version) == ("t", 1)
    assert caught.value.transient
    assert caught.value.suggestion
    assert_whole(uri, {0, 1} if winner == "append" else {1}, 2)
    root = root_of(DeltaTable(uri))
    assert not [f for f in files_below(root) if f.startswith("part=z/")]


def test_an_append_loses_to_a_change_of_schema(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    wider = pa.table({"id": [1], "part": ["a"], "more": [1.0]})
    late = interloper(ids(2), lambda: write_deltalake(uri, wider, mode="append", schema_mode="merge"))
    before = files_below(root_of(DeltaTable(uri)))
    with pytest.raises(ConflictError):
        write_deltalake(uri, late, mode="append")
    assert ids_of(DeltaTable(uri)) == [0, 1]
    after = files_below(root_of(DeltaTable(uri))) - before
    assert len([f for f in after if f.endswith(".parquet")]) == 1


def test_a_table_dropped_in_the_meantime_is_told(catalog: Catalog, table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(0))
    before = files_below(root_of(DeltaTable(uri)))
    root = root_of(DeltaTable(uri))
    late = interloper(ids(1), lambda: catalog.drop_table("t"))
    with pytest.raises(Exception, match="dropped"):
        write_deltalake(uri, late, mode="append")
    assert files_below(root) == before
