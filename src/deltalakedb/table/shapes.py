"""Arguments and answers of the face, in the shapes that stock gives them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltalakedb.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class MetadataView:
    """What stock's Metadata reads its answers from."""

    id: str
    name: str | None
    description: str | None
    partition_columns: list[str]
    created_time: int | None
    configuration: Mapping[str, str | None]

    def metadata(self) -> MetadataView:
        """Itself, which is what stock asks a raw table for."""
        return self


def epoch_ms(when: str | datetime) -> int:
    """A time as epoch milliseconds."""
    read = _read(when) if isinstance(when, str) else when
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    return int(read.timestamp() * 1000)


def instant_ms(when: str | datetime) -> int:
    """The same where a text has to name its zone, so that every reader takes it for the same instant.

    Raises:
        InvalidArgumentError: It names none, or is no time.
    """
    if isinstance(when, str) and (read := _read(when)).tzinfo is None:
        raise InvalidArgumentError(
            f"Failed to parse datetime string: {when!r} has no time zone",
            suggestion=f"write {read.isoformat()}Z for UTC, or pass a datetime",
        )
    return epoch_ms(when)


def _read(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.upper())  # RFC 3339 has small letters too
    except ValueError as error:
        raise InvalidArgumentError(
            f"Failed to parse datetime string: {text!r} is not a time",
            suggestion="write it as 2026-11-15T12:00:00Z",
        ) from error
