"""One engine per database; the flow above never asks which one it has."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from deltalakedb.exceptions import AddressError

if TYPE_CHECKING:
    from deltalakedb.address import Address
    from deltalakedb.metastore.engines.base import Engine
    from deltalakedb.settings import Config

__all__ = ["ENGINES", "make_engine"]

#: engines by the names that addresses give them; their modules, and with them the drivers, are imported late
ENGINES = {"sqlite": "SqliteEngine", "duckdb": "DuckdbEngine", "postgres": "PostgresEngine"}


def make_engine(address: Address, config: Config) -> Engine:
    """The engine that an address names, not yet connected."""
    if (name := address.engine) not in ENGINES:
        raise AddressError(f"unknown engine {name!r}", suggestion=f"use one of {', '.join(ENGINES)}")
    kind: type[Engine] = getattr(import_module(f"{__name__}.{name}"), ENGINES[name])
    return kind(address, config)
