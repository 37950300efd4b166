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
    from deltalakedb.spark.transaction import BatchSinks, SparkTransaction, foreach_batch
    from deltalakedb.spark.writer import write

# no module has the name of a function here: its import would replace the function
_NAMES = {
    "dml": ("MergeBuilder", "delete", "merge", "update"),
    "logstore.configure": ("configure",),
    "maintenance": ("VacuumListing", "checkpoint", "optimize", "restore", "vacuum", "vacuum_list"),
    "reader": ("read",),
    "sessions": ("session",),
    "transaction": ("BatchSinks", "SparkTransaction", "foreach_batch"),
    "writer": ("write",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
