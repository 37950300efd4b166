"""The ids that users give to transactions, by which a repeated one is known again."""

from __future__ import annotations

from typing import Final

from deltalakedb.exceptions import InvalidArgumentError

#: an id is a file's name in `_delta_transactions`, where file systems end at 255 bytes
_LONGEST_ID: Final = 200


def checked_id(given: str) -> str:
    """The id itself, if a transaction may have it."""
    fits = isinstance(given, str) and 0 < len(given.encode()) <= _LONGEST_ID and given.isprintable()
    if fits and not set("/\\") & set(given) and given.strip(". "):
        return given
    raise InvalidArgumentError(
        f"txn_uuid cannot be {given!r}",
        suggestion=f"take 1 to {_LONGEST_ID} printable characters without slashes, or leave it away",
    )
