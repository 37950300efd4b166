"""A table's root, on a disk or in an object store: all access of operations to data files.

Scratch tables see the files of a local root by links or absolute paths, and those of a remote one as copies.
New files are renamed into place on a disk, and uploaded to a store. Both kinds have the same methods.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import (
    DataFileCorruptError,
    FetchLimitError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.protocol.dv import block_range, decode_block, decode_inline, inline_dv, resolve_dv
from deltalakedb.protocol.paths import TablePaths, decode_path, encode_path, is_absolute, is_url, relative_to
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.settings import Config, RemoteConfig, get_config
from deltalakedb.storage.local import Flushes, translated
from deltalakedb.storage.store import Store, is_local, open_store
from deltalakedb.table.write_locks import WORK_FOLDER, make_folder, remove_folder, work_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow.fs as pafs
    from pyroaring import BitMap64

    from deltalakedb.protocol.actions import Add, DeletionVector
    from deltalakedb.storage.remote import RemoteStore, Upload

    #: paths and sizes of the files that are read, as in the log; called after a failure
    Files = Callable[[], Iterable[tuple[str, int]]]

logger = logging.getLogger(__name__)

#: the folder of linked or fetched files inside a scratch folder; no partition folder or file has the name
FILES_FOLDER: Final = "__deltasql_root__"
_BUFFER: Final = 128 * 1024
#: bytes of a remote table's files that a scan holds on disk at a time
_GROUP_BYTES: Final = 128 << 20
_FETCHED: Final = "deltasql-fetched-"
_LOCK: Final = ".held"


@dataclass(frozen=True, eq=False)
class _Root:
    location: str
    #: whether the table's log may reference files outside of the root
    outside: bool = False
    #: the table's name, for messages
    table: str | None = None
    #: options for the store; None leaves everything to the environment
    options: Mapping[str, str] | None = None

    @property
    def paths(self) -> TablePaths:
        return TablePaths(self.location, self.outside, self.table)

    @cached_property
    def store(self) -> Store:
        return open_store(self.location, self.options)

    def locate(self, path: str) -> tuple[Store, str]:
        """The store of a file and its path there, by its path in the log; it may be outside of the root."""
        return self._located(self.paths.resolve(path))

    def deleted_rows(self, vector: DeletionVector) -> BitMap64:
        if (place := resolve_dv(self.paths, vector)) is None:
            return decode_inline(vector)
        store, path = self._located(place)
        return decode_block(vector, store.get_range(path, *block_range(vector)))

    def num_rows(self, add: Add) -> int:
        """The number of rows of a data file, deleted ones included."""
        stats = parse_stats(add.stats)
        if stats is not None and stats.num_records is not None:
            return stats.num_records
        store, path = self.locate(add.path)
        with store.open(path) as file:
            return int(pq.read_metadata(file).num_rows)

    def _located(self, place: str) -> tuple[Store, str]:
        if (inside := relative_to(self.location, place.replace("%", "%25"))) is not None:
            return self.store, inside
        folder, _, name = place.rpartition("/")
        return open_store(folder or "/", self.options), name


class LocalRoot(_Root):
    """A folder on a local or mounted disk."""

    is_local: ClassVar = True

    def scratch_folder(self, *, reading: bool = False) -> LinkFolder | PathFolder:
        """A folder for a scratch table, under the root unless it is for reading."""
        return PathFolder(self.paths) if reading else LinkFolder(self.paths)

    def populate(self, folder: Path) -> None:
        """Link the root's files into a folder."""
        root = Path(self.location)
        for entry in root.iterdir() if root.is_dir() else ():
            if entry.name not in (LOG_FOLDER, WORK_FOLDER):
                (folder / entry.name).symlink_to(entry)

    def groups(self, adds: Iterable[Add]) -> Iterator[list[Add]]:
        """Files in groups that a scan reads one after the other: a single one, since links cost nothing."""
        yield list(adds)

    def move_in(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[Path]:
        """Move new files of a scratch folder to the root, all or none."""
        moved: list[Path] = []
        flushes = Flushes()
        try:
            with translated("move new files to", self.location):
                for name in names:
                    target = Path(self.location) / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).rename(target)
                    moved.append(target)
                    if fsync:
                        flushes.file(os.open(target, os.O_RDONLY), str(target))
                        flushes.folder(str(target.parent))
                flushes.wait()
        except StorageError:
            flushes.forget()
            delete_new_files(moved)
            raise
        return moved

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> LocalFiles:
        return LocalFiles(self.location, fsync=fsync, flushes=flushes)

    def placed(self, paths: Iterable[str]) -> list[Path]:
        return [Path(self.location, decode_path(path)) for path in paths]

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:  # noqa: ARG002 - a disk knows them
        """The file system for pyarrow, for paths of `arrow_path`."""
        import pyarrow.fs as pafs

        return pafs.LocalFileSystem()

    def arrow_path(self, path: str) -> str:
        return self.paths.resolve(path)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteRoot(_Root):
    """A prefix of an object store."""

    is_local: ClassVar = False
    settings: RemoteConfig = field(kw_only=True)

    def __repr__(self) -> str:
        return f"RemoteRoot({self.store.location!r})"

    def scratch_folder(self, *, reading: bool = False) -> FetchFolder:  # noqa: ARG002 - both fetch
        try:
            return FetchFolder(self)
        except OSError as error:
            raise StorageError(
                f"cannot put fetched files into {self.settings.folder or tempfile.gettempdir()}: "
                f"{os.strerror(error.errno or 0)}",
                suggestion="choose another with the setting remote.folder (DELTASQL_REMOTE__FOLDER)",
            ) from error

    def populate(self, folder: Path) -> None:
        found = [m for m in self.store.list(recursive=True) if m.name.endswith(".parquet")]
        found = [m for m in found if not m.path.startswith(f"{LOG_FOLDER}/")]
        self.check_limit([m.size for m in found])
        for meta in found:
            (folder / meta.path).parent.mkdir(parents=True, exist_ok=True)
        self.run_all([partial(self.store.fetch, meta.path, folder / meta.path) for meta in found])

    def groups(self, adds: Iterable[Add]) -> Iterator[list[Add]]:
        """Groups of limited size, so that a scan needs little disk space."""
        return groups_of(adds, _GROUP_BYTES)

    def move_in(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[PlacedObject]:  # noqa: ARG002
        try:
            self.run_all([partial(self.store.put_file, name, folder / name, new=False) for name in names])
        except BaseException:
            _delete_objects(self.store, names)
            raise
        return [PlacedObject(self.store, name) for name in names]

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> RemoteFiles:  # noqa: ARG002
        return RemoteFiles(cast("RemoteStore", self.store), parallel=self.settings.parallel)

    def placed(self, paths: Iterable[str]) -> list[PlacedObject]:
        return [PlacedObject(self.store, decode_path(path)) for path in paths]

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:
        from deltalakedb.storage.arrow_files import arrow_files

        return arrow_files(self.store, self.options, sizes)

    def arrow_path(self, path: str) -> str:
        """A path below the root, or the URL of a file outside of it."""
        place = self.paths.resolve(path)
        return relative_to(self.location, path) or place

    def check_limit(self, sizes: Sequence[int]) -> None:
        """Raise FetchLimitError if the files exceed the setting remote.fetch_limit_bytes."""
        limit = self.settings.fetch_limit_bytes
        if (size := sum(sizes)) > limit:
            raise FetchLimitError(
                f"this operation needs to fetch {len(sizes)} files of {size:,} bytes from {self.location}, "
                f"but the setting remote.fetch_limit_bytes allows {limit:,}",
                suggestion="narrow the predicate to fewer files, raise remote.fetch_limit_bytes "
                "(DELTASQL_REMOTE__FETCH_LIMIT_BYTES) if the disk has the space, or run it on Spark",
            )

    def run_all(self, transfers: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run transfers in parallel; if one fails, wait for those that have begun."""
        with ThreadPoolExecutor(max(1, min(self.settings.parallel, len(transfers)))) as pool:
            return list(pool.map(lambda transfer: transfer(), transfers))


def groups_of(adds: Iterable[Add], limit: int) -> Iterator[list[Add]]:
    """Files in groups of at most so many bytes; a larger file is alone. At least one group, perhaps empty."""
    group: list[Add] = []
    size = 0
    for add in adds:
        if group and size + add.size > limit:
            yield group
            group, size = [], 0
        group.append(add)
        size += add.size
    yield group


class PlacedObject(NamedTuple):
    """A new object under a remote root."""

    store: Store
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


Root = LocalRoot | RemoteRoot
#: a new file under a root, which can be deleted until a commit references it
PlacedFile = Path | PlacedObject


def root_at(
    location: str,
    storage_options: Mapping[str, str] | None = None,
    config: Config | None = None,
    *,
    table: str | None = None,
    outside: bool | None = None,
) -> Root:
    """The root at a location, which is normalized as in the catalog.

    Storage options, and whether the log may reference files outside, come from the settings by default.
    """
    config = config or get_config()
    if outside is None:
        outside = config.catalog.allow_outside_paths
    if is_local(location):
        return LocalRoot(location, outside, table)
    options = config.storage_options_for(location, storage_options)
    return RemoteRoot(location, outside, table, options, settings=config.remote)


def delete_new_files(files: Iterable[PlacedFile]) -> None:
    """Delete the new files of a commit that is known to have failed."""
    objects: dict[int, tuple[Store, list[str]]] = {}
    for file in files:
        if isinstance(file, PlacedObject):
            objects.setdefault(id(file.store), (file.store, []))[1].append(file.path)
            continue
        with suppress(OSError):
            file.unlink()
    for store, paths in objects.values():
        _delete_objects(store, paths)


def _delete_objects(store: Store, paths: Sequence[str]) -> None:
    try:
        store.delete_all(paths)
    except StorageError as error:
        # no version references them, and a full vacuum deletes them
        logger.warning(
            "%d files of a failed write are left in %s: %s", len(paths), store.location, error.message
        )


# ---- folders of scratch tables -----------------------------------------------------------------------------


class LinkFolder:
    """A folder under a local root, with links to the table's files; new files are moved by a rename.

    Links, because delta-rs rewrites only files below its table's folder.
    """

    #: whether the files are copies, which must exist as long as the scratch table is read
    copies: Final = False

    def __init__(self, paths: TablePaths) -> None:
        root = Path(paths.root)
        self.path = root / WORK_FOLDER / work_name()
        self._paths = paths
        self._new_root = None if root.exists() else root
        self._links: dict[str, str] = {}
        make_folder(self.path)

    def provide(self, adds: Sequence[Add]) -> list[Add]:
        """Make the files of some adds available; return the adds with the paths to use in the scratch log."""
        return [self._linked(add) for add in adds]

    def close(self) -> None:
        """Delete the folder and empty folders above it, without following links."""
        remove_folder(self.path)
        if self._new_root is not None:
            with suppress(OSError):  # not empty: the table was created
                self._new_root.rmdir()

    def _linked(self, add: Add) -> Add:
        root, real = self._paths.root, Path(self._paths.resolve(add.path))
        if is_absolute(add.path):
            path = f"{self._link(str(real.parent))}/{quote(real.name)}"
        else:
            path = f"{self._link(root)}/{add.path}"
        vector = add.deletion_vector
        if vector is not None:
            resolve_dv(self._paths, vector)
        if vector is not None and vector.storage_type == "u":
            prefix = f"{self._link(root)}/{vector.path_or_inline_dv[:-20]}".rstrip("/")
            vector = replace(vector, path_or_inline_dv=prefix + vector.path_or_inline_dv[-20:])
        return replace(add, path=path, deletion_vector=vector)

    def _link(self, target: str) -> str:
        if (name := self._links.get(target)) is None:
            name = FILES_FOLDER if target == self._paths.root else f"{FILES_FOLDER}{len(self._links)}"
            (self.path / name).symlink_to(target, target_is_directory=True)
            self._links[target] = name
        return name


class PathFolder:
    """A folder in the system's temporary folder, for reading a local table by absolute paths."""

    copies: Final = False

    def __init__(self, paths: TablePaths) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="deltasql-"))
        self._paths = paths

    def provide(self, adds: Sequence[Add]) -> list[Add]:
        return [with_absolute_path(add, self._paths) for add in adds]

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def with_absolute_path(add: Add, paths: TablePaths) -> Add:
    """The add with URLs for its file and its deletion vector."""
    vector = add.deletion_vector
    place = None if vector is None else resolve_dv(paths, vector)
    if vector is not None and place is not None and vector.storage_type == "u":
        vector = replace(vector, storage_type="p", path_or_inline_dv=_url(place))
    return replace(add, path=_url(paths.resolve(add.path)), deletion_vector=vector)


