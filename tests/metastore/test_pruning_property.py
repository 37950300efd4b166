"""Pruning never loses a row: random tables and predicates against brute force, on SQLite and DuckDB."""

from __future__ import annotations

import json
import math
import random
import re
import sqlite3
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import resources
from typing import Any

import duckdb
import psycopg
import pytest

from deltalakedb.metastore.engines.duckdb import DIALECT as DUCKDB
from deltalakedb.metastore.engines.sqlite import DIALECT as SQLITE
from deltalakedb.metastore.files.pruning import plan_files
from deltalakedb.protocol import partition
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.predicate import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    StartsWith,
    Unknown,
)
from deltalakedb.protocol.schema import PrimitiveType, StructField, StructType
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.slots import SLOT_COLUMNS, SlotEncoder, assign_slots, column_types, count_levels
from deltalakedb.protocol.stats import parse_stats

KINDS = {
    "n": "long",
    "i": "integer",
    "f": "double",
    "g": "float",
    "m": "decimal(10,2)",
    "w": "decimal(38,10)",
    "t": "string",
    "d": "date",
    "z": "timestamp",
    "zn": "timestamp_ntz",
    "b": "boolean",
}
PARTS = {"p": "date", "q": "string", "r": "long", "x": "double", "u": "decimal(5,2)"}
TABLE = 3


