"""A table's root on a local or mounted disk: files are linked for scratch tables, and renamed into place."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import quote

from deltalakedb.delta_log.names import LOG_FOLDER
from deltalakedb.exceptions import StorageError
from deltalakedb.protocol.dv import resolve_dv
from deltalakedb.protocol.paths import TablePaths, encode_path, is_absolute, is_url
from deltalakedb.storage.durable import Translated, flush_folder
from deltalakedb.storage.store import open_store
from deltalakedb.table.write_locks import WORK_FOLDER, make_folder, remove_folder, work_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow.fs as pafs

    from deltalakedb.protocol.actions import Add
    from deltalakedb.storage.durable import Flushes
    from deltalakedb.storage.store import Store

#: the folder of linked files inside a scratch folder; no partition folder or data file has that name
LENT: Final = "__deltasql_root__"
_BUFFER: Final = 128 * 1024


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
        """Always."""
        return True

    @property
    def options(self) -> None:
        """A disk needs none."""
        return None

    @property
    def store(self) -> Store:
        """The folder."""
        return open_store(self.location)

    def work_folder(self, *, reading: bool = False) -> BesideFiles | Temporary:
        """Under the root, or nowhere near it for reading."""
        return Temporary() if reading else BesideFiles(self.location)

    def lender(self, folder: Path, *, reading: bool = False) -> Absolute | Links:
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

    def take(self, folder: Path, names: Sequence[str], *, fsync: bool) -> list[Path]:
        """Rename the files."""
        moved: list[Path] = []
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
            for path in moved:
                _unlink(str(path))
            raise StorageError(
                f"new files could not be moved under {self.location}: {os.strerror(error.errno or 0)}",
                suggestion="check space and rights; nothing was committed",
            ) from error
        return moved

    def new_files(self, *, fsync: bool, flushes: Flushes | None = None) -> LocalFiles:
        """Files with a hidden name until they are whole."""
        return LocalFiles(self.location, fsync=fsync, flushes=flushes)

    def placed(self, paths: Iterable[str]) -> list[Path]:
        """Paths of files."""
        return [Path(self.paths.resolve(path)) for path in paths]

    def arrow(self, sizes: Mapping[str, int]) -> pafs.FileSystem:  # noqa: ARG002 - a disk knows them
        """The local file system."""
        import pyarrow.fs as pafs

        return pafs.LocalFileSystem()

    def arrow_path(self, path: str) -> str:
        """An absolute path."""
        return self.paths.resolve(path)


class BesideFiles:
    """A folder under a local table's root, so that new files move by a rename."""

    def __init__(self, root: str) -> None:
        self.path = Path(root) / WORK_FOLDER / work_name()
        self._new_root = None if Path(root).exists() else Path(root)
        make_folder(self.path)

    def close(self) -> None:
        """Delete it, and the folders above it that hold nothing else."""
        remove_folder(self.path)
        if self._new_root is not None:
            with suppress(OSError):  # not empty: the table was made
                self._new_root.rmdir()


class Temporary:
    """A folder in the system's temporary folder: nothing is written near the table."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="deltasql-"))

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)


class Absolute:
    """Lends files for reading, by paths that stand for themselves.

    Args:
        paths: Where the table's files may be; its root is a local path.
    """

    copies: Final = False

    def __init__(self, paths: TablePaths) -> None:
        self._paths = paths

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds with absolute paths, those of their deletion vectors included."""
        return [self._placed(add) for add in adds]

    def _placed(self, add: Add) -> Add:
        vector = add.deletion_vector
        place = None if vector is None else resolve_dv(self._paths, vector)
        if vector is not None and place is not None and vector.storage_type == "u":
            vector = replace(vector, storage_type="p", path_or_inline_dv=_url(place))
        return replace(add, path=_url(self._paths.resolve(add.path)), deletion_vector=vector)


def _url(place: str) -> str:
    return encode_path(place) if is_url(place) else f"file://{encode_path(place)}"


