"""Spark for what outgrows one machine: sessions, reads and writes. PySpark is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.checkpointing import checkpoint
    from deltalakedb.spark.listing import vacuum_list
    from deltalakedb.spark.reading import read
    from deltalakedb.spark.sessions import session
    from deltalakedb.spark.writing import write

__all__ = ["checkpoint", "read", "session", "vacuum_list", "write"]

_HOMES = {
    "checkpoint": "checkpointing",
    "read": "reading",
    "session": "sessions",
    "vacuum_list": "listing",
    "write": "writing",
}


def __getattr__(name: str) -> Any:
    # `python -m deltalakedb.spark.…` must find its module not imported yet
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
