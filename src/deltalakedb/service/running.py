"""A service for commits, made from a catalog's address and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore.database import Database
from deltalakedb.service.ratifier import Ratifier
from deltalakedb.service.server import CommitServer
from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.address import Address
    from deltalakedb.redaction import Secret
    from deltalakedb.settings import Config


def commit_server(
    catalog: Address,
    token: Secret,
    *,
    config: Config | None = None,
    tables: Mapping[str, str] | None = None,
    host: str | None = None,
    port: int | None = None,
    max_bytes: int | None = None,
) -> CommitServer:
    """A server for commits to a catalog's tables, not started yet.

    Args:
        catalog: The catalog.
        token: What callers have to know.
        config: The settings; by default those that hold here.
        tables: Names of tables that may be created, with their locations.
        host: The address to listen at, instead of the settings'.
        port: The port, instead of the settings'.
        max_bytes: The longest commit that is taken, instead of the settings'.

    Raises:
        ConfigError: Host or port cannot be had.
    """
    config = config or get_config()
    database = Database.open(catalog.catalog, config)
    database.ensure()
    service = config.service
    return CommitServer(
        Ratifier(database, tables),
        token,
        host=service.host if host is None else host,
        port=service.port if port is None else port,
        max_bytes=service.max_bytes if max_bytes is None else max_bytes,
        max_connections=service.max_connections,
        names=[name for part in service.allowed_hosts.split(",") if (name := part.strip())],
    )
