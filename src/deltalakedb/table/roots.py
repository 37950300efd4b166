"""A table's root: the one seam between operations on tables and the place where data files lie."""

from __future__ import annotations

import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from deltalakedb.config import Config, get_config
from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import StorageError
from deltalakedb.protocol.paths import TablePaths, decode_path, relative_to
from deltalakedb.storage.store import open_store
from deltalakedb.table.in_flight import WORK_FOLDER
from deltalakedb.table.lending import Absolute, Copies, Links, check_limit
from deltalakedb.table.new_files import LocalFiles, RemoteFiles
from deltalakedb.table.places import is_local
from deltalakedb.table.work_folders import BesideFiles, Fetched, Temporary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow.fs as pafs

    from deltalakedb.protocol.actions import Add
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.storage.remote import RemoteStore
    from deltalakedb.storage.store import Store
    from deltalakedb.table.new_files import NewFiles
    from deltalakedb.table.work_folders import WorkFolder

logger = logging.getLogger(__name__)

#: bytes of a remote table's files that a scan holds on disk at a time
_GROUP_BYTES: Final = 128 << 20


class PlacedFile(Protocol):
    """A new file under a table's root, which can be taken back while no commit names it."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        ...

    def unlink(self) -> None:
        """Delete it."""
        ...


class Lender(Protocol):
    """Makes real files available to a scratch table."""

    @property
    def copies(self) -> bool:
        """Whether they are copies in the scratch folder, which must stay while they are read."""
        ...

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds as the scratch table's log has them, in the same order."""
        ...


