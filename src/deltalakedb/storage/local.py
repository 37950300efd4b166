"""Local disk: files appear complete or not at all, and stay after a power cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, BinaryIO

from deltalakedb.exceptions import StorageError, StorageMissingError
from deltalakedb.storage.durable import (
    COPY_BYTES,
    NewObject,
    Temporary,
    Translated,
    exists,
    is_temporary,
    link_new,
    make_folder,
    put_all_new,
    remove_hadoop_checksum,
)
from deltalakedb.storage.store import ObjectMeta, checked_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


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
            when: Called when the content is on disk; False leaves it without its name.
        """
        put = NewObject(self, path, data, mtime_ms)
        with Translated("create", self.name_of(path)):
            put_all_new([put], linking=lambda _: when())
        if put.error is not None:
            raise put.error
        return put.done

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:
        """Create or replace a file, whole or not at all."""
        at = self.name_of(path)
        with Translated("write", at), Temporary(at, durable=self.durable) as file:
            file.write(data, mtime_ms)
            file.flush()
            file.replace()

    def link(self, path: str, source: str) -> bool:
        """Give a whole file of the same disk a second name here; False where there is a file already.

        The name is not flushed: for files that may be lost.
        """
        at = self.name_of(path)
        with Translated("create", at):
            try:
                return link_new(source, at, links_only=True)
            except FileNotFoundError:
                make_folder(at.rpartition("/")[0], durable=self.durable)
                return link_new(source, at, links_only=True)

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        """Copy a local file into the folder; False where one is there already and must stay."""
        at = self.name_of(path)
        with Translated("open", source):
            content = source.open("rb")
        with content, Translated("create" if new else "write", at):
            if new and exists(at):
                return False
            with Temporary(at, durable=self.durable) as file:
                file.write(content)
                file.flush()
                return file.link() if new else file.replace()

    def fetch(self, path: str, target: Path) -> int:
        """Copy a file to another local path; its size."""
        at = self._at(path)
        with Translated("read", at), at.open("rb") as source, Translated("write", target):
            with target.open("wb") as copy:
                shutil.copyfileobj(source, copy, COPY_BYTES)
            return target.stat().st_size

    def delete(self, path: str) -> None:
        """Delete a file; it may be gone already."""
        at = self._at(path)
        with Translated("delete", at):
            self._refuse_outside(at)
            at.unlink(missing_ok=True)
            remove_hadoop_checksum(str(at))

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
