"""Numbers and times as callers write them."""

from __future__ import annotations

import operator
from datetime import UTC, datetime
from typing import Any

from deltalakedb.exceptions import InvalidArgumentError


def whole_number(value: Any) -> int | None:
    """A whole number of Python, numpy or others like it as an int; None for everything else and for bools."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def epoch_ms(when: str | datetime) -> int:
    """A time as epoch milliseconds; one without a zone is UTC."""
    read = _read(when) if isinstance(when, str) else when
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    return int(read.timestamp() * 1000)


def instant_ms(when: str | datetime) -> int:
    """The same, but a text must name its zone, so that every reader takes it for the same instant.

    Raises:
        InvalidArgumentError: It names none, or is not a time.
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
