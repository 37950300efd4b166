"""Slot rows by columns are those of the encoder, value for value, whatever the statistics say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.schema import parse_schema
from deltalakedb.protocol.slot_vectors import SlotVectors
from deltalakedb.protocol.slots import SLOT_COLUMNS, SlotEncoder, assign_slots, column_types, count_levels

TYPES = {
    "n": "long",
    "x": "double",
    "f": "float",
    "s": "string",
    "d": "date",
    "t": "timestamp",
    "l": "timestamp_ntz",
    "day": "date",
    "kind": "string",
}
SCHEMA = parse_schema(
    json.dumps(
        {
            "type": "struct",
            "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in TYPES.items()],
        }
    )
)
SLOTS = assign_slots(SCHEMA, ["day", "kind"], {})
ENCODER, VECTORS = SlotEncoder(SLOTS, column_types(SCHEMA)), SlotVectors(SLOTS, column_types(SCHEMA))

MOMENTS = st.sampled_from(
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.123Z",
        "1969-12-31T23:59:59.001Z",
        "1969-12-31T23:59:59.000001Z",
        "0001-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00.000001Z",
        "2026-01-01 00:00:00",
        "2026-01-01T00:00:00.1+01:00",
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "x": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**17), 10**17),
    "f": st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.sampled_from([3.4, 0.1, -0.0, 3.5e38]),
    "s": st.text(max_size=12) | st.text(st.characters(max_codepoint=127), max_size=40),
    "d": st.dates().map(str) | st.just("2026-01-01T00:00:00Z"),
    "t": MOMENTS,
    "l": MOMENTS,
}


@st.composite
def statistics(draw: st.DrawFn) -> str | None:
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from(
                [None, "{}", '{"numRecords":3}', '{"numRecords":-1}', '{"numRecords":1152921504606846976}']
            )
        )
    stats: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    if draw(st.booleans()):
        stats["numRecords"] = draw(st.integers(0, 5))
    for name, values in VALUES.items():
        for side in ("minValues", "maxValues"):
            if draw(st.integers(0, 7)):
                stats[side][name] = draw(values)
        if draw(st.booleans()):
            stats["nullCount"][name] = draw(st.integers(-1, 5))
    stats["other"] = {"nested": [1, {"a": None}]}
    return json.dumps(stats)


DAYS = st.sampled_from(["2026-01-01", None, "nonsense", "12026-01-01"])
KINDS = st.sampled_from(["a", None, "é", "", "long text of a kind"])
FILES = st.lists(st.tuples(statistics(), DAYS, KINDS), min_size=1, max_size=6)


@given(FILES)
@example([('{"numRecords":2,"nullCount":{"s":2},"minValues":{},"maxValues":{}}', "2026-01-01", "a")])
@example([('{"minValues":{"n":5},"maxValues":{"n":4},"nullCount":{"n":0}}', None, None)])
@example([("not json", "2026-01-01", "a"), ('{"numRecords":1}', None, "b")])
@example([('{"minValues":{"n":1.5},"maxValues":{"n":2}}', "2026-01-01", "a")])
@example([('{"minValues":{"d":"2026-13-01"},"maxValues":{"d":"2026-13-01"}}', "2026-01-01", "a")])
def test_columns_are_what_the_encoder_makes(files: list[tuple[str | None, str | None, str | None]]) -> None:
    adds = [
        Add(
            path="p",
            size=1,
            modification_time=1,
            data_change=True,
            stats=stats,
            partition_values={"day": day, "kind": kind},
        )
        for stats, day, kind in files
    ]
    wanted = [ENCODER.encode(add) for add in adds]
    stats, days, kinds = (pa.array(list(c), pa.string()) for c in zip(*files, strict=True))
    made = VECTORS.columns(stats, {"day": days, "kind": kinds})
    if made is None:
        return  # left to the encoder as a whole
    odd = np.flatnonzero(made.odd).tolist()
    if odd:
        made.replace_rows(odd, [wanted[n] for n in odd])
    arrays = made.arrays()
    found = [arrays[c].to_pylist() if c in arrays else [None] * len(files) for c in SLOT_COLUMNS]
    assert [tuple(row) for row in zip(*found, strict=True)] == wanted
    assert sorted(made.levels()) == count_levels(wanted)


def test_ordinary_statistics_need_no_encoder() -> None:
    stats = json.dumps(
        {
            "numRecords": 3,
            "minValues": {
                "n": 1,
                "x": 0.5,
                "f": 1.5,
                "s": "a",
                "d": "2026-01-01",
                "t": "2026-01-01T00:00:00.000Z",
            },
            "maxValues": {
                "n": 9,
                "x": 7.25,
                "f": 2.5,
                "s": "b",
                "d": "2026-01-02",
                "t": "2026-01-02T00:00:00.000Z",
            },
            "nullCount": {"n": 0, "x": 1, "f": 0, "s": 0, "d": 0, "t": 0},
        }
    )
    made = VECTORS.columns(
        pa.array([stats, None]), {"day": pa.array(["2026-01-01", None]), "kind": pa.array(["a", "b"])}
    )
    assert made is not None
    assert made.odd.tolist() == [False, False]


def test_nested_and_decimal_columns_are_left_to_the_encoder() -> None:
    for kind in (
        "decimal(10,2)",
        {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]},
    ):
        fields = [{"name": "c", "type": kind, "nullable": True, "metadata": {}}]
        schema = parse_schema(json.dumps({"type": "struct", "fields": fields}))
        vectors = SlotVectors(assign_slots(schema, [], {}), column_types(schema))
        assert vectors.columns(pa.array(["{}"]), {}) is None
