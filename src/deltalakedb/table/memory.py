"""Tables as this process last saw them, so that an append need not look its table up again.

A blind append depends on nothing but the table's schema and protocol, and the commit checks under the lock
whether these, or the table's name, have changed since. Only then is the table looked up anew.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import OpenTable

#: tables that are remembered at the most, over all catalogs of the process
_MOST = 256

_seen: OrderedDict[tuple[Database, str], OpenTable] = OrderedDict()
_lock = threading.Lock()


def recall(database: Database, name: str) -> OpenTable | None:
    """A table as it was seen last."""
    with _lock:
        return _seen.get((database, name))


def remember(database: Database, name: str, opened: OpenTable) -> None:
    """Remember a table at its newest version."""
    with _lock:
        _seen[database, name] = opened
        _seen.move_to_end((database, name))
        while len(_seen) > _MOST:
            _seen.popitem(last=False)


def move_on(database: Database, name: str, opened: OpenTable, version: int, timestamp: int) -> None:
    """Remember a table that was appended to: only its version is another."""
    snapshot = replace(opened.snapshot, version=version, timestamp=timestamp)
    remember(database, name, replace(opened, snapshot=snapshot))


def forget(database: Database, name: str) -> None:
    """Look the table up next time."""
    with _lock:
        _seen.pop((database, name), None)


#: a transaction over more tables is a rare one, and the next one is not like it
_MOST_ALONG = 32

_together: dict[Database, frozenset[str]] = {}


def together(database: Database) -> frozenset[str]:
    """The tables of the last transaction: the next one will likely touch them again."""
    return _together.get(database, frozenset())


def remember_together(database: Database, names: Sequence[str]) -> None:
    """Remember which tables a transaction touched, unless they are too many to be looked up in vain."""
    if len(names) <= _MOST_ALONG:
        _together[database] = frozenset(names)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
