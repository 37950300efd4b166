"""Spark sessions with Delta in them: made, or completed from a builder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalakedb.config import get_config
from deltalakedb.exceptions import (
    ArgumentTypeError,
    DeltaSqlError,
    InvalidArgumentError,
    MissingExtraError,
    SparkSetupError,
)
from deltalakedb.extras import available, require
from deltalakedb.spark.jars import fetch_jars, find_jars
from deltalakedb.spark.java import check_java
from deltalakedb.spark.local_server import serve
from deltalakedb.spark.reaching import check_master, check_server, one_line
from deltalakedb.spark.versions import check_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
#: What a session has unless its caller says otherwise.
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # INT96, the default, has no statistics in Parquet's footers
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # more than 32 paths would start a job only to list them, and the catalog has listed them already
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}


def session(
    master: str | None = None,
    *,
    app_name: str = "deltalakedb",
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    builder: SparkSession.Builder | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """A Spark session that reads and writes Delta: a new one, or the one that runs already.

    Args:
        master: Where Spark runs: ``local[*]`` by default, or a cluster's URL.
        app_name: The application's name.
        remote: A Spark Connect server (``sc://host:port``) instead of a driver in this process; its jars and
            settings are the server's own. ``local[*]`` starts one in this process, at a port that is free.
        config: Further settings of Spark, which go before ours.
        builder: A builder with settings of its own, to be completed.
        log_level: What Spark logs at least.

    Raises:
        MissingExtraError: PySpark or delta-spark is not installed.
        SparkSetupError: Java is missing or too old, another Spark is installed, Delta's jars cannot be had,
            the master or server does not answer, or the session that runs already has no Delta.

    Example:
        >>> spark = session("local[2]", config={"spark.driver.memory": "2g"})
        >>> spark.range(3).count()
        3
    """
    if master is not None and remote is not None:
        raise InvalidArgumentError(
            "a session has a master or a remote server, not both", suggestion="leave one of the two out"
        )
    check_versions()
    sql = require("pyspark.sql", "spark", "Spark")
    building = sql.SparkSession.builder if builder is None else builder
    building = building.appName(app_name)
    if remote is not None:
        check_connect(remote)
        settings = dict(config or {})
        if remote.startswith("local"):
            # the server takes the settings of a session
            check_java()
            prepare_workers()
            settings = _settings(dict(getattr(building, "_options", {})), settings)
            return _started(lambda: serve(remote, settings))
        building = building.remote(remote)
        for key, value in settings.items():
            building = building.config(key, value)
        return _started(building.getOrCreate)
    running = sql.SparkSession.getActiveSession()
    if running is None:
        if master is not None:
            check_master(master)
        check_java()
        prepare_workers()
        settings = _settings(dict(getattr(building, "_options", {})), dict(config or {}))
        settings.setdefault("spark.master", master or "local[*]")
    else:
        # what is fixed when Spark starts cannot be asked for any more
        settings = dict(config or {})
    if master is not None:
        settings["spark.master"] = master
    for key, value in settings.items():
        building = building.config(key, value)
    made = _started(building.getOrCreate)
    made.sparkContext.setLogLevel(log_level)
    check_delta(made)
    return made


def check_connect(remote: str = "local") -> None:
    """See that Spark Connect's client is installed, and a server answers where one is named.

    Raises:
        MissingExtraError: The client is not installed.
        SparkSetupError: The server does not answer.
    """
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        if not available(module):
            raise MissingExtraError(
                f"{module} is needed for Spark Connect and is not installed",
                suggestion="pip install 'pyspark[connect]'",
                module=module,
                extra="spark",
            )
    if not remote.startswith("local"):
        check_server(remote)


def _started(start: Callable[[], SparkSession]) -> SparkSession:
    try:
        return start()
    except DeltaSqlError:
        raise
    except Exception as error:  # Java's own, with its whole stack in the message
        raise SparkSetupError(
            f"Spark does not start: {one_line(error)}",
            suggestion="look at the master, the settings and Spark's own log above",
        ) from error


def _settings(chosen: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Our settings below those that were chosen before, with Delta's among the lists."""
    settings = delta_settings({**_DEFAULTS, **chosen, **wanted})
    java = settings.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in java:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        settings["spark.driver.extraJavaOptions"] = f"{java} -Dlog4j2.configurationFile={quiet}".strip()
    return settings


def delta_settings(chosen: dict[str, str]) -> dict[str, str]:
    """Settings that were chosen, with what a session needs to have Delta in it.

    Raises:
        SparkSetupError: Delta's jars cannot be had.
    """
    settings = dict(chosen)
    settings["spark.sql.extensions"] = with_items(settings.get("spark.sql.extensions"), _EXTENSION)
    settings.setdefault("spark.sql.catalog.spark_catalog", _CATALOG)
    named = f"{settings.get('spark.jars', '')},{settings.get('spark.jars.packages', '')}"
    if "delta-spark" not in named:
        jars = fetch_jars() if get_config().spark.download else find_jars()
        settings["spark.jars"] = with_items(settings.get("spark.jars"), *map(str, jars))
    return settings


def with_items(listed: str | None, *more: str) -> str:
    """A list of Spark's settings, with more items in it."""
    items = [item for item in (listed or "").split(",") if item]
    return ",".join([*items, *(item for item in more if item not in items)])


def prepare_workers() -> None:
    """Let executors on this machine run the same Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def check_delta(made: SparkSession) -> None:
    """Refuse a session that was started without Delta, and what is no session.

    Raises:
        SparkSetupError: It was.
        ArgumentTypeError: It is none.
    """
    if not hasattr(made, "conf"):
        raise ArgumentTypeError(
            f"the first argument is a Spark session, not {type(made).__name__}",
            suggestion="make one with deltalakedb.spark.session()",
        )
    if _EXTENSION not in (made.conf.get("spark.sql.extensions", "") or ""):
        raise SparkSetupError(
            "the Spark session was started without Delta",
            suggestion="stop it (spark.stop()) and start one by deltalakedb.spark.session()",
        )
