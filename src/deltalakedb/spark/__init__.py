"""Spark for what outgrows one machine. PySpark is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.dml import delete, update
    from deltalakedb.spark.merging import MergeBuilder, merge
    from deltalakedb.spark.reading import read
    from deltalakedb.spark.sessions import session
    from deltalakedb.spark.transactions import SparkTransaction
    from deltalakedb.spark.upkeep import optimize, restore, vacuum
    from deltalakedb.spark.writing import write

__all__ = [
    "MergeBuilder",
    "SparkTransaction",
    "delete",
    "merge",
    "optimize",
    "read",
    "restore",
    "session",
    "update",
    "vacuum",
    "write",
]

_HOMES = {
    "MergeBuilder": "merging",
    "SparkTransaction": "transactions",
    "delete": "dml",
    "merge": "merging",
    "optimize": "upkeep",
    "read": "reading",
    "restore": "upkeep",
    "session": "sessions",
    "update": "dml",
    "vacuum": "upkeep",
    "write": "writing",
}


def __getattr__(name: str) -> Any:
    # `python -m deltalakedb.spark.…` must find its module not imported yet
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
