"""Plans never lose a row: random tables, layouts and predicates against brute force, on real catalogs.

Two judges: `FileFilter` over the exact statistics of every live file, below which no plan may fall, and rows
that the files would hold. Files are partly recent, partly packed, in packs of a few files, merged, or without
columns, while the planner is asked.
"""

from __future__ import annotations

import json
import math
import random
import struct
import threading
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.address import parse_address
from deltalakedb.metastore import files
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import packs
from deltalakedb.protocol import partition
from deltalakedb.protocol.actions import Add, DeletionVector, Remove
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
    to_physical,
)
from deltalakedb.protocol.schema import column_types, parse_schema
from deltalakedb.protocol.skipping import FileFilter
from deltalakedb.protocol.stats import parse_stats
from support.actions import info, metadata, protocol
from support.commits import Bench
from support.packs import drop_columns, make_packs_small, packs_of, recent_ids
from support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deltalakedb.protocol.actions import Action, Metadata

#: leaf columns by path: every type, nested ones, and more than the 16 that once had a slot
KINDS = {
    ("n",): "long",
    ("i",): "integer",
    ("h",): "short",
    ("y",): "byte",
    ("f",): "double",
    ("g",): "float",
    ("m",): "decimal(10,2)",
    ("w",): "decimal(38,10)",
    ("t",): "string",
    ("d",): "date",
    ("z",): "timestamp",
    ("zn",): "timestamp_ntz",
    ("b",): "boolean",
    ("bin",): "binary",
    ("s", "a"): "long",
    ("s", "t"): "string",
    ("s", "deep", "x"): "double",
    **{(f"c{n}",): "long" for n in range(3)},
}
PARTS = {
    ("p",): "date",
    ("q",): "string",
    ("r",): "long",
    ("x",): "double",
    ("u",): "decimal(5,2)",
    ("l",): "decimal(38,10)",
    ("v",): "boolean",
    ("k",): "timestamp",
}
ALL = {**KINDS, **PARTS}
VERSIONS = 8


