"""Options of a write that say what an argument says, and writes that belong to one version of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pytest

pytest.importorskip("pyspark")

from deltalakedb import Catalog
from deltalakedb.exceptions import InvalidArgumentError, NothingWrittenWarning
from deltalakedb.spark import foreach_batch, write
from deltalakedb.spark.writer import WriteRequest
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db") as found:
        found.write("t", ids(1, part="a"), location=tmp_path / "t", partition_by=["part"])
        found.write("t", ids(2, part="b"), mode="append")
        yield found


def numbers(spark: Any, *values: int, part: str = "a") -> Any:
    return spark.createDataFrame([(value, part) for value in values], "id BIGINT, part STRING")


def request(options: Any, **arguments: Any) -> WriteRequest:
    frame: Any = None
    return WriteRequest.of(frame, "overwrite", options=options, **arguments)


def test_options_in_any_case_of_letters_are_the_arguments() -> None:
    made = request({"REPLACEWHERE": "id = 1", "userMetadata": "x", "partitionOverwriteMode": "Static"})
    assert (made.replace_where, made.dynamic, made.options) == ("id = 1", False, {"userMetadata": "x"})
    assert request({"partitionoverwritemode": "DYNAMIC"}).dynamic
    assert request({"overwriteSchema": "true", "mergeSchema": False}).schema_mode == "overwrite"
    assert request({"MergeSchema": True}).schema_mode == "merge"
    made = request({"txnAppId": "job", "TXNVERSION": 3})
    assert (made.app_id, made.version, made.options) == ("job", 3, {})
    assert request({"replaceWhere": "x"}, replace_where="x").replace_where == "x"


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"replaceWhere": "x"}, {"replace_where": "y"}),
        ({"replaceWhere": "x", "replacewhere": "y"}, {}),
        ({"partitionOverwriteMode": "static"}, {"dynamic": True}),
        ({"partitionOverwriteMode": "some"}, {}),
        ({"mergeSchema": "true"}, {"schema_mode": "overwrite"}),
        ({"mergeSchema": "false"}, {"schema_mode": "merge"}),
        ({"mergeSchema": "true", "overwriteSchema": "true"}, {}),
        ({"mergeSchema": "perhaps"}, {}),
        ({"txnVersion": "1"}, {"app_id": "a", "version": 2}),
        ({"txnVersion": "one", "txnAppId": "a"}, {}),
        ({"replaceOn": "t.id = s.id"}, {}),
        ({"REPLACEUSING": "id"}, {}),
        ({1: "x"}, {}),
        ([("replaceWhere", "x")], {}),
    ],
)
def test_options_that_contradict_or_cannot_be_had_are_refused(options: Any, arguments: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        request(options, **arguments)


def test_an_overwrite_by_options_keeps_the_other_rows(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    uri = catalog.table_uri("t")

    def left() -> list[int]:
        assert ids_of(deltalake.DeltaTable(tmp_path / "t")) == ids_of(catalog.table("t"))
        return ids_of(catalog.table("t"))

    write(numbers(spark, 10), uri, mode="overwrite", options={"replacewhere": "part = 'a'"})
    assert left() == [2, 10]
    write(numbers(spark, 11), uri, mode="overwrite", options={"PartitionOverwriteMode": "dynamic"})
    assert left() == [2, 11]
    with catalog.transaction() as tx:
        given = {"replaceWhere": "part = 'a'", "txnAppId": "job", "txnVersion": "1"}
        tx.spark(spark).write("t", numbers(spark, 12), mode="overwrite", options=given)
    assert left() == [2, 12]
    again = {"txnAppId": "job", "txnVersion": "1"}
    assert write(numbers(spark, 13), uri, mode="append", options=again) is None
    assert left() == [2, 12]


def test_one_batch_writes_a_table_twice_and_its_repetition_nothing(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    def both(sinks: Any, df: Any, batch_id: int) -> None:
        for name in ("t", "new"):
            sinks.write(name, df.where("id < 21"), location=tmp_path / name)
            sinks.write(name, df.where("id >= 21"), location=tmp_path / name)

    batch = foreach_batch(catalog.uri, "both", both)
    for _ in range(2):
        batch(numbers(spark, 20, 21), 5)
        assert ids_of(catalog.table("t")) == [1, 2, 20, 21]
        assert ids_of(catalog.table("new")) == [20, 21]
    head = catalog.table("t").version()
    assert head == 2
    lines = (tmp_path / "t" / "_delta_log" / f"{head:020}.json").read_text().splitlines()
    assert sum('"txn"' in line for line in lines) == 1
    with catalog.transaction() as tx:
        tx.spark(spark).write("t", numbers(spark, 30), app_id="both", version=7)
        tx.spark(spark).write("t", numbers(spark, 31), app_id="both", version=6)
    assert ids_of(catalog.table("t")) == [1, 2, 20, 21, 30], "a lower version is late"
    assert catalog.table("t").transaction_version("both") == 7


def test_a_transaction_without_spark_writes_one_version_in_two_operations(catalog: Catalog) -> None:
    noted = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("job", 1)])
    with catalog.transaction() as tx:
        for number in (3, 4):
            tx.write("t", ids(number, part="a"), commit_properties=noted)
    assert ids_of(catalog.table("t")) == [1, 2, 3, 4]
    with pytest.warns(NothingWrittenWarning), catalog.transaction() as tx:
        tx.write("t", ids(5, part="a"), commit_properties=noted)
    assert ids_of(catalog.table("t")) == [1, 2, 3, 4]
    assert catalog.table("t").transaction_version("job") == 1