class Links:
    """Lends files by symbolic links to the folders that hold them.

    Args:
        paths: Where the table's files may be; its root is a local path.
        folder: The scratch folder.
    """

    copies: Final = False

    def __init__(self, paths: TablePaths, folder: Path) -> None:
        self._paths = paths
        self._root = paths.root
        self._folder = folder
        self._links: dict[str, str] = {}

    def lend(self, adds: Sequence[Add]) -> list[Add]:
        """The adds with paths that lead through a link to the real files."""
        return [self._linked(add) for add in adds]

    def _linked(self, add: Add) -> Add:
        real = Path(self._paths.resolve(add.path))
        if is_absolute(add.path):
            path = f"{self._link(str(real.parent))}/{quote(real.name)}"
        else:
            path = f"{self._link(self._root)}/{add.path}"
        vector = add.deletion_vector
        if vector is not None:
            resolve_dv(self._paths, vector)
        if vector is not None and vector.storage_type == "u":
            prefix = f"{self._link(self._root)}/{vector.path_or_inline_dv[:-20]}".rstrip("/")
            vector = replace(vector, path_or_inline_dv=prefix + vector.path_or_inline_dv[-20:])
        return replace(add, path=path, deletion_vector=vector)

    def _link(self, target: str) -> str:
        if (name := self._links.get(target)) is None:
            name = LENT if target == self._root else f"{LENT}{len(self._links)}"
            (self._folder / name).symlink_to(target, target_is_directory=True)
            self._links[target] = name
        return name


class LocalFile:
    """A file with a hidden name until it is finished."""

    def __init__(self, final: str, *, fsync: bool, flushes: Flushes | None) -> None:
        folder, _, name = final.rpartition("/")
        self._final = final
        self._hidden = f"{folder}/.{name}.tmp"
        self._fsync = fsync
        self._flushes = flushes
        self.file: IO[bytes] = open(self._hidden, "xb", buffering=_BUFFER)  # noqa: PTH123, SIM115

    def finish(self) -> tuple[int, int]:
        """Make the file whole and visible; its size, and its time in epoch milliseconds."""
        with Translated("write", self._final):
            self.file.flush()
            handle = self.file.fileno()
            stat = os.fstat(handle)
            # No reader looks for the file before its commit, which waits until it is on disk. So it gets its
            # name before it is flushed: the disk's journal then takes both in one go.
            os.rename(self._hidden, self._final)  # noqa: PTH104
            if self._fsync and self._flushes is None:
                os.fsync(handle)
            later = os.dup(handle) if self._fsync and self._flushes is not None else None
            self.file.close()
        if later is not None and self._flushes is not None:
            self._flushes.file(later, self._final)
        return stat.st_size, stat.st_mtime_ns // 1_000_000

    def discard(self) -> None:
        """Remove the file, in whatever state it is."""
        with contextlib.suppress(Exception):
            self.file.close()
        for path in (self._hidden, self._final):
            _unlink(path)


class LocalFiles:
    """New files below a local root.

    Args:
        root: The table's root.
        fsync: Have files and folders on disk when they are settled.
        flushes: Waits until they are, if that is not to happen here.
    """

    most_open: Final = 64

    def __init__(self, root: str, *, fsync: bool, flushes: Flushes | None = None) -> None:
        self.location = root
        self._root = "" if root == "/" else root
        self._fsync = fsync
        self._flushes = flushes
        self._folders: dict[str, None] = {}

    def begin(self, path: str) -> LocalFile:
        """Begin a file, with its folders."""
        final = f"{self._root}/{path}"
        folder = final.rpartition("/")[0]
        with Translated("write", self.location):
            if folder not in self._folders:
                self._make_folder(folder or "/")
            return LocalFile(final, fsync=self._fsync, flushes=self._flushes)

    def settle(self) -> None:
        """Have the entries of all folders on disk."""
        for folder in self._folders if self._fsync else ():
            if self._flushes is not None:
                self._flushes.folder(folder)
                continue
            flush_folder(folder)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove finished files."""
        for path in paths:
            _unlink(f"{self._root}/{path}")

    def _make_folder(self, folder: str) -> None:
        """Make a folder and those above it, and remember whose entries must be on disk at the end."""
        made = folder
        while not os.path.isdir(made):  # noqa: PTH112
            above = os.path.dirname(made)  # noqa: PTH120
            self._folders.setdefault(above)
            made = above
        if made != folder:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        self._folders.setdefault(folder)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
