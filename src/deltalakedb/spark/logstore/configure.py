"""Settings with which a session's own Delta writers commit through a catalog, and a service for them."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from deltalakedb.address import Address, parse_address
from deltalakedb.exceptions import (
    ConfigError,
    InvalidArgumentError,
    SparkSetupError,
    UnsupportedOperationError,
)
from deltalakedb.metastore.database import Database
from deltalakedb.service.server import (
    ANSWER_HEADER,
    CommitServer,
    commit_server,
    new_token,
    read_token,
    token_of,
    write_token,
)
from deltalakedb.settings import get_config
from deltalakedb.spark.jars import check_versions
from deltalakedb.spark.logstore import CLASS, JAR
from deltalakedb.spark.sessions import delta_settings, with_items

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

_LOG_STORE: Final = "spark.delta.logStore."
_SERVICE: Final = "spark.hadoop.deltalakedb.service"
_TOKEN_FILE: Final = f"{_SERVICE}.token.file"
_PATIENCE: Final = f"{_SERVICE}.patience.seconds"
_START_ONE: Final = "start it with `deltasql serve --commits`, or leave service= out and give catalog="
#: a path that belongs to no table: the answer to a request for it shows whether the token is right
_PROBE_PATH: Final = "/publish?path=file:/_deltasql_/_delta_log/0"


def configure(
    builder: SparkSession.Builder,
    *,
    catalog: str | Address | None = None,
    service: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tables: Mapping[str, str] | None = None,
    patience: float = 30,
) -> SparkSession.Builder:
    """Let a session's own Delta writers commit through a catalog, without a change in the code that uses it.

    ``df.write.format("delta")``, SQL, streams and the tools above them then commit tables of the catalog in
    the database; other tables stay plain Delta. A new table belongs to the catalog if it is created under the
    catalog's root (``<root>/sales/orders`` is ``sales.orders``), or at a location that ``tables`` names.

    Args:
        builder: A builder of a session that is not running yet.
        catalog: The catalog's address: a service for it is started in this process, and stopped with it.
        service: The URL of a running service, instead of ``catalog``.
        token_file: The file with that service's token; by default that of the settings. The driver reads it.
        tables: With ``catalog``: tables that may be created outside its root, with their locations.
        patience: Seconds for which Spark retries a service that does not answer.

    Returns:
        The builder.

    Raises:
        SparkSetupError: A session is running, or the service does not answer or rejects the token.
        CatalogNotFoundError: There is no catalog at the address; none is created.
        InvalidArgumentError: Neither or both of catalog and service are given, or another log store is set.

    Example:
        >>> builder = configure(SparkSession.builder, catalog="deltasql://sqlite//lake/meta.db")
        >>> spark = builder.getOrCreate()
        >>> df.write.format("delta").mode("append").save("/lake/orders")
    """
    if (catalog is None) == (service is None):
        raise InvalidArgumentError(
            "commits go to a catalog, or to a running service", suggestion="give one of catalog= and service="
        )
    if service is not None and tables:
        raise InvalidArgumentError(
            "tables= is for a service of this process", suggestion="give them to `deltasql serve` as --table"
        )
    check_versions()
    chosen: dict[str, str] = dict(getattr(builder, "_options", {}))
    _refuse(chosen)
    settings = delta_settings(chosen)
    if service is not None:
        url, file = service.rstrip("/"), _token_file(token_file)
        _check_service(url, file)
    else:
        url, file = _in_process(parse_address(catalog or ""), tables or {})
    settings["spark.jars"] = with_items(settings.get("spark.jars"), str(JAR))
    settings |= {f"{_LOG_STORE}class": CLASS, _SERVICE: url, _PATIENCE: f"{patience:.0f}"}
    if file is not None:
        settings[_TOKEN_FILE] = str(file)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def _refuse(chosen: Mapping[str, str]) -> None:
    """Refuse a builder whose session would not get the log store, or has another one."""
    from pyspark import SparkContext

    if "spark.remote" in chosen:
        raise UnsupportedOperationError(
            "the log store is a setting of the Spark Connect server, not of its clients",
            suggestion="start the server with the settings of docs/how-to/let-spark-commit.md",
        )
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        raise SparkSetupError(
            "a Spark session is running, and its log store cannot be changed",
            suggestion="configure before the session starts, or stop it (spark.stop()) first",
        )
    if other := next((k for k in chosen if k.startswith(_LOG_STORE) and chosen[k] != CLASS), None):
        raise InvalidArgumentError(
            f"the session has a log store already: {other}={chosen[other]}",
            suggestion="leave it out: tables that are not the catalog's are written as Delta would by itself",
        )


# ---- a running service -------------------------------------------------------------------------------------


def _token_file(given: str | os.PathLike[str] | None) -> Path | None:
    """The token's file; None if the driver finds the token in its environment."""
    if (chosen := given or get_config().service.token_file) is not None:
        return Path(chosen).expanduser().absolute()
    if os.environ.get("DELTASQL_SERVICE__TOKEN"):
        return None
    raise ConfigError(
        "no token for the service is named",
        suggestion="give token_file=, or set service.token_file or DELTASQL_SERVICE__TOKEN",
    )


