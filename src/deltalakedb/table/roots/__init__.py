"""A table's root: the one seam between operations on tables and the place of their data files.

Both kinds of roots have the same methods, and so have their files and folders; the unions below name them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb.exceptions import StorageError
from deltalakedb.settings import Config, get_config
from deltalakedb.table.locations import is_local
from deltalakedb.table.roots.local import BesideFiles, LocalFile, LocalFiles, LocalRoot, Temporary
from deltalakedb.table.roots.remote import (
    Fetched,
    PlacedObject,
    RemoteFile,
    RemoteFiles,
    RemoteRoot,
    delete_objects,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalakedb.storage.store import Store

Root = LocalRoot | RemoteRoot
#: a new file under a root, which can be deleted while no commit names it
PlacedFile = Path | PlacedObject
#: a folder for a scratch table; ``close`` deletes it, links in it are unlinked and never followed
WorkFolder = BesideFiles | Temporary | Fetched
#: a file that is not visible before it is finished
NewFile = LocalFile | RemoteFile
#: the new files of one write: ``begin`` each, then ``settle`` or ``remove`` them all
NewFiles = LocalFiles | RemoteFiles


def root_at(
    location: str,
    storage_options: Mapping[str, str] | None = None,
    config: Config | None = None,
    *,
    table: str | None = None,
    outside: bool | None = None,
) -> Root:
    """The root at a location.

    Args:
        location: A path or URL, as the catalog keeps it.
        storage_options: Options for an object store; by default those of the settings, else the environment.
        config: The settings; by default those that hold here.
        table: The table's name, for messages.
        outside: Whether the table's log may name files elsewhere; by default as the settings say.
    """
    config = config or get_config()
    if outside is None:
        outside = config.catalog.allow_outside_paths
    if is_local(location):
        return LocalRoot(location, outside, table)
    remote = config.remote
    return RemoteRoot(
        location,
        config.storage_options_for(location, storage_options),
        remote.folder,
        remote.fetch_limit_bytes,
        remote.parallel,
        outside,
        table,
    )


def undo(files: Iterable[PlacedFile]) -> None:
    """Delete files of a commit that certainly did not happen."""
    objects: dict[int, tuple[Store, list[str]]] = {}
    for file in files:
        if isinstance(file, PlacedObject):
            objects.setdefault(id(file.store), (file.store, []))[1].append(file.path)
            continue
        with suppress(OSError, StorageError):
            file.unlink()
    for store, paths in objects.values():
        delete_objects(store, paths)