def _url(place: str) -> str:
    return encode_path(place) if is_url(place) else f"file://{encode_path(place)}"


class FetchFolder:
    """A folder with copies of a remote table's files; deletion vectors are inline in its log.

    If a process is killed, the next one deletes its folder.
    """

    copies: Final = True

    def __init__(self, root: RemoteRoot) -> None:
        self._root = root
        above = Path(root.settings.folder or tempfile.gettempdir())
        above.mkdir(parents=True, exist_ok=True)
        _sweep(above)
        self.path = Path(tempfile.mkdtemp(prefix=_FETCHED, dir=above))
        # lock the file before it gets its name: a process that can lock it later knows that the owner is dead
        unnamed = self.path / f"{_LOCK}-new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK)

    def provide(self, adds: Sequence[Add]) -> list[Add]:
        self._root.check_limit([add.size for add in adds])
        if adds:
            (self.path / FILES_FOLDER).mkdir(exist_ok=True)
        return self._root.run_all([partial(self._copied, n, add) for n, add in enumerate(adds)])

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)

    def _copied(self, number: int, add: Add) -> Add:
        # generated names: a key may be too long for a file name, or outside of the root
        name = f"{FILES_FOLDER}/{number}.parquet"
        store, path = self._root.locate(add.path)
        vector = add.deletion_vector
        try:
            store.fetch(path, self.path / name)
            if vector is not None and vector.storage_type != "i":
                vector = inline_dv(self._root.deleted_rows(vector))
        except StorageMissingError as error:
            raise StorageMissingError(
                f"a data file of the table is missing: {error.message}",
                suggestion="restore the file, or read a version that does not reference it",
            ) from error
        return replace(add, path=name, deletion_vector=vector)


