"""Spark for what outgrows one machine. PySpark is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.batches import BatchSinks, foreach_batch
    from deltalakedb.spark.checkpointing import checkpoint
    from deltalakedb.spark.configuring import configure
    from deltalakedb.spark.dml import delete, update
    from deltalakedb.spark.listing import VacuumListing, vacuum_list
    from deltalakedb.spark.merging import MergeBuilder, merge
    from deltalakedb.spark.reading import read
    from deltalakedb.spark.sessions import session
    from deltalakedb.spark.transactions import SparkTransaction
    from deltalakedb.spark.upkeep import optimize, restore, vacuum
    from deltalakedb.spark.writing import write

__all__ = [
    "BatchSinks",
    "MergeBuilder",
    "SparkTransaction",
    "VacuumListing",
    "checkpoint",
    "configure",
    "delete",
    "foreach_batch",
    "merge",
    "optimize",
    "read",
    "restore",
    "session",
    "update",
    "vacuum",
    "vacuum_list",
    "write",
]

_HOMES = {
    "BatchSinks": "batches",
    "MergeBuilder": "merging",
    "SparkTransaction": "transactions",
    "VacuumListing": "listing",
    "checkpoint": "checkpointing",
    "configure": "configuring",
    "delete": "dml",
    "foreach_batch": "batches",
    "merge": "merging",
    "optimize": "upkeep",
    "read": "reading",
    "restore": "upkeep",
    "session": "sessions",
    "update": "dml",
    "vacuum": "upkeep",
    "vacuum_list": "listing",
    "write": "writing",
}


def __getattr__(name: str) -> Any:
    # `python -m deltalakedb.spark.…` must find its module not imported yet
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