def _single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Values:
    """Random values, most of them close to each other so that predicates hit."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)

    def of(self, kind: str) -> Any:
        r = self.r
        match kind:
            case "long" | "integer" | "short" | "byte":
                big = {"long": 2**63, "integer": 2**31, "short": 2**15, "byte": 2**7}[kind]
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
            case "binary":
                return bytes(r.choice(b"\0ab\xff") for _ in range(r.randint(0, 12)))
            case _:
                return r.random() < 0.5

    def maybe(self, kind: str, nulls: float = 0.2) -> Any:
        return None if self.r.random() < nulls else self.of(kind)


def _key(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@dataclass
class File:
    """A file with its rows; ``lies`` says that its statistics contradict them or themselves."""

    add: Add
    rows: list[dict[Any, Any]]
    lies: bool = False


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


def _put(group: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        group = group.setdefault(name, {})
    group[path[-1]] = value


def _stats(rows: list[dict[Any, Any]], names: Names, r: random.Random) -> tuple[str | None, bool]:
    """Statistics as one of several writers would write them, and whether they are wrong."""
    if r.random() < 0.05:
        return r.choice([None, "", "{}"]), False
    out: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    lies = False
    if r.random() < 0.05:
        del out["numRecords"]
    if r.random() < 0.2:
        out["tightBounds"] = False
    for path, kind in KINDS.items():
        there = names.physical(path)
        values = [row[path] for row in rows if row[path] is not None]
        if r.random() < 0.9:
            _put(out["nullCount"], there, len(rows) - len(values))
        if kind == "binary":
            continue
        finite = [v for v in values if v == v]
        if not finite or r.random() < 0.05:
            continue
        low, high = min(finite, key=_key), max(finite, key=_key)
        if any(isinstance(v, float) and math.isinf(v) for v in (low, high)):
            continue
        bounds = [_stat(low, kind, top=False, r=r), _stat(high, kind, top=True, r=r)]
        if r.random() < 0.01:  # contradictions, and values that no reader understands
            lies = True
            bounds = r.choice([bounds[::-1], ["nonsense", 10**30], [None, {}], [[], True]])
        if r.random() < 0.95:
            _put(out["minValues"], there, bounds[0])
        if r.random() < 0.95:
            _put(out["maxValues"], there, bounds[1])
    if r.random() < 0.03:
        lies = True
        out["numRecords"] = r.choice([0, -1, 10**20, 0.5])
    return json.dumps(out), lies


def _spelled(value: Any, kind: str, r: random.Random) -> str | None:
    if r.random() < 0.04:  # what another writer, or a bug, may have written
        return r.choice(["", "abc", "1e3", " 1", "+12345-01-01", "-0005-01-01", "NaN", "x\0z", "1.50", "00"])
    text = partition.serialize(value, kind)
    if text is None:
        return r.choice([None, ""])
    if kind.startswith("decimal") and r.random() < 0.5:
        return str(value.normalize()) if "E" not in str(value.normalize()) else text
    if kind == "double" and value == int(value) if kind == "double" and math.isfinite(value) else False:
        return r.choice([text, f"{value:.1f}"])
    return text


class Names:
    """Names of columns in the log: their own, or those of column mapping."""

    def __init__(self, *, mapped: bool) -> None:
        self._mapped = mapped

    def physical(self, path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"col-{name}" for name in path) if self._mapped else path

    def metadata(self) -> Metadata:
        tree: dict[str, Any] = {}
        for path, kind in ALL.items():
            _put(tree, path, kind)
        settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"}
        return metadata(
            schema_string=json.dumps(self._struct(tree, [0])),
            partition_columns=tuple(path[0] for path in PARTS),
            configuration=settings if self._mapped else {},
        )

    def _struct(self, tree: dict[str, Any], last: list[int]) -> dict[str, Any]:
        fields = []
        for name, kind in tree.items():
            last[0] += 1
            given = {"delta.columnMapping.id": last[0], "delta.columnMapping.physicalName": f"col-{name}"}
            type_ = self._struct(kind, last) if isinstance(kind, dict) else kind
            fields.append(
                {"name": name, "type": type_, "nullable": True, "metadata": given if self._mapped else {}}
            )
        return {"type": "struct", "fields": fields}


def _file(number: int, values: Values, names: Names) -> File:
    r = values.r
    parts = {path: values.maybe(kind, 0.1) for path, kind in PARTS.items()}
    parts["q",] = parts["q",] or None  # an empty text is null
    fixed = {path: values.maybe(kind) for path, kind in KINDS.items()}
    rows = []
    for _ in range(r.randint(1, 4)):
        row = {path: fixed[path] if r.random() < 0.5 else values.maybe(kind) for path, kind in KINDS.items()}
        rows.append({**row, **parts})
    for path in KINDS:
        if r.random() < 0.08:
            for row in rows:
                row[path] = None
    texts = {names.physical(path)[0]: _spelled(v, PARTS[path], r) for path, v in parts.items()}
    honest = {names.physical(path)[0]: partition.serialize(v, PARTS[path]) for path, v in parts.items()}
    stats, lies = _stats(rows, names, r)
    for name, text in texts.items():
        if text != honest[name] and (text or honest[name]):
            kind = next(kind for path, kind in PARTS.items() if names.physical(path)[0] == name)
            try:
                lies |= partition.parse(text, kind) != partition.parse(honest[name], kind)
            except Exception:
                lies = True
    path = f"day=a%20b/f{number}" if number % 5 == 0 else f"f{number}"
    add = Add(path=path, size=1, modification_time=0, data_change=True, stats=stats, partition_values=texts)
    return File(add, rows, lies)


def _vector(number: int) -> DeletionVector:
    return DeletionVector.from_dict(
        {"storageType": "i", "pathOrInlineDv": f"v{number:019}", "sizeInBytes": 40, "cardinality": 1}
    )


def _remove(add: Add) -> Remove:
    return Remove(path=add.path, deletion_timestamp=1, data_change=True, deletion_vector=add.deletion_vector)


@dataclass
class Lake:
    """A table in a catalog, and a model of it."""

    bench: Bench
    names: Names
    #: the live files of every version by key
    live: list[dict[Any, File]]

    @classmethod
    def make(cls, database: Database, folder: Path, seed: int, count: int, *, mapped: bool) -> Lake:
        """Versions that add, remove, re-add and mark deleted rows; packers run in between."""
        values, names = Values(seed), Names(mapped=mapped)
        r = values.r
        given = {
            "min_reader_version": 3,
            "min_writer_version": 7,
            "reader_features": ("deletionVectors", "timestampNtz", "columnMapping"),
            "writer_features": ("deletionVectors", "timestampNtz", "columnMapping"),
        }
        made = Bench.make(
            database, "t", str(folder / "t"), protocol_=protocol(**given), metadata_=names.metadata(), adds=()
        )
        # a neighbour that must never appear
        Bench.make(database, "u", str(folder / "u"), adds=None)
        table_id, live = made.open().table.table_id, [{}]
        gone: list[File] = []
        for version in range(1, VERSIONS + 1):
            now = dict(live[-1])
            actions: list[Action] = []
            for key in r.sample(sorted(now), k=min(len(now), r.randint(0, 4))):
                file = now.pop(key)
                actions.append(_remove(file.add))
                if r.random() < 0.4:  # some of its rows are deleted: the same file with a deletion vector
                    marked = replace(file.add, deletion_vector=_vector(version * 100 + len(actions)))
                    new = File(marked, file.rows, file.lies)
                    now[marked.key] = new
                    actions.append(marked)
                else:
                    gone.append(file)
            many = count // VERSIONS if version % 3 else count // VERSIONS * 2
            added = [_file(version * 1000 + n, values, names) for n in range(many)]
            back = [f for f in gone if f.add.key not in now and r.random() < 0.3]
            for file in {f.add.key: f for f in (*added, *back)}.values():
                if not any(isinstance(a, Remove) and a.key == file.add.key for a in actions):
                    now[file.add.key] = file
                    actions.append(file.add)
            made.commit(info("WRITE"), *actions)
            live.append(now)
            change = r.choice(["pack", "pack", "rebuild", "drop", None, None])
            if change == "pack":
                packs.pack_if_due(database, table_id, at_least=1)
            elif change == "rebuild":
                packs.rebuild(database, table_id)
            elif change == "drop":
                drop_columns(database, table_id)
        return cls(made, names, live)

    @property
    def rows(self) -> list[dict[Any, Any]]:
        return [row for version in self.live for file in version.values() for row in file.rows]

    def check(self, expr: Any, version: int) -> tuple[int, int]:
        """Compare a plan with both judges; files of the version, and those of the plan."""
        opened = self.bench.open(version)
        found = files.scan_files(
            self.bench.database, opened, ["path", "dv_id", "file_id", "partition_values"], where=expr
        )
        ids = found.column("file_id").to_pylist()
        assert ids == sorted(set(ids)), "every file once, by id"
        assert {i >> 40 for i in ids} <= {opened.table.table_id}
        keys = {
            Add(path=p, partition_values={}, size=0, modification_time=0, data_change=True).key[0] + "|" + d
            for p, d in zip(found.column("path").to_pylist(), found.column("dv_id").to_pylist(), strict=True)
        }
        assert len(keys) == len(ids)
        schema = parse_schema(opened.snapshot.metadata.schema_string)
        judge = FileFilter(to_physical(expr, schema), column_types(schema))
        alive = {"|".join(key): file for key, file in self.live[version].items()}
        wanted = {
            k for k, f in alive.items() if judge.may_match(parse_stats(f.add.stats), f.add.partition_values)
        }
        assert keys <= alive.keys()
        assert wanted <= keys, (expr, [alive[k].add for k in wanted - keys])
        if not _columns(expr) & KINDS.keys():
            assert wanted == keys, ("only partitions", expr, [alive[k].add for k in keys - wanted])
        if not _has_unknown(expr):
            for key, file in alive.items():
                if key in keys or file.lies:
                    continue
                matching = any(_holds(expr, row, spark=s) is True for row in file.rows for s in (True, False))
                assert not matching, (expr, file.rows, file.add)
        return len(alive), len(keys)


def _predicate(
    values: Values, pool: Sequence[dict[Any, Any]], columns: Sequence[tuple[str, ...]], depth: int = 0
) -> Any:
    r = values.r
    if depth < 3 and r.random() < (0.75 if depth == 0 else 0.4):
        kind = r.choice([And, And, Or, Not])
        if kind is Not:
            return Not(_predicate(values, pool, columns, depth + 1))
        return kind(tuple(_predicate(values, pool, columns, depth + 1) for _ in range(r.randint(2, 3))))
    column = r.choice(columns)
    kind = ALL[column]

    def literal() -> Any:
        value = r.choice(pool)[column]
        return value if value is not None and r.random() < 0.7 else values.of(kind)

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
        case IsNull(name):
            return row[name] is None
        case StartsWith(name, prefix):
            return None if row[name] is None else row[name].startswith(prefix)
        case In(column, values):
            return _holds(Or(tuple(Compare(column, "=", v) for v in values)), row, spark=spark)
        case Compare(name, "<=>", value):
            if row[name] is None or value is None:
                return row[name] is value
            return _holds(Compare(name, "=", value), row, spark=spark)
        case Compare(name, op, value):
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


def _columns(expr: Any) -> set[Any]:
    match expr:
        case And(operands) | Or(operands):
            return set().union(*map(_columns, operands))
        case Not(inner):
            return _columns(inner)
        case Constant():
            return set()
        case Unknown():
            return set(KINDS)
    return {expr.column}


@pytest.fixture
def database(catalog_uri: str, monkeypatch: pytest.MonkeyPatch) -> Database:
    make_packs_small(monkeypatch)
    return Database.open(parse_address(catalog_uri))


def _judge(lake: Lake, seed: int, many: int) -> tuple[int, int]:
    values, pool = Values(1000 + seed), lake.rows
    judged = kept = 0
    for number in range(many):
        columns = list(PARTS) if number % 5 == 0 else list(ALL)
        columns = [values.r.choice(list(PARTS))] if number % 10 == 5 else columns
        version = values.r.choice([VERSIONS, VERSIONS, values.r.randint(0, VERSIONS)])
        counts = lake.check(_predicate(values, pool, columns), version)
        judged, kept = judged + counts[0], kept + counts[1]
    return judged, kept


# one table on the other engines, which differ in SQL alone
@pytest.mark.parametrize(
    ("engine_name", "seed"), [("sqlite", 0), ("sqlite", 1), ("sqlite", 2), ("duckdb", 3), ("postgres", 4)]
)
def test_no_matching_row_is_ever_lost(
    engine_name: str, seed: int, database: Database, tmp_path: Path
) -> None:
    many = 60 if engine_name == "sqlite" else 20
    lake = Lake.make(database, tmp_path, seed, 64, mapped=seed % 2 == 1)
    table_id = lake.bench.open().table.table_id
    judged, _ = _judge(lake, seed, many)  # as it came: partly packed, merged, recent, without columns
    packs.pack_if_due(database, table_id, at_least=1)
    packs.rebuild(database, table_id)
    assert not recent_ids(database, table_id)
    assert len(packs_of(database, table_id)) > 3
    packed = _judge(lake, seed, many)  # the same predicates
    assert packed[0] == judged
    assert packed[1] < judged * 0.8, "it does prune"
    drop_columns(database, table_id)
    blind = _judge(lake, seed, 10)
    assert blind[1] >= packed[1] * 10 // many // 2


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_recent_and_packed_files_are_judged_alike(database: Database, tmp_path: Path) -> None:
    """Packs may be less sharp, but not by much, or packing would make plans worse."""
    lake = Lake.make(database, tmp_path, 17, 64, mapped=False)
    table_id = lake.bench.open().table.table_id
    packs.rebuild(database, table_id)
    values, pool, kept, wanted = Values(99), lake.rows, 0, 0
    opened = lake.bench.open()
    schema = parse_schema(opened.snapshot.metadata.schema_string)
    for _ in range(40):
        expr = _predicate(values, pool, list(ALL))
        kept += lake.check(expr, VERSIONS)[1]
        judge = FileFilter(to_physical(expr, schema), column_types(schema))
        wanted += sum(
            judge.may_match(parse_stats(f.add.stats), f.add.partition_values) for f in lake.live[-1].values()
        )
    assert wanted <= kept <= wanted * 1.25 + 20


def test_a_packer_beside_the_planner(database: Database, tmp_path: Path) -> None:
    lake = Lake.make(database, tmp_path, 23, 48, mapped=False)
    table_id, end, failed = lake.bench.open().table.table_id, threading.Event(), []

    def pack() -> None:
        try:
            while not end.is_set():
                packs.pack_if_due(database, table_id, at_least=1)
                packs.merge_packs(database, table_id)
                packs.rebuild(database, table_id)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=pack)
    thread.start()
    try:
        _judge(lake, 23, 20)
    finally:
        end.set()
        thread.join()
    assert not failed


def pack_on(uri: str, table_id: int, rounds: int) -> None:
    """Pack, merge and rebuild in another process, with sizes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        make_packs_small(patch, 32)
        database = Database.open(parse_address(uri))
        for _ in range(rounds):
            packs.pack_if_due(database, table_id, at_least=1)
            packs.merge_packs(database, table_id)
            packs.rebuild(database, table_id)


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_a_packer_in_another_process(database: Database, catalog_uri: str, tmp_path: Path) -> None:
    lake = Lake.make(database, tmp_path, 29, 48, mapped=True)
    child = Child(pack_on, catalog_uri, lake.bench.open().table.table_id, 8, folder=tmp_path)
    _judge(lake, 29, 20)
    child.result()
    _judge(lake, 31, 5)
