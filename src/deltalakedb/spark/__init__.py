"""Spark for what outgrows one machine: sessions, reads and writes. PySpark is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.configuring import configure
    from deltalakedb.spark.reading import read
    from deltalakedb.spark.sessions import session
    from deltalakedb.spark.writing import write

__all__ = ["configure", "read", "session", "write"]

_HOMES = {"configure": "configuring", "read": "reading", "session": "sessions", "write": "writing"}


def __getattr__(name: str) -> Any:
    # `python -m deltalakedb.spark.…` must find its module not imported yet
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
