"""Local disk: files appear whole or not at all, and stay after a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from deltalakedb.exceptions import (
    StorageAccessError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.storage.store import ObjectMeta, checked_path
from deltalakedb.storage.temporaries import forget_checksum, is_temporary, link_new, remove, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_COPY_BYTES = 1 << 20

_ADVICE = {
    errno.EACCES: "check the rights of the file and its folders for this user",
    errno.EPERM: "check the rights and attributes of the file and its folders",
    errno.EROFS: "the file system is mounted read-only: mount it writable or choose another location",
    errno.ENOTDIR: "a part of the path is a file where a folder is expected: choose another location",
    errno.EISDIR: "there is a folder where a file is expected: move it away",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "the path goes round in symbolic links: correct them",
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
    """The typed error for what the operating system said."""
    code = error.errno or 0
    reason = os.strerror(code) if code else str(error)
    text = f"cannot {doing} {path}: {reason}"
    if isinstance(error, FileNotFoundError):
        return StorageMissingError(text, suggestion="check the path: nothing is there")
    if isinstance(error, PermissionError):
        return StorageAccessError(text, suggestion=_ADVICE.get(code, _ADVICE[errno.EACCES]))
    kind = StorageUnavailableError if code in _TRANSIENT else StorageError
    return kind(text, suggestion=_ADVICE.get(code, "check the disk and the path, then try again"))


class LocalStore:
    """A folder on local disk as a `Store`."""

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self._root = root
        self._text = "" if str(root) == "/" else str(root)
        self.durable = durable

    def __repr__(self) -> str:
        return f"LocalStore({self.location!r})"

    @property
    def location(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    def get(self, path: str) -> bytes:
        """The whole content."""
        at = self.name_of(path)
        with Translated("read", at), open(at, "rb", buffering=0) as file:  # noqa: PTH123 - costs half
            return file.readall()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on."""
        at = self._at(path)
        with Translated("read", at), at.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def open(self, path: str) -> BinaryIO:
        """The file, opened for reading."""
        at = self._at(path)
        with Translated("open", at):
            return at.open("rb")

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        try:
            self.head(path)
        except StorageMissingError:
            return False
        return True

    def head(self, path: str) -> ObjectMeta:
        """Size and time of one file."""
        at = self._at(path)
        with Translated("look at", at):
            found = at.stat()
        return ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The files in a folder, sorted by path; nothing where there is no such folder."""
        prefix = prefix.strip("/")
        found = list(self._walk(prefix, recursive, start_after))
        found.sort(key=lambda meta: meta.path)
        return iter(found)

    def folders(self) -> Sequence[str]:
        """The names of the folders right below the root, sorted; links to others are none."""
        with Translated("list", self._root):
            try:
                return sorted(e.name for e in os.scandir(self._root) if e.is_dir(follow_symlinks=False))
            except FileNotFoundError:
                return []

    def unfinished(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Temporary files in a folder, by the time of their last change: they are given that of a commit."""
        folder = f"{self._text}/{checked_path(prefix)}" if prefix else self.location
        with Translated("list", folder):
            try:
                names = [e.name for e in os.scandir(folder) if is_temporary(e.name)]
            except FileNotFoundError:
                return
        for name in sorted(names):
            path = f"{prefix}/{name}" if prefix else name
            with contextlib.suppress(FileNotFoundError), Translated("look at", path):
                found = os.lstat(f"{folder}/{name}")
                yield ObjectMeta(path, found.st_size, found.st_ctime_ns // 1_000_000)

    def put_new(
        self,
        path: str,
        data: bytes,
        *,
        mtime_ms: int | None = None,
        when: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Create a file, whole or not at all; False where there is one already.

        Args:
            path: Where.
            data: Its content.
            mtime_ms: Its time.
            when: Asked when the content is on disk; False leaves it without its name.
        """
        at = self.name_of(path)
        folder = at.rpartition("/")[0]
        with Translated("create", at):
            try:
                found = os.lstat(at)
            except FileNotFoundError:
                pass
            else:
                if stat.S_ISDIR(found.st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), at)
                return False
            temporary = temporary_name(folder)
            try:
                self._write(temporary, data, mtime_ms)
                failpoint("publish.before_link")
                if not when() or not link_new(temporary, at):
                    return False
                self._sync_folder(folder)
            finally:
                remove(temporary)
        return True

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:
        """Create or replace a file, whole or not at all."""
        at = self._at(path)
        with Translated("write", at), self._temporary(at, data, mtime_ms) as temporary:
            forget_checksum(at)
            temporary.replace(at)
            self._sync_folder(at.parent)

    def link(self, path: str, source: str) -> bool:
        """Give a whole file of the same disk a second name here; False where there is a file already.

        The name is not flushed: for files that may be lost.
        """
        at = self.name_of(path)
        with Translated("create", at):
            try:
                return link_new(source, at, links_only=True)
            except FileNotFoundError:
                self._make_folder(Path(at).parent)
                return link_new(source, at, links_only=True)

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        """Copy a local file into the folder; False where one is there already and must stay."""
        at = self._at(path)
        with Translated("open", source):
            content = source.open("rb")
        with content, Translated("create" if new else "write", at):
            if new and os.path.lexists(at):
                return False
            with self._temporary(at, content, None) as temporary:
                if not new:
                    forget_checksum(at)
                    temporary.replace(at)
                elif not link_new(temporary, at):
                    return False
                self._sync_folder(at.parent)
        return True

    def fetch(self, path: str, target: Path) -> int:
        """Copy a file to another local path; its size."""
        at = self._at(path)
        with Translated("read", at), at.open("rb") as source, Translated("write", target):
            with target.open("wb") as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)
            return target.stat().st_size

    def delete(self, path: str) -> None:
        """Delete a file; it may be gone already."""
        at = self._at(path)
        with Translated("delete", at):
            self._refuse_outside(at)
            at.unlink(missing_ok=True)
            forget_checksum(at)

    def now_ms(self) -> int:
        """The time that the file system gives to a file without a name."""
        with Translated("create a file in", self._root), tempfile.TemporaryFile(dir=self._root) as file:
            return os.fstat(file.fileno()).st_mtime_ns // 1_000_000

    def _refuse_outside(self, at: Path) -> None:
        """Refuse to delete a file that links lead to out of the root."""
        root, folder = os.path.realpath(self._root), os.path.realpath(at.parent)
        if os.path.commonpath((root, folder)) != root:
            raise StorageError(
                f"refused to delete {at}: a symbolic link leads out of {self._root}",
                suggestion="delete the file yourself if nothing needs it, or remove the link",
            )

    def delete_all(self, paths: Iterable[str]) -> None:
        """Delete many files; some may be gone already."""
        for path in paths:
            self.delete(path)

    def _at(self, path: str) -> Path:
        return self._root / checked_path(path)

    def name_of(self, path: str) -> str:
        """The absolute path of a file here."""
        return f"{self._text}/{checked_path(path)}"

    def _walk(self, prefix: str, recursive: bool, start_after: str | None) -> Iterator[ObjectMeta]:
        folder = self._root / checked_path(prefix) if prefix else self._root
        with Translated("list", folder):
            try:
                entries = os.scandir(folder)
            except FileNotFoundError:
                return
            with entries:
                for entry in entries:
                    path = f"{prefix}/{entry.name}" if prefix else entry.name
                    if is_temporary(entry.name):
                        continue
                    if entry.is_dir():
                        if recursive:
                            yield from self._walk(path, recursive, start_after)
                    elif start_after is None or path > start_after:
                        # a file may vanish between the listing and the look at it
                        with contextlib.suppress(FileNotFoundError):
                            found = entry.stat()
                            yield ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)

    @contextlib.contextmanager
    def _temporary(self, target: Path, data: bytes | BinaryIO, mtime_ms: int | None) -> Iterator[Path]:
        """A hidden file beside the target with all of ``data`` on disk; gone afterwards whatever happens."""
        path = Path(temporary_name(str(target.parent)))
        try:
            self._write(str(path), data, mtime_ms)
            yield path
        finally:
            remove(str(path))

    def _write(self, path: str, data: bytes | BinaryIO, mtime_ms: int | None) -> None:
        """A new file with all of ``data`` on disk."""
        file = self.create(path)
        try:
            self.fill(file, data, mtime_ms)
            if self.durable:
                os.fsync(file)
        finally:
            os.close(file)

    def fill(self, file: int, data: bytes | BinaryIO, mtime_ms: int | None) -> None:
        """Write all of ``data`` to an open file, and give it its time."""
        for chunk in _chunks(data):
            view = memoryview(chunk)
            while view:
                view = view[os.write(file, view) :]
        if mtime_ms is not None:
            os.utime(file, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def create(self, path: str) -> int:
        """A new file, opened for writing, in a folder that is made where it is missing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            self._make_folder(Path(path).parent)
            return os.open(path, flags, 0o666)

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            try:
                made.mkdir(exist_ok=True)
            except FileExistsError as e:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(made)) from e
            self._sync_folder(made.parent)

    def _sync_folder(self, folder: Path | str) -> None:
        if not self.durable:
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _chunks(data: bytes | BinaryIO) -> Iterable[bytes]:
    return iter(lambda: data.read(_COPY_BYTES), b"") if hasattr(data, "read") else (data,)


class Translated:
    """What the operating system says, as a typed error; a class, since every commit passes here often.

    Args:
        doing: What is being done, for the message.
        path: The file or folder.
    """

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: str, path: Path | str) -> None:
        self._doing = doing
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # one of our own errors is an OSError too
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise storage_error(error, self._doing, self._path) from error
