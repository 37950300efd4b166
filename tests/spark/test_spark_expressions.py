"""Expressions of users: each is one of its type; conditions pick files only if they mean the same to both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark")

from deltalakedb import Catalog
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError, OperationError
from deltalakedb.models import Metadata, Protocol, Snapshot
from deltalakedb.protocol.predicate import And, Compare, In, IsNull, Unknown
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.spark import delete, merge, optimize, read, restore, update, write
from deltalakedb.spark.expressions import column_name, condition_of, target_condition
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


# ---- conditions that pick files ----------------------------------------------------------------------------


def field(name: str, kind: str, **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def snapshot(*fields: dict[str, Any]) -> Snapshot:
    schema = json.dumps({"type": "struct", "fields": fields})
    return Snapshot(
        0, 0, Protocol(min_reader_version=1, min_writer_version=2), Metadata(id="t", schema_string=schema)
    )


TABLE = snapshot(field("id", "long"), field("s", "string"), field("at", "timestamp"), field("p", "integer"))


class Session:
    """What is asked of a session: its settings."""

    def __init__(self, zone: str = "UTC") -> None:
        self.conf = {"spark.sql.session.timeZone": zone}


class Frame:
    """What is asked of a source: its schema."""

    sparkSession = Session()  # noqa: N815 - Spark's name

    class schema:  # noqa: N801
        @staticmethod
        def json() -> str:
            return json.dumps({"type": "struct", "fields": [field("id", "long"), field("p", "integer")]})


def picked(text: Any, table: Snapshot = TABLE, zone: str = "UTC") -> Any:
    return condition_of(Session(zone), table, text)  # type: ignore[arg-type]


def test_what_both_understand_picks_files() -> None:
    assert picked("id = 5") == Compare(("id",), "=", 5)
    assert picked("P IN (1, 2) AND s > 'a'") == And((In(("p",), (1, 2)), Compare(("s",), ">", "a")))
    assert picked("at > '2024-01-01'") is not None
    assert picked(None) is None


@pytest.mark.parametrize(
    "text",
    [
        r"s = 'a\'b'",
        r"s = 'a\\b'",
        "s = 'it''s'",
        "\"s\" = 's'",
        "s = '${name}'",
        "id = 5 -- s",
        "id = /* /* */ 7 */ 5",
        "id = 0.00000000000000001",
        "id = 5L",
        "nothing = 1",
        "id = (((",
        object(),
    ],
)
def test_what_spark_may_read_otherwise_picks_all(text: Any) -> None:
    assert picked(text) is None


def test_texts_and_times_that_compare_otherwise_pick_all() -> None:
    padded = snapshot(field("s", "string", __CHAR_VARCHAR_TYPE_STRING="char(5)"))
    folded = snapshot(field("s", "string", __COLLATIONS='{"s": "spark.UTF8_LCASE"}'))
    assert picked("s = 'a'", padded) is None
    assert picked("s = 'a'", folded) is None
    assert picked("at > '2024-01-01'", zone="Europe/Berlin") is None
    assert picked("id = 1", zone="Europe/Berlin") is not None


def test_casts_pick_files_only_if_the_value_fits() -> None:
    assert picked("id = CAST(44 AS TINYINT)") == Compare(("id",), "=", 44)
    for text in ("CAST(300 AS TINYINT)", "TRY_CAST(3000000000 AS INT)", "100.5::DECIMAL(3,1)"):
        assert picked(f"id = {text}") == Unknown(f"id = {text}")


def test_a_struct_may_be_asked_for_null() -> None:
    inner = {"type": "struct", "fields": [field("v", "long")]}
    table = snapshot({"name": "n", "type": inner, "nullable": True, "metadata": {}})
    assert picked("n IS NULL", table) == IsNull(("n",))
    assert picked("n.v = 1", table) == Compare(("n", "v"), "=", 1)


def test_wide_decimals_and_times_that_are_compared_as_texts_pick_all() -> None:
    table = snapshot(field("d", "decimal(38,18)"), field("e", "decimal(10,2)"), field("day", "date"))
    assert picked("d = 1.5", table) is None
    assert picked("e = 1.5", table) is not None
    assert picked("e = 12345678901234567", table) is None
    session = Session()
    assert condition_of(session, table, "day > '2024-01-01'") is not None  # type: ignore[arg-type]
    session.conf["spark.sql.legacy.typeCoercion.datetimeToString.enabled"] = "true"
    assert condition_of(session, table, "day > '2024-01-01'") is None  # type: ignore[arg-type]


def merged(text: Any) -> Any:
    return target_condition(Session(), TABLE, text, Frame(), ("t", "s"))  # type: ignore[arg-type]


def test_a_merge_picks_by_what_it_says_of_the_target_alone() -> None:
    assert merged("t.id = s.id AND t.p = 1") == Compare(("p",), "=", 1)
    assert merged("t.p IN (1, 2) AND t.id > 3 AND s.p = 9") == And(
        (In(("p",), (1, 2)), Compare(("id",), ">", 3))
    )
    for all_files in ("t.id = s.id", "t.id = s.id OR t.p = 1 AND s.p = 2", "s.p = 1", "p = 1", "id = 1"):
        assert merged(all_files) is None, all_files
    schema = parse_schema(TABLE.metadata.schema_string)
    assert [schema.find(("p",)) is not None] == [True]