def _single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Values:
    """Random values, most of them close to each other so that predicates hit."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)

    def of(self, kind: str) -> Any:
        r = self.r
        match kind:
            case "long" | "integer":
                big = 2**63 if kind == "long" else 2**31
                return r.choice([r.randint(-9, 9), r.randint(-9, 9), r.randint(-big, big - 1), -big, big - 1])
            case "double" | "float":
                value = r.choice(
                    [
                        0.0,
                        -0.0,
                        0.1,
                        -0.1,
                        1.5,
                        math.inf,
                        -math.inf,
                        math.nan,
                        r.gauss(0, 1),
                        5e-324,
                        1e300,
                        -1e300,
                    ]
                )
                return (
                    value
                    if kind == "double"
                    else _single(max(-3e38, min(3e38, value)))
                    if abs(value) < 1e301
                    else value
                )
            case "decimal(10,2)" | "decimal(5,2)":
                return Decimal(r.choice([r.randint(-300, 300), r.randint(-99999, 99999)])).scaleb(-2)
            case "decimal(38,10)":
                base = r.choice(
                    [r.randint(-300, 300), r.randint(-(10**37), 10**37), 10**27 + r.randint(0, 9)]
                )
                return Decimal(base).scaleb(-10)
            case "string":
                start = r.choice(["", "a", "https://example.com/", "x" * 30])
                return start + "".join(r.choice("ab\0é\U0001f600\x7fz") for _ in range(r.randint(0, 12)))
            case "date":
                return date(1970, 1, 1) + timedelta(
                    days=r.choice([r.randint(-3, 9), r.randint(-30000, 30000)])
                )
            case "timestamp" | "timestamp_ntz":
                micros = r.choice(
                    [r.randint(-5000, 5000), r.randint(-(10**15), 10**15), 1_000_500, 1_000_999]
                )
                moment = datetime(1970, 1, 1) + timedelta(microseconds=micros)
                return moment.replace(tzinfo=UTC) if kind == "timestamp" else moment
            case _:
                return r.random() < 0.5

    def maybe(self, kind: str, nulls: float = 0.2) -> Any:
        return None if self.r.random() < nulls else self.of(kind)


def _key(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@dataclass
class File:
    add: Add
    rows: list[dict[str, Any]]
    added: int
    removed: int | None


def _stat(value: Any, kind: str, *, top: bool, r: random.Random) -> Any:
    """A bound as one of several writers would spell it."""
    if kind.startswith("timestamp"):
        if r.random() < 0.5:  # cut to milliseconds
            cut = value.replace(microsecond=value.microsecond // 1000 * 1000)
            return cut.replace(tzinfo=None).isoformat(timespec="milliseconds") + (
                "Z" if kind == "timestamp" else ""
            )
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + (
            "Z" if kind == "timestamp" else ""
        )
    if kind == "date":
        return value.isoformat()
    if kind.startswith("decimal"):
        return float(value)  # as delta-rs does
    if kind == "float":
        return next(
            float(f"{value:.{p}g}") for p in range(6, 18) if _single(float(f"{value:.{p}g}")) == value
        )
    if kind == "string" and len(value) > 32:
        how = r.random()
        if not top:
            return value[:32]
        if how < 0.4:  # rounded up
            return value[:32] + ("\x7f" if value[32] < "\x7f" else "\U0010ffff")
        return value if how < 0.6 else value[:32]  # whole, or cut without a thought
    return value


def _stats(rows: list[dict[str, Any]], r: random.Random) -> str | None:
    if r.random() < 0.05:
        return None
    out: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    if r.random() < 0.05:
        del out["numRecords"]
    if r.random() < 0.2:
        out["tightBounds"] = False
    for name, kind in KINDS.items():
        values = [row[name] for row in rows if row[name] is not None]
        if r.random() < 0.9:
            out["nullCount"][name] = len(rows) - len(values)
        finite = [v for v in values if v == v]
        if not finite or r.random() < 0.05:
            continue
        low, high = min(finite, key=_key), max(finite, key=_key)
        if any(isinstance(v, float) and math.isinf(v) for v in (low, high)):
            continue
        if r.random() < 0.95:
            out["minValues"][name] = _stat(low, kind, top=False, r=r)
        if r.random() < 0.95:
            out["maxValues"][name] = _stat(high, kind, top=True, r=r)
    return json.dumps(out)


def _spelled(value: Any, kind: str, r: random.Random) -> str | None:
    text = partition.serialize(value, kind)
    if text is None:
        return r.choice([None, ""])
    if kind.startswith("decimal") and r.random() < 0.5:
        return str(value.normalize()) if "E" not in str(value.normalize()) else text
    if kind == "double" and value == int(value) if kind == "double" and math.isfinite(value) else False:
        return r.choice([text, f"{value:.1f}"])
    return text


def _table(seed: int, count: int) -> list[File]:
    values = Values(seed)
    r = values.r
    files = []
    for number in range(count):
        parts = {name: values.maybe(kind, 0.1) for name, kind in PARTS.items()}
        parts["q"] = parts["q"] or None  # an empty text is null
        fixed = {name: values.maybe(kind) for name, kind in KINDS.items()}
        rows = []
        for _ in range(r.randint(1, 4)):
            row = {
                name: fixed[name] if r.random() < 0.5 else values.maybe(kind) for name, kind in KINDS.items()
            }
            rows.append({**row, **parts})
        for name in KINDS:
            if r.random() < 0.08:
                for row in rows:
                    row[name] = None
        added = r.randint(0, 9)
        removed = r.randint(added + 1, 10) if r.random() < 0.3 and added < 10 else None
        add = Add(
            path=f"f{number}",
            size=1,
            modification_time=0,
            data_change=True,
            stats=_stats(rows, r),
            partition_values={n: _spelled(v, PARTS[n], r) for n, v in parts.items()},
        )
        files.append(File(add, rows, added, removed))
    return files


ALL = {**KINDS, **PARTS}


def _predicate(values: Values, pool: list[dict[str, Any]], depth: int = 0) -> Any:
    r = values.r
    if depth < 3 and r.random() < (0.75 if depth == 0 else 0.4):
        kind = r.choice([And, And, Or, Not])
        if kind is Not:
            return Not(_predicate(values, pool, depth + 1))
        return kind(tuple(_predicate(values, pool, depth + 1) for _ in range(r.randint(2, 3))))
    name = r.choice(list(ALL))
    column, kind = (name,), ALL[name]

    def literal() -> Any:
        seen = [row[name] for row in pool if row[name] is not None]
        return r.choice(seen) if seen and r.random() < 0.7 else values.of(kind)

    how = r.random()
    if how < 0.6:
        return Compare(
            column,
            r.choice(["=", "=", "!=", "<", "<=", ">", ">=", "<=>"]),
            literal() if r.random() < 0.95 else None,
        )
    if how < 0.75:
        return In(column, tuple(literal() for _ in range(r.choice([1, 2, 3, 20]))))
    if how < 0.9:
        return IsNull(column)
    if how < 0.95 and kind == "string":
        return StartsWith(column, literal()[: r.randint(0, 34)])
    return r.choice([Constant(True), Constant(None), Unknown("f(x)")])


def _holds(expr: Any, row: dict[str, Any], *, spark: bool) -> bool | None:
    """SQL's three-valued logic; NaN is the greatest value to Spark, and unordered to others."""
    match expr:
        case Constant(value):
            return value
        case Unknown():
            return True
        case Not(Unknown()):
            return True
        case Not(inner):
            value = _holds(inner, row, spark=spark)
            return None if value is None else not value
        case And(operands):
            found = [_holds(o, row, spark=spark) for o in operands]
            return False if False in found else None if None in found else True
        case Or(operands):
            found = [_holds(o, row, spark=spark) for o in operands]
            return True if True in found else None if None in found else False
        case IsNull((name,)):
            return row[name] is None
        case StartsWith((name,), prefix):
            return None if row[name] is None else row[name].startswith(prefix)
        case In(column, values):
            return _holds(Or(tuple(Compare(column, "=", v) for v in values)), row, spark=spark)
        case Compare((name,), "<=>", value):
            if row[name] is None or value is None:
                return row[name] is value
            return _holds(Compare((name,), "=", value), row, spark=spark)
        case Compare((name,), op, value):
            left = row[name]
            if left is None or value is None:
                return None
            a, b = _key(left), _key(value)
            if spark and isinstance(a, float):
                a, b = (
                    (math.isnan(a), 0.0 if math.isnan(a) else a),
                    (math.isnan(b), 0.0 if math.isnan(b) else b),
                )
            return {"=": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
    raise AssertionError(expr)


def _has_unknown(expr: Any) -> bool:
    match expr:
        case Unknown():
            return True
        case And(operands) | Or(operands):
            return any(map(_has_unknown, operands))
        case Not(inner):
            return _has_unknown(inner)
    return False


def _ddl(engine: str) -> list[str]:
    """The catalog's own tables, with types that both engines take."""
    text = (resources.files("deltalakedb.metastore") / "sql" / "migrations" / "0001_catalog.sql").read_text()
    found = []
    plain = "\n".join(x for x in text.splitlines() if not x.startswith("--"))
    for body in map(str.strip, plain.split(";")):
        name = re.match(r"CREATE (?:TABLE|INDEX) (\w+)", body)
        if name is None or not name[1].startswith("dl_file"):
            continue
        if engine == "duckdb" and (name[1] == "dl_file_json" or "INDEX" in body[:20]):
            continue
        side = ", stats VARCHAR, partition_values VARCHAR" if engine == "duckdb" else ""
        body = body.replace("{files_side_columns}", side).replace("BOOLEAN", "BIGINT")
        body = body.replace("{file_id}", "INTEGER PRIMARY KEY" if engine == "sqlite" else "BIGINT")
        if engine == "postgres":
            body = body.replace("{ctext}", 'TEXT COLLATE "C"')
        found.append(re.sub(r"\{(\w+)\}", lambda m: "TEXT" if "text" in m[1] else "BIGINT", body))
    return found


class Engine:
    def __init__(self, name: str, request: pytest.FixtureRequest) -> None:
        self.name = name
        if name == "postgres":
            self.db: Any = psycopg.connect(request.getfixturevalue("pg_dsn"), autocommit=True)
            schema = request.getfixturevalue("pg_schema")
            self.db.execute(f'CREATE SCHEMA "{schema}"')
            self.db.execute(f'SET search_path = "{schema}"')
        else:
            self.db = sqlite3.connect(":memory:") if name == "sqlite" else duckdb.connect()
        request.addfinalizer(self.db.close)
        self.facts = DUCKDB if name == "duckdb" else SQLITE
        for statement in _ddl(name):
            self.db.execute(statement)

    def load(self, files: list[File], rows: list[tuple[Any, ...]], table: int = TABLE) -> None:
        names = [
            "file_id",
            "table_id",
            "add_version",
            "remove_version",
            "tombstone",
            "path_hash",
            "path",
            "dv_id",
        ]
        names += ["size", "modification_time", "data_change", *SLOT_COLUMNS]
        data = [
            ((table << 40) | n, table, f.added, f.removed, 1, 0, f.add.path, "", 1, 0, 1, *row)
            for n, (f, row) in enumerate(zip(files, rows, strict=True))
        ]
        if self.name != "duckdb":
            side = [
                (d[0], f.add.stats, json.dumps(dict(f.add.partition_values)))
                for d, f in zip(data, files, strict=True)
            ]
            self._many("INSERT INTO dl_file_json (file_id, stats, partition_values) VALUES (?, ?, ?)", side)
        else:
            names += ["stats", "partition_values"]
            data = [
                (*d, f.add.stats, json.dumps(dict(f.add.partition_values)))
                for d, f in zip(data, files, strict=True)
            ]
        marks = ", ".join("?" * len(names))
        self._many(f"INSERT INTO dl_files ({', '.join(names)}) VALUES ({marks})", data)

    def _many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        if self.name == "postgres":
            with self.db.cursor() as cursor:
                cursor.executemany(sql.replace("?", "%s"), rows)
        else:
            self.db.executemany(sql, rows)

    def run(self, plan: Any) -> list[tuple[Any, ...]]:
        sql = plan.sql.replace("%", "%%").replace("?", "%s") if self.name == "postgres" else plan.sql
        return self.db.execute(sql, plan.params).fetchall()


def _schema() -> StructType:
    return StructType(tuple(StructField(n, PrimitiveType(k)) for n, k in ALL.items()))


@pytest.mark.parametrize("engine", ["sqlite", "duckdb", "postgres"])
@pytest.mark.parametrize("seed", range(4))
def test_no_matching_row_is_ever_lost(engine, seed, request):
    files = _table(seed, 60)
    schema = _schema()
    types = column_types(schema)
    order = list(KINDS)
    random.Random(seed).shuffle(order)  # other columns lie in the indexed slots each time
    slots = assign_slots(schema, list(PARTS), {"delta.dataSkippingStatsColumns": ",".join(order)})
    encoder = SlotEncoder(slots, types)
    rows = [encoder.encode(f.add) for f in files]
    levels = count_levels(rows)
    db = Engine(engine, request)
    db.load(files, rows)
    db.load(files, rows, table=TABLE + 1)  # a neighbour that must never appear
    values = Values(1000 + seed)
    pool = [row for f in files for row in f.rows]
    drivers, judged, kept = set(), 0, 0
    for _ in range(250 if engine == "sqlite" else 60):
        expr = _predicate(values, pool)
        version = values.r.choice([10, 10, values.r.randint(0, 9)])
        plan = plan_files(
            expr,
            table_id=TABLE,
            version=version,
            slots=slots,
            levels=levels,
            columns=["file_id", "path", "stats"],
            facts=db.facts,
        )
        found = db.run(plan)
        paths = [path for _, path, _ in found]
        assert len(set(paths)) == len(paths)
        assert all(number >> 40 == TABLE for number, _, _ in found)
        keep = None if plan.residual is None else FileFilter(plan.residual, types)
        survivors = set()
        drivers.add(plan.driver)
        for path in paths:
            add = files[int(path[1:])].add
            if keep is None or keep.may_match(parse_stats(add.stats), add.partition_values):
                survivors.add(path)
        for file in files:
            alive = file.added <= version and (file.removed is None or file.removed > version)
            if not alive:
                assert file.add.path not in paths
                continue
            judged += 1
            kept += file.add.path in survivors
            matching = _has_unknown(expr) is False and any(
                _holds(expr, row, spark=spark) is True for row in file.rows for spark in (True, False)
            )
            if matching:
                assert file.add.path in paths, (expr, file.rows, file.add)
                assert file.add.path in survivors, (expr, file.rows, file.add)
    assert kept < judged * 0.8  # it does prune
    if engine == "sqlite":
        assert {None, "p0"} <= drivers
        assert any(d is not None and d[0] == "s" for d in drivers)
