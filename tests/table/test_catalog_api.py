"""What ``Catalog`` and its transactions promise in Python: signatures, results, times and errors."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb import Catalog, CatalogSnapshot, CatalogTransaction, DeltaTable, aio, write_deltalake
from deltalakedb.exceptions import (
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    VersionMissingError,
)
from deltalakedb.models import Commit, Committed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE, TWO = pa.table({"id": [1]}), pa.table({"id": [2]})


@pytest.fixture
def lake(catalog_uri: str, tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(catalog_uri, create=True) as catalog:
        catalog.set_root(tmp_path / "lake")
        yield catalog


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def time_of(catalog: Catalog, name: str, version: int) -> datetime:
    (found,) = [c for c in catalog.commits(name) if c.version == version]
    return datetime.fromtimestamp(found.committed_at / 1000, UTC)


# --- writing


def test_catalog_and_transaction_write_with_the_same_parameters_and_defaults() -> None:
    def parameters(function: object) -> dict[str, object]:
        return {n: p.default for n, p in inspect.signature(function).parameters.items()}  # type: ignore[arg-type]

    ours = parameters(Catalog.write)
    assert ours == parameters(CatalogTransaction.write)
    assert ours == parameters(aio.Catalog.write) == parameters(aio.Transaction.write)
    # besides the way to name a table, they take what write_deltalake takes
    stock = parameters(deltalake.write_deltalake)
    assert parameters(write_deltalake) == stock
    assert ours.keys() - {"self", "location"} == stock.keys() - {"table_or_uri"}
    assert {n for n in ours.keys() & stock.keys() if ours[n] != stock[n]} == {"mode", "name"}


def test_a_write_returns_what_was_committed(lake: Catalog, tmp_path: Path) -> None:
    created = lake.write("t", ONE)
    appended = lake.write("t", TWO)
    uri = lake.table_uri("t")
    remembered = write_deltalake(uri, ONE, mode="append")
    open_table = DeltaTable(uri)
    through_table = write_deltalake(open_table, ONE, mode="append")
    replaced = lake.write("t", ONE, mode="overwrite", predicate="id = 1")
    whole = lake.write("t", ONE, mode="overwrite")
    by_stock = write_deltalake(uri, TWO, mode="append", commit_properties=noted("by delta-rs"))
    done = [created, appended, remembered, through_table, replaced, whole, by_stock]
    expected = [Committed(c.version, c.committed_at) for c in reversed(lake.commits("t"))]
    assert done == expected
    assert [c.version for c in expected] == list(range(7))
    assert all(c is not None and c.unpublished is None for c in done)
    assert lake.write("t", TWO, mode="ignore") is None
    assert write_deltalake(open_table, TWO, mode="ignore") is None
    with pytest.raises(TableExistsError):
        lake.write("t", TWO, mode="error")
    assert write_deltalake(tmp_path / "plain", ONE) is None


def noted(text: str) -> deltalake.CommitProperties:
    return deltalake.CommitProperties(custom_metadata={"note": text})


def test_a_write_that_was_committed_before_says_so(lake: Catalog) -> None:
    once = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("loader", 1)])
    lake.write("t", ONE)
    first = lake.write("t", TWO, commit_properties=once)
    with pytest.warns(UserWarning, match="nothing was written"):
        again = lake.write("t", TWO, commit_properties=once)
    assert first is not None
    assert again is not None
    assert (again.version, again.replayed, first.replayed) == (first.version, True, False)


def test_a_transaction_returns_its_commits_at_the_end(lake: Catalog) -> None:
    lake.write("a", ONE)
    with lake.transaction() as tx:
        assert tx.write("a", TWO) is None  # type: ignore[func-returns-value]
        tx.write("b", pa.table({"id": [1], "x": [1]}), partition_by="x", description="new")
        tx.create_table("c", ONE.schema, configuration={"delta.appendOnly": "true"})
    assert {name: c.version for name, c in tx.commits.items()} == {"a": 1, "b": 0, "c": 0}
    assert isinstance(tx, deltalakedb.CatalogTransaction)
    assert lake.table("b").metadata().partition_columns == ["x"]
    with pytest.raises(TypeError, match="nonsense"), lake.transaction() as tx:
        tx.write("a", ONE, nonsense=1)  # type: ignore[call-arg]


# --- commits


def test_a_commit_has_the_fields_of_the_view(lake: Catalog) -> None:
    lake.write("t", ONE)
    lake.write("t", TWO, mode="overwrite")
    (view,) = lake.query("SELECT * FROM dl_v_history WHERE version = 1").to_pylist()
    commit = lake.commits("t")[0]
    ours = commit.to_dict()
    assert ours.keys() == view.keys() - {"table_name", "table_id"}
    assert list(ours) == [name for name in view if name in ours]
    info = ours.pop("info")
    assert ours == {name: view[name] for name in ours}
    assert (commit.num_added, commit.num_removed, commit.operation) == (1, 1, "WRITE")
    assert info["operation"] == commit.operation
    assert Commit.from_json(commit.to_json()) == commit


def test_updated_at_moves_with_commits_and_with_changes_of_the_registry(lake: Catalog) -> None:
    lake.write("t", ONE)
    before = lake.describe("t")
    done = lake.write("t", TWO)
    after = lake.describe("t")
    assert done is not None
    assert after.updated_at == max(done.committed_at, before.updated_at) >= before.updated_at
    lake.set_comment("t", "twice")
    assert lake.describe("t").updated_at >= after.updated_at
    assert lake.describe("t").created_at == before.created_at


# --- time travel


def test_a_table_is_opened_by_version_or_time(lake: Catalog) -> None:
    lake.write("t", ONE)
    lake.write("t", TWO)
    first, second = (time_of(lake, "t", v) for v in (0, 1))
    assert ids(lake.table("t", version=0)) == ids(lake.table("t", timestamp=first)) == [1]
    assert ids(lake.table("t", timestamp=second.isoformat())) == [1, 2]
    assert lake.table("t", timestamp=first.replace(tzinfo=None)).version() == 0
    with pytest.raises(VersionMissingError):
        lake.table("t", timestamp="2001-01-01T00:00:00Z")
    with pytest.raises(InvalidArgumentError, match="no time zone"):
        lake.table("t", timestamp="2026-11-15T12:00:00")
    with pytest.raises(InvalidArgumentError, match="either"):
        lake.table("t", version=0, timestamp=first)


def test_a_snapshot_of_a_moment_has_the_tables_of_that_moment(lake: Catalog) -> None:
    lake.write("a", ONE)
    lake.write("b.c", ONE)
    then = time_of(lake, "b.c", 0)
    lake.write("a", TWO)
    lake.write("later", ONE)
    lake.rename_table("b.c", "b.d")
    found = lake.snapshot(timestamp=then)
    assert isinstance(found, CatalogSnapshot)
    assert dict(found.versions) == {"a": 0, "b.d": 0}
    assert (sorted(found), len(found), "later" in found) == (["a", "b.d"], 2, False)
    assert {name: ids(table) for name, table in found.items()} == {"a": [1], "b.d": [1]}
    assert found["a"] is found.table("a")
    assert found.get("later") is None
    with pytest.raises(KeyError):
        found["later"]
    with pytest.raises(TableMissingError, match=r"no table 'later' at .*\+00:00") as caught:
        found.table("later")
    assert "a, b.d" in (caught.value.suggestion or "")
    with pytest.raises(InvalidArgumentError, match="opened for reading only"):
        write_deltalake(found["a"], TWO, mode="append")
    with pytest.raises(InvalidArgumentError, match="opened for reading only"):
        found["a"].delete()
    assert dict(lake.snapshot(timestamp=datetime(2001, 1, 1, tzinfo=UTC)).versions) == {}
    now = lake.snapshot(timestamp=datetime(2100, 1, 1, tzinfo=UTC))
    assert dict(now.versions) == {"a": 1, "b.d": 0, "later": 0}


def test_a_transaction_is_in_a_snapshot_as_a_whole_or_not_at_all(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit is later than the one before it in its table, so one transaction can have several times."""
    for name in ("a", "b", "c"):
        lake.write(name, ONE)
    ahead = lake.commits("b")[0].committed_at + 60_000
    set_time(lake, "b", 0, ahead)
    with lake.transaction() as tx:  # b gets a time in the future, a the time of now
        tx.write("a", TWO)
        tx.write("b", TWO)
    with lake.transaction() as tx:  # follows in a, so it must not be seen without the one before
        tx.write("a", TWO)
        tx.write("c", TWO)
    times = {name: [c.committed_at for c in lake.commits(name)] for name in ("a", "b", "c")}
    assert times["b"][0] > ahead
    assert times["c"][0] < ahead
    between = datetime.fromtimestamp(max(times["a"][0], times["c"][0]) / 1000 + 1, UTC)
    found = lake.snapshot(timestamp=between)
    assert dict(found.versions) == {"a": 0, "c": 0}  # b itself has a later time
    after = datetime.fromtimestamp(times["b"][0] / 1000, UTC)
    assert dict(lake.snapshot(timestamp=after).versions) == {"a": 2, "b": 1, "c": 1}


