"""Conditions never leave out a file with a row that Spark finds them true for, whatever the settings.

Random conditions are judged by Spark over all rows, many in one query, and compared with the files that the
catalog picks. The same conditions are drawn in every run; `HYPOTHESIS_PROFILE=explore` draws many more.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, write_deltalake
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.spark.expressions import condition_of, target_condition
from deltalakedb.table.handle import require_handle
from support.conditions import DRAWN, SEED, Draw, files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    snapshot = require_handle(table).source.snapshot
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
                    adds = require_handle(table).source.adds(where)
                    picked = {decode_json(add.stats)["minValues"]["fid"] for add in adds}
                    pruned += len(picked) < 12
                    assert wanted <= picked, (SEED, name, text, where, sorted(wanted - picked))
                asked += 1
    assert asked > 0.3 * DRAWN * len(SESSIONS)
    assert pruned > 0.1 * asked
