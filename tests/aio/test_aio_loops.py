"""No event loop is blocked, and a cancelled task leaves nothing half done."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import aio
from deltalakedb.aio.threads import Batches, SerialQueue, Stream, run, run_to_the_end
from support.lake import child, files_below, finish, ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import TableUri

sqlite = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)
PATIENCE = 60


class Gate:
    """Something slow: a thread stands before it until the event loop opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.passed = 0

    def pass_through(self) -> int:
        self.reached.set()
        # a blocked loop could never open the gate: the test fails instead of hanging
        assert self.opened.wait(PATIENCE)
        self.passed += 1
        return self.passed

    def batches(self, data: pa.Table) -> pa.RecordBatchReader:
        def read() -> Iterator[pa.RecordBatch]:
            self.pass_through()
            yield from data.to_batches()

        return pa.RecordBatchReader.from_batches(data.schema, read())

    async def someone_waits(self) -> None:
        while not self.reached.is_set():
            await asyncio.sleep(0)


@sqlite
def test_the_loop_runs_on_while_a_write_and_a_read_are_slow(table_uri: TableUri) -> None:
    async def work() -> None:
        gate = Gate()
        writing = asyncio.create_task(aio.write_deltalake(table_uri("t"), gate.batches(ids(1, 2))))
        await gate.someone_waits()
        assert not writing.done()
        gate.opened.set()
        await writing
        gate = Gate()
        reading = asyncio.create_task(anext(Batches(lambda: gate.batches(ids(1)), None)))
        await gate.someone_waits()
        gate.opened.set()
        assert (await reading).num_rows == 1

    asyncio.run(work())


@sqlite
def test_other_calls_go_on_beside_a_slow_one(table_uri: TableUri, catalog_uri: str) -> None:
    async def work() -> None:
        await aio.write_deltalake(table_uri("t"), ids(1))
        gate = Gate()
        slow = asyncio.create_task(aio.write_deltalake(table_uri("other"), gate.batches(ids(2))))
        await gate.someone_waits()
        table = await aio.open_table(table_uri("t"))
        assert (await table.to_pyarrow_table()).num_rows == 1
        assert [t.name for t in await aio.Catalog(catalog_uri).tables()] == ["t"]
        gate.opened.set()
        await slow

    asyncio.run(work())


@sqlite
def test_a_call_that_has_begun_ends_though_its_task_is_cancelled(table_uri: TableUri) -> None:
    async def work() -> None:
        await aio.write_deltalake(table_uri("t"), ids(1))
        table = await aio.open_table(table_uri("t"))
        gate = Gate()
        writing = asyncio.create_task(aio.write_deltalake(table, gate.batches(ids(2)), mode="append"))
        await gate.someone_waits()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        # the table's next call waits for it, so that no two threads use the table at once
        asking = asyncio.create_task(table.version())
        gate.opened.set()
        assert await asking == 1
        assert ids_of(deltalakedb.DeltaTable(table_uri("t"))) == [1, 2]

    asyncio.run(work())


