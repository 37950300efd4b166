"""Random changes by Spark through the catalog come out as the same changes on a plain Delta table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb import Catalog
from deltalakedb.spark import delete, merge, optimize, update, write
from support.spark_twins import SparkTwins

NUMBERS = st.integers(0, 40)
CONDITIONS = st.one_of(
    st.builds("id < {}".format, NUMBERS),
    st.builds("p = {} AND v > {}".format, st.integers(0, 3), NUMBERS),
    st.builds("s = 'text {}' OR id % 7 = 1".format, NUMBERS),
    st.builds("p IN (0, {}) AND s IS NOT NULL".format, st.integers(1, 3)),
)
SOURCES = st.builds(
    (
        "SELECT id, id AS v, if(id % 5 = 0, NULL, 'merged') AS s, CAST(id % 4 AS INT) AS p FROM range({}, {})"
    ).format,
    NUMBERS,
    st.integers(20, 50),
)
CLAUSES = st.lists(
    st.sampled_from(
        [
            "WHEN MATCHED AND source.v % 2 = 0 THEN DELETE",
            "WHEN MATCHED THEN UPDATE SET *",
            "WHEN NOT MATCHED AND source.id > 30 THEN INSERT *",
            "WHEN NOT MATCHED BY SOURCE AND target.id < 5 THEN UPDATE SET v = -1",
        ]
    ),
    min_size=1,
    unique=True,
).map(sorted)
OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), SOURCES, st.none()),
    st.tuples(st.just("update"), CONDITIONS, st.none()),
    st.tuples(st.just("delete"), CONDITIONS, st.none()),
    st.tuples(st.just("merge"), SOURCES, CLAUSES),
    st.tuples(st.just("optimize"), st.just(""), st.none()),
)
ON = "target.id = source.id AND target.p < 3"


def ours(twins: SparkTwins, kind: str, text: str, clauses: list[str] | None) -> None:
    spark = twins.spark
    if kind == "insert":
        write(spark.sql(text), twins.uri, mode="append")
    elif kind == "update":
        update(spark, twins.uri, {"v": "v + 100", "s": "upper(s)"}, text)
    elif kind == "delete":
        delete(spark, twins.uri, text)
    elif kind == "optimize":
        optimize(spark, twins.uri)
    else:
        builder = merge(spark, twins.uri, spark.sql(text), ON)
        for clause in clauses or ():
            if "DELETE" in clause:
                builder = builder.whenMatchedDelete("source.v % 2 = 0")
            elif "INSERT" in clause:
                builder = builder.whenNotMatchedInsertAll("source.id > 30")
            elif "BY SOURCE" in clause:
                builder = builder.whenNotMatchedBySourceUpdate("target.id < 5", set={"v": "-1"})
            else:
                builder = builder.whenMatchedUpdateAll()
        builder.execute()


def theirs(twins: SparkTwins, kind: str, text: str, clauses: list[str] | None) -> None:
    if kind == "insert":
        twins.spark.sql(text).write.format("delta").mode("append").save(str(twins.plain))
    elif kind == "update":
        twins.by_sql(f"UPDATE {{}} SET v = v + 100, s = upper(s) WHERE {text}")
    elif kind == "delete":
        twins.by_sql(f"DELETE FROM {{}} WHERE {text}")
    elif kind == "optimize":
        twins.by_sql("OPTIMIZE {}")
    else:
        twins.by_sql(f"MERGE INTO {{}} AS target USING ({text}) AS source ON {ON} {' '.join(clauses or ())}")


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(vectors=st.booleans(), operations=st.lists(OPERATIONS, min_size=3, max_size=3))
def test_random_changes_equal_those_of_a_plain_table(
    spark: Any, vectors: bool, operations: list[tuple[str, str, list[str] | None]]
) -> None:
    properties = {"delta.enableDeletionVectors": str(vectors).lower()}
    with (
        tempfile.TemporaryDirectory() as folder,
        Catalog(f"deltasql://sqlite/{folder}/catalog.db") as catalog,
    ):
        twins = SparkTwins.make(spark, catalog, Path(folder), "t", properties)
        for kind, text, clauses in operations:
            ours(twins, kind, text, clauses)
            theirs(twins, kind, text, clauses)
        twins.check()
