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
_DATA_FOLDERS = ("_change_data", "_delta_index")


def orphans(
    root: str,
    known: Collection[str],
    *,
    partition_columns: Sequence[str],
    before: int,
    now: int,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[ObjectMeta]:
    """Files that are not among some paths and are old enough.

    Never among them: what lies in a hidden folder or has a hidden name (`_delta_log` above all; change data
    lies in no hidden folder), and what belongs to another Delta table below the root.

    Args:
        root: The table's root.
        known: Paths below the root to leave out, decoded.
        partition_columns: Folders of these may begin with an underscore.
        before: Only files last written before this time; the caller minds what is in flight.
        now: The time.
        storage_options: Options for the store.
    """
    columns = tuple(f"{name}=" for name in partition_columns)
    if is_local(root):
        found = _walk(root, "", columns)
    else:
        before = min(before, now - REMOTE_GRACE_MS)
        listed = list(open_store(root, storage_options).list(recursive=True))
        tables = {m.path.partition("/_delta_log/")[0] + "/" for m in listed if "/_delta_log/" in m.path}
        found = (m for m in listed if _visible(m.path, columns) and not m.path.startswith(tuple(tables)))
    for meta in found:
        if meta.modified_ms <= before and meta.path not in known:
            yield meta


def _walk(root: str, prefix: str, columns: tuple[str, ...]) -> Iterator[ObjectMeta]:
    """The visible files below a local root; links are never followed."""
    try:
        entries = list(os.scandir(os.path.join(root, prefix)))  # noqa: PTH118 - paths stay texts here
    except FileNotFoundError:
        return
    if prefix and any(entry.name == "_delta_log" for entry in entries):
        return  # another table
    for entry in entries:
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if not _shown(entry.name, columns, top=not prefix):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path, columns)
            continue
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield ObjectMeta(path, stat.st_size, stat.st_mtime_ns // 1_000_000)


def _visible(path: str, columns: tuple[str, ...]) -> bool:
    parts = path.split("/")
    return all(_shown(part, columns, top=not place) for place, part in enumerate(parts))


def _shown(name: str, columns: tuple[str, ...], *, top: bool) -> bool:
    """Whether a folder or file of this name holds data of the table."""
    if not name.startswith((".", "_")):
        return True
    return name.startswith(columns) if columns and name.startswith(columns) else top and name in _DATA_FOLDERS
