"""Symlink manifests: lists of a table's files for engines that read no Delta log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import UnsupportedFeatureError
from deltalakedb.protocol.paths import TablePaths, relative_to
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.mirror import Options

FOLDER = "_symlink_format_manifest"


def write_manifests(
    paths: TablePaths, files: Iterable[tuple[str, str]], *, storage_options: Options = None
) -> list[str]:
    """Write one manifest for each folder of data files; returns the manifests' paths below the root.

    Args:
        paths: Where the table's files may be, and its name.
        files: Path and deletion vector id of each file, as the log has them.
        storage_options: Options for the object store.

    Raises:
        UnsupportedFeatureError: A file has a deletion vector, which a manifest cannot show.
    """
    root = paths.root
    manifests: dict[str, list[str]] = {}
    for path, vector in files:
        if vector:
            raise UnsupportedFeatureError(
                f"the file {path} has a deletion vector: readers of a manifest would see deleted rows",
                table=paths.table,
                suggestion="compact the table first, with delta.enableDeletionVectors set to false",
                features=("deletionVectors",),
            )
        place = paths.resolve(path)
        folder = (relative_to(root, path) or "").rpartition("/")[0]
        name = "/".join(part for part in (FOLDER, folder, "manifest") if part)
        manifests.setdefault(name, []).append(place)
    store = open_store(root, storage_options)
    for name, lines in manifests.items():
        store.put(name, "".join(f"{line}\n" for line in lines).encode())
    # a partition that has lost its last file must not be read any more
    for meta in list(store.list(FOLDER, recursive=True)):
        if meta.name == "manifest" and meta.path not in manifests:
            store.delete(meta.path)
    return sorted(manifests)
