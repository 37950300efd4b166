"""A store as a pyarrow file system for reading: ranged reads, typed errors, known sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from deltalakedb.exceptions import StorageMissingError, UnsupportedOperationError
from deltalakedb.storage.store import RangeFile, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping


class StoreFiles(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow is not typed
    """Reads files of a store for pyarrow; ``options`` are for paths that are URLs."""

    def __init__(
        self, store: Store, options: Mapping[str, str] | None = None, sizes: Mapping[str, int] | None = None
    ) -> None:
        self._store = store
        self._options = options
        self._sizes = dict(sizes or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreFiles, (self._store, self._options, self._sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreFiles) and self._store.location == other._store.location

    def __hash__(self) -> int:
        return hash(self._store.location)

    def get_type_name(self) -> str:
        return "deltasql"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def open_input_file(self, path: str) -> pa.NativeFile:
        store, name = self._locate(path)
        size = self._sizes.get(path)
        return pa.PythonFile(
            RangeFile(store, name, store.head(name).size if size is None else size), mode="r"
        )

    open_input_stream = open_input_file

    def _info(self, path: str) -> pafs.FileInfo:
        store, name = self._locate(path)
        try:
            meta = store.head(name)
        except StorageMissingError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)
        modified = meta.modified_ms * 1_000_000
        return pafs.FileInfo(path, pafs.FileType.File, size=meta.size, mtime_ns=modified)

    def _locate(self, path: str) -> tuple[Store, str]:
        """The store of a path, and its name there."""
        if "://" not in path and not path.startswith("/"):
            return self._store, path
        folder, _, name = path.rpartition("/")
        return open_store(folder, self._options), name

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedOperationError(
            "a table's dataset is read-only", suggestion="write to the table instead"
        )

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = get_file_info_selector = move = open_append_stream = open_output_stream = _refuse


def arrow_files(store: Store, options: Mapping[str, str] | None, sizes: Mapping[str, int]) -> pafs.FileSystem:
    return pafs.PyFileSystem(StoreFiles(store, options, sizes))
