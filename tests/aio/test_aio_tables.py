"""Tables and catalogs that await: the same answers as the synchronous ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import aio
from deltalakedb.exceptions import ConflictError, InvalidArgumentError, TableMissingError
from deltalakedb.settings import Config, get_config, use_config
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri

sqlite = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


async def numbers(table: aio.DeltaTable, **options: Any) -> list[int]:
    return sorted([row for batch in await batches(table, **options) for row in batch["id"].to_pylist()])


async def batches(table: aio.DeltaTable, **options: Any) -> list[pa.RecordBatch]:
    return [pa.record_batch(batch) async for batch in table.scan(**options)]


async def failing(catalog: aio.Catalog) -> None:
    async with catalog.transaction() as tx:
        await tx.write("a", ids(3))
        raise ZeroDivisionError


def test_a_table_is_written_opened_read_and_changed(table_uri: TableUri) -> None:
    async def work() -> None:
        uri = table_uri("t")
        assert not await aio.DeltaTable.is_deltatable(uri)
        await aio.write_deltalake(uri, ids(1, 2, 3))
        table = await aio.open_table(uri)
        await aio.write_deltalake(table, ids(4), mode="append")
        assert (await table.version(), table.name, table.address) == (
            1,
            "t",
            deltalakedb.DeltaTable(uri).address,
        )
        assert (await table.delete("id = 1"))["num_deleted_rows"] == 1
        await table.update(updates={"id": "id * 10"}, predicate="id = 2")
        merge = table.merge(ids(3, 9), "s.id = t.id", source_alias="s", target_alias="t")
        done = await merge.when_matched_delete().when_not_matched_insert_all().execute()
        assert done["num_target_rows_inserted"] == 1
        assert await numbers(table) == [4, 9, 20]
        assert await numbers(table, columns=["id"], predicate="id > 5") == [9, 20]
        assert (await table.to_pyarrow_table()).num_rows == 3
        assert (await table.scan().read_all()).num_rows == 3
        assert (await table.scan(columns=["id"]).schema()).names == ["id"]
        await table.load_as_version(0)
        assert await numbers(table) == [1, 2, 3]
        assert "not open yet" not in repr(table)

    asyncio.run(work())


def test_a_catalog_and_its_transactions_await(catalog_uri: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.Catalog(catalog_uri) as catalog:
            await catalog.set_root(tmp_path)
            assert await catalog.root() == str(tmp_path)
            await asyncio.gather(*(catalog.write(name, ids(1)) for name in "abc"))
            assert [t.name for t in await catalog.tables()] == ["a", "b", "c"]
            async with catalog.transaction() as tx:
                await tx.write("a", ids(2))
                table = await tx.table("b")
                await table.delete()
                assert await numbers(await tx.table("a")) == [1, 2]
                assert await numbers(await catalog.table("a")) == [1]
            assert tx.commits.keys() == {"a", "b"}
            assert await numbers(await catalog.table("a")) == [1, 2]
            assert [f.add_version async for f in catalog.files("a")] == [0, 1]
            with pytest.raises(ZeroDivisionError):
                await failing(catalog)
            async with catalog.snapshot() as seen:
                assert await numbers(await seen.table("a")) == [1, 2]
            log = await catalog.log("a")
            assert (await log.latest_version(), len([f async for f in log.files()])) == (1, 2)
            assert {s.version for s in await catalog.mirror.status()} == {0, 1}
            assert catalog.uri == deltalakedb.Catalog(catalog_uri).uri

    asyncio.run(work())


@sqlite
def test_a_function_is_repeated_until_it_goes_through(catalog_uri: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.Catalog(catalog_uri) as catalog:
            await catalog.set_root(tmp_path)
            await catalog.write("t", ids(1))
            attempts = 0

            async def bump(tx: aio.Transaction) -> int:
                nonlocal attempts
                attempts += 1
                table = await tx.table("t")
                if attempts == 1:
                    await (await catalog.table("t")).update(updates={"id": "id + 10"})
                await table.update(updates={"id": "id + 1"})
                return attempts

            assert await catalog.run(bump) == 2
            assert await numbers(await catalog.table("t")) == [12]
            attempts = 0
            with pytest.raises(ConflictError):
                await catalog.run(bump, retries=0)
            with pytest.raises(InvalidArgumentError, match="retries"):
                await catalog.run(bump, retries=-1)

    asyncio.run(work())


@sqlite
def test_a_table_opens_when_it_is_needed(table_uri: TableUri, tmp_path: Path) -> None:
    async def work() -> None:
        table = aio.DeltaTable(table_uri("t"))
        assert "not open yet" in repr(table)
        with pytest.raises(InvalidArgumentError, match="not open yet"):
            table.table_uri  # noqa: B018
        with pytest.raises(TableMissingError):
            await table
        made = await aio.DeltaTable.create(table_uri("t"), ids(1).schema)
        assert await made.version() == await table.version() == 0
        assert table.table_uri == f"file://{tmp_path}/lake/t/"
        plain = str(tmp_path / "plain")
        await aio.write_deltalake(plain, ids(5))
        assert await numbers(await aio.open_table(plain)) == [5]

    asyncio.run(work())


@sqlite
def test_settings_of_the_task_hold_in_its_threads(table_uri: TableUri) -> None:
    async def work() -> None:
        await aio.write_deltalake(table_uri("t"), ids(1))
        mine = Config(publish={"mode": "off"})
        with use_config(mine):
            assert await aio.threads.async_function(get_config)() is mine
        assert await aio.threads.async_function(get_config)() is not mine

    asyncio.run(work())


@sqlite
def test_a_stream_is_read_once_and_closed(table_uri: TableUri) -> None:
    async def work() -> None:
        await aio.write_deltalake(table_uri("t"), ids(1))
        table = await aio.open_table(table_uri("t"))
        stream = await table.scan()
        assert len([batch async for batch in stream]) == 1
        assert [batch async for batch in stream] == []
        async with table.scan() as stream:
            pass
        assert [batch async for batch in stream] == []
        with pytest.raises(InvalidArgumentError):
            await table.scan(columns=["nope"])

    asyncio.run(work())


@sqlite
def test_commits_are_watched_without_blocking_the_loop(catalog_uri: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.Catalog(catalog_uri) as catalog:
            await catalog.write("a", ids(1), location=tmp_path / "a")
            await catalog.write("b", ids(1), location=tmp_path / "b")
            first = [found async for found in catalog.watch(from_version=0, once=True)]
            assert [(c.table, c.commit.version) for c in first] == [("a", 0), ("b", 0)]
            stop, seen = asyncio.Event(), []

            async def watching() -> None:
                async for found in catalog.watch("a", interval=0.01, stop=stop):
                    seen.append((found.table, found.commit.version))
                    stop.set()

            task = asyncio.create_task(watching())
            await asyncio.sleep(0)
            while not task.done():
                await catalog.write("b", ids(2))
                await catalog.write("a", ids(2))
            await task
            assert seen[0][0] == "a"
            assert seen[0][1] >= 1
            with pytest.raises(TableMissingError):
                await anext(catalog.watch("nope"))

    asyncio.run(work())
