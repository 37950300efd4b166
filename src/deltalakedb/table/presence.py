"""Which files of a table are still where the table says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.protocol.paths import relative_to, resolve
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: from so many files on, an object store is listed once instead of being asked about each
_LIST_FROM = 500


def missing(
    root: str, paths: Sequence[str], *, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """The files, spelled as the log spells them, that are not there any more.

    Args:
        root: The table's root.
        paths: Paths of the log.
        storage_options: Options for the object store.
    """
    if not paths:
        return []
    store = open_store(root, storage_options)
    listed = {meta.path for meta in store.list("", recursive=True)} if len(paths) >= _LIST_FROM else None
    gone = []
    for path in paths:
        below = relative_to(root, path)
        if below is None:
            folder, _, name = resolve(root, path).rpartition("/")
            there = open_store(folder or "/", storage_options).exists(name)
        else:
            there = store.exists(below) if listed is None else below in listed
        if not there:
            gone.append(path)
    return gone