def test_a_call_that_has_not_begun_never_does() -> None:
    async def work() -> None:
        queue, gate, made = SerialQueue(), Gate(), []
        first = asyncio.create_task(run(queue, gate.pass_through))
        await gate.someone_waits()
        second = asyncio.create_task(run(queue, lambda: made.append("second")))
        third = asyncio.create_task(run(queue, lambda: made.append("third")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.opened.set()
        await asyncio.gather(first, third)
        assert made == ["third"]

    asyncio.run(work())


def test_calls_of_a_queue_keep_their_order() -> None:
    async def work() -> None:
        queue, made = SerialQueue(), []
        await asyncio.gather(*(run(queue, lambda n=n: made.append(n)) for n in range(100)))  # type: ignore[misc]
        assert made == list(range(100))

    asyncio.run(work())


def test_what_must_end_is_waited_for_however_often_it_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        gate = Gate()
        task = asyncio.create_task(run_to_the_end(SerialQueue(), gate.pass_through))
        await gate.someone_waits()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.passed == 1
        # an error that nobody waits for any more is told
        gate = Gate()
        task = asyncio.create_task(run_to_the_end(SerialQueue(), lambda: 1 / (gate.pass_through() - 1)))
        await gate.someone_waits()
        task.cancel()
        await asyncio.sleep(0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "division by zero" in caplog.text
        with pytest.raises(ZeroDivisionError):
            await run_to_the_end(SerialQueue(), lambda: 1 / 0)

    asyncio.run(work())


@sqlite
def test_a_cancelled_transaction_leaves_no_trace(catalog_uri: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.Catalog(catalog_uri) as catalog:
            await catalog.set_root(tmp_path / "lake")
            await catalog.write("t", ids(1))
            before = files_below(tmp_path / "lake")
            inside = asyncio.Event()

            async def writes() -> None:
                async with catalog.transaction() as tx:
                    await tx.write("t", ids(2))
                    await tx.write("new", ids(3))
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(writes())
            await inside.wait()
            assert files_below(tmp_path / "lake") != before
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert files_below(tmp_path / "lake") == before
            assert [t.head.version for t in await catalog.tables()] == [0]

    asyncio.run(work())


@sqlite
def test_a_transaction_cancelled_while_it_begins_gives_its_connection_back(catalog_uri: str) -> None:
    async def work() -> None:
        config = deltalakedb.settings.Config(pool={"max_size": 1, "timeout_s": 5})
        async with aio.Catalog(catalog_uri, config=config, create=True) as catalog:
            for _ in range(3):
                beginning = asyncio.create_task(catalog.transaction().__aenter__())
                await asyncio.sleep(0)
                beginning.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await beginning
            assert await catalog.tables() == []

    asyncio.run(work())


def test_no_item_is_lost_when_waiting_for_it_is_given_up() -> None:
    async def work() -> None:
        gate = Gate()

        def items() -> Iterator[int]:
            yield gate.pass_through()
            yield 2

        stream: Stream[int] = Stream(items, None)
        stream._at_once = 1  # type: ignore[misc]
        waiting = asyncio.create_task(anext(stream))
        await gate.someone_waits()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        assert [item async for item in stream] == [1, 2]

    asyncio.run(work())


BOUNDED = """
import asyncio, threading
from deltalakedb.aio.threads import run
inside, most, lock, meet = 0, 0, threading.Lock(), threading.Barrier(2)

def call():
    global inside, most
    with lock:
        inside += 1
        most = max(most, inside)
    meet.wait(60)  # never passed by one thread alone
    with lock:
        inside -= 1

async def work():
    await asyncio.gather(*(run(None, call) for _ in range(8)))

asyncio.run(work())
print(most)
"""


def test_the_pool_is_as_large_as_the_setting_says() -> None:
    environment = {**os.environ, "DELTASQL_AIO__THREADS": "2"}
    assert finish(child(BOUNDED, env=environment)).strip() == "2"


FORKED = """
import asyncio, os, sys
import pyarrow as pa
from deltalakedb import aio

uri = sys.argv[1]
table = aio.DeltaTable(uri)
asyncio.run(aio.write_deltalake(uri, pa.table({"id": [1]})))
assert asyncio.run(table.version()) == 0
pid = os.fork()
if not pid:
    assert asyncio.run(table.version()) == 0
    asyncio.run(aio.write_deltalake(uri, pa.table({"id": [2]}), mode="append"))
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
asyncio.run(table.update_incremental())
print(asyncio.run(table.version()))
"""


@sqlite
def test_a_forked_process_goes_on_with_threads_of_its_own(table_uri: TableUri) -> None:
    assert finish(child(FORKED, table_uri("t"))).strip() == "1"


@sqlite
def test_loops_in_several_threads_share_the_pool(table_uri: TableUri) -> None:
    asyncio.run(aio.write_deltalake(table_uri("t"), ids(0)))
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            asyncio.run(aio.write_deltalake(table_uri("t"), ids(number), mode="append"))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ids_of(deltalakedb.DeltaTable(table_uri("t"))) == [0, 1, 2, 3, 4]
