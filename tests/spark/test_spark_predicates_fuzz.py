"""Conditions never leave out a file with a row that Spark finds them true for, whatever the settings.

Random conditions are judged by Spark over all rows, many in one query, and compared with the files that the
catalog picks. The same conditions are drawn in every run; `HYPOTHESIS_PROFILE=explore` draws many more.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.protocol.codec import decode_json
from deltalakedb.spark.conditions import condition_of, target_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: conditions drawn for each kind of session
DRAWN = 1500 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 60
SEED = random.SystemRandom().randrange(2**32) if DRAWN > 60 else 7
NAN, INF = float("nan"), float("inf")

SESSIONS: dict[str, dict[str, str]] = {
    "lenient": {},
    "ansi": {"spark.sql.ansi.enabled": "true"},
    "berlin": {"spark.sql.session.timeZone": "Europe/Berlin"},
    "names in double quotes": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.session.timeZone": "America/Los_Angeles",
    },
    "escaped texts": {"spark.sql.parser.escapedStringLiterals": "true"},
    "times as texts": {"spark.sql.legacy.typeCoercion.datetimeToString.enabled": "true"},
    "no variables": {"spark.sql.variable.substitute": "false", "spark.sql.caseSensitive": "true"},
}
LENIENT = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "fuzz.x": "5",
    "fuzz.y": "a",
}

COLUMNS = (
    "id",
    "i",
    "s",
    "a",
    "x",
    "f",
    "price",
    "wide",
    "day",
    "at",
    "local",
    "ok",
    "n.v",
    "pd",
    "pt",
    "ps",
)
NUMBERS = (
    *(
        "0",
        "1",
        "-1",
        "3",
        "5",
        "5.0",
        "5.5",
        "0.1",
        "-0.0",
        "1e0",
        "5e-1",
        "44",
        "300",
        "2147483648",
        "1.004",
    ),
    *(
        "4294967301",
        "9007199254740993",
        "0.0000000000000000000000000000000001",
        "1.50",
        "99999999.995",
        "16777217",
    ),
)
TEXTS = (
    *(
        "'s'",
        "'a'",
        "'5'",
        "'05'",
        "'5.0'",
        "''",
        "'NaN'",
        "'true'",
        "'id'",
        "'%'",
        "'a_b'",
        "'1e0'",
        "'x y'",
    ),
    *(
        '"s"',
        '"a"',
        '"id"',
        '"5"',
        "'${fuzz.x}'",
        "'${fuzz.y}'",
        "'\\u0061'",
        "'a\\tb'",
        "'it''s'",
        "'a' 'b'",
        "r'a'",
    ),
)
TIMES = (
    *("'2024-01-05'", "DATE '2024-01-05'", "TIMESTAMP '2024-01-05 00:00:00'", "'2024-01-05T00:00:00'"),
    *("'2024-01-05 00:00:00'", "TIMESTAMP '2024-01-05 00:00:00Z'", "'2024-01-04 23:00:00'", "'2024-1-5'"),
    *("TIMESTAMP_NTZ '2024-01-05 00:00:00'", "'2024-01-05 00:00'", "'2024-01-05T00:00:00+01:00'"),
)
OTHERS = ("NULL", "TRUE", "FALSE", "X'61'", "${fuzz.x}", "double('NaN')", "current_date()")
INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
TYPES = (
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE", "FLOAT", "STRING", "DATE", "TIMESTAMP", "BOOLEAN"),
    *("DECIMAL(3,1)", "DECIMAL(10,2)", "DECIMAL(38,18)"),
)
OPS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>")


class Draw:
    """Conditions by chance, most of them of columns and literals that have to do with each other."""

    def __init__(self, seed: int, prefix: str = "") -> None:
        self.random = random.Random(seed)
        self.prefix = prefix

    def literal(self, column: str = "") -> str:
        pool = self.random.choice((NUMBERS, TEXTS, TIMES, OTHERS))
        if self.random.random() < 0.8:
            name = column.removeprefix(self.prefix).replace("`", "").lower()
            pool = TEXTS if name in ("s", "a", "ps") else NUMBERS
            pool = TIMES if name in ("day", "at", "local", "pt") else pool
        text = self.random.choice(pool)
        if self.random.random() < 0.3:
            kinds = INTEGERS if pool is NUMBERS and self.random.random() < 0.6 else TYPES
            form = self.random.choice(("CAST({} AS {})", "TRY_CAST({} AS {})", "{}::{}"))
            return form.format(text, self.random.choice(kinds))
        return f"-{text}" if text in NUMBERS and text[0] != "-" and self.random.random() < 0.1 else text

    def column(self) -> str:
        name = self.random.choice(COLUMNS)
        forms: tuple[Callable[[str], str], ...] = (
            str.upper,
            lambda n: ".".join(f"`{p}`" for p in n.split(".")),
        )
        return self.random.choice((*[str] * 8, *forms))(name)

    def atom(self) -> str:
        column = self.column()
        literal = self.literal(column)
        return self.random.choice(
            (
                *[f"{column} {self.random.choice(OPS)} {literal}"] * 8,
                f"{literal} {self.random.choice(OPS)} {column}",
                f'"{self.random.choice(("s", "a", "ps"))}" {self.random.choice(OPS)} {self.literal("s")}',
                f"{column} IN ({', '.join(self.literal(column) for _ in range(self.random.randint(1, 3)))})",
                f"{column} NOT IN ({literal}, {self.literal(column)})",
                f"{column} NOT IN ({literal})",
                f"{column} BETWEEN {literal} AND {self.literal(column)}",
                f"{column} LIKE {self.random.choice(TEXTS)}",
                f"{column} NOT LIKE 'a%'",
                f"{column} LIKE 'a|%%' ESCAPE '|'",
                f"startswith({column}, 'a')",
                f"{column} IS {self.random.choice(('', 'NOT '))}NULL",
                f"{column} IS DISTINCT FROM {literal}",
                f"CAST({column} AS {self.random.choice(TYPES)}) = {literal}",
                f"{column} + 1 > {literal}",
                f"coalesce({column}, {literal}) = {literal}",
                f"{column} = {literal} -- and {column}",
                f"{column} = /* {column} */ {literal}",
                f"{self.prefix}ok",
            )
        )

    def conditions(self) -> list[str]:
        return [self.condition() for _ in range(DRAWN)]

    def condition(self, depth: int = 0) -> str:
        roll = self.random.random()
        if depth > 2 or roll < 0.5:
            return self.atom()
        if roll < 0.62:
            return f"NOT ({self.condition(depth + 1)}\n)"
        word = self.random.choice(("AND", "OR"))
        return f"({self.condition(depth + 1)}\n) {word} ({self.condition(depth + 1)}\n)"


def files() -> Iterator[pa.Table]:
    """Tables of a few rows each, whose bounds lie close together."""
    day = dt.datetime(2024, 1, 1)
    doubles = [-0.0, 0.0, 0.1, 5.0, 5.5, NAN, INF, -5.0, 44.0, 1e30, float("nan"), 1.0]
    texts = ["a", "s", "id", "5", "", "x y", "a_b", "ab", "NaN", "z" * 40, "5.0", "it's"]
    for k in range(12):
        moment = day + dt.timedelta(days=k) - dt.timedelta(hours=(k % 3) - 1)
        size = 2
        yield pa.table(
            {
                "fid": pa.array([k] * size, pa.int64()),
                "id": pa.array([k, 44 if k == 4 else k], pa.int64()),
                "i": pa.array([k, None if k % 2 else k], pa.int32()),
                "s": pa.array([texts[k], texts[k]], pa.string()),
                "a": pa.array([texts[-k], None], pa.string()),
                "x": pa.array([doubles[k], doubles[k] if k % 4 else NAN], pa.float64()),
                "f": pa.array([0.1 * k, 0.1 * k], pa.float32()),
                "price": pa.array([Decimal(k) / 2, Decimal("1.50")], pa.decimal128(10, 2)),
                "wide": pa.array([Decimal("1.004") + k, Decimal(k)], pa.decimal128(38, 18)),
                "day": pa.array([moment.date(), moment.date()], pa.date32()),
                "at": pa.array([moment.replace(tzinfo=dt.UTC)] * size, pa.timestamp("us", "UTC")),
                "local": pa.array([moment] * size, pa.timestamp("us")),
                "ok": pa.array([k % 2 == 0, None], pa.bool_()),
                "n": pa.array([{"v": k}, {"v": None}], pa.struct([("v", pa.int64())])),
                "pd": pa.array([doubles[k]] * size, pa.float64()),
                "pt": pa.array([moment.replace(tzinfo=dt.UTC)] * size, pa.timestamp("us", "UTC")),
                "ps": pa.array([texts[k] or None] * size, pa.string()),
            }
        )


@contextmanager
def configured(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def holding(frame: Any, texts: list[str]) -> dict[str, set[int]]:
    """By condition, the files with rows that Spark finds it true for; without those that it refuses."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    tests = [f"coalesce((\n{text}\n), false) AS c{number}" for number, text in enumerate(texts)]
    try:
        rows = frame.selectExpr("fid", *tests).collect()
    except (PySparkException, Py4JJavaError):  # the second for bugs of Spark's optimizer
        if len(texts) == 1:
            return {}
        half = len(texts) // 2
        return holding(frame, texts[:half]) | holding(frame, texts[half:])
    return {text: {row[0] for row in rows if row[n + 1]} for n, text in enumerate(texts)}


