"""Spark's changes of several tables become visible together, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import ConflictError, InvalidArgumentError, UnsupportedOperationError
from deltalakedb.spark import delete, write
from support.lake import files_below, ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db") as found:
        vectors = {"delta.enableDeletionVectors": "true"}
        found.write("a", ids(1, 2, 3), location=tmp_path / "a", configuration=vectors)
        found.write("b", ids(1, part="x"), location=tmp_path / "b", partition_by=["part"])
        yield found


def numbers(spark: Any, *values: int) -> Any:
    return spark.createDataFrame([(value, "new") for value in values], "id BIGINT, part STRING")


def ids_of(table: Any) -> list[int]:
    """The numbers in a table; stock reads deletion vectors by `scan` alone."""
    return sorted(pa.table(table.scan().read_all())["id"].to_pylist())


def parquet(root: Path) -> set[str]:
    return {f for f in files_below(root) if f.endswith(".parquet") and not f.startswith("_delta_log")}


def test_later_operations_see_earlier_ones_and_all_become_visible_together(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    with catalog.transaction() as tx:
        work = tx.spark(spark)
        work.write("a", numbers(spark, 4))
        tx.write("a", ids(5, part="ours"))
        told = (
            work.merge("a", numbers(spark, 3, 4, 6), "target.id = source.id")
            .whenMatchedUpdate(set={"part": "'merged'"})
            .whenNotMatchedInsertAll()
            .execute()
        )
        assert (told["num_updated_rows"], told["num_inserted_rows"]) == (2, 1)
        assert work.update("a", {"part": "'last'"}, "part = 'ours'") == {"num_affected_rows": 1}
        assert work.delete(name="b", condition="part = 'x'") == {"num_affected_rows": 1}
        seen = work.read("a", where="id > 2")
        assert sorted(map(tuple, seen.collect())) == [
            (3, "merged"), (4, "merged"), (5, "last"), (6, "new"),
        ]  # fmt: skip
        work.write("b", seen.where("id > 4"), partition_by="part")
        work.write("c", seen.select("id"), location=tmp_path / "c")
        assert ids_of(catalog.table("a")) == [1, 2, 3], "nobody else sees any of it"
        assert not (tmp_path / "c" / "_delta_log").exists()
    assert tx.result is not None
    assert dict(tx.result.versions) == {"a": 1, "b": 1, "c": 0}, "one version for each table"
    expected = {"a": [1, 2, 3, 4, 5, 6], "b": [5, 6], "c": [3, 4, 5, 6]}
    for name, numbers_of in expected.items():
        assert ids_of(catalog.table(name)) == numbers_of
        assert ids_of(deltalake.DeltaTable(tmp_path / name)) == numbers_of
        read = spark.read.format("delta").load(str(tmp_path / name))
        assert sorted(row["id"] for row in read.collect()) == numbers_of
        live = {add.path for add in catalog.log(name).files()}
        dead = {rem.path for rem in catalog.log(name).tombstones()}
        assert {quote(f, "/=") for f in parquet(tmp_path / name)} == live | dead, "what vanished is gone"
    assert catalog.table("a").history()[0]["operation"] == "TRANSACTION"


def test_a_transaction_that_fails_leaves_nothing(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    before = {name: parquet(tmp_path / name) for name in ("a", "b")}

    def broken() -> None:
        with catalog.transaction() as tx:
            tx.spark(spark).delete("a", "id = 1")
            tx.spark(spark).write("b", numbers(spark, 9))
            raise RuntimeError("too late")

    with pytest.raises(RuntimeError, match="too late"):
        broken()
    assert {name: parquet(tmp_path / name) for name in ("a", "b")} == before

    def overtaken() -> None:
        with catalog.transaction() as tx:
            work = tx.spark(spark)
            work.write("b", numbers(spark, 9))
            assert work.read("a", where="id > 2").count() == 1
            catalog.write("a", ids(7), mode="append")

    with pytest.raises(ConflictError) as refused:
        overtaken()
    assert refused.value.table == "a"
    assert ids_of(catalog.table("b")) == [1], "neither is changed"
    assert parquet(tmp_path / "b") == before["b"]

    with catalog.snapshot() as seen:
        assert seen.spark(spark).read("a").count() == 4
        with pytest.raises(InvalidArgumentError, match="is read-only"):
            seen.spark(spark).delete("a")
    with pytest.raises(InvalidArgumentError, match="was committed"):
        seen.spark(spark)


def test_rows_without_ids_wait_for_the_commit(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db?table=t&location={quote(str(tmp_path))}/t"
    write(numbers(spark, 1, 2), uri, configuration={"delta.enableRowTracking": "true"})
    with catalog.transaction() as tx:
        work = tx.spark(spark)
        work.write("t", numbers(spark, 3))
        with pytest.raises(UnsupportedOperationError, match="row ids"):
            work.update("t", {"part": "'x'"})
    assert delete(spark, catalog.table("t"), "id = 1") == {"num_affected_rows": 1}
    assert ids_of(catalog.table("t")) == [2, 3]
