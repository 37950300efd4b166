"""Files that delta-rs wrote, predicates as text, and DuckDB on the rows as the judge."""

from __future__ import annotations

import json
import math
import random
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from deltalakedb.address import parse_address
from deltalakedb.metastore import files
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import packs
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.predicate_parser import parse_predicate
from deltalakedb.protocol.schema import parse_schema
from support.actions import info, metadata
from support.commits import Bench
from support.packs import make_packs_small, recent_ids

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("m", pa.decimal128(38, 10)),
        ("c", pa.decimal128(10, 2)),
        ("t", pa.string()),
        ("d", pa.date32()),
        ("z", pa.timestamp("us", "UTC")),
        ("b", pa.bool_()),
        ("s", pa.struct([("a", pa.int32()), ("t", pa.string())])),
        ("p", pa.string()),
        ("q", pa.date32()),
    ]
)


def _row(r: random.Random) -> dict[str, Any]:
    row: dict[str, Any] = {
        "n": r.choice([r.randint(-5, 5), 2**63 - 1, -(2**63)]),
        "f": r.choice([0.1, 0.0, math.nan, math.inf, r.gauss(0, 1)]),
        "g": r.choice([0.1, 0.7, math.nan, r.gauss(0, 1)]),
        "m": Decimal(r.choice([15 * 10**9, r.randint(-(10**37), 10**37)])).scaleb(-10),
        "c": Decimal(r.randint(-300, 300)).scaleb(-2),
        "t": r.choice(["", "a", "x" * 31, "x" * 40, "é" * 33, "y" * 70])
        + r.choice(["", "b", "é", "\U0001f600"]),
        "d": date(2024, 1, 1) + timedelta(days=r.randint(0, 9)),
        "z": datetime(2024, 1, 1, 0, 0, 0, r.randint(0, 9999), UTC),
        "b": r.random() < 0.5,
        "s": {"a": r.randint(0, 5), "t": r.choice("xyz")},
    }
    return {name: None if r.random() < 0.2 else value for name, value in row.items()}


PREDICATES = [
    "n = {n}",
    "n > {n} AND n <= {n}",
    "n BETWEEN {n} AND {n}",
    "n IN ({n}, {n})",
    "n NOT IN ({n}, {n})",
    "n IS NULL OR n < {n}",
    "NOT (n > {n} OR t = {t})",
    "n > 1.5",
    "n = 9223372036854775807",
    "f > {f}",
    "f BETWEEN 0.5 AND 1.5",
    "NOT f < {f}",
    "f = 0.1 OR f = -0.0",
    "g = CAST(0.1 AS FLOAT)",
    "g < {f}",
    "m = {m}",
    "m > {m} AND c < 1.5",
    "c = {c}",
    "c >= {c} OR b",
    "t = {t}",
    "t > {t}",
    "t <= {t}",
    "t LIKE 'xxxx%'",
    "t NOT LIKE 'x%'",
    "t LIKE '%b' AND d = {d}",
    "t BETWEEN 'a' AND 'xx'",
    "d >= {d} AND d < {d}",
    "d <> {d}",
    "z = {z}",
    "z > {z}",
    "z BETWEEN {z} AND {z}",
    "b IS NOT TRUE",
    "NOT b",
    "s.a = 3",
    "s.a > 2 AND s.t < 'z'",
    "s.a IS NULL",
    "p = 'eu'",
    "p IN ('us', 'de') AND n > {n}",
    "p IS NULL",
    "p <> 'eu' OR p IS NULL",
    "q >= {d} AND q <= {d}",
    "q = {d} AND p = 'us'",
    "NOT (q = {d} AND p = 'us')",
    "length(t) > 3 AND n = {n}",
    "n - n >= {n} AND p = 'eu'",
]


def _literal(kind: str, r: random.Random, rows: list[dict[str, Any]]) -> str:
    seen = [row[kind] for row in rows if row[kind] is not None]
    value = r.choice(seen)
    if kind == "t":
        return "'" + value.replace("'", "''") + "'"
    if kind == "d":
        return f"DATE '{value}'"
    if kind == "z":
        return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat()}'"
    if kind in ("m", "c"):
        return f"CAST('{value:f}' AS DECIMAL(38,10))"
    if kind == "f":
        return repr(value) if math.isfinite(value) else "1.0"
    return str(value)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """The schema of a table and its files: each with its add action and its rows."""
    r = random.Random(11)
    root = tmp_path_factory.mktemp("lake")
    written = []
    for _ in range(24):
        part = {"p": r.choice(["eu", "us", None]), "q": r.choice([None, date(2024, 1, 1 + r.randint(0, 5))])}
        rows = [{**_row(r), **part} for _ in range(r.randint(1, 3))]
        deltalake.write_deltalake(
            root, pa.Table.from_pylist(rows, SCHEMA), mode="append", partition_by=["p", "q"]
        )
        written.append(rows)
    adds, schema = [], None
    for commit in sorted((root / "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        adds += [Add.from_dict(line["add"]) for line in lines if "add" in line]
        schema = next((line["metaData"]["schemaString"] for line in lines if "metaData" in line), schema)
    assert len(adds) == len(written)
    return schema, list(zip(adds, written, strict=True))


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    make_packs_small(monkeypatch, 8)
    return Database.open(parse_address(f"deltasql://sqlite/{tmp_path}/c.db"))


@pytest.mark.parametrize("layout", ["recent", "packed", "mixed"])
def test_files_of_delta_rs_are_pruned_without_losing_a_row(
    lake: Any, database: Database, tmp_path: Path, layout: str
) -> None:
    given, files_of = lake
    schema = parse_schema(given)
    made = Bench.make(
        database,
        "t",
        str(tmp_path / "t"),
        metadata_=metadata(schema_string=given, partition_columns=("p", "q")),
        adds=(),
    )
    table_id = made.open().table.table_id
    for number, (add, _) in enumerate(files_of):
        made.commit(info("WRITE"), add)
        if layout == "mixed" and number == len(files_of) // 2:
            packs.pack_if_due(database, table_id, at_least=1)
    if layout == "packed":
        packs.pack_if_due(database, table_id, at_least=1)
    recent = {"recent": len(files_of), "packed": 0, "mixed": len(files_of) // 2 - 1}
    assert len(recent_ids(database, table_id)) == recent[layout]
    opened = made.open()
    places = {add.path: number for number, (add, _) in enumerate(files_of)}
    judge = duckdb.connect()
    judge.execute("SET TimeZone = 'UTC'")
    numbered = [{"file": n, **row} for n, (_, rows) in enumerate(files_of) for row in rows]
    judge.register("rows", pa.Table.from_pylist(numbered, pa.schema([("file", pa.int64()), *SCHEMA])))
    r = random.Random(12)
    pruned = 0
    for template in PREDICATES * 2:
        text = re.sub(r"\{(\w)\}", lambda m: _literal(m[1], r, numbered), template)
        found = files.scan_files(database, opened, ["path"], where=parse_predicate(text, schema))
        kept = {places[path] for path in found.column("path").to_pylist()}
        assert len(kept) == found.num_rows
        matching = {n for (n,) in judge.execute(f"SELECT DISTINCT file FROM rows WHERE {text}").fetchall()}
        assert matching <= kept, (text, [files_of[n] for n in matching - kept])
        pruned += len(files_of) - len(kept)
    assert pruned > len(files_of) * len(PREDICATES) // 2