def analysed(frame: Any, texts: list[str]) -> list[str]:
    """The conditions that Spark understands, which costs it less than to run them."""
    from pyspark.errors import PySparkException

    found = []
    for text in texts:
        try:
            _ = frame.where(f"(\n{text}\n)").schema
            found.append(text)
        except PySparkException:
            continue
    return found


@pytest.fixture(scope="module")
def judged(spark: Any) -> dict[str, dict[str, set[int]]]:
    """By session and condition, the files that hold rows for which Spark finds it true."""
    found = {}
    with configured(spark, LENIENT):
        frame = spark.createDataFrame(pa.concat_tables(files())).coalesce(1).cache()
        assert frame.count() == 24
    try:
        for number, (name, settings) in enumerate(SESSIONS.items()):
            texts = list(dict.fromkeys(Draw(SEED + number).conditions()))
            with configured(spark, LENIENT | settings):
                usable = analysed(frame, texts)
                found[name] = {}
                for start in range(0, len(usable), 40):
                    found[name] |= holding(frame, usable[start : start + 40])
    finally:
        frame.unpersist()
    return found


def test_every_file_is_picked_that_holds_a_row_for_which_spark_finds_a_condition_true(
    spark: Any, judged: dict[str, dict[str, set[int]]], table_uri: Callable[[str], str]
) -> None:
    uri = table_uri("fuzz")
    for data in files():
        write_deltalake(uri, data, mode="append", partition_by=["pd", "pt", "ps"])
    table: Any = DeltaTable(uri)
    snapshot = table._source.snapshot
    source = spark.sql("SELECT 1L AS id, 'a' AS s")
    asked = pruned = 0
    for number, (name, settings) in enumerate(SESSIONS.items()):
        of_target = zip(
            Draw(SEED + number).conditions(), Draw(SEED + number, "target.").conditions(), strict=True
        )
        with configured(spark, LENIENT | settings):
            for text, qualified in dict(of_target).items():
                if (wanted := judged[name].get(text)) is None:
                    continue  # Spark refuses it
                on = f"target.id = source.id AND ({qualified}\n)"
                alone = condition_of(spark, snapshot, text)
                merged = target_condition(spark, snapshot, on, source, ("target", "source"))
                for where in dict.fromkeys((alone, merged)):
                    if where is None:
                        continue  # every file is looked at
                    adds = table._source.adds(where)
                    picked = {decode_json(add.stats)["minValues"]["fid"] for add in adds}
                    pruned += len(picked) < 12
                    assert wanted <= picked, (SEED, name, text, where, sorted(wanted - picked))
                asked += 1
    assert asked > 0.3 * DRAWN * len(SESSIONS)
    assert pruned > 0.1 * asked
