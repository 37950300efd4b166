"""Local disk: files appear complete or not at all, and survive a power cut.

The order is always the same: write a temporary file, flush it, link it to its name, flush the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from deltalakedb.exceptions import (
    StorageAccessError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.storage.store import ObjectMeta, Store, checked_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


COPY_BYTES: Final = 1 << 20
#: limit of files that are held open
_MOST_OPEN: Final = 64
_TEMP_PREFIX: Final = ".dl-"
_TEMP_SUFFIX: Final = ".tmp"
#: file systems without hard links report one of these
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_RENAME_NOREPLACE: Final = 1
_AT_FDCWD: Final = -100

# ---- errors ----

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ADVICE = {
    errno.EACCES: "check the rights of the file and its folders for this user",
    errno.EPERM: "check the rights and attributes of the file and its folders",
    errno.EROFS: "the file system is mounted read-only: mount it writable or choose another location",
    errno.ENOTDIR: "a part of the path is a file where a folder is expected: choose another location",
    errno.EISDIR: "there is a folder where a file is expected: move it away",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "too many levels of symbolic links: correct them",
    errno.ENOSPC: "free some space on the disk, then try again",
    errno.EDQUOT: "the disk quota is used up: free some space or raise it, then try again",
    errno.EFBIG: "a limit on file sizes is reached (see `ulimit -f`): raise it, then try again",
    errno.EMFILE: "too many open files: raise the limit (`ulimit -n`), then try again",
    errno.ENFILE: "too many open files on this machine: try again later",
    errno.EIO: "the disk reports an input/output error: check the hardware and the system log",
    errno.ESTALE: "the network file system lost the file: remount it, then try again",
    errno.ETIMEDOUT: "the network file system does not answer: try again later",
}
_TRANSIENT = {*_FULL, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN}


def storage_error(error: OSError, doing: str, path: Path | str) -> StorageError:
    code = error.errno or 0
    reason = os.strerror(code) if code else str(error)
    text = f"cannot {doing} {path}: {reason}"
    if isinstance(error, FileNotFoundError):
        return StorageMissingError(text, suggestion="check the path: nothing is there")
    if isinstance(error, PermissionError):
        return StorageAccessError(text, suggestion=_ADVICE.get(code, _ADVICE[errno.EACCES]))
    kind = StorageUnavailableError if code in _TRANSIENT else StorageError
    return kind(text, suggestion=_ADVICE.get(code, "check the disk and the path, then try again"))


@contextlib.contextmanager
def translated(doing: str, path: Path | str) -> Iterator[None]:
    """Turn errors of the operating system into typed ones."""
    try:
        yield
    except StorageError:  # an OSError too
        raise
    except OSError as error:
        raise storage_error(error, doing, path) from error


# ---- single files and folders ----


def is_temporary(name: str) -> bool:
    return name.startswith(_TEMP_PREFIX) and name.endswith(_TEMP_SUFFIX)


def remove_hadoop_checksum(target: str) -> None:
    """Delete the checksum that Hadoop's local file system keeps; it would refuse to read the new content."""
    folder, _, name = target.rpartition("/")
    with contextlib.suppress(OSError):
        os.unlink(f"{folder}/.{name}.crc")  # noqa: PTH108


def flush_folder(path: str) -> None:
    with translated("write", path):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(path: str, *, durable: bool) -> None:
    """Make a folder and its missing parents."""
    folder = Path(path)
    if folder.is_dir():
        return
    make_folder(str(folder.parent), durable=durable)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as e:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from e
    if durable:
        flush_folder(str(folder.parent))


def exists(path: str) -> bool:
    """Whether there is a file, or a link to one; IsADirectoryError if there is a folder."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return True


def link_new(source: str, target: str, *, links_only: bool = False) -> bool:
    """Give a file another name unless the name is taken, atomically."""
    remove_hadoop_checksum(target)
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as e:
        if links_only or e.errno not in _NO_LINKS or not sys.platform.startswith("linux"):
            raise
        return rename_noreplace(source, target)
    return True


def rename_noreplace(source: str, target: str) -> bool:
    """The same for file systems without hard links; writing to the target would show readers half a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE):
        if (code := ctypes.get_errno()) == errno.EEXIST:
            return False
        raise OSError(code, os.strerror(code), target)
    return True


