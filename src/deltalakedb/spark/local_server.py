"""A Spark Connect server in this process, at a port that is free."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from deltalakedb.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_PORT: Final = "spark.connect.grpc.binding.port"
#: what PySpark's own sessions leave there, so that stopping the session stops the server with it
_MARKS: Final = ("SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


def serve(master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of a server that is started here, or of the one that this process has already.

    PySpark would have every server at port 15002, so that a machine had one of them; here it is whichever is
    free, unless the settings name one.

    Args:
        master: Where the server's Spark runs, such as ``local[2]``.
        settings: The settings of the server and the session.
    """
    connect = require("pyspark.sql.connect.session", "spark", "Spark Connect").SparkSession
    context = require("pyspark", "spark", "Spark").SparkContext
    if (running := connect.getActiveSession()) is None:
        connect._start_connect_server(master, {_PORT: "0", **settings})  # noqa: SLF001
        os.environ |= dict.fromkeys(_MARKS, "1")
        jvm = context._jvm  # noqa: SLF001
        service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        running = connect.builder.remote(f"sc://localhost:{port}").getOrCreate()
    found: SparkSession = running
    return found