def _sweep(above: Path) -> None:
    for folder in above.glob(f"{_FETCHED}*"):
        with suppress(OSError):  # not ours, or swept by another process
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


#: a folder for a scratch table; ``close`` deletes it
ScratchFolder = LinkFolder | PathFolder | FetchFolder


# ---- new files ---------------------------------------------------------------------------------------------


class LocalFiles:
    """New files below a local root, which have a hidden name until they are finished.

    ``settle``, or the caller's ``flushes``, wait until they are on disk. The caller translates OSErrors.
    """

    #: maximum number of open files
    most_open: Final = 64

    def __init__(self, root: str, *, fsync: bool, flushes: Flushes | None = None) -> None:
        self.location = root
        self._root = "" if root == "/" else root
        self._own = Flushes() if fsync and flushes is None else None
        self._flushes = (flushes or self._own) if fsync else None
        self._folders: set[str] = set()

    def begin(self, path: str) -> IO[bytes]:
        folder, _, name = f"{self._root}/{path}".rpartition("/")
        if (folder or "/") not in self._folders:
            self._make_folder(folder or "/")
        return open(f"{folder}/.{name}.tmp", "xb", buffering=_BUFFER)  # noqa: PTH123

    def finish(self, path: str, file: Any) -> tuple[int, int]:
        """Complete and rename a file; return its size and modification time in epoch milliseconds."""
        file.flush()
        stat, final = os.fstat(file.fileno()), f"{self._root}/{path}"
        # No reader looks for the file before its commit, which waits until it is on disk. So rename it
        # before it is flushed: one journal write of the file system then covers both.
        os.rename(file.name, final)  # noqa: PTH104
        if self._flushes is not None:
            self._flushes.file(os.dup(file.fileno()), final)
        file.close()
        return stat.st_size, stat.st_mtime_ns // 1_000_000

    def discard(self, path: str, file: Any) -> None:
        with suppress(Exception):
            file.close()
        delete_new_files([Path(file.name), Path(f"{self._root}/{path}")])

    def settle(self) -> None:
        """Wait until all files are on disk, or in the store."""
        if self._own is not None:
            self._own.wait()

    def remove(self, paths: Sequence[str]) -> None:
        if self._own is not None:
            self._own.forget()
        delete_new_files(Path(f"{self._root}/{path}") for path in paths)

    def _make_folder(self, folder: str) -> None:
        """Create a folder and its parents, and queue each changed folder to be flushed."""
        changed, made = [folder], folder
        while not os.path.isdir(made):  # noqa: PTH112
            made = os.path.dirname(made)  # noqa: PTH120
            changed.append(made)
        if made != folder:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        self._folders.add(folder)
        if self._flushes is not None:
            for one in changed:
                self._flushes.folder(one)


