"""Random conditions, and a table of a few files with close bounds to ask them of."""

from __future__ import annotations

import datetime as dt
import os
import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

#: conditions drawn at a time; `HYPOTHESIS_PROFILE=explore` draws many more, and others in every run
DRAWN = 1500 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 60
SEED = random.SystemRandom().randrange(2**32) if DRAWN > 60 else 7
NAN, INF = float("nan"), float("inf")

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
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        return self.prefix + self.random.choice((*[name] * 8, name.upper(), quoted))

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
