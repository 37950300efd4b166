"""Slots: who gets which, what stays, and what a file's row holds."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.images import (
    EMPTY,
    IMAX,
    IMIN,
    MISSING,
    encode,
    encode_max,
    encode_min,
    encoding_of,
)
from deltalakedb.protocol.schema import ArrayType, PrimitiveType, StructField, StructType
from deltalakedb.protocol.slots import (
    SLOT_COLUMNS,
    Level,
    Slot,
    SlotEncoder,
    assign_slots,
    column_types,
    count_levels,
    encode_file,
)
from deltalakedb.protocol.stat_images import stat_reader
from deltalakedb.protocol.stats import FileStats


def schema(**columns: str) -> StructType:
    return StructType(tuple(StructField(n, PrimitiveType(k)) for n, k in columns.items()))


def stats_slots(slots: list[Slot]) -> dict[str, int]:
    return {".".join(s.field): s.slot for s in slots if s.kind == "s"}


def text_slots(slots: list[Slot]) -> dict[str, int]:
    return {".".join(s.field): s.slot for s in slots if s.kind == "p"}


# --- assignment


def test_columns_get_slots_in_schema_order_and_partitions_after_them():
    slots = assign_slots(schema(day="date", a="long", b="string", c="binary"), ["day"], {})
    assert stats_slots(slots) == {"a": 0, "b": 1, "day": 2}
    assert text_slots(slots) == {"day": 0}


def test_only_types_with_an_order_get_slots_and_structs_are_opened():
    nested = StructType(
        (
            StructField(
                "s",
                StructType(
                    (StructField("x", PrimitiveType("long")), StructField("v", PrimitiveType("variant")))
                ),
            ),
            StructField("l", ArrayType(PrimitiveType("long"))),
            StructField("d", PrimitiveType("decimal(10,3)")),
        )
    )
    slots = assign_slots(nested, [], {})
    assert stats_slots(slots) == {"s.x": 0, "d": 1}
    assert slots[1] == Slot("s", 1, ("d",), "decimal", "3")


def test_the_tables_own_choice_of_stats_columns_comes_first():
    columns = schema(a="long", b="long", c="long", **{"x.y": "long"})
    config = {"delta.dataSkippingStatsColumns": "C, `x.y`,a"}
    assert stats_slots(assign_slots(columns, [], config)) == {"c": 0, "x.y": 1, "a": 2}
    assert stats_slots(assign_slots(columns, [], {"delta.dataSkippingNumIndexedCols": "2"})) == {
        "a": 0,
        "b": 1,
    }
    assert len(assign_slots(columns, [], {"delta.dataSkippingNumIndexedCols": "-1"})) == 4
    assert assign_slots(columns, [], {"delta.dataSkippingNumIndexedCols": "0"}) == []


def test_sixteen_stats_slots_leave_room_for_the_partition_columns():
    columns = schema(**{f"c{i}": "long" for i in range(30)}, p="date", q="long")
    slots = assign_slots(columns, ["p", "q"], {})
    found = stats_slots(slots)
    assert len(found) == 16
    assert found["p"] == 14
    assert found["q"] == 15
    assert "c13" in found
    assert "c14" not in found


def test_the_fifth_partition_column_has_no_text_slot():
    columns = schema(**{f"p{i}": "long" for i in range(6)})
    slots = assign_slots(columns, list(columns.names), {})
    assert text_slots(slots) == {"p0": 0, "p1": 1, "p2": 2, "p3": 3}
    assert len(stats_slots(slots)) == 6


def test_a_rename_touches_nothing():
    def named(name: str) -> StructType:
        meta = {"delta.columnMapping.physicalName": "col-1"}
        return StructType((StructField(name, PrimitiveType("long"), metadata=meta),))

    first = assign_slots(named("old"), [], {})
    assert assign_slots(named("new"), [], {}, first, version=7) == first


def test_a_new_column_takes_a_free_slot_and_a_dropped_one_gives_its_up():
    first = assign_slots(schema(a="long", b="long"), [], {})
    second = assign_slots(schema(b="long", z="long"), [], {}, first, version=3)
    assert stats_slots(second) == {"b": 1, "z": 2}
    assert {s.field: s.since for s in second} == {("b",): 0, ("z",): 0}


def test_a_slot_that_was_used_before_is_taken_last_and_says_since_when():
    columns = {f"c{i}": "long" for i in range(16)}
    first = assign_slots(schema(**columns), [], {})
    del columns["c3"]
    second = assign_slots(schema(**columns, new="long"), [], {}, first, version=9)
    taken = next(s for s in second if s.field == ("new",))
    assert (taken.slot, taken.since) == (3, 9)
    dropped = [Slot("s", 0, ("old",), "int", dropped=4)]
    fresh = assign_slots(schema(a="long"), [], {}, dropped, version=9)
    assert (fresh[0].slot, fresh[0].since) == (1, 0)


def test_a_type_change_takes_a_new_slot_only_where_images_change():
    first = assign_slots(schema(a="integer", d="date", m="decimal(5,2)", f="float"), [], {})
    second = assign_slots(
        schema(a="long", d="timestamp_ntz", m="decimal(8,4)", f="double"), [], {}, first, version=2
    )
    assert stats_slots(second) == {"a": 0, "f": 3, "d": 4, "m": 5}


def test_text_slots_say_since_when_because_null_is_a_value_there():
    first = assign_slots(schema(a="long", p="integer"), [], {})
    second = assign_slots(schema(a="long", p="integer"), ["p"], {}, first, version=5)
    assert next(s for s in second if s.kind == "p").since == 5
    third = assign_slots(schema(a="long", p="long"), ["p"], {}, second, version=6)
    assert [s for s in third if s.kind == "p"] == [s for s in second if s.kind == "p"]


# --- rows


COLUMNS = schema(n="long", t="string", z="timestamp", m="decimal(10,2)", f="double", p="date")
SLOTS = assign_slots(COLUMNS, ["p"], {})
TYPES = column_types(COLUMNS)


def row(stats: dict | str | None, **parts: str | None) -> dict:
    text = json.dumps(stats) if isinstance(stats, dict) else stats
    add = Add(path="f", size=1, modification_time=0, data_change=True, stats=text, partition_values=parts)
    return dict(zip(SLOT_COLUMNS, encode_file(SLOTS, add, TYPES), strict=True))


def test_the_row_has_the_tables_own_column_order():
    assert SLOT_COLUMNS[0] == "num_records"
    assert SLOT_COLUMNS[1:9] == ("p0", "p1", "p2", "p3", "k0", "k1", "k2", "k3")
    assert SLOT_COLUMNS[9:13] == ("s0_min", "s0_max", "s1_min", "s1_max")
    assert SLOT_COLUMNS[-3:] == ("s15_max", "no_nulls", "all_nulls")
    assert len(SLOT_COLUMNS) == 43


def test_bounds_become_images_and_levels():
    found = row(
        {
            "numRecords": 3,
            "minValues": {"n": 5, "t": "abc", "z": "2024-01-01T00:00:00.001Z", "m": 1.25},
            "maxValues": {"n": 20, "t": "abd", "z": "2024-01-01T00:00:00.001Z", "m": 1.25},
            "nullCount": {"n": 0, "t": 1, "z": 0},
        },
        p="2024-05-06",
    )
    assert (found["num_records"], found["s0_min"], found["s0_max"], found["k0"]) == (3, 5, 20, 2)
    assert (found["s1_min"], found["s1_max"]) == (encode("abc", "string"), encode("abd", "string"))
    at = encode(datetime(2024, 1, 1, 0, 0, 0, 1000, UTC), "timestamp")
    assert (found["s2_min"], found["s2_max"], found["k2"]) == (at, at + 999, 5)
    assert (found["s3_min"], found["s3_max"], found["k3"]) == (125, 125, 0)
    day = encode(date(2024, 5, 6), "date")
    assert (found["p0"], found["s5_min"], found["s5_max"]) == ("2024-05-06", day, day)
    assert found["no_nulls"] == 0b100101
    assert found["all_nulls"] == 0


def test_without_stats_nothing_is_known():
    for stats in (None, "", "{torn", "[1]", "{}"):
        found = row(stats, p=None)
        assert found["num_records"] is None
        assert found["k0"] == found["k3"] == MISSING
        assert found["s0_min"] is None
        assert found["s0_max"] is None
        assert found["no_nulls"] == 0


def test_half_a_pair_is_kept_and_the_level_is_missing():
    found = row({"numRecords": 3, "minValues": {"n": 5}, "nullCount": {"n": 0}})
    assert (found["s0_min"], found["s0_max"], found["k0"]) == (5, None, MISSING)


def test_a_column_of_nulls_is_empty_and_crosses_no_interval():
    found = row({"numRecords": 3, "nullCount": {"n": 3, "t": 2}})
    assert (found["s0_min"], found["s0_max"], found["k0"]) == (IMAX, IMIN, EMPTY)
    assert (found["s1_min"], found["k1"]) == (None, MISSING)
    assert found["all_nulls"] == 0b1


def test_nulls_are_not_all_where_the_number_of_rows_is_not_known_or_bounds_exist():
    assert row({"nullCount": {"n": 3}})["all_nulls"] == 0
    assert row({"numRecords": 3, "nullCount": {"n": 3}, "minValues": {"n": 1}})["all_nulls"] == 0


def test_a_null_partition_is_empty_and_an_empty_text_is_null():
    for text in (None, ""):
        found = row(None, p=text)
        assert found["p0"] is None
        assert (found["s5_min"], found["s5_max"]) == (IMAX, IMIN)
        assert found["all_nulls"] == 0b100000


def test_partition_values_have_one_text_each():
    columns = schema(p="timestamp", q="decimal(5,2)")
    slots = assign_slots(columns, ["p", "q"], {})
    encoder = SlotEncoder(slots, column_types(columns))

    def texts(p: str, q: str) -> tuple:
        return encoder.encode(
            Add(path="f", size=1, modification_time=0, data_change=True, partition_values={"p": p, "q": q})
        )[1:3]

    assert texts("2024-01-01T00:00:00Z", "1.0") == texts("2024-01-01 00:00:00.000000", "1.00")


def test_a_partition_value_of_no_type_stays_as_text_and_is_never_ranged():
    found = row(None, p="12345-01-01")
    assert found["p0"] == "+12345-01-01"
    assert (found["s5_min"], found["s5_max"]) == (None, None)
    assert row(None, p="+12345-01-01")["p0"] == "+12345-01-01"
    assert row(None, p="soon")["p0"] < "0"


def test_contradicting_bounds_bound_nothing():
    found = row({"numRecords": 3, "minValues": {"n": 9, "f": 2.5}, "maxValues": {"n": 1, "f": 1.5}})
    assert (found["s0_min"], found["s0_max"], found["k0"]) == (None, None, MISSING)
    assert found["s4_min"] is None


def test_wide_bounds_still_bound():
    found = row(
        {
            "numRecords": 3,
            "minValues": {"n": 1},
            "maxValues": {"n": 9},
            "nullCount": {"n": 0},
            "tightBounds": False,
        }
    )
    assert (found["s0_min"], found["s0_max"], found["no_nulls"]) == (1, 9, 1)


def test_levels_are_counted_for_all_indexed_slots():
    encoder = SlotEncoder(SLOTS, TYPES)

    def add(low: int | None, high: int | None) -> Add:
        stats = {"numRecords": 1, "minValues": {"n": low}, "maxValues": {"n": high}}
        return Add(path="f", size=1, modification_time=0, data_change=True, stats=json.dumps(stats))

    rows = [encoder.encode(a) for a in (add(5, 5), add(9, 9), add(0, 3), add(None, 3))]
    levels = [x for x in count_levels(rows) if x.slot == 0]
    assert levels == [Level(0, 0, 2, 5, 9), Level(0, 1, 1, 0, 3), Level(0, MISSING, 1, IMIN, IMAX)]
    assert Level(3, MISSING, 4, IMIN, IMAX) in count_levels(rows)


RAW = {
    "long": st.integers(-(2**64), 2**64) | st.text(max_size=3) | st.booleans(),
    "date": st.dates().map(str) | st.text(alphabet="0123456789-W", min_size=8, max_size=10),
    "timestamp": st.datetimes().map(lambda d: d.isoformat(timespec="milliseconds") + "Z")
    | st.datetimes().map(lambda d: d.isoformat(timespec="microseconds") + "Z")
    | st.datetimes().map(lambda d: d.isoformat(timespec="seconds") + "Z")
    | st.datetimes().map(lambda d: d.isoformat(" ") + "+02:00"),
    "string": st.text(max_size=40) | st.integers(),
    "double": st.floats() | st.sampled_from([0.0, -0.0, 0.1, 0.7, -0.1, -0.7, 1e300, 3.4e38]) | st.integers(),
    "decimal(10,2)": st.floats(-1e9, 1e9).map(lambda f: round(f, 2))
    | st.floats()
    | st.integers(-(10**9), 10**9),
}


@pytest.mark.parametrize("kind", RAW)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_fast_reader_says_what_the_general_way_says(kind, data):
    raw = data.draw(RAW[kind])
    encoding, arg = encoding_of(PrimitiveType(kind))
    read = stat_reader(kind, None)
    bounds = FileStats(min_values={"c": raw}, max_values={"c": raw}).bounds(("c",), kind)
    for top, stated, image in ((False, bounds.min, encode_min), (True, bounds.max, encode_max)):
        fast = read(raw, top)
        assert fast is None or fast == image(stated, encoding, arg)


def test_the_fast_reader_takes_the_usual_spellings():
    assert stat_reader("long", None)(5, False) == 5
    assert stat_reader("date", None)("1970-01-02", True) == 1
    assert stat_reader("timestamp", None)("1970-01-01T00:00:00.001Z", True) == 1999
    assert stat_reader("double", None)(1.5, True) == encode(1.5, "double")
    assert stat_reader("string", None)("abc", True) == encode("abc", "string")
    assert stat_reader("decimal(10,2)", None)(1.25, True) == 125
    assert stat_reader("decimal(38,2)", None) is None
    assert encode(Decimal("1.25"), "decimal", "2") == 125
