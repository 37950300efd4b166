"""Values as people read them: sizes, counts, times, and text that cannot play tricks on a terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def clean(text: str) -> str:
    """Escape control characters: paths and comments may contain anything."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def size(num_bytes: int) -> str:
    """A number of bytes in the unit that keeps it short, such as ``1.5 KiB``."""
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{num_bytes} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def count(number: int | None) -> str:
    """A number with its thousands apart; a dash if it is unknown."""
    return "-" if number is None else f"{number:,}"


def many(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless the number is one."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def iso(epoch_ms: int | None) -> str | None:
    """A time in ISO 8601, always UTC."""
    if epoch_ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{epoch_ms} ms"  # a log may hold any number, and a listing must not fail over it
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
