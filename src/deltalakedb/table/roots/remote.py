"""A table's root on an object store: its files are fetched for scratch tables, and new ones uploaded."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import FetchLimitError, StorageError, StorageMissingError
from deltalakedb.protocol.actions import DeletionVector
from deltalakedb.protocol.dv import block_range, decode_block, resolve_dv, z85_encode
from deltalakedb.protocol.paths import TablePaths, decode_path, relative_to
from deltalakedb.storage.store import open_store
from deltalakedb.table.roots.local import LENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow.fs as pafs

    from deltalakedb.protocol.actions import Add
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.storage.remote import RemoteStore
    from deltalakedb.storage.store import Store
    from deltalakedb.storage.upload import Upload

logger = logging.getLogger(__name__)

#: bytes of a remote table's files that a scan holds on disk at a time
_GROUP_BYTES: Final = 128 << 20
_FETCHED: Final = "deltasql-fetched-"
_LOCK: Final = ".held"


@dataclass(frozen=True, eq=False)
class RemoteRoot:
    """A prefix of an object store.

    Attributes:
        location: Its URL.
        options: Storage options; None leaves everything to the environment.
        folder: Where fetched files are kept meanwhile; None for the system's temporary folder.
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
        """Never."""
        return False

    def __repr__(self) -> str:
        return f"RemoteRoot({self.store.location!r})"

    @cached_property
    def store(self) -> Store:
        """The store; its connections are kept."""
        return open_store(self.location, self.options)

    def work_folder(self, *, reading: bool = False) -> Fetched:  # noqa: ARG002 - both fetch
        """On this machine: nothing but data files is written near the table."""
        try:
            return Fetched(self.folder)
        except OSError as error:
            raise StorageError(
                f"no folder for fetched files can be made in {self.folder or tempfile.gettempdir()}: "
                f"{os.strerror(error.errno or 0)}",
                suggestion="choose another with the setting remote.folder (DELTASQL_REMOTE__FOLDER)",
            ) from error

    def lender(self, folder: Path, *, reading: bool = False) -> Copies:  # noqa: ARG002 - both fetch
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

    def take(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[PlacedObject]:  # noqa: ARG002
        """Upload the files, several at a time; where one fails, those that went up are deleted again."""
        if not names:
            return []
        placed = [PlacedObject(self.store, name) for name in names]
        with ThreadPoolExecutor(min(self.parallel, len(names))) as pool:
            sent = [pool.submit(self.store.put_file, name, folder / name, new=False) for name in names]
            try:
                for upload in sent:
                    upload.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                delete_objects(self.store, names)
                raise
        return placed

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> RemoteFiles:  # noqa: ARG002
        """Objects that are sent while they grow; a store keeps what it acknowledged."""
        return RemoteFiles(cast("RemoteStore", self.store), parallel=self.parallel)

    def placed(self, paths: Iterable[str]) -> list[PlacedObject]:
        """Objects by their names."""
        return [PlacedObject(self.store, decode_path(path)) for path in paths]

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:
        """The store for pyarrow."""
        from deltalakedb.storage.arrow_files import arrow_files

        return arrow_files(self.store, self.options, sizes)

    def arrow_path(self, path: str) -> str:
        """A path below the root, or the URL of a file outside of it."""
        place = self.paths.resolve(path)
        return relative_to(self.location, path) or place


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """A new object under a remote root."""

    store: Store
    path: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    def unlink(self) -> None:
        """Delete it."""
        self.store.delete(self.path)


def delete_objects(store: Store, paths: Sequence[str]) -> None:
    """Delete files of a write that failed; an error is logged, since no version names them."""
    try:
        store.delete_all(paths)
    except StorageError as error:
        # a full vacuum finds them by listing
        logger.warning(
            "%d files of a failed write are left in %s: %s", len(paths), store.location, error.message
        )


class Fetched:
    """A folder for fetched files. One that a killed process left behind is cleared away by the next.

    Args:
        parent: Where to make it; by default the system's temporary folder.
    """

    def __init__(self, parent: str | None) -> None:
        above = Path(parent or tempfile.gettempdir())
        above.mkdir(parents=True, exist_ok=True)
        _sweep(above)
        self.path = Path(tempfile.mkdtemp(prefix=_FETCHED, dir=above))
        # locked before it has its name: a process that sees the name and gets the lock knows that it was left
        unnamed = self.path / f"{_LOCK}-new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK)

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)


def _sweep(above: Path) -> None:
    """Delete folders of processes that are gone."""
    for folder in above.glob(f"{_FETCHED}*"):
        with contextlib.suppress(OSError):  # not ours, or swept by another process
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


