"""Which files below a table's root may be deleted: regular data files of that table, and nothing else."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.storage.store import RealPlaces, open_store
from deltalakedb.table.orphans import Shown
from deltalakedb.table.places import is_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.values import Table

#: from so many folders on, an object store is listed once instead of being asked about each
_LIST_FROM: Final = 100


class Deletable:
    """The rule that every deletion of data files goes by, whoever wants it: vacuum, gc or a listing.

    A path of the log is not trusted: a commit of another engine can name any file in a `remove`.

    Args:
        database: The catalog.
        table: The table.
        partition_columns: Folders of these may begin with an underscore.
        temporary: Also files that our own writers had not finished, though their names are hidden.
        storage_options: Options for the store.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        *,
        partition_columns: Sequence[str],
        temporary: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._root = table.location
        self._options = storage_options
        self._shown = Shown(partition_columns, temporary)
        self.others = foreign_places(database, table)

    def among(self, paths: Iterable[str]) -> list[str]:
        """Those of some paths, decoded and below the root, that may be deleted."""
        named = [
            path
            for path in paths
            if {"", ".", ".."}.isdisjoint(path.split("/"))
            and self._shown.path(path)
            and not path.startswith(self.others)
        ]
        if is_local(self._root):
            root = os.path.realpath(self._root).rstrip("/")
            folders = {folder: _is_own(root, folder) for folder in {p.rpartition("/")[0] for p in named}}
            return [p for p in named if folders[p.rpartition("/")[0]] and _is_regular(f"{root}/{p}")]
        tables = tuple(f"{folder}/" for folder in self._nested(named))
        return [path for path in named if not path.startswith(tables)]

    def _nested(self, paths: Sequence[str]) -> set[str]:
        """The folders above some paths in an object store that are tables of their own."""
        above = {folder for path in paths for folder in _above(path)}
        store = open_store(self._root, self._options)
        if len(above) < _LIST_FROM:
            return {f for f in above if next(store.list(f"{f}/{LOG_FOLDER}", recursive=True), None)}
        marked = (m.path.partition(f"/{LOG_FOLDER}/") for m in store.list(recursive=True))
        return {folder for folder, mark, _ in marked if mark}


def foreign_places(database: Database, table: Table) -> tuple[str, ...]:
    """How paths below a table's root begin that belong to other tables of the catalog, or to its database."""
    with database.read() as session:
        places = [f"{row[1]}/" for row in session.rows(database.sql("tables", "places"))]
    if (file := database.address.resolved().path) is not None:
        places.append(file)  # and what begins like it: its log and its locks
    real = RealPlaces()
    root = f"{real.of(table.location).rstrip('/')}/"
    found = (real.of(place.rstrip("/")) + "/" * place.endswith("/") for place in places)
    return tuple(place[len(root) :] for place in found if place.startswith(root) and place != root)


def _is_own(root: str, folder: str) -> bool:
    """Whether a folder below a local root is reached without links, and belongs to no other table."""
    if not folder:
        return True
    if os.path.realpath(f"{root}/{folder}") != f"{root}/{folder}":
        return False
    return not any(os.path.lexists(f"{root}/{above}/{LOG_FOLDER}") for above in _above(f"{folder}/-"))


def _is_regular(path: str) -> bool:
    """Whether there is a regular file at a path."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _above(path: str) -> list[str]:
    """The folders above a path, below the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
