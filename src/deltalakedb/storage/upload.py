"""An object that is written as it goes: sent in parts, and there only when the last of them is."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Upload(io.RawIOBase):
    """A file to write to, which becomes an object when it is finished.

    Nothing is visible before `finish`, and after `discard` nothing stays behind, parts that were sent
    included.

    Args:
        writer: obstore's writer.
        typed: Makes the store's errors typed ones.
        delete: Deletes the object.
    """

    def __init__(
        self,
        writer: Any,
        *,
        typed: Callable[[], AbstractContextManager[None]],
        delete: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._typed = typed
        self._delete = delete
        self._sent = 0
        self._over = False

    def writable(self) -> bool:
        """It is only written to."""
        return True

    def tell(self) -> int:
        """How much was written."""
        return self._sent

    def write(self, data: Any) -> int:
        """Take data; full parts are sent at once."""
        view = memoryview(data)
        if view.nbytes:
            with self._typed():
                self._writer.write(view)
            self._sent += view.nbytes
        return view.nbytes

    def finish(self) -> int:
        """Make the object appear; its size."""
        if not self._over:
            with self._typed():
                self._writer.close()
            self._over = True
        return self._sent

    def discard(self) -> None:
        """Give up: parts that were sent are taken back, and so is an object that is there already."""
        if not self._over:
            self._over = True
            error = InterruptedError("the file is not wanted any more")
            with contextlib.suppress(Exception):
                self._writer.__exit__(type(error), error, None)
        self._delete()
