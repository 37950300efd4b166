"""The transaction logs that the behaviour suite runs over: one small factory each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pytest
from obstore.store import MemoryStore

from deltalakedb.log import FileTxnLogReader, FileTxnLogWriter
from deltalakedb.protocol.log import TxnLogReader, TxnLogWriter
from deltalakedb.storage.remote import RemoteStore

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
        return lambda: FileTxnLogReader(location), FileTxnLogWriter(location)


class ObjectStoreBackend:
    """Logs as objects of a store that sets their times itself."""

    def create(self) -> tuple[ReaderFactory, TxnLogWriter]:
        store = RemoteStore(MemoryStore(), location="memory:///")
        return (
            lambda: FileTxnLogReader("memory:///", store=store),
            FileTxnLogWriter("memory:///", store=store),
        )


@pytest.fixture(params=["folder", "object_store"])
def log_backend(request: pytest.FixtureRequest) -> LogBackend:
    """Every kind of log in turn."""
    if request.param == "folder":
        return FolderBackend(request.getfixturevalue("tmp_path"))
    return ObjectStoreBackend()
