"""One engine per database; the flow above never asks which one it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import AddressError

if TYPE_CHECKING:
    from deltalakedb.catalog.engines.base import Engine
    from deltalakedb.config import Config
    from deltalakedb.uri import Address

__all__ = ["ENGINES", "make_engine"]

#: engines by the name an address gives them
ENGINES = ("sqlite", "duckdb", "postgres")


def make_engine(address: Address, config: Config) -> Engine:
    """The engine that an address names, not yet connected."""
    if address.engine == "sqlite":
        from deltalakedb.catalog.engines.sqlite import SqliteEngine

        return SqliteEngine(address, config)
    if address.engine == "duckdb":
        from deltalakedb.catalog.engines.duckdb import DuckdbEngine

        return DuckdbEngine(address, config)
    if address.engine == "postgres":
        from deltalakedb.catalog.engines.postgres import PostgresEngine

        return PostgresEngine(address, config)
    raise AddressError(f"unknown engine {address.engine!r}", suggestion=f"use one of {', '.join(ENGINES)}")
