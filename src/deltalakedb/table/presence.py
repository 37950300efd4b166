"""Which files of a table are still where the table says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.protocol.paths import relative_to
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.table.roots import Root

#: from so many files on, a store is listed once instead of being asked about each
_LIST_FROM = 500


def missing(root: Root, paths: Sequence[str]) -> list[str]:
    """The files, spelled as the log spells them, that are not there any more.

    Args:
        root: The table's root.
        paths: Paths of the log.
    """
    listed = {m.path for m in root.store.list("", recursive=True)} if len(paths) >= _LIST_FROM else None
    gone = []
    for path in paths:
        place = root.paths.resolve(path)
        below = relative_to(root.location, path)
        if below is None:
            folder, _, name = place.rpartition("/")
            there = open_store(folder or "/", root.options).exists(name)
        else:
            there = root.store.exists(below) if listed is None else below in listed
        if not there:
            gone.append(path)
    return gone
