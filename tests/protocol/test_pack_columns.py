"""Packs hold statistics exactly and never rule out a file that the exact check keeps."""

from __future__ import annotations

import json
import math
import zlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import Metadata
from deltalakedb.protocol.pack_filter import PackFilter, Zones
from deltalakedb.protocol.packs import (
    PACK_SIZE,
    ColumnData,
    PackColumn,
    decode_block,
    encode_block,
    find_hashes,
    pack_columns,
    path_hashes,
)
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.predicate import And, Compare, Constant, Expr, In, IsNull, Not, Or, StartsWith
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType, column_types
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.protocol.stats_columns import stats_columns

# ---- columns, their stated bounds and their literals ----

LONG = "https://example.org/a/long/common/prefix/"
TEXTS = [
    "", "a", "b", "ab", "abc", "abcdefgh", "abcdefghi", "abcdefgh\0", "a\0", "é", "ж", "日本", "z" * 28,
    "z" * 29, "z" * 32, "z" * 32 + "\x7f", "z" * 32 + "\U0010ffff", "z" * 40, LONG + "a", LONG + "b",
    LONG[:32], LONG[:31] + "\x7f", LONG[:32] + "\U0010ffff", "\U0010ffff",
]  # fmt: skip
NUMBERS = [0, 1, -1, 5, 6, 127, -128, 1000, 2000, 3000, 30_000]
TIMES = [
    datetime(2024, 1, 2, 3, 4, 5, micros, UTC) + timedelta(days=days)
    for days in (0, 1, -30_000)
    for micros in (0, 1, 999, 1000, 1001, 1999, 500_000, 500_999)
] + [datetime(1, 1, 1, tzinfo=UTC), datetime(1, 6, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
FLOATS = [
    0.0,
    -0.0,
    1.0,
    3.4,
    0.1,
    1 / 3,
    -2.5,
    1e-300,
    5e-324,
    1e39,
    3.4028235e38,
    16777217.0,
    math.inf,
    -math.inf,
]
DECIMALS = [
    "0",
    "1",
    "1.5",
    "1.50",
    "-1.5",
    "12.34",
    "99.99",
    "1.005",
    "123456789012.34",
    "1234567890123456.7",
]
LITERALS: dict[str, list[Any]] = {
    "byte": NUMBERS[:7],
    "short": NUMBERS,
    "integer": [*NUMBERS, 2**31 - 1],
    "long": [*NUMBERS, 2**53 + 1, 2**63 - 1, -(2**63)],
    "float": [*FLOATS, 3.4000000953674316, math.nan],
    "double": [*FLOATS, 3.4000000953674316, math.nan],
    "decimal(5,2)": [Decimal(d) for d in DECIMALS[:8]] + [1, 5],
    "decimal(18,2)": [Decimal(d) for d in DECIMALS],
    "decimal(38,10)": [Decimal(d) for d in DECIMALS],
    "string": TEXTS,
    "binary": [b"", b"a", b"\xff"],
    "boolean": [True, False],
    "date": [date(2024, 1, 2), date(2024, 1, 3), date(1960, 5, 5), date(1, 1, 1)],
    "timestamp": TIMES,
    "timestamp_ntz": [t.replace(tzinfo=None) for t in TIMES],
}
KINDS = list(LITERALS)
PARTS = [
    "date",
    "string",
    "integer",
    "double",
    "timestamp",
    "decimal(5,2)",
    "boolean",
    "binary",
    "decimal(38,10)",
]


def field(name: str, kind: Any) -> StructField:
    return StructField(name, PrimitiveType(kind) if isinstance(kind, str) else kind)


SCHEMA = StructType(
    (
        *(field(kind, kind) for kind in KINDS),
        field("s", StructType((field("n", "integer"), field("t", "string")))),
        *(field(f"p {kind}", kind) for kind in PARTS),
    )
)
TYPES = column_types(SCHEMA)
PARTITIONS = [f"p {kind}" for kind in PARTS]


def metadata(schema: StructType = SCHEMA, partitions: list[str] | None = None) -> Metadata:
    columns = PARTITIONS if partitions is None else partitions
    return Metadata(id="t", schema_string=schema.to_json(), partition_columns=tuple(columns))


def spelled(value: Any, cut: bool) -> Any:
    """A value as writers state it; ``cut`` leaves microseconds out."""
    match value:
        case datetime():
            text = value.isoformat(timespec="milliseconds" if cut else "microseconds")
            return text.replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value) if cut else str(value)
        case bytes():
            return value.decode("latin-1")
        case float() if not math.isfinite(value):
            return 1e400 if cut else str(value)
    return value


def dumped(value: Any) -> str:
    return json.dumps(value).replace("Infinity", "1e400").replace("-1e400", "-1e400")


@st.composite
def stated(draw: st.DrawFn) -> str | None:
    """The statistics of one file."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.sampled_from([None, "", "{}", "nonsense", "[1]", '{"numRecords":\n3}']))
    rows = draw(st.sampled_from([0, 1, 3, 10, None]))
    groups: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    chosen = draw(st.lists(st.sampled_from([*KINDS, "s.n", "s.t"]), unique=True, max_size=6))
    for name in chosen:
        kind = {"s.n": "integer", "s.t": "string"}.get(name, name)
        values = draw(st.lists(st.sampled_from(LITERALS[kind]), min_size=2, max_size=2))
        if draw(st.integers(0, 4)):  # else they may contradict each other
            values.sort(key=lambda v: (v != v, v))
        nulls = draw(st.sampled_from([0, 1, 3, 10, None]))
        sides = draw(
            st.sampled_from([(), ("min",), ("max",), ("min", "max"), ("min", "max"), ("min", "max")])
        )
        for side, value in zip(("min", "max"), values, strict=True):
            if side in sides:
                raw = spelled(value, draw(st.booleans()))
                if draw(st.integers(0, 40)) == 0:
                    raw = draw(st.sampled_from(["NaN", 2**40, 10**25, None, "no", 1.25, [1], True]))
                _put(groups[f"{side}Values"], name, raw)
        if nulls is not None:
            _put(groups["nullCount"], name, nulls)
    stats: dict[str, Any] = {} if rows is None else {"numRecords": rows}
    return dumped(stats | {k: v for k, v in groups.items() if v})


def _put(group: dict[str, Any], name: str, value: Any) -> None:
    if name.startswith("s."):
        group.setdefault("s", {})[name[2:]] = value
    else:
        group[name] = value


PART_TEXTS: dict[str, list[str | None]] = {
    "date": [None, "", "2024-01-02", "2024-01-03", "no"],
    "string": [None, "", *TEXTS[1:]],
    "integer": [None, "5", "6", "1000", "x"],
    "double": [None, "0.0", "-0.0", "3.4", "NaN", "inf"],
    "timestamp": [None, "2024-01-02 03:04:05", "2024-01-02T03:04:05.001Z", "never"],
    "decimal(5,2)": [None, "1.5", "12.34", "1.005"],
    "boolean": [None, "true", "false"],
    "binary": [None, "a", "\\u00FF"],
    "decimal(38,10)": [None, "1.5", "1234567890123456.7"],
}


@st.composite
def part_values(draw: st.DrawFn) -> dict[str, str | None]:
    chosen = draw(st.lists(st.sampled_from(PARTS), unique=True, max_size=4))
    found = {f"p {kind}": draw(st.sampled_from(PART_TEXTS[kind])) for kind in chosen}
    if draw(st.integers(0, 10)) == 0:
        found["integer"] = draw(st.sampled_from(["5", None]))  # not a partition column
    return found


@st.composite
def leaf(draw: st.DrawFn) -> Expr:
    name = draw(st.sampled_from([*KINDS, "s.n", "s.t", *PARTITIONS]))
    kind = {"s.n": "integer", "s.t": "string"}.get(name, name.removeprefix("p "))
    path = tuple(name.split(".")) if name in ("s.n", "s.t") else (name,)
    literal = st.sampled_from(LITERALS[kind])
    match draw(st.integers(0, 9)):
        case 0:
            return IsNull(path)
        case 1:
            return Not(IsNull(path))
        case 2:
            return In(path, tuple(draw(st.lists(literal, min_size=1, max_size=5))))
        case 3 if kind == "string":
            found = StartsWith(path, draw(st.sampled_from(TEXTS)))
            return Not(found) if draw(st.booleans()) else found
        case 4:
            return Compare(path, "=", draw(st.sampled_from([1, 2.5, True])))
        case 5:
            low, high = draw(literal), draw(literal)
            return And((Compare(path, ">=", low), Compare(path, "<", high)))
    op = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
    return Compare(path, op, draw(literal))


exprs = st.recursive(
    leaf(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda o: And(tuple(o))),
        st.lists(inner, min_size=2, max_size=3).map(lambda o: Or(tuple(o))),
        inner.map(Not),
        st.sampled_from([Constant(True), Constant(False)]),
    ),
    max_leaves=4,
)


def packed(
    texts: list[str | None],
    parts: list[dict[str, str | None]] | None = None,
    schema: StructType = SCHEMA,
    partitions: list[str] | None = None,
) -> dict[str, PackColumn]:
    values = [json.dumps(p) for p in parts or [{}] * len(texts)]
    paths = [f"part-{n}.parquet" for n in range(len(texts))]
    arrays = (pa.array(a, pa.string()) for a in (paths, texts, values))
    return {c.name: c for c in pack_columns(*arrays, schema, metadata(schema, partitions))}


def zones(columns: dict[str, PackColumn], names: frozenset[str]) -> dict[str, Zones]:
    found = {}
    for name in names & columns.keys():
        column = columns[name]
        known = column.low is not None and column.high is not None
        found[name] = Zones(
            np.array([column.low or 0], np.int64), np.array([column.high or 0], np.int64), np.array([known])
        )
    return found


def masks(
    expr: Expr, columns: dict[str, PackColumn], count: int, schema: StructType = SCHEMA
) -> tuple[Any, bool]:
    found = PackFilter(expr, schema, PARTITIONS)
    assert found.zone_names <= found.names
    data = {name: columns[name].data for name in found.names & columns.keys()}
    files, again, none = found.files([(data, count), (data, count), ({}, 3)])
    assert (files == again).all(), "packs of one meaning are compared together"
    assert none.shape == (3,)
    packs = found.packs(zones(columns, found.zone_names), 1)
    assert files.dtype == packs.dtype == bool
    assert files.shape == (count,)
    assert packs.shape == (1,)
    return files, bool(packs[0])


# ---- properties ----


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(stated(), part_values()), min_size=1, max_size=12),
    st.lists(exprs, min_size=8, max_size=8),
)
def test_no_file_is_lost_that_the_exact_check_keeps(files, predicates):
    texts, parts = [t for t, _ in files], [p for _, p in files]
    columns = packed(texts, parts)
    for expr in predicates:
        exact = FileFilter(expr, TYPES)
        kept = [exact.may_match(parse_stats(t), p) for t, p in files]
        found, pack = masks(expr, columns, len(files))
        lost = [n for n, (want, have) in enumerate(zip(kept, found, strict=True)) if want and not have]
        assert not lost, (expr, files[lost[0]])
        assert pack or not found.any()


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([k for k in KINDS if k != "binary"]), st.data())
def test_a_single_column_is_judged_as_the_exact_check_does(kind, data):
    """Many files with values of one column, so that every encoding is met with every literal."""
    pool = st.sampled_from(LITERALS[kind])
    if kind == "string":
        pool = st.one_of(pool, st.text(max_size=12), st.text(max_size=40).map(lambda t: (LONG + t)[:36]))
    if kind == "long":
        pool = st.one_of(pool, st.integers(-(2**63), 2**63 - 1), st.integers(0, 9).map(lambda n: 1000 * n))
    if kind in ("float", "double"):
        pool = st.one_of(
            pool, st.floats(allow_nan=False, width=32), st.integers(-99, 99).map(lambda n: n / 10)
        )
    values = data.draw(st.lists(st.tuples(pool, pool, st.booleans()), min_size=1, max_size=30))
    texts = []
    for a, b, cut in values:
        low, high = sorted([a, b], key=lambda v: (v != v, v))
        bounds = {"minValues": {kind: spelled(low, cut)}, "maxValues": {kind: spelled(high, cut)}}
        texts.append(dumped({"numRecords": 3, **bounds, "nullCount": {kind: 0}}))
    columns = packed(texts)
    for _ in range(6):
        literal = data.draw(pool)
        expr: Expr = Compare((kind,), data.draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), literal)
        if data.draw(st.booleans()):
            expr = In((kind,), tuple(data.draw(st.lists(pool, min_size=2, max_size=6))))
        if data.draw(st.booleans()):
            expr = And((expr, Compare((kind,), "<=", data.draw(pool))))
        exact = FileFilter(expr, TYPES)
        kept = np.array([exact.may_match(parse_stats(t), {}) for t in texts])
        found, pack = masks(expr, columns, len(texts))
        assert not (kept & ~found).any(), (
            expr,
            [t for t, k, f in zip(texts, kept, found, strict=True) if k > f],
        )
        assert pack or not found.any()
        if kind in ("byte", "short", "integer", "date", "boolean"):
            assert (kept == found).all()


def bits(array: pa.Array) -> list[Any]:
    if pa.types.is_floating(array.type):
        return [
            None if v is None else (v, math.copysign(1, v)) if v == v else "nan" for v in array.to_pylist()
        ]
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return array.to_pylist()


@settings(max_examples=50, deadline=None)
@given(st.lists(stated(), min_size=1, max_size=20))
def test_values_are_those_of_the_statistics(texts):
    columns = packed(texts)
    leaves = list(SCHEMA.leaves())
    want = stats_columns(pa.array(texts, pa.string()), leaves)
    same(columns, "rows", want.num_records)
    for x in leaves:
        if x.path[0].startswith("p "):
            continue
        for kind, group in (("low", want.lows), ("high", want.highs), ("nulls", want.nulls)):
            if x.path in group:
                same(columns, json.dumps([kind, *x.path], separators=(",", ":")), group[x.path])


def same(columns: dict[str, PackColumn], name: str, want: pa.Array) -> None:
    if name not in columns:
        assert want.null_count == len(want)
        return
    found = ColumnData(columns[name].data).values()
    assert found.type == want.type
    found.validate(full=True)
    assert bits(found) == bits(want)


ARRAYS = {
    "string": st.one_of(
        st.text(max_size=12), st.text(max_size=50).map(lambda t: LONG + t), st.sampled_from(TEXTS)
    ),
    "double": st.one_of(st.floats(allow_nan=False), st.integers(-(10**9), 10**9).map(lambda n: n / 1000)),
    "long": st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20).map(lambda n: 1000 * n)),
    "decimal(38,10)": st.decimals(-(10**9), 10**9, places=10),
}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(ARRAYS)), st.data())
def test_any_values_come_back(kind, data):
    values = data.draw(st.lists(st.one_of(st.none(), ARRAYS[kind]), min_size=1, max_size=40))
    rows = [json.dumps({"maxValues": {} if v is None else {kind: v}}, default=str) for v in values]
    columns = packed(rows)
    want = stats_columns(pa.array(rows, pa.string()), list(SCHEMA.leaves())).highs[(kind,)]
    same(columns, json.dumps(["high", kind], separators=(",", ":")), want)


@settings(max_examples=50, deadline=None)
@given(st.lists(part_values(), min_size=1, max_size=20))
def test_partition_values_come_back(parts):
    columns = packed([None] * len(parts), parts)
    for name in PARTITIONS:
        column = columns.get(json.dumps(["part", name], separators=(",", ":")))
        if column is None:
            continue
        found = ColumnData(column.data).values().to_pylist()
        for values, have in zip(parts, found, strict=True):
            if have is None:
                assert values.get(name) in (None, "", "no", "x", "never", "NaN", "1.005")
            else:
                equal = Compare((name,), "=", have)
                assert FileFilter(equal, TYPES).may_match(None, values)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=20))
def test_blocks_keep_any_text(texts):
    assert decode_block(encode_block(texts)).to_pylist() == texts
    array = pa.array([None, *texts], pa.string()).slice(1)
    found = decode_block(encode_block(array))
    assert found.type == pa.string()
    found.validate(full=True)
    assert found.to_pylist() == texts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=20), st.sampled_from(["a%20b", "file:///x", "a b", "%zz"])), min_size=1
    )
)
def test_hashes_are_those_of_canonical_paths(paths):
    want = [zlib.crc32(canonical_path(p).encode("utf-8", "surrogatepass")) for p in paths]
    assert path_hashes(paths).tolist() == want
    assert path_hashes(pa.array(["x", *paths], pa.string()).slice(1)).tolist() == want


# ---- cases ----


def test_paths_are_found_by_their_hashes():
    paths = pa.array([f"date=2024-01-{n % 28:02}/part-{n}.parquet" for n in range(5000)])
    empty = pa.nulls(5000, pa.string())
    columns = {c.name: c for c in pack_columns(paths, empty, empty, SCHEMA, metadata())}
    assert set(columns) == {"path", "leaves"}
    data = columns["path"].data
    assert ColumnData(data).values().to_pylist() == path_hashes(paths).tolist()
    for wanted in ([7], [7, 4999, 12], [], range(100, 900)):
        found = find_hashes(data, path_hashes([paths[n].as_py() for n in wanted]))
        assert set(wanted) <= set(found.tolist())
        assert len(found) <= len(wanted) + 1
    assert not len(find_hashes(data, path_hashes(["other"])))


def one(kind: str, *bounds: Any, nulls: int | None = 0, rows: int = 10) -> dict[str, PackColumn]:
    texts = []
    for low, high in bounds:
        stats: dict[str, Any] = {"numRecords": rows, "minValues": {}, "maxValues": {}}
        if low is not None:
            stats["minValues"] = {kind: low}
        if high is not None:
            stats["maxValues"] = {kind: high}
        if nulls is not None:
            stats["nullCount"] = {kind: nulls}
        texts.append(json.dumps(stats))
    return packed(texts)


def kept(expr: Expr, columns: dict[str, PackColumn], count: int) -> list[bool]:
    return list(map(bool, masks(expr, columns, count)[0]))


def test_comparisons_are_sharp():
    numbers = one("long", (1000, 1999), (2000, 2999), (3000, 3999))
    assert kept(Compare(("long",), "<", 2000), numbers, 3) == [True, False, False]
    assert kept(Compare(("long",), "<=", 2000), numbers, 3) == [True, True, False]
    assert kept(Compare(("long",), ">", 1999), numbers, 3) == [False, True, True]
    assert kept(In(("long",), (1500, 3999)), numbers, 3) == [True, False, True]
    assert kept(In(("long",), (1, 9999)), numbers, 3) == [False, False, False]
    assert not masks(Compare(("long",), "<", 1000), numbers, 3)[1]
    assert not masks(In(("long",), (1, 9999)), numbers, 3)[0].any()
    days = one("date", ("2024-01-01", "2024-01-01"), ("2024-01-02", "2024-01-05"))
    assert kept(Compare(("date",), "<", date(2024, 1, 2)), days, 2) == [True, False]
    assert kept(Compare(("date",), "!=", date(2024, 1, 1)), days, 2) == [False, True]
    times = one(
        "timestamp", *[(f"2024-01-01T00:00:0{n}.000Z", f"2024-01-01T00:00:0{n}.500Z") for n in range(5)]
    )
    at = datetime(2024, 1, 1, 0, 0, 3, 200_000, UTC)
    assert kept(Compare(("timestamp",), "=", at), times, 5) == [False, False, False, True, False]
    floats = one("double", (1.5, 2.5), (2.5, 3.25))
    assert kept(Compare(("double",), "<", 2.0), floats, 2) == [True, False]
    words = one("string", ("apple", "banana"), ("cherry", "date"))
    assert kept(Compare(("string",), "=", "avocado"), words, 2) == [True, False]
    assert kept(StartsWith(("string",), "d"), words, 2) == [False, True]
    assert kept(Compare(("string",), "<", "cherry"), words, 2) == [True, False]


def test_many_texts_are_compared_by_their_first_bytes():
    words = [(f"{LONG}{n:08}", f"{LONG}{n:08}z") for n in range(1000)]
    columns = one("string", *words)
    assert sum(kept(Compare(("string",), "=", f"{LONG}00000500"), columns, 1000)) < 20
    assert not any(kept(Compare(("string",), "=", "zzz"), columns, 1000))
    short = one("string", *[(f"{n:05}", f"{n:05}") for n in range(1000)])
    assert sum(kept(Compare(("string",), "=", "00500"), short, 1000)) == 1
    assert sum(kept(Compare(("string",), ">", "00998"), short, 1000)) == 1
    assert sum(kept(Compare(("string",), "<", "00001"), short, 1000)) == 1
    assert sum(kept(Compare(("string",), "!=", "00500"), short, 1000)) == 999
    assert sum(kept(Not(StartsWith(("string",), "009")), short, 1000)) == 900


def test_a_file_of_nulls_matches_no_comparison():
    columns = one("long", (None, None), nulls=10)
    assert kept(Compare(("long",), "=", 5), columns, 1) == [False]
    assert kept(Not(IsNull(("long",))), columns, 1) == [False]
    assert kept(IsNull(("long",)), columns, 1) == [True]
    assert not masks(Compare(("long",), "=", 5), columns, 1)[1]
    columns = one("long", (None, None), nulls=9)
    assert kept(Compare(("long",), "=", 5), columns, 1) == [True]
    assert kept(IsNull(("long",)), one("long", (1, 2)), 1) == [False]
    assert not masks(IsNull(("long",)), one("long", (1, 2)), 1)[1]


def test_files_of_nulls_do_not_spoil_a_zone():
    texts = [
        json.dumps({"numRecords": 5, "nullCount": {"long": 5}}),
        json.dumps(
            {"numRecords": 5, "minValues": {"long": 3}, "maxValues": {"long": 4}, "nullCount": {"long": 1}}
        ),
    ]
    columns = packed(texts)
    assert not masks(Compare(("long",), "=", 5), columns, 2)[1]
    assert kept(Compare(("long",), "=", 4), columns, 2) == [False, True]


def test_bounds_that_contradict_each_other_rule_nothing_out():
    columns = one("long", (9, 1), (1, 2))
    assert columns['["low","long"]'].low is None
    assert kept(Compare(("long",), "=", 5), columns, 2) == [True, True]


def test_statistics_of_a_column_that_partitions_some_files_rule_nothing_out():
    text = json.dumps({"numRecords": 1, "nullCount": {"integer": 0, "long": 1}, "maxValues": {"integer": 1}})
    columns = packed([text], [{"integer": None, "long": "5"}])
    assert kept(IsNull(("integer",)), columns, 1) == [True]
    assert masks(IsNull(("integer",)), columns, 1)[1]
    assert kept(Compare(("long",), "=", 5), columns, 1) == [True]


def test_null_and_unknown_partition_values_differ():
    parts = [{"p date": None}, {"p date": "no"}, {}, {"p date": "2024-01-02"}]
    columns = packed([None] * 4, parts)
    path = ("p date",)
    assert kept(IsNull(path), columns, 4) == [True, True, True, False]
    assert kept(Not(IsNull(path)), columns, 4) == [False, True, True, True]
    assert kept(Compare(path, "=", date(2024, 1, 2)), columns, 4) == [False, True, True, True]
    assert kept(Compare(path, "!=", date(2024, 1, 2)), columns, 4) == [False, True, True, False]


@pytest.mark.parametrize(
    ("before", "after", "low", "high", "literal", "judged"),
    [
        ("integer", "long", 1, 2, 5, True),
        ("float", "double", 1.5, 2.5, 5.0, True),
        ("decimal(5,2)", "decimal(10,2)", 1.5, 2.5, Decimal(5), True),
        ("decimal(5,2)", "decimal(10,4)", 1.5, 2.5, Decimal(5), False),
        ("integer", "double", 1, 2, 5.0, False),
        ("integer", "decimal(10,0)", 1, 2, Decimal(5), False),
        ("date", "timestamp_ntz", "2024-01-01", "2024-01-02", datetime(2025, 1, 1), False),
        ("string", "long", "a", "b", 5, False),
        ("long", "string", 1, 2, "a", False),
        ("boolean", "long", False, True, 5, False),
    ],
)
def test_only_types_of_one_domain_are_compared(before, after, low, high, literal, judged):
    old, new = (StructType((field("a", kind),)) for kind in (before, after))
    text = json.dumps({"numRecords": 1, "minValues": {"a": low}, "maxValues": {"a": high}})
    columns = packed([text], schema=old, partitions=[])
    files, pack = masks(Compare(("a",), "=", literal), columns, 1, new)
    assert bool(files[0]) is pack is not judged


def test_a_column_that_a_pack_lacks_rules_nothing_out():
    columns = one("long", (1, 2))
    assert masks(Compare(("s", "n"), "=", 5), columns, 1)[0].all()
    assert masks(Compare(("p date",), "=", date(2024, 1, 1)), columns, 1)[0].all()
    assert masks(Compare(("nowhere",), "=", 5), columns, 1)[0].all()


def test_two_hundred_columns():
    schema = StructType(tuple(field(f"c{n}", KINDS[n % 4]) for n in range(200)))
    files = [
        {
            "numRecords": 5,
            "minValues": {f"c{n}": n % 50 for n in range(200)},
            "maxValues": {f"c{n}": n % 50 + f for n in range(200)},
            "nullCount": {f"c{n}": 0 for n in range(200)},
        }
        for f in range(3)
    ]
    columns = packed([json.dumps(f) for f in files], schema=schema, partitions=[])
    assert len(columns) == 603
    files_, _ = masks(Compare(("c199",), "=", 51), columns, 3, schema)
    assert files_.tolist() == [False, False, True]


def test_a_pack_of_empty_texts():
    for count in (1, 2, 300):
        columns = one("string", *[("", "")] * count)
        assert ColumnData(columns['["low","string"]'].data).values().to_pylist() == [""] * count
        assert all(kept(Compare(("string",), "=", ""), columns, count))
        assert not any(kept(Compare(("string",), ">", "a"), columns, count))
        assert not any(kept(Compare(("string",), "<", ""), columns, count))


def test_a_whole_pack_is_small_and_exact():
    count = PACK_SIZE
    texts = [
        json.dumps(
            {
                "numRecords": 1000,
                "minValues": {
                    "long": 1000 * n,
                    "double": n / 1000,
                    "string": f"a{n * 2654435761 % 2**32:08x}",
                },
                "maxValues": {"long": 1000 * n + 999, "double": n / 8, "string": f"z{n:08x}"},
            }
        )
        for n in range(count)
    ]
    columns = packed(texts)
    sizes = {name: len(c.data) / count for name, c in columns.items()}
    assert sizes["rows"] < 0.1
    assert sizes['["low","long"]'] < 3
    assert sizes['["low","double"]'] < 3
    assert sizes['["low","string"]'] < 9
    want = stats_columns(pa.array(texts), list(SCHEMA.leaves()))
    for name in ("long", "double", "string"):
        same(columns, f'["low","{name}"]', want.lows[(name,)])
        same(columns, f'["high","{name}"]', want.highs[(name,)])
    mask = kept(Compare(("long",), "=", 5_000_500), columns, count)
    assert mask.index(True) == 5000
    assert sum(mask) == 1


def test_an_unknown_format_is_reported():
    columns = one("long", (1, 2))
    data = columns['["low","long"]'].data
    with pytest.raises(ProtocolError, match="unknown format 9"):
        ColumnData(b"\x09" + data[1:])
