"""Table properties as values: whole numbers and durations, as Delta writes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import ProtocolError

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Metadata

_UNITS: Final = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_PART: Final = re.compile(r"(\d+)\s*([a-z]+?)s?(?=\s|\d|$)")


def whole_number(metadata: Metadata, name: str, default: int) -> int:
    """A property that counts something; ProtocolError where it is no whole number above zero."""
    text = metadata.configuration.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) < 1:
        raise ProtocolError(f"the table property {name} is {text!r}, not a whole number above zero")
    return int(text)


def duration_ms(metadata: Metadata, name: str, default: int) -> int:
    """A property that is a duration, such as ``interval 1 week`` or ``interval 2 days 3 hours``."""
    text = metadata.configuration.get(name)
    if text is None:
        return default
    rest = text.strip().lower().removeprefix("interval").strip()
    total, end = 0.0, 0
    for part in _PART.finditer(rest):
        if rest[end : part.start()].strip() or part[2] not in _UNITS:
            break
        total += int(part[1]) * _UNITS[part[2]]
        end = part.end()
    if not rest or rest[end:].strip():
        raise ProtocolError(
            f"the table property {name} is {text!r}, not a duration",
            suggestion="write it as: interval 7 days",
        )
    return int(total)
