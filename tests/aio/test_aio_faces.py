"""The asynchronous classes have every method of the synchronous ones, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import deltalake.table
import pytest

import deltalakedb
from deltalakedb import aio
from deltalakedb.catalog import Mirror
from deltalakedb.protocol.txn_log import TxnLogReader
from deltalakedb.table.transaction import CatalogTransaction

FACES: dict[str, tuple[Any, Any]] = {
    "DeltaTable": (aio.DeltaTable, deltalakedb.DeltaTable),
    "TableOptimizer": (aio.TableOptimizer, deltalake.table.TableOptimizer),
    "TableAlterer": (aio.TableAlterer, deltalake.table.TableAlterer),
    "TableMerger": (aio.TableMerger, deltalake.table.TableMerger),
    "Catalog": (aio.Catalog, deltalakedb.Catalog),
    "Transaction": (aio.Transaction, CatalogTransaction),
    "Mirror": (aio.Mirror, Mirror),
    "TxnLog": (aio.TxnLog, TxnLogReader),
}
#: not for users, or without an asynchronous form
INSIDE = {
    ("Transaction", "submit"),
    ("Transaction", "ready"),
    ("Transaction", "spark"),
}
#: these hand back something that is awaited, iterated over or entered
AT_ONCE = {
    "scan",
    "load_cdf",
    "deletion_vectors",
    "files",
    "tombstones",
    "merge",
    "transaction",
    "snapshot",
    "sql",
    "watch",
}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found if p.name not in ("self", "cls")]


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_is_there_with_the_same_parameters(face: str) -> None:
    asynchronous, synchronous = FACES[face]
    names = {n for n in dir(synchronous) if not n.startswith("_")} - {n for f, n in INSIDE if f == face}
    assert names <= set(dir(asynchronous))
    for name in names:
        theirs = inspect.getattr_static(synchronous, name)
        if not isinstance(theirs, property) and callable(getattr(synchronous, name)):
            assert parameters(getattr(asynchronous, name)) == parameters(getattr(synchronous, name)), name


@pytest.mark.parametrize("face", FACES)
def test_every_method_awaits(face: str) -> None:
    asynchronous, _ = FACES[face]
    for name in (n for n in dir(asynchronous) if not n.startswith("_")):
        method = inspect.getattr_static(asynchronous, name)
        if isinstance(method, property) or name.startswith("when"):
            continue
        at_once = name in AT_ONCE and not (face == "TxnLog" and name == "snapshot")
        assert inspect.iscoroutinefunction(getattr(asynchronous, name)) is not at_once, name


def test_every_function_that_works_has_an_asynchronous_form() -> None:
    not_work = {"enable_nanosecond_timestamps", "init_tracing", "register", "rust_core_version", "unregister"}
    functions = {n for n in deltalakedb.__all__ if inspect.isfunction(getattr(deltalakedb, n))} - not_work
    assert functions <= set(aio.__all__)
    for name in functions:
        assert inspect.iscoroutinefunction(getattr(aio, name)), name
        assert parameters(getattr(aio, name)) == parameters(getattr(deltalakedb, name)), name


def test_all_is_sorted_and_true() -> None:
    assert aio.__all__ == sorted(aio.__all__)
    assert all(hasattr(aio, name) for name in aio.__all__)
