"""One Spark session for a whole test run, or why there is none; and rows as Spark reads them."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections import Counter
from contextlib import contextmanager
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.spark import session
from deltalakedb.spark.jars import check_java, check_versions, find_jars
from deltalakedb.spark.logstore import CLASS, JAR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

#: for sessions of programs that tests start
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("spark_conf")))


@cache
def missing_reason() -> str | None:
    """Why Spark's tests cannot run here, in one line; None where they can. Nothing is fetched."""
    try:
        check_versions()
        check_java()
        find_jars()
    except DeltaSqlError as error:
        return " ".join(str(error).split())
    return None


def start(folder: Path) -> Any:
    """A small session that keeps its own files in a folder."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # the log store is for tests that switch it on
    config = {**quick_settings(folder), "spark.jars": str(JAR)}
    return session("local[2]", app_name="deltalakedb-tests", config=config)


def quick_settings(folder: Path) -> dict[str, str]:
    """Settings of a session that runs many small queries once and keeps its own files in a folder."""
    return {
        "spark.driver.memory": "1g",
        # the small cache of the quick compiler fills up, and everything after is interpreted; a collector
        # with threads of its own takes the cores that the tests need
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -XX:TieredStopAtLevel=1 "
        "-XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xmn400m",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        # compiling such plans takes longer than interpreting them
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }


def attached(port: int, secret: str) -> Any:
    """A driver in this process over the Java of another, for a child that would need its own otherwise."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = gateway.jvm.JavaSparkContext.fromSparkContext(running)
    conf = SparkConf(_jconf=context.sc().conf())
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf))


def plain(value: Any) -> Any:
    """A value as every reader spells it."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, dt.datetime):
        return ("utc" if value.tzinfo else "local", value.replace(tzinfo=None).isoformat())
    return value


def rows(table: pa.Table) -> Counter[str]:
    """The rows of a table in no order."""
    return Counter(repr(plain(row)) for row in table.to_pylist())


def read(spark: Any, root: Path, **options: Any) -> pa.Table:
    """What delta-spark reads in a folder, past anything it remembers of it."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    reader = spark.read.format("delta")
    for key, value in options.items():
        reader = reader.option(key, value)
    found: pa.Table = reader.load(str(root)).toArrow()
    return found


def read_versions(spark: Any, root: Path, versions: Iterable[int]) -> dict[int, pa.Table]:
    """What delta-spark reads at some versions, in one job for all of the same schema."""
    return _read_at(spark, root, {version: ("versionAsOf", version) for version in versions})


def read_moments(spark: Any, root: Path, moments: dict[int, str]) -> dict[int, pa.Table]:
    """What delta-spark reads at the moments of some versions, as ``read_versions`` does."""
    return _read_at(spark, root, {version: ("timestampAsOf", text) for version, text in moments.items()})


def _read_at(spark: Any, root: Path, options: dict[int, tuple[str, Any]]) -> dict[int, pa.Table]:
    from pyspark.sql import functions as f

    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    alike: dict[str, dict[int, Any]] = {}
    for version, (key, value) in options.items():
        frame = spark.read.format("delta").option(key, value).load(str(root))
        alike.setdefault(frame.schema.json(), {})[version] = frame
    found = {}
    for frames in alike.values():
        marked = [frame.withColumn("_read_at", f.lit(version)) for version, frame in frames.items()]
        whole = reduce(lambda a, b: a.union(b), marked).toArrow()
        for version in frames:
            found[version] = whole.filter(pc.field("_read_at") == version).drop_columns(["_read_at"])
    return found


@contextmanager
def committing(spark: Any, url: str, token_file: Path, *, patience: int = 60) -> Iterator[None]:
    """Let the run's session commit through a service, as a session that was configured for it would.

    What a builder would set is set in the running session, past its doors; Delta reads it for every new log.
    """
    settings, hadoop = spark.sparkContext._jsc.sc().conf(), spark.sparkContext._jsc.hadoopConfiguration()
    forget = spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache
    chosen = {
        "deltalakedb.service": url,
        "deltalakedb.service.token.file": str(token_file),
        "deltalakedb.service.patience.seconds": str(patience),
    }
    settings.set("spark.delta.logStore.class", CLASS)
    spark.conf.set("spark.delta.logStore.class", CLASS)
    for key, value in chosen.items():
        hadoop.set(key, value)
    forget()
    try:
        yield
    finally:
        settings.remove("spark.delta.logStore.class")
        spark.conf.unset("spark.delta.logStore.class")
        for key in chosen:
            hadoop.unset(key)
        forget()