class RemoteFiles:
    """New objects below a remote root, uploaded while they are written and completed in the background."""

    #: maximum number of open uploads; each buffers parts in memory
    most_open: Final = 16

    def __init__(self, store: RemoteStore, *, parallel: int) -> None:
        self.location = store.location
        self._store = store
        self._parallel = parallel
        self._pool = ThreadPoolExecutor(parallel, "deltasql-upload")
        self._pending: deque[Future[None]] = deque()

    def begin(self, path: str) -> Upload:
        return self._store.begin(path)

    def finish(self, path: str, file: Any) -> tuple[int, int]:  # noqa: ARG002
        """Complete an upload in the background; ``settle`` raises its error at the latest."""
        while len(self._pending) >= self._parallel:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(_complete, file))
        return file.tell(), time.time_ns() // 1_000_000

    def discard(self, path: str, file: Any) -> None:  # noqa: ARG002
        with suppress(StorageError):
            file.discard()

    def settle(self) -> None:
        while self._pending:
            self._pending.popleft().result()
        self._pool.shutdown()

    def remove(self, paths: Sequence[str]) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
        _delete_objects(self._store, paths)


def _complete(upload: Upload) -> None:
    try:
        upload.finish()
    except BaseException:
        with suppress(StorageError):
            upload.discard()
        raise