class Temporary:
    """A hidden file beside its target, until it is linked or renamed; deleted on exit in any case."""

    __slots__ = ("_handle", "durable", "folder", "path", "target")

    def __init__(self, target: str, *, durable: bool) -> None:
        self.target, self.durable = target, durable
        self.folder = target.rpartition("/")[0]
        self.path = f"{self.folder}/{_TEMP_PREFIX}{os.urandom(16).hex()}{_TEMP_SUFFIX}"

    def __enter__(self) -> Self:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._handle = os.open(self.path, flags, 0o666)
        except FileNotFoundError:
            make_folder(self.folder, durable=self.durable)
            self._handle = os.open(self.path, flags, 0o666)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._handle)
        with contextlib.suppress(OSError):  # a leftover is found by its name
            os.unlink(self.path)  # noqa: PTH108

    def write(self, data: bytes | BinaryIO, mtime_ms: int | None = None) -> None:
        read: Any = getattr(data, "read", None)
        chunks: Any = (data,) if read is None else iter(lambda: read(COPY_BYTES), b"")
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._handle, view) :]
        if mtime_ms is not None:
            os.utime(self._handle, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def start_flush(self) -> None:
        if self.durable:
            start_writing(self._handle)

    def flush(self) -> None:
        if self.durable:
            os.fsync(self._handle)

    def name(self, *, new: bool) -> bool:
        """Give the file its name; False if the name is taken and the file must be new."""
        if new:
            return link_new(self.path, self.target)
        remove_hadoop_checksum(self.target)
        os.replace(self.path, self.target)  # noqa: PTH105
        return True


def start_writing(handle: int) -> None:
    """Start to write a file to disk that is flushed later, together with others.

    Its blocks are then allocated before the first flush, so one write of ext4's journal serves all files: a
    commit over ten tables took 85 ms instead of 150 ms.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


# ---- whole files ----


@dataclass(slots=True)
class FileWrite:
    """A file to write, by default only if it does not exist; afterwards ``done`` or the ``error`` is set."""

    store: LocalStore
    path: str
    data: bytes | BinaryIO
    mtime_ms: int | None = None
    new: bool = True
    done: bool = False
    error: StorageError | None = None

    def __enter__(self) -> None:
        """Store the file's errors instead of raising them, so that the other files are written."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, OSError):
            return False
        if not isinstance(error, StorageError):
            doing = "create" if self.new else "write"
            error = storage_error(error, doing, self.store.name_of(self.path))
        self.error, self.done = error, False
        return True


def write_files(writes: Sequence[FileWrite], *, linking: Callable[[int], object] = lambda _: None) -> None:
    """Write files and flush them together; the outcome is set on each file.

    ``linking`` is called with a file's number before the file gets its name.
    """
    with contextlib.ExitStack() as stack:
        written: list[tuple[int, FileWrite, Temporary]] = []
        for number, one in enumerate(writes):
            with one:
                target = one.store.name_of(one.path)
                if not (one.new and exists(target)):
                    file = stack.enter_context(Temporary(target, durable=one.store.durable))
                    written.append((number, one, file))
                    file.write(one.data, one.mtime_ms)
                    if len(writes) > 1:
                        file.start_flush()
        for _, one, file in written:
            with one:
                if one.error is None:
                    file.flush()
        for number, one, file in written:
            if one.error is None:
                if one.new:
                    failpoint("publish.before_link")
                linking(number)
                with one:
                    one.done = file.name(new=one.new)
        folders = {file.folder: one for _, one, file in written if one.done and file.durable}
        for folder, one in folders.items():
            with one:
                flush_folder(folder)


class Flushes:
    """Files and folders to flush together, later; not thread-safe.

    Files that are flushed after all are written reach the disk in one go: ten small ones took 6 ms, one by
    one 22 ms. Threads cost more than they save.
    """

    def __init__(self) -> None:
        self._files: list[tuple[int, str]] = []
        self._folders: dict[str, None] = {}

    def file(self, handle: int, path: str) -> None:
        """Flush and close an open file later."""
        start_writing(handle)
        self._files.append((handle, path))
        if len(self._files) >= _MOST_OPEN:
            self._flush_files()

    def folder(self, path: str) -> None:
        """Flush a folder's entries later, once for all the files in it."""
        self._folders.setdefault(path)

    def wait(self) -> None:
        """Flush everything to disk."""
        self._flush_files()
        folders, self._folders = self._folders, {}
        for folder in folders:
            flush_folder(folder)

    def forget(self) -> None:
        """Close the files without flushing anything."""
        files, self._files, self._folders = self._files, [], {}
        for handle, _ in files:
            os.close(handle)

    def _flush_files(self) -> None:
        files, self._files = self._files, []
        with contextlib.ExitStack() as stack:
            for handle, _ in files:
                stack.callback(os.close, handle)
            for handle, path in files:
                with translated("write", path):
                    os.fsync(handle)


# ---- the store ----


class LocalStore(Store):
    """A folder on local disk as a `Store`."""

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self._root = root
        self._text = "" if str(root) == "/" else str(root)
        self.durable = durable

    def __repr__(self) -> str:
        return f"LocalStore({self.location!r})"

    @property
    def location(self) -> str:
        return str(self._root)

    def name_of(self, path: str) -> str:
        """The absolute path of a file here."""
        return f"{self._text}/{checked_path(path)}"

    def get(self, path: str) -> bytes:
        at = self.name_of(path)
        with translated("read", at), open(at, "rb", buffering=0) as file:  # noqa: PTH123 - takes half the time
            return file.readall()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        with translated("read", self.name_of(path)), self.open(path) as file:
            file.seek(start)
            return file.read(length)

    def open(self, path: str) -> BinaryIO:
        at = self.name_of(path)
        with translated("open", at):
            return open(at, "rb")  # noqa: PTH123

    def head(self, path: str) -> ObjectMeta:
        at = self.name_of(path)
        with translated("look at", at):
            found = os.stat(at)  # noqa: PTH116
        return ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        found = self._walk(prefix.strip("/"), recursive, start_after)
        return iter(sorted(found, key=lambda meta: meta.path))

    def folders(self) -> Sequence[str]:
        with translated("list", self.location), contextlib.suppress(FileNotFoundError):
            return sorted(e.name for e in os.scandir(self._root) if e.is_dir(follow_symlinks=False))
        return []

    def temporary_files(self, prefix: str = "") -> Iterator[ObjectMeta]:
        folder, names = self._folder(prefix), list[str]()
        with translated("list", folder), contextlib.suppress(FileNotFoundError):
            names = sorted(e.name for e in os.scandir(folder) if is_temporary(e.name))
        for name in names:
            path = f"{prefix}/{name}" if prefix else name
            with contextlib.suppress(FileNotFoundError), translated("look at", path):
                found = os.lstat(f"{folder}/{name}")
                # the change time: such a file may have been given the modification time of a commit
                yield ObjectMeta(path, found.st_size, found.st_ctime_ns // 1_000_000)

    def put_new(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> bool:
        return self._write(FileWrite(self, path, data, mtime_ms))

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:
        self._write(FileWrite(self, path, data, mtime_ms, new=False))

    def link(self, path: str, source: str) -> bool:
        """Give a whole file of the same disk a second name here; False if the name is taken.

        The name is not flushed: for files that may be lost.
        """
        at = self.name_of(path)
        with translated("create", at):
            try:
                return link_new(source, at, links_only=True)
            except FileNotFoundError:
                make_folder(at.rpartition("/")[0], durable=self.durable)
                return link_new(source, at, links_only=True)

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        with translated("open", source):
            content = source.open("rb")
        with content:
            return self._write(FileWrite(self, path, content, new=new))

    def fetch(self, path: str, target: Path) -> int:
        with self.open(path) as source, translated("write", target), target.open("wb") as copy:
            shutil.copyfileobj(source, copy, COPY_BYTES)
            return copy.tell()

    def delete(self, path: str) -> None:
        at = self.name_of(path)
        with translated("delete", at):
            root, folder = os.path.realpath(self._root), os.path.realpath(at.rpartition("/")[0])
            if os.path.commonpath((root, folder)) != root:
                hint = "delete the file yourself if nothing needs it, or remove the link"
                what = f"refused to delete {at}: a symbolic link leads out of {self._root}"
                raise StorageError(what, suggestion=hint)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at)  # noqa: PTH108
            remove_hadoop_checksum(at)

    def now_ms(self) -> int:
        with translated("create a file in", self._root), tempfile.TemporaryFile(dir=self._root) as file:
            return os.fstat(file.fileno()).st_mtime_ns // 1_000_000

    def _write(self, write: FileWrite) -> bool:
        write_files([write])
        if write.error is not None:
            raise write.error
        return write.done

    def _folder(self, prefix: str) -> str:
        return self.name_of(prefix) if prefix else self.location

    def _walk(self, prefix: str, recursive: bool, start_after: str | None) -> Iterator[ObjectMeta]:
        folder = self._folder(prefix)
        missing = contextlib.suppress(FileNotFoundError)  # also a file that vanishes after the listing
        with translated("list", folder), missing, os.scandir(folder) as entries:
            for entry in entries:
                path = f"{prefix}/{entry.name}" if prefix else entry.name
                if is_temporary(entry.name):
                    continue
                if entry.is_dir():
                    if recursive:
                        yield from self._walk(path, recursive, start_after)
                elif start_after is None or path > start_after:
                    with missing:
                        found = entry.stat()
                        yield ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)
