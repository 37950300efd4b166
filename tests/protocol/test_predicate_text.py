"""Predicates as text: what is shown is understood again."""

from __future__ import annotations

import json

import pytest

from deltalakedb.protocol.predicate import Constant, In, Unknown, normalize
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.predicate_text import predicate_text
from deltalakedb.protocol.schema import parse_schema

_TYPES = {
    "id": "long",
    "name": "string",
    "day": "date",
    "flag": "boolean",
    "price": "decimal(10,2)",
    "odd name": "integer",
}
SCHEMA = parse_schema(
    json.dumps(
        {
            "type": "struct",
            "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in _TYPES.items()],
        }
    )
)


@pytest.mark.parametrize(
    "text",
    [
        "id >= 5",
        "name = 'it''s'",
        "id IN (1, 2)",
        "day < '2024-01-02'",
        "flag = TRUE",
        "price != 1.50",
        "name IS NULL",
        "name IS NOT NULL AND id <=> 3",
        "(id > 1 AND id < 3) OR name = 'x'",
        "`odd name` = 1",
        "name LIKE 'ab%'",
    ],
)
def test_a_predicate_reads_as_it_was_written(text: str) -> None:
    parsed = parse_predicate(text, SCHEMA)
    assert predicate_text(parsed) == text
    assert normalize(parse_predicate(predicate_text(parsed), SCHEMA)) == normalize(parsed)


def test_long_lists_are_cut_and_odd_parts_shown() -> None:
    assert predicate_text(In(("id",), tuple(range(100)))) == "id IN (0, 1, 2, 3, 4, …)"
    assert predicate_text(Constant(None)) == "NULL"
    assert predicate_text(Unknown("f(id) = 1")) == "f(id) = 1"
    assert predicate_text(parse_predicate("NOT (id = 1 AND name = 'x')", SCHEMA)) == (
        "NOT (id = 1 AND name = 'x')"
    )
