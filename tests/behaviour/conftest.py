"""The transaction logs that the behaviour suite runs over: one small factory each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pytest
from obstore.store import MemoryStore

from deltalakedb import open_log
from deltalakedb.delta_log import FileTxnLogReader, FileTxnLogWriter
from deltalakedb.protocol.txn_log import TxnLogReader, TxnLogWriter
from deltalakedb.storage.remote import RemoteStore
from support.catalogs import ENGINES, fresh_catalog_uri

if TYPE_CHECKING:
    from pathlib import Path

ReaderFactory: TypeAlias = Callable[[], TxnLogReader]


class LogBackend(Protocol):
    """Makes transaction logs of one kind."""

    def create(self) -> tuple[ReaderFactory, TxnLogWriter]:
        """A new, empty log: how to open a fresh reader of it, and its writer."""
        ...


class FolderBackend:
    """Logs as files in folders."""

    def __init__(self, root: Path) -> None:
        self._roots = (root / f"table-{number}" for number in itertools.count())

    def create(self) -> tuple[ReaderFactory, TxnLogWriter]:
        location = next(self._roots)
        return lambda: open_log(location), open_log(location, mode="w")


class ObjectStoreBackend:
    """Logs as objects of a store that sets their times itself."""

    def create(self) -> tuple[ReaderFactory, TxnLogWriter]:
        store = RemoteStore(MemoryStore(), location="memory:///")
        return (
            lambda: FileTxnLogReader("memory:///", store=store),
            FileTxnLogWriter("memory:///", store=store),
        )


class SqlBackend:
    """Logs as rows of a catalog."""

    def __init__(self, catalog_uri: str, root: Path) -> None:
        self._uri = catalog_uri
        self._root = root
        self._numbers = itertools.count()

    def create(self) -> tuple[ReaderFactory, TxnLogWriter]:
        name = f"table_{next(self._numbers)}"
        uri = f"{self._uri}{'&' if '?' in self._uri else '?'}table={name}"
        return lambda: open_log(uri), open_log(f"{uri}&location={self._root / name}", mode="w")


@pytest.fixture(params=["folder", "object_store", *ENGINES])
def log_backend(request: pytest.FixtureRequest) -> LogBackend:
    """Every kind of log in turn."""
    if request.param == "object_store":
        return ObjectStoreBackend()
    root: Path = request.getfixturevalue("tmp_path")
    if request.param == "folder":
        return FolderBackend(root)
    return SqlBackend(fresh_catalog_uri(request.param, root, request), root)
