"""Files under a table's root that no version knows: left by writers that died, or by somebody else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from deltalakedb.storage.store import ObjectMeta, open_store
from deltalakedb.table.places import is_local

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

#: on object stores nothing tells which new files are in flight, so younger ones are left alone
REMOTE_GRACE_MS = 86_400_000
#: how the name of a data file ends that our own writer has not finished
UNFINISHED = ".parquet.tmp"
_DATA_FOLDERS = ("_change_data", "_delta_index")


def orphans(
    root: str,
    known: Collection[str],
    *,
    partition_columns: Sequence[str],
    before: int,
    now: int,
    others: tuple[str, ...] = (),
    temporary: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[ObjectMeta]:
    """Files that are not among some paths and are old enough.

    Never among them: what lies in a hidden folder or has a hidden name (`_delta_log` above all; change data
    lies in no hidden folder), what belongs to another Delta table below the root, and links.

    Args:
        root: The table's root.
        known: Paths below the root to leave out, decoded.
        partition_columns: Folders of these may begin with an underscore.
        before: Only files last written before this time; the caller minds what is in flight.
        now: The time, by the store's clock.
        others: How paths begin that belong to other tables of the catalog.
        temporary: Also files that our own writers had not finished, though their names are hidden.
        storage_options: Options for the store.
    """
    before = oldest_orphan(root, before=before, now=now)
    found = data_files(
        root,
        partition_columns=partition_columns,
        others=others,
        temporary=temporary,
        storage_options=storage_options,
    )
    strange = [meta for meta in found if meta.modified_ms <= before and meta.path not in known]
    behind_links = linked(root, known) if strange and is_local(root) else frozenset[str]()
    return (meta for meta in strange if meta.path not in behind_links)


def linked(root: str, known: Collection[str]) -> frozenset[str]:
    """Where files below a local root really are that paths reach through links, or spell in another way."""
    real = os.path.realpath(root)
    folders: dict[str, list[str]] = {}
    for path in known:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    found: set[str] = set()
    for folder, paths in folders.items():
        there = os.path.realpath(f"{root}/{folder}")
        if there != f"{real}/{folder}".rstrip("/") or _has_links(there):
            found.update(os.path.relpath(os.path.realpath(f"{root}/{path}"), real) for path in paths)
    return frozenset(found)


def _has_links(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.is_symlink() for entry in entries)
    except OSError:
        return False


def oldest_orphan(root: str, *, before: int, now: int) -> int:
    """The time before which a file must have been written, so that it may be one that nobody knows."""
    return before if is_local(root) else min(before, now - REMOTE_GRACE_MS)


def data_files(
    root: str,
    prefix: str = "",
    *,
    partition_columns: Sequence[str],
    others: tuple[str, ...] = (),
    temporary: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[ObjectMeta]:
    """The files below a table's root that may be its data, whoever knows them.

    Args:
        root: The table's root.
        prefix: Only those of a folder right below it.
        partition_columns: As in `orphans`.
        others: As in `orphans`.
        temporary: As in `orphans`.
        storage_options: Options for the store.
    """
    shown = Shown(partition_columns, temporary)
    if is_local(root):
        yield from (meta for meta in _walk(root, prefix, shown) if not meta.path.startswith(others))
        return
    listed = list(open_store(root, storage_options).list(prefix, recursive=True))
    tables = {m.path.partition("/_delta_log/")[0] + "/" for m in listed if "/_delta_log/" in m.path}
    for meta in listed:
        if shown.path(meta.path) and not meta.path.startswith((*tables, *others)):
            yield meta


def top_level(
    root: str, *, partition_columns: Sequence[str], storage_options: Mapping[str, str] | None = None
) -> tuple[list[str], list[ObjectMeta]]:
    """The folders right below a table's root that may hold its data, and the files beside them."""
    shown = Shown(partition_columns, temporary=False)
    store = open_store(root, storage_options)
    folders = [name for name in store.folders() if shown.name(name, top=True)]
    return folders, [meta for meta in store.list() if shown.path(meta.path)]


class Shown:
    """Which names belong to the table's data."""

    def __init__(self, partition_columns: Sequence[str], temporary: bool) -> None:
        self._columns = tuple(f"{name}=" for name in partition_columns)
        self._temporary = temporary

    def name(self, name: str, *, top: bool) -> bool:
        """Whether a folder or file of this name holds data of the table."""
        if not name.startswith((".", "_")) or (self._columns and name.startswith(self._columns)):
            return True
        if name.startswith(".") and name.endswith(UNFINISHED):
            return self._temporary
        return top and name in _DATA_FOLDERS

    def path(self, path: str) -> bool:
        """Whether every part of a path does."""
        return all(self.name(part, top=not place) for place, part in enumerate(path.split("/")))


def _walk(root: str, prefix: str, shown: Shown) -> Iterator[ObjectMeta]:
    """The visible regular files below a local root; links are neither followed nor files."""
    try:
        entries = list(os.scandir(os.path.join(root, prefix)))  # noqa: PTH118 - paths stay texts here
    except FileNotFoundError:
        return
    if prefix and any(entry.name == "_delta_log" for entry in entries):
        return  # another table
    for entry in entries:
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if not shown.name(entry.name, top=not prefix):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path, shown)
            continue
        if not entry.is_file(follow_symlinks=False):
            continue
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield ObjectMeta(path, stat.st_size, stat.st_mtime_ns // 1_000_000)