#: the new files of one write: ``begin`` and ``finish`` each, then ``settle`` or ``remove`` them all
NewFiles = LocalFiles | RemoteFiles


# ---- files that cannot be read ----------------------------------------------------------------------------

#: maximum number of files that are checked after a failure
_LOCAL, _REMOTE = 10_000, 100
#: the last bytes of a Parquet file with a plain or an encrypted footer, and the smallest size
_MAGIC: Final = (b"PAR1", b"PARE")
_SMALLEST: Final = 12


class ArrowDataFileError(DataFileCorruptError, pa.ArrowInvalid):  # type: ignore[misc]
    """A damaged data file, also for code that catches Arrow's error."""


@contextmanager
def reading(root: Root, files: Files, *, version: int | None = None) -> Iterator[None]:
    """Report a data file that is missing, denied or damaged as a StorageError, whatever the reader raises."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, pa.ArrowException) as error:
        found = find_unreadable(root, files, version, str(error))
        if found is None and not isinstance(error, OSError):
            raise
        kind = StorageMissingError if isinstance(error, FileNotFoundError) else StorageError
        raise found or kind(
            f"a data file cannot be read: {error}",
            table=root.table,
            version=version,
            suggestion="check the disk and the network, then try again",
        ) from error


def find_unreadable(root: Root, files: Files, version: int | None, reported: str) -> StorageError | None:
    """The error for the first unreadable file; files in the reader's error are checked first."""
    try:
        listed = sorted(files(), key=lambda file: PurePosixPath(decode_path(file[0])).name not in reported)
    except Exception:
        return None
    for path, size in islice(listed, _LOCAL if root.is_local else _REMOTE):
        try:
            _check_file(root, path, size)
        except StorageUnavailableError:
            return None
        except StorageError as error:
            what, hint, command = "unreadable", error.suggestion, error.command
            if isinstance(error, StorageMissingError):
                what, hint = "missing", "restore the file, or read a version that does not reference it"
            text = f"a data file of the table is {what}: {error.message}"
            made = type(error)(text, table=root.table, version=version, suggestion=hint, command=command)
            made.__cause__ = error.__cause__
            return made
    return None


def _check_file(root: Root, path: str, size: int) -> None:
    """Raise StorageError if a file does not have the size in the log or a Parquet footer."""
    store, name = root.locate(path)
    there = store.head(name).size
    end = store.get_range(name, max(0, there - len(_MAGIC[0])), len(_MAGIC[0]))
    detail = None
    if there != size:
        detail = f"it has {there} bytes, but the log says {size}"
    elif there < _SMALLEST or end not in _MAGIC:
        detail = "it does not end like a Parquet file"
    elif end == _MAGIC[0]:
        try:
            with store.open(name) as file:
                pq.read_metadata(file)
        except pa.ArrowException as error:
            detail = f"its footer cannot be read ({error})"
    if detail is not None:
        raise ArrowDataFileError(
            f"{store.location.rstrip('/')}/{name} is damaged: {detail}",
            suggestion="restore the file from a backup; to continue without its rows, move it away and call "
            "repair(), which removes missing files from the table",
            command="restore the file from a backup, or read a version that does not reference it",
        )
