"""Spark sessions with Delta: new ones, running ones, and clients of Spark Connect servers."""

from __future__ import annotations

import os
import re
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from deltalakedb.exceptions import (
    ArgumentTypeError,
    DeltaSqlError,
    InvalidArgumentError,
    MissingExtraError,
    SparkSetupError,
)
from deltalakedb.extras import available, require
from deltalakedb.settings import get_config
from deltalakedb.spark.jars import COORDINATE, check_java, check_versions, fetch_jars, find_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
#: settings of a new session, unless its caller chooses others
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # INT96, the default, has no statistics in Parquet's footers
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # more than 32 paths would start a job only to list them, and the catalog has listed them already
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
#: spark-submit sets it for the program that it runs
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
#: seconds to wait for a master or server; Spark itself would wait for minutes, or forever
CONNECT_TIMEOUT_S: float = 10.0
# a cluster manager that is plugged into Spark has a scheme of its own, which only Spark can judge
_MASTER: Final = re.compile(
    r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|(?!https?:|sc:)[a-z][\w+.-]*://.+"
)
_ENDPOINT: Final = re.compile(r"\[?(?P<host>[^\[\]]+)\]?:(?P<port>\d{1,5})")
_MASTERS: Final = "use local[*], spark://host:port, yarn or k8s://…"
_CONNECT_PORT: Final = "spark.connect.grpc.binding.port"
#: tasks that a Spark Connect server is assumed to run at the same time
_CORES_OF_SERVER: Final = 8
#: what PySpark's own sessions set, so that stopping the session stops the server with it
_CONNECT_MARKS: Final = ("SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


def session(
    master: str | None = None,
    *,
    app_name: str = "deltalakedb",
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    builder: SparkSession.Builder | None = None,
) -> SparkSession:
    """A Spark session that reads and writes Delta: a new one, or the one that is running.

    In a program started by ``spark-submit`` it is the submitted session: master, name, jars and log level are
    those of the submission. Any other one logs errors only, until you call ``sparkContext.setLogLevel``.

    Args:
        master: Where Spark runs: ``local[*]`` by default, or a cluster's URL.
        app_name: The application's name.
        remote: A Spark Connect server (``sc://host:port``) instead of a driver in this process; its jars and
            settings are the server's own. ``local[*]`` starts one in this process, at a free port.
        config: Further settings of Spark, which override ours.
        builder: A builder with settings of its own, to be completed.

    Raises:
        MissingExtraError: PySpark or delta-spark is not installed.
        SparkSetupError: Java is missing or too old, another Spark is installed, Delta's jars are missing,
            the master or server does not answer, or the running session has no Delta.

    Example:
        >>> spark = session("local[2]", config={"spark.driver.memory": "2g"})
        >>> spark.range(3).count()
        3
    """
    made = start(master, remote=remote, app_name=app_name, config=config, builder=builder)
    if remote is None:
        check_delta(made)
    return made


def start(
    master: str | None = None,
    *,
    remote: str | None = None,
    app_name: str = "deltalakedb",
    config: Mapping[str, str] | None = None,
    builder: SparkSession.Builder | None = None,
) -> SparkSession:
    """As `session`, but a running or submitted session need not have Delta: jobs on metadata do without."""
    if master is not None and remote is not None:
        raise InvalidArgumentError(
            "a session has a master or a remote server, not both", suggestion="leave one of the two out"
        )
    check_versions()
    sql = require("pyspark.sql", "spark", "Spark")
    building = sql.SparkSession.builder if builder is None else builder
    settings: dict[str, Any] = dict(config or {})
    if master is None and remote is None and _SUBMITTED in os.environ:
        return _started(building.config(map=settings).getOrCreate)
    building = building.appName(app_name)
    if remote is not None:
        check_connect(remote)
        if not remote.startswith("local"):
            return _started(building.remote(remote).config(map=settings).getOrCreate)
        return _started(partial(_serve, remote, _new_settings(building, settings)))
    # the settings that are fixed when Spark starts cannot be changed in a running session
    if sql.SparkSession.getActiveSession() is None:
        if master is not None:
            check_master(master)
        settings = {"spark.master": "local[*]", **_new_settings(building, settings)}
    settings |= {} if master is None else {"spark.master": master}
    made = _started(building.config(map=settings).getOrCreate)
    made.sparkContext.setLogLevel("ERROR")
    return made


def check_setup(remote: str | None = None, master: str | None = None) -> None:
    """Check that Spark can be started, or that a Spark Connect server answers."""
    check_versions()
    if remote is None or remote.startswith("local"):
        check_java()
    if remote is not None:
        check_connect(remote)
    elif master is not None:
        check_master(master)


def check_master(master: str) -> None:
    """Check that Spark may know a master, and that a standalone one answers."""
    if not _MASTER.fullmatch(master):
        raise SparkSetupError(f"{master!r} is not a Spark master", suggestion=_MASTERS)
    if not master.startswith("spark://"):
        return
    reason = "it has no host:port"
    for place in master.removeprefix("spark://").split(","):
        if (parts := _ENDPOINT.fullmatch(place.strip())) is None:
            continue
        try:
            with socket.create_connection((parts["host"], int(parts["port"])), CONNECT_TIMEOUT_S):
                return
        except (OSError, OverflowError) as error:
            reason = str(error)
    raise SparkSetupError(f"no Spark master answers at {master}: {reason}", suggestion=_MASTERS)


def check_connect(remote: str) -> None:
    """Check that Spark Connect's client is installed, and that a server answers unless it is started here."""
    modules = ("grpc", "grpc_status", "google.rpc", "zstandard")
    if missing := next((module for module in modules if not available(module)), None):
        what, fix = "is needed for Spark Connect and is not installed", "pip install 'pyspark[connect]'"
        raise MissingExtraError(f"{missing} {what}", suggestion=fix, module=missing, extra="spark")
    if remote.startswith("local"):
        return
    hint = "give sc://host:port of a running Spark Connect server, or local[*] to start one here"
    grpc = require("grpc", "spark", "Spark Connect")
    core = require("pyspark.sql.connect.client.core", "spark", "Spark Connect")
    try:
        builder = core.DefaultChannelBuilder(remote)
        endpoint, channel = builder.endpoint, builder.toChannel()
    except Exception as error:  # whatever PySpark calls it
        raise SparkSetupError(
            f"{remote!r} is not the address of a Spark Connect server: {one_line(error)}", suggestion=hint
        ) from error
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
    except grpc.FutureTimeoutError as error:
        raise SparkSetupError(
            f"no Spark Connect server answers at {endpoint} within {CONNECT_TIMEOUT_S:g} s", suggestion=hint
        ) from error
    finally:
        channel.close()


def _serve(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of a Spark Connect server in this process, which is started unless there is one.

    PySpark would start every server at port 15002, so a machine could have only one; here it is a free port,
    unless the settings name one.
    """
    connect = require("pyspark.sql.connect.session", "spark", "Spark Connect").SparkSession
    running: SparkSession | None = connect.getActiveSession()
    if running is not None:
        return running
    connect._start_connect_server(master, {_CONNECT_PORT: "0", **settings})  # noqa: SLF001
    os.environ |= dict.fromkeys(_CONNECT_MARKS, "1")
    jvm = require("pyspark", "spark", "Spark").SparkContext._jvm  # noqa: SLF001
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    return cast("SparkSession", connect.builder.remote(f"sc://localhost:{port}").getOrCreate())


def _started(start: Callable[[], SparkSession]) -> SparkSession:
    try:
        return start()
    except DeltaSqlError:
        raise
    except Exception as error:  # Java's own, with its whole stack in the message
        raise SparkSetupError(
            f"Spark does not start: {one_line(error)}",
            suggestion="check the master, the settings and Spark's own log above",
        ) from error


def one_line(error: BaseException) -> str:
    """The message of an error without its Java stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line[2:] for line in lines if line.startswith(": ")), None)
    return (cause or next(iter(lines), type(error).__name__))[:300]


