"""Local disk: files appear complete or not at all, and survive a power cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, BinaryIO

from deltalakedb.exceptions import StorageError
from deltalakedb.storage.durable import (
    COPY_BYTES,
    FileWrite,
    Translated,
    is_temporary,
    link_new,
    make_folder,
    remove_hadoop_checksum,
    write_files,
)
from deltalakedb.storage.store import ObjectMeta, Store, checked_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


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
        with Translated("read", at), open(at, "rb", buffering=0) as file:  # noqa: PTH123 - takes half the time
            return file.readall()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        with Translated("read", self.name_of(path)), self.open(path) as file:
            file.seek(start)
            return file.read(length)

    def open(self, path: str) -> BinaryIO:
        at = self.name_of(path)
        with Translated("open", at):
            return open(at, "rb")  # noqa: PTH123

    def head(self, path: str) -> ObjectMeta:
        at = self.name_of(path)
        with Translated("look at", at):
            found = os.stat(at)  # noqa: PTH116
        return ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        found = self._walk(prefix.strip("/"), recursive, start_after)
        return iter(sorted(found, key=lambda meta: meta.path))

    def folders(self) -> Sequence[str]:
        with Translated("list", self.location), contextlib.suppress(FileNotFoundError):
            return sorted(e.name for e in os.scandir(self._root) if e.is_dir(follow_symlinks=False))
        return []

    def unfinished(self, prefix: str = "") -> Iterator[ObjectMeta]:
        folder, names = self._folder(prefix), list[str]()
        with Translated("list", folder), contextlib.suppress(FileNotFoundError):
            names = sorted(e.name for e in os.scandir(folder) if is_temporary(e.name))
        for name in names:
            path = f"{prefix}/{name}" if prefix else name
            with contextlib.suppress(FileNotFoundError), Translated("look at", path):
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
        with Translated("create", at):
            try:
                return link_new(source, at, links_only=True)
            except FileNotFoundError:
                make_folder(at.rpartition("/")[0], durable=self.durable)
                return link_new(source, at, links_only=True)

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        with Translated("open", source):
            content = source.open("rb")
        with content:
            return self._write(FileWrite(self, path, content, new=new))

    def fetch(self, path: str, target: Path) -> int:
        with self.open(path) as source, Translated("write", target), target.open("wb") as copy:
            shutil.copyfileobj(source, copy, COPY_BYTES)
            return copy.tell()

    def delete(self, path: str) -> None:
        at = self.name_of(path)
        with Translated("delete", at):
            root, folder = os.path.realpath(self._root), os.path.realpath(at.rpartition("/")[0])
            if os.path.commonpath((root, folder)) != root:
                hint = "delete the file yourself if nothing needs it, or remove the link"
                what = f"refused to delete {at}: a symbolic link leads out of {self._root}"
                raise StorageError(what, suggestion=hint)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at)  # noqa: PTH108
            remove_hadoop_checksum(at)

    def now_ms(self) -> int:
        with Translated("create a file in", self._root), tempfile.TemporaryFile(dir=self._root) as file:
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
        with Translated("list", folder), missing, os.scandir(folder) as entries:
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