def set_time(catalog: Catalog, name: str, version: int, at: int) -> None:
    """Give a commit another time, as an adopted one may have."""
    table_id = catalog.describe(name).table_id
    with catalog._database.write() as session:
        session.run(
            "UPDATE dl_commits SET timestamp = ? WHERE table_id = ? AND version = ?", (at, table_id, version)
        )
        session.run("UPDATE dl_heads SET head_timestamp = ? WHERE table_id = ?", (at, table_id))


def test_a_snapshot_of_a_moment_can_be_awaited(lake: Catalog, catalog_uri: str) -> None:
    lake.write("t", ONE)
    then = time_of(lake, "t", 0)
    lake.write("t", TWO)

    async def work() -> None:
        async with aio.Catalog(catalog_uri) as catalog, catalog.snapshot(timestamp=then) as found:
            table = await found.table("t")
            assert await table.version() == 0
            other = await catalog.table("t", timestamp=then)
            assert await other.version() == 0
            done = await catalog.write("t", ONE)
            assert done is not None
            assert done.version == 2

    asyncio.run(work())


# --- queries


@pytest.mark.parametrize("text", ["sales.orders", '"sales.orders"', '"sales"."orders"', "SALES.orders o"])
def test_a_query_for_a_data_table_is_answered_with_the_way_to_its_rows(lake: Catalog, text: str) -> None:
    lake.write("sales.orders", ONE)
    for query in (lake.query, lambda sql: next(snapshot_query(lake, sql))):
        with pytest.raises(InvalidArgumentError, match="orders is a data table") as caught:
            query(f"SELECT * FROM {text}")
        assert caught.value.table == "sales.orders"
        assert "deltasql sql" in (caught.value.command or "")
        assert "Catalog.sql" in (caught.value.suggestion or "")
    assert lake.query("SELECT name FROM dl_v_tables WHERE name = ?", ["sales.orders"]).num_rows == 1


def snapshot_query(catalog: Catalog, sql: str) -> Iterator[pa.Table]:
    with catalog.snapshot() as found:
        yield found.query(sql)


def test_other_wrong_queries_keep_their_error(lake: Catalog) -> None:
    lake.write("sales.orders", ONE)
    with pytest.raises(deltalakedb.exceptions.CatalogError) as caught:
        lake.query("SELECT * FROM nowhere")
    assert "data table" not in str(caught.value)