def _check_service(url: str, file: Path | None) -> None:
    """Check that the service answers a request for a path that belongs to no table, and accepts the token."""
    token = token_of(get_config()) if file is None else read_token(file)
    headers = {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}
    try:
        parts = urlsplit(url)
        client = {"http": HTTPConnection, "https": HTTPSConnection}[parts.scheme if parts.hostname else ""]
        connection = client(parts.hostname or "", parts.port, timeout=30)
    except (KeyError, ValueError) as error:
        raise InvalidArgumentError(
            f"{url!r} is not the URL of a service", suggestion="write http://host:port, or https:// with TLS"
        ) from error
    try:
        with closing(connection):
            connection.request("POST", parts.path + _PROBE_PATH, b"", headers)
            answer = connection.getresponse().headers.get(ANSWER_HEADER)
    except (OSError, HTTPException) as error:
        raise SparkSetupError(
            f"the commit service at {url} does not answer: {error}", suggestion=_START_ONE
        ) from error
    if answer == "unauthorized":
        raise SparkSetupError(
            f"the commit service at {url} rejected the token",
            suggestion="name the token file that it was started with",
        )
    if answer != "elsewhere":
        raise SparkSetupError(
            f"the service at {url} cannot reach its catalog, or is not one of deltalakedb",
            suggestion=_START_ONE,
        )


# ---- a service of this process -----------------------------------------------------------------------------


#: a server and the folder of its token, by process, catalog, settings and named tables
_running: dict[tuple[int, Address, str, tuple[tuple[str, str], ...]], tuple[CommitServer, Path]] = {}
_lock = threading.Lock()


def _in_process(address: Address, tables: Mapping[str, str]) -> tuple[str, Path]:
    """The URL and the token's file of this process's service for a catalog, which is started if need be."""
    config = get_config()
    key = (
        os.getpid(),
        address.require_catalog().resolved(),
        config.fingerprint(),
        tuple(sorted(tables.items())),
    )
    with _lock:
        if (found := _running.get(key)) is None:
            # a wrong address must not become an empty catalog
            Database.open(address.catalog, config).ensure(create=False)
            token = new_token()
            server = commit_server(address, token, config=config, tables=tables, host="127.0.0.1", port=0)
            folder = Path(tempfile.mkdtemp(prefix="deltasql-service-"))
            write_token(folder / "token", token)
            server.start()
            found = _running[key] = server, folder
            logger.info("commits to %s are ratified at %s", address.to_uri(), server.url)
        return found[0].url, found[1] / "token"


@atexit.register
def _stop_all() -> None:
    """Stop the services of this process; requests in progress are answered."""
    with _lock:
        mine = [service for (process, *_), service in _running.items() if process == os.getpid()]
        _running.clear()
    for server, folder in mine:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
