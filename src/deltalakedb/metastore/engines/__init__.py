"""One engine per database; the flow above never asks which one it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import AddressError

if TYPE_CHECKING:
    from deltalakedb.address import Address
    from deltalakedb.metastore.engines.base import Engine
    from deltalakedb.settings import Config

__all__ = ["ENGINES", "make_engine"]

#: engines by the name an address gives them
ENGINES = ("sqlite", "duckdb", "postgres")


def make_engine(address: Address, config: Config) -> Engine:
    """The engine that an address names, not yet connected."""
    if address.engine == "sqlite":
        from deltalakedb.metastore.engines.sqlite import SqliteEngine

        return SqliteEngine(address, config)
    if address.engine == "duckdb":
        from deltalakedb.metastore.engines.duckdb import DuckdbEngine

        return DuckdbEngine(address, config)
    if address.engine == "postgres":
        from deltalakedb.metastore.engines.postgres import PostgresEngine

        return PostgresEngine(address, config)
    raise AddressError(f"unknown engine {address.engine!r}", suggestion=f"use one of {', '.join(ENGINES)}")
