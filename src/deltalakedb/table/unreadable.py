"""Data files that cannot be read, whichever engine failed: the file at fault and what to do about it."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.exceptions import (
    DataFileCorruptError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.protocol.paths import decode_path
from deltalakedb.table.roots import Root, located

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    #: paths and sizes of the files that are read, as in the log; called after a failure
    Files = Callable[[], Iterable[tuple[str, int]]]

#: files that are checked after a failure
_LOCAL, _REMOTE = 10_000, 100
#: how a Parquet file ends, with its footer in the clear or encrypted, and the size of the smallest
_MAGIC: Final = (b"PAR1", b"PARE")
_SMALLEST: Final = 12


class ArrowDataFileError(DataFileCorruptError, pa.ArrowInvalid):  # type: ignore[misc]
    """A damaged data file, for code that expects Arrow's own error too."""


@contextmanager
def reading(root: Root, files: Files, *, version: int | None = None) -> Iterator[None]:
    """Report a data file that is missing, denied or damaged as a StorageError, whatever the reader raises."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, pa.ArrowException) as error:
        found = unreadable(root, files, version, str(error))
        if found is None and not isinstance(error, OSError):
            raise
        kind = StorageMissingError if isinstance(error, FileNotFoundError) else StorageError
        raise found or kind(
            f"a data file cannot be read: {error}",
            table=root.table,
            version=version,
            suggestion="check the disk and the network, then try again",
        ) from error


def unreadable(root: Root, files: Files, version: int | None, reported: str) -> StorageError | None:
    """The error about the first file that cannot be read, those first that the reader's error names."""
    try:
        listed = sorted(files(), key=lambda file: PurePosixPath(decode_path(file[0])).name not in reported)
    except Exception:
        return None
    for path, size in islice(listed, _LOCAL if root.is_local else _REMOTE):
        try:
            _look(root, path, size)
        except StorageUnavailableError:
            return None
        except StorageError as error:
            what, hint = "unreadable", error.suggestion
            if isinstance(error, StorageMissingError):
                what, hint = "missing", "restore the file, or read a version that does not need it"
            text = f"a data file of the table is {what}: {error.message}"
            made = type(error)(text, table=root.table, version=version, suggestion=hint)
            made.__cause__ = error.__cause__
            return made
    return None


def _look(root: Root, path: str, size: int) -> None:
    """Raise StorageError if a file's size and footer are not those of the Parquet file in the log."""
    store, name = located(root, root.paths.resolve(path))
    there = store.head(name).size
    end = store.get_range(name, max(0, there - len(_MAGIC[0])), len(_MAGIC[0]))
    detail = None
    if there != size:
        detail = f"has {there} bytes, and the table says {size}"
    elif there < _SMALLEST or end not in _MAGIC:
        detail = "does not end as a Parquet file does"
    elif end == _MAGIC[0]:
        try:
            with store.open(name) as file:
                pq.read_metadata(file)
        except pa.ArrowException as error:
            detail = f"has a footer that cannot be read ({error})"
    if detail is not None:
        raise ArrowDataFileError(
            f"damaged, {store.location.rstrip('/')}/{name} {detail}",
            suggestion="restore the file from a backup; to continue without its rows, move it away and call "
            "repair(), which removes missing files from the table",
        )