class Root(Protocol):
    """Where a table's files lie, and what can be done with them there."""

    @property
    def location(self) -> str:
        """A path or URL."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        ...

    @property
    def paths(self) -> TablePaths:
        """Where files of the table may be."""
        ...

    @property
    def options(self) -> Mapping[str, str] | None:
        """Storage options; None leaves everything to the environment."""
        ...

    @property
    def store(self) -> Store:
        """Listing, small files and deletion."""
        ...

    def work_folder(self, *, reading: bool = False) -> WorkFolder:
        """A local folder for a scratch table."""
        ...

    def lender(self, folder: Path, *, reading: bool = False) -> Lender:
        """What brings real files into a scratch folder."""
        ...

    def show(self, folder: Path) -> None:
        """Make a scratch folder look like this one: every data file at its path."""
        ...

    def groups(self, adds: Iterable[Add]) -> Iterator[list[Add]]:
        """Files in groups that a scratch table may hold at a time; at least one group, empty perhaps."""
        ...

    def take(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[PlacedFile]:
        """Bring new files from a scratch folder to the same paths here, all or none."""
        ...

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> NewFiles:
        """New files that are written straight to their place.

        Args:
            fsync: Have them on disk when they are settled.
            flushes: Whoever waits until they are, where that is not to happen then.
        """
        ...

    def placed(self, paths: Iterable[str]) -> list[PlacedFile]:
        """Files here, by their paths in the log."""
        ...

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:
        """A file system for pyarrow to read with.

        Args:
            sizes: By path, as `arrow_path` gives it.
        """
        ...

    def arrow_path(self, path: str) -> str:
        """The path of a data file for that file system."""
        ...


@dataclass(frozen=True, slots=True)
class LocalRoot:
    """A folder on a local or mounted disk.

    Attributes:
        location: Its path.
        outside: Whether the table's log may name files elsewhere.
        table: The table's name, for messages.
    """

    location: str
    outside: bool = False
    table: str | None = None

    @property
    def paths(self) -> TablePaths:
        """Where files of the table may be."""
        return TablePaths(self.location, self.outside, self.table)

    @property
    def is_local(self) -> bool:
        """It is."""
        return True

    @property
    def options(self) -> None:
        """A disk needs none."""
        return None

    @property
    def store(self) -> Store:
        """The folder."""
        return open_store(self.location)

    def work_folder(self, *, reading: bool = False) -> WorkFolder:
        """Under the root, or nowhere near it for reading."""
        return Temporary() if reading else BesideFiles(self.location)

    def lender(self, folder: Path, *, reading: bool = False) -> Lender:
        """Absolute paths for reading, else links: delta-rs rewrites only what lies below its folder."""
        return Absolute(self.paths) if reading else Links(self.paths, folder)

    def show(self, folder: Path) -> None:
        """Link what is here."""
        root = Path(self.location)
        for entry in root.iterdir() if root.is_dir() else ():
            if entry.name not in (LOG_FOLDER, WORK_FOLDER):
                (folder / entry.name).symlink_to(entry)

    def groups(self, adds: Iterable[Add]) -> Iterator[list[Add]]:
        """All at once: links cost nothing."""
        yield list(adds)

    def take(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[PlacedFile]:
        """Rename the files."""
        moved: list[PlacedFile] = []
        try:
            folders: dict[Path, None] = {}
            for name in names:
                target = Path(self.location) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if fsync:
                    _flush(folder / name)
                (folder / name).rename(target)
                folders[target.parent] = None
                moved.append(target)
            for parent in folders if fsync else ():
                _flush(parent)
        except OSError as error:
            undo(moved)
            raise StorageError(
                f"new files could not be moved under {self.location}: {os.strerror(error.errno or 0)}",
                suggestion="check space and rights; nothing was committed",
            ) from error
        return moved

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> NewFiles:
        """Files with a hidden name until they are whole."""
        return LocalFiles(self.location, fsync=fsync, flushes=flushes)

    def placed(self, paths: Iterable[str]) -> list[PlacedFile]:
        """Paths of files."""
        return [Path(self.paths.resolve(path)) for path in paths]

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:  # noqa: ARG002 - a disk knows them
        """The local file system."""
        import pyarrow.fs as pafs

        return pafs.LocalFileSystem()

    def arrow_path(self, path: str) -> str:
        """An absolute path."""
        return self.paths.resolve(path)


@dataclass(frozen=True, eq=False)
class RemoteRoot:
    """A prefix of an object store.

    Attributes:
        location: Its URL.
        options: Storage options; None leaves everything to the environment.
        folder: Where fetched files lie for the time being; None for the system's temporary folder.
        limit: Bytes to fetch for one operation at most.
        parallel: Transfers at a time.
        outside: Whether the table's log may name files elsewhere.
        table: The table's name, for messages.
    """

    location: str
    options: Mapping[str, str] | None
    folder: str | None
    limit: int
    parallel: int
    outside: bool = False
    table: str | None = None

    @property
    def paths(self) -> TablePaths:
        """Where files of the table may be."""
        return TablePaths(self.location, self.outside, self.table)

    @property
    def is_local(self) -> bool:
        """It is not."""
        return False

    def __repr__(self) -> str:
        return f"RemoteRoot({self.store.location!r})"

    @cached_property
    def store(self) -> Store:
        """The store; its connections are kept."""
        return open_store(self.location, self.options)

    def work_folder(self, *, reading: bool = False) -> WorkFolder:  # noqa: ARG002 - both fetch
        """On this machine: nothing but data files is written near the table."""
        try:
            return Fetched(self.folder)
        except OSError as error:
            raise StorageError(
                f"no folder for fetched files can be made in {self.folder or tempfile.gettempdir()}: "
                f"{os.strerror(error.errno or 0)}",
                suggestion="choose another with the setting remote.folder (DELTASQL_REMOTE__FOLDER)",
            ) from error

    def lender(self, folder: Path, *, reading: bool = False) -> Lender:  # noqa: ARG002 - both fetch
        """Copies."""
        return Copies(
            self.paths,
            self.store,
            folder,
            options=self.options,
            limit=self.limit,
            parallel=self.parallel,
        )

    def show(self, folder: Path) -> None:
        """Fetch every Parquet file."""
        found = [m for m in self.store.list(recursive=True) if m.name.endswith(".parquet")]
        found = [m for m in found if not m.path.startswith(f"{LOG_FOLDER}/")]
        check_limit(self.location, [m.size for m in found], self.limit)
        for meta in found:
            (folder / meta.path).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.parallel) as pool:
            list(pool.map(lambda meta: self.store.fetch(meta.path, folder / meta.path), found))

    def groups(self, adds: Iterable[Add]) -> Iterator[list[Add]]:
        """Some at a time, so that a scan of any size needs little space."""
        group: list[Add] = []
        size = 0
        begun = False
        for add in adds:
            if group and size + add.size > _GROUP_BYTES:
                yield group
                group, size, begun = [], 0, True
            group.append(add)
            size += add.size
        if group or not begun:
            yield group

    def take(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[PlacedFile]:  # noqa: ARG002
        """Upload the files, several at a time; where one fails, those that went up are deleted again."""
        if not names:
            return []
        placed = [_PlacedObject(self.store, name) for name in names]
        with ThreadPoolExecutor(min(self.parallel, len(names))) as pool:
            sent = [pool.submit(self.store.put_file, name, folder / name, new=False) for name in names]
            try:
                for upload in sent:
                    upload.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                undo(placed)
                raise
        return list(placed)

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> NewFiles:  # noqa: ARG002
        """Objects that are sent while they grow; a store keeps what it acknowledged."""
        return RemoteFiles(cast("RemoteStore", self.store), parallel=self.parallel)

    def placed(self, paths: Iterable[str]) -> list[PlacedFile]:
        """Objects by their names."""
        return [_PlacedObject(self.store, decode_path(path)) for path in paths]

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:
        """The store for pyarrow."""
        from deltalakedb.storage.arrow_files import arrow_files

        return arrow_files(self.store, self.options, sizes)

    def arrow_path(self, path: str) -> str:
        """A path below the root, or the URL of a file outside of it."""
        place = self.paths.resolve(path)
        return relative_to(self.location, path) or place


@dataclass(frozen=True, slots=True)
class _PlacedObject:
    """A new object under a remote root."""

    store: Store
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def unlink(self) -> None:
        self.store.delete(self.path)


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
        if isinstance(file, _PlacedObject):
            objects.setdefault(id(file.store), (file.store, []))[1].append(file.path)
            continue
        with suppress(OSError, StorageError):
            file.unlink()
    for store, paths in objects.values():
        try:
            store.delete_all(paths)
        except StorageError as error:
            # no version names them: a full vacuum finds them by listing
            logger.warning(
                "%d files of a failed write are left in %s: %s", len(paths), store.location, error.message
            )


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
