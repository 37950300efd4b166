"""Spark for tables that outgrow one machine. PySpark is imported when it is needed."""

# ruff: noqa: F401 - `__all__` is computed

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalakedb.spark.dml import MergeBuilder, delete, merge, update
    from deltalakedb.spark.logstore.configure import configure
    from deltalakedb.spark.maintenance import (
        VacuumListing,
        checkpoint,
        optimize,
        restore,
        vacuum,
        vacuum_list,
    )
    from deltalakedb.spark.reader import read
    from deltalakedb.spark.sessions import session
    from deltalakedb.spark.sinks import BatchSinks, foreach_batch
    from deltalakedb.spark.transaction import SparkTransaction
    from deltalakedb.spark.writer import write

# no module has the name of a function here: its import would replace the function
_MODULES = {
    "BatchSinks": "sinks",
    "MergeBuilder": "dml",
    "SparkTransaction": "transaction",
    "VacuumListing": "maintenance",
    "checkpoint": "maintenance",
    "configure": "logstore.configure",
    "delete": "dml",
    "foreach_batch": "sinks",
    "merge": "dml",
    "optimize": "maintenance",
    "read": "reader",
    "restore": "maintenance",
    "session": "sessions",
    "update": "dml",
    "vacuum": "maintenance",
    "vacuum_list": "maintenance",
    "write": "writer",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
