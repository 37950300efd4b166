"""Conditions and values that are not one expression, or of no type that one has: nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark")

from deltalakedb import Catalog
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, OperationError
from deltalakedb.spark import delete, merge, optimize, read, restore, update, write
from deltalakedb.spark.expressions import column_name
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL = "id = 1) OR (1 = 1"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db") as found:
        found.write("t", ids(1, 2, part="a"), location=tmp_path / "t", partition_by=["part"])
        yield found


def test_a_text_is_one_expression(spark: Any, catalog: Catalog) -> None:
    t = catalog.table_uri("t")
    news = spark.createDataFrame([(1, "b")], "id BIGINT, part STRING")
    on = "target.id = source.id"
    begun = merge(spark, t, news, on)
    for wrong in (
        lambda: delete(spark, t, ALL),
        lambda: delete(spark, t, ""),
        lambda: delete(spark, t, " -- all of them"),
        lambda: update(spark, t, {"id": "9"}, ALL),
        lambda: update(spark, t, {"id": "9 WHERE id = 2"}),
        lambda: update(spark, t, {"id": "id + 1, part = 'x'"}),
        lambda: update(spark, t, {"part": "'y'", "id": "9 /* never closed"}),
        lambda: update(spark, t, {"`id` = 5, `part`": "'x'"}),
        lambda: merge(spark, t, news, f"{on}) OR (1 = 1").whenMatchedDelete().execute(),
        lambda: begun.whenMatchedDelete("source.id = 9) OR (1 = 1").execute(),
        lambda: begun.whenMatchedUpdate(set={"id": "3, part = 'x'"}).execute(),
        lambda: begun.whenNotMatchedInsert(values={"id": "1), (2"}).execute(),
        lambda: optimize(spark, t, where="part = 'a' ZORDER BY (id)"),
    ):
        with pytest.raises(InvalidArgumentError):
            wrong()
    with pytest.raises(InvalidArgumentError, match=r"set\['id'\] is not one expression"):
        update(spark, t, {"part": "'y'", "id": "9, id = 8"})
    assert catalog.table("t").version() == 0
    # what only looks like more than one
    assert delete(spark, t, "part = ') OR (' -- a comment)") == {"num_affected_rows": 0}
    given = {"id": "id + 10 -- more", "part": "concat(part, '--', \"(\") /* ( */"}
    assert update(spark, t, given, "id = 1 -- one") == {"num_affected_rows": 1}
    told = begun.whenMatchedDelete().whenNotMatchedInsert(values={"id": "5 -- five", "part": "'z'"}).execute()
    assert told["num_inserted_rows"] == 1
    rows = catalog.table("t").to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["part"]) for row in rows) == [(2, "a"), (5, "z"), (11, "a--(")]


def test_wrong_types_are_errors_of_one_line(spark: Any, catalog: Catalog) -> None:
    t = catalog.table_uri("t")
    news: Any = spark.createDataFrame([(1, "b")], "id BIGINT, part STRING")
    bad: Any
    for bad in (None, 5, True, b"id"):
        for wrong in (
            lambda bad=bad: update(spark, t, {"id": bad}),
            lambda bad=bad: merge(spark, t, news, bad),
            lambda bad=bad: merge(spark, t, bad, "target.id = source.id"),
            lambda bad=bad: merge(spark, t, news, "true").whenMatchedUpdate(set={"id": bad}),
            lambda bad=bad: write(bad, t, mode="append"),
            lambda bad=bad: read(bad, t),
            lambda bad=bad: delete(bad, t),
        ):
            with pytest.raises(ArgumentTypeError) as caught:
                wrong()
            assert "\n" not in caught.value.message
    bad = [1]
    for wrong in (
        lambda: delete(spark, t, bad),
        lambda: update(spark, t, bad),
        lambda: update(spark, t, {1: "2"}),  # type: ignore[dict-item]
        lambda: update(spark, t, {"id": "1"}, bad),
        lambda: merge(spark, t, news, "true").whenMatchedDelete(bad),
        lambda: optimize(spark, t, where=bad),
        lambda: restore(spark, t, version=True),
        lambda: restore(spark, t, version="0"),  # type: ignore[arg-type]
        lambda: restore(spark, t, timestamp=bad),
        lambda: write(news, t, mode="overwrite", replace_where=bad),
    ):
        with pytest.raises(ArgumentTypeError):
            wrong()
    assert ids_of(catalog.table("t")) == [1, 2]


def test_what_delta_spark_says_of_a_merge_is_told(spark: Any, catalog: Catalog) -> None:
    news = spark.createDataFrame([(1, "b")], "id BIGINT, part STRING")
    wrong = merge(spark, catalog.table_uri("t"), news, "target.id = source.nothing").whenMatchedDelete()
    with pytest.raises(OperationError, match="nothing") as caught:
        wrong.execute()
    assert caught.value.table == "t"
    assert "INTERNAL_ERROR" not in str(caught.value)


def test_a_quoted_column_is_one_column() -> None:
    assert column_name("a.b c") == "`a`.`b c`"
    assert column_name("`a.b`.c.`d``e`") == "`a.b`.c.`d``e`"
    for wrong in ("`a` = 1, `b`", "`a", "a`", "`a`.`", "`a`b"):
        with pytest.raises(InvalidArgumentError, match="one column"):
            column_name(wrong)


def test_a_merge_that_is_right_says_nothing_on_the_screen(
    spark: Any, catalog: Catalog, capfd: pytest.CaptureFixture[str]
) -> None:
    news = spark.createDataFrame([(1, "b")], "id BIGINT, part STRING")
    capfd.readouterr()
    merge(spark, catalog.table_uri("t"), news, "target.id = source.id").whenMatchedDelete().execute()
    assert "UNRESOLVED_COLUMN" not in "".join(capfd.readouterr())
    assert ids_of(catalog.table("t")) == [2]
