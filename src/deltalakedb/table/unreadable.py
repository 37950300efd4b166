"""Data files that cannot be read: whichever engine failed, the file at fault and what to do about it."""

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
from deltalakedb.protocol.paths import decode_path, relative_to
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deltalakedb.storage.store import Store
    from deltalakedb.table.roots import Root

    Files = Callable[[], Iterable[tuple[str, int]]]

#: files that are looked at after a failure, those first that the error names
_LOCAL, _REMOTE = 10_000, 100
#: how a Parquet file ends, with its footer in the clear or encrypted, and the size of the smallest
_MAGIC: Final = (b"PAR1", b"PARE")
_SMALLEST: Final = 12


class ArrowDataFileError(DataFileCorruptError, pa.ArrowInvalid):  # type: ignore[misc]
    """A damaged data file, for code that expects Arrow's own error too."""


@contextmanager
def reading(
    root: Root, files: Files, *, table: str | None = None, version: int | None = None
) -> Iterator[None]:
    """Report a data file that is missing, denied or damaged as a typed error, whatever the reader says.

    Args:
        root: The table's root.
        files: Gives paths and sizes of the files that are read, as the log has them; asked after a failure.
        table: The table's name, for the message.
        version: Its version, for the message.

    Raises:
        StorageMissingError, StorageAccessError, DataFileCorruptError, StorageError: Reading failed for it.
    """
    try:
        yield
    except StorageError:
        raise
    except (OSError, pa.ArrowException) as error:
        found = unreadable(root, files, str(error), table=table, version=version)
        if found is None and not isinstance(error, OSError):
            raise
        kind = StorageMissingError if isinstance(error, FileNotFoundError) else StorageError
        hint = "check the disk and the network, then try again"
        if found is None:
            text = f"a data file cannot be read: {error}"
            found = kind(text, table=table, version=version, suggestion=hint)
        raise found from error


def unreadable(
    root: Root, files: Files, told: str, *, table: str | None = None, version: int | None = None
) -> StorageError | None:
    """The error about the first of some files that cannot be read; None if all of them look sound.

    Args:
        root: The table's root.
        files: As for `reading`.
        told: What the reader said: files that it names are looked at first.
        table: The table's name, for the message.
        version: Its version, for the message.
    """
    try:
        listed = sorted(files(), key=lambda file: PurePosixPath(decode_path(file[0])).name not in told)
    except Exception:
        return None
    for path, size in islice(listed, _LOCAL if root.is_local else _REMOTE):
        try:
            _look(root, path, size)
        except StorageUnavailableError:
            return None
        except StorageError as error:
            return _about(error, table, version)
    return None


def _about(error: StorageError, table: str | None, version: int | None) -> StorageError:
    hint = error.suggestion
    if isinstance(error, StorageMissingError):
        hint = "restore the file, or read a version that does not need it"
    what = "missing" if isinstance(error, StorageMissingError) else "unreadable"
    made = type(error)(
        f"a data file of the table is {what}: {error.message}", table=table, version=version, suggestion=hint
    )
    made.__cause__ = error.__cause__
    return made


def _look(root: Root, path: str, size: int) -> None:
    """Look at a file's size and footer; StorageError if they are not those of a Parquet file."""
    store, name = _place(root, path)
    there = store.head(name).size
    end = store.get_range(name, max(0, there - len(_MAGIC[0])), len(_MAGIC[0]))
    shown = f"{store.location.rstrip('/')}/{name}"
    detail = None
    if there != size:
        detail = f"{shown} has {there} bytes, and the table says {size}"
    elif there < _SMALLEST or end not in _MAGIC:
        detail = f"{shown} does not end as a Parquet file does"
    elif end == _MAGIC[0]:
        try:
            with store.open(name) as file:
                pq.read_metadata(file)
        except pa.ArrowException as error:
            detail = f"{shown} has a footer that cannot be read ({error})"
    if detail is not None:
        raise ArrowDataFileError(
            f"damaged, {detail}",
            suggestion="restore the file from a backup; to go on without its rows, move it away, then call "
            "repair(): it takes files that are gone out of the table",
        )


def _place(root: Root, path: str) -> tuple[Store, str]:
    if (below := relative_to(root.location, path)) is not None:
        return root.store, below
    folder, _, name = root.paths.resolve(path).rpartition("/")
    return open_store(folder or "/", root.options), name
