"""Conditions in Spark's SQL choose files only where they mean the same to both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltalakedb.models import Metadata, Protocol, Snapshot
from deltalakedb.protocol.predicate import And, Compare, In, IsNull, Unknown
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.spark.expressions import condition_of, target_condition


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
