"""Whether a master or a Spark Connect server can be reached, seen before anything is made for it."""

from __future__ import annotations

import re
import socket
from typing import Final

from deltalakedb.exceptions import SparkSetupError
from deltalakedb.extras import require

#: seconds to wait for an answer; Spark itself would wait for minutes, or for ever
PATIENCE: float = 10.0
# a cluster manager that is plugged into Spark has a scheme of its own, which only Spark can judge
_MASTER: Final = re.compile(
    r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|(?!https?:|sc:)[a-z][\w+.-]*://.+"
)
_ENDPOINT: Final = re.compile(r"\[?(?P<host>[^\[\]]+)\]?:(?P<port>\d{1,5})")
_MASTERS: Final = "give local[*], spark://host:port, yarn or k8s://…"


def check_master(master: str) -> None:
    """See that a master is one that Spark may know, and that a standalone one answers.

    Raises:
        SparkSetupError: It is not, or does not.
    """
    if not _MASTER.fullmatch(master):
        raise SparkSetupError(f"Spark knows no master {master!r}", suggestion=_MASTERS)
    if not master.startswith("spark://"):
        return
    reason = "there is no host:port in it"
    for place in master.removeprefix("spark://").split(","):
        if (parts := _ENDPOINT.fullmatch(place.strip())) is None:
            continue
        try:
            with socket.create_connection((parts["host"], int(parts["port"])), PATIENCE):
                return
        except (OSError, OverflowError) as error:
            reason = str(error)
    raise SparkSetupError(f"no Spark master answers at {master}: {reason}", suggestion=_MASTERS)


def check_server(remote: str) -> None:
    """See that a Spark Connect server answers.

    Raises:
        SparkSetupError: It does not, or the address is none.
    """
    hint = "give sc://host:port of a Spark Connect server that runs, or local[*] to start one here"
    grpc = require("grpc", "spark", "Spark Connect")
    core = require("pyspark.sql.connect.client.core", "spark", "Spark Connect")
    try:
        builder = core.DefaultChannelBuilder(remote)
        endpoint, channel = builder.endpoint, builder.toChannel()
    except Exception as error:  # whatever PySpark calls it
        raise SparkSetupError(
            f"the address of a Spark Connect server is not understood: {one_line(error)}", suggestion=hint
        ) from error
    try:
        grpc.channel_ready_future(channel).result(timeout=PATIENCE)
    except grpc.FutureTimeoutError as error:
        raise SparkSetupError(
            f"no Spark Connect server answers at {endpoint} within {PATIENCE:g} s", suggestion=hint
        ) from error
    finally:
        channel.close()


def one_line(error: BaseException) -> str:
    """What an error says, without the stack of a Java machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line[2:] for line in lines if line.startswith(": ")), None)
    return (told or next(iter(lines), type(error).__name__))[:300]
