"""New files in several local folders, each whole or not at all, flushed to disk together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.exceptions import StorageError
from deltalakedb.failpoints import failpoint
from deltalakedb.storage.flushes import flush_folder, start_writing
from deltalakedb.storage.local import Translated
from deltalakedb.storage.temporaries import link_new, remove, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalakedb.storage.local import LocalStore


@dataclass(slots=True)
class NewObject:
    """A file to create.

    Attributes:
        store: Its folder.
        path: Its path there.
        data: Its content.
        mtime_ms: Its time.
        done: Whether it is there now and was not before.
        error: Why it could not be created.
    """

    store: LocalStore
    path: str
    data: bytes
    mtime_ms: int
    done: bool = False
    error: StorageError | None = None


def put_all_new(
    puts: Sequence[NewObject],
    *,
    last: NewObject | None = None,
    linking: Callable[[int], object] = lambda _: None,
) -> None:
    """Create files, each only where there is none yet; what became of each is told in it.

    Args:
        puts: The files.
        last: One that appears only where all others did. It is whole whenever it is there, but its name is
            not flushed: a power cut may take it away again.
        linking: Called with a file's number before it gets its name.
    """
    written: list[tuple[int, NewObject, str, str, int]] = []
    try:
        for number, put in enumerate(puts if last is None else (*puts, last)):
            at = put.store.name_of(put.path)
            temporary = temporary_name(at.rpartition("/")[0])
            try:
                with Translated("create", at):
                    if os.path.lexists(at):
                        continue
                    handle = put.store.create(temporary)
                    written.append((number, put, at, temporary, handle))
                    put.store.fill(handle, put.data, put.mtime_ms)
                    start_writing(handle)
            except StorageError as error:
                put.error = error
        for _, put, at, _, handle in written:
            if put.error is None and put.store.durable:
                with _noted(put), Translated("create", at):
                    os.fsync(handle)
        for number, put, at, temporary, _ in written:
            if put is last and not all(other.done for other in puts):
                continue
            if put.error is None:
                linking(number)
                failpoint("publish.before_link")
                with _noted(put), Translated("create", at):
                    put.done = link_new(temporary, at)
        named = {at.rpartition("/")[0]: put for _, put, at, _, _ in written if put.done and put is not last}
        for folder, put in named.items():
            if put.store.durable:
                with _noted(put):
                    flush_folder(folder)
    finally:
        for _, _, _, temporary, handle in written:
            os.close(handle)
            remove(temporary)


class _noted:  # noqa: N801 - used as a statement
    """A file's trouble is kept with it, and does not stop the others."""

    __slots__ = ("_put",)

    def __init__(self, put: NewObject) -> None:
        self._put = put

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, StorageError):
            self._put.error, self._put.done = error, False
            return True
        return False