def _new_settings(building: SparkSession.Builder, config: dict[str, str]) -> dict[str, str]:
    """The settings of a new session: ours, the builder's, then the caller's; Delta's among them."""
    settings = delta_settings({**_DEFAULTS, **getattr(building, "_options", {}), **config})
    java = settings.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in java:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        settings["spark.driver.extraJavaOptions"] = f"{java} -Dlog4j2.configurationFile={quiet}".strip()
    return settings


def delta_settings(chosen: dict[str, str]) -> dict[str, str]:
    """Settings with those added that give a session Delta; Java and Python are ready for it."""
    check_java()
    # executors on this machine run the same Python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = dict(chosen)
    settings["spark.sql.extensions"] = with_items(settings.get("spark.sql.extensions"), _EXTENSION)
    settings.setdefault("spark.sql.catalog.spark_catalog", _CATALOG)
    named = f"{settings.get('spark.jars', '')},{settings.get('spark.jars.packages', '')}"
    if "delta-spark" not in named:
        jars = fetch_jars() if get_config().spark.download else find_jars()
        settings["spark.jars"] = with_items(settings.get("spark.jars"), *map(str, jars))
    return settings


def with_items(listed: str | None, *more: str) -> str:
    """A setting that is a list, with more items."""
    return ",".join(dict.fromkeys(item for item in (*(listed or "").split(","), *more) if item))


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def num_cores(spark: SparkSession) -> int:
    """How many tasks run at the same time; a client of a server cannot know it, and assumes a few."""
    return _CORES_OF_SERVER if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def check_delta(made: SparkSession) -> None:
    if not hasattr(made, "conf"):
        raise ArgumentTypeError(
            f"the first argument is a Spark session, not {type(made).__name__}",
            suggestion="make one with deltalakedb.spark.session()",
        )
    if _EXTENSION not in (made.conf.get("spark.sql.extensions", "") or ""):
        raise SparkSetupError(
            "the Spark session was started without Delta",
            suggestion="stop it (spark.stop()) and start one with deltalakedb.spark.session(); with "
            f"spark-submit, pass --packages {COORDINATE} and --conf spark.sql.extensions={_EXTENSION}",
        )