class Copies:
    """Lends files by fetching them, several at a time; deletion vectors travel inside the log.

    Args:
        paths: Where the table's files may be; its root is a URL.
        store: The store at the root.
        folder: The scratch folder.
        options: Storage options for files outside of the root.
        limit: Bytes to fetch at most.
        parallel: Transfers at a time.
    """

    copies: Final = True

    def __init__(
        self,
        paths: TablePaths,
        store: Store,
        folder: Path,
        *,
        options: Mapping[str, str] | None,
        limit: int,
        parallel: int,
    ) -> None:
        self._paths = paths
        self._root = paths.root
        self._store = store
        self._folder = folder / LENT
        self._options = options
        self._limit = limit
        self._parallel = parallel

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds with paths of fetched copies.

        Raises:
            FetchLimitError: They are larger than the limit; nothing was fetched.
        """
        check_limit(self._root, [add.size for add in adds], self._limit)
        if not adds:
            return []
        self._folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(min(self._parallel, len(adds))) as pool:
            pending = [pool.submit(self._copied, number, add) for number, add in enumerate(adds)]
            try:
                return [found.result() for found in pending]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _copied(self, number: int, add: Add) -> Add:
        # short names of our own: a key may be longer than a file name can be, or be outside of the root
        name = f"{number}.parquet"
        store, path = self._place(self._paths.resolve(add.path))
        try:
            store.fetch(path, self._folder / name)
            vector = self._inline(add.deletion_vector)
        except StorageMissingError as error:
            raise StorageMissingError(
                f"a data file of the table is missing: {error.message}",
                suggestion="the file was deleted: restore it, or read a version that does not need it",
            ) from error
        return replace(add, path=f"{LENT}/{name}", deletion_vector=vector)

    def _inline(self, vector: DeletionVector | None) -> DeletionVector | None:
        """The vector with its rows inside, so that its file is not needed."""
        if vector is None or (url := resolve_dv(self._paths, vector)) is None:
            return vector
        store, path = self._place(url)
        block = store.get_range(path, *block_range(vector))
        decode_block(vector, block)
        data = block[4:-4]
        text = z85_encode(data + bytes(-len(data) % 4))
        return DeletionVector(
            storage_type="i",
            path_or_inline_dv=text,
            size_in_bytes=vector.size_in_bytes,
            cardinality=vector.cardinality,
        )

    def _place(self, url: str) -> tuple[Store, str]:
        if (inside := relative_to(self._root, url.replace("%", "%25"))) is not None:
            return self._store, inside
        folder, _, name = url.rpartition("/")
        return open_store(folder, self._options), name


def check_limit(root: str, sizes: Sequence[int], limit: int) -> None:
    """Refuse to fetch more than the settings allow."""
    size = sum(sizes)
    if size > limit:
        raise FetchLimitError(
            f"this operation would have to fetch {len(sizes)} files of {size:,} bytes from {root}, and the "
            f"setting remote.fetch_limit_bytes allows {limit:,}",
            suggestion="narrow the predicate to fewer files, raise remote.fetch_limit_bytes "
            "(DELTASQL_REMOTE__FETCH_LIMIT_BYTES) where the disk has the space, or run it on Spark",
        )


class RemoteFile:
    """An object that appears when it is finished."""

    def __init__(self, files: RemoteFiles, upload: Upload) -> None:
        self._files = files
        self._upload = upload
        self.file: Any = upload

    def finish(self) -> tuple[int, int]:
        """Make the file whole and visible; its size, and its time in epoch milliseconds."""
        self._files.complete(self._upload)
        return self._upload.tell(), time.time_ns() // 1_000_000

    def discard(self) -> None:
        """Remove the file, in whatever state it is."""
        with contextlib.suppress(StorageError):
            self._upload.discard()


class RemoteFiles:
    """New objects below a remote root, sent while they grow; the last of each is sent in the background.

    Args:
        store: The root.
        parallel: How many are completed at a time.
    """

    #: each holds some parts in memory that are on their way
    most_open: Final = 16

    def __init__(self, store: RemoteStore, *, parallel: int) -> None:
        self.location = store.location
        self._store = store
        self._parallel = parallel
        self._pool = ThreadPoolExecutor(parallel, "deltasql-upload")
        self._pending: deque[Future[None]] = deque()

    def begin(self, path: str) -> RemoteFile:
        """Begin an object."""
        return RemoteFile(self, self._store.begin(path))

    def complete(self, upload: Upload) -> None:
        """Make an object appear soon; an error shows at the latest when all are settled."""
        while len(self._pending) >= self._parallel:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(_complete, upload))

    def settle(self) -> None:
        """Wait until every object is there."""
        while self._pending:
            self._pending.popleft().result()
        self._pool.shutdown()

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, once those on their way have arrived."""
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
        delete_objects(self._store, paths)


def _complete(upload: Upload) -> None:
    try:
        upload.finish()
    except BaseException:
        with contextlib.suppress(StorageError):
            upload.discard()
        raise
