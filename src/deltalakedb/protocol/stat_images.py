"""Images straight from the JSON of statistics, for the spellings that nearly all files have."""

from __future__ import annotations

import struct
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.protocol.images import IMAX, IMIN
from deltalakedb.protocol.schema import PrimitiveType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StatReader", "stat_reader"]

#: the image of a stated minimum (or maximum: True); None where the general way must be taken
StatReader: TypeAlias = "Callable[[Any, bool], int | None]"

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_ISO_LENGTHS: Final = frozenset({20, 24, 27})  # seconds, milli- or microseconds, and Z
_EXACT_DIGITS: Final = 15
_LEAST, _MOST = -3e38, 3e38  # beyond lies what 32 bits cannot hold

_double = struct.Struct("<d")
_long = struct.Struct("<q")
_single = struct.Struct("<f")


def stat_reader(kind: str, arg: str | None) -> StatReader | None:
    """A fast reader for a column's bounds, equal to the general way where it answers at all."""
    if kind in ("byte", "short", "integer", "long"):
        return _integer
    if kind == "date":
        return _date
    if kind in ("timestamp", "timestamp_ntz"):
        return _timestamp
    if kind in ("float", "double"):
        return _floating
    if kind == "string" and not arg:
        return _text
    decimal = PrimitiveType(kind).decimal
    if decimal is not None and decimal[0] <= _EXACT_DIGITS and 0 <= decimal[1] <= _EXACT_DIGITS:
        return _decimal(10 ** decimal[1])
    return None


def _integer(raw: Any, _top: bool) -> int | None:
    return raw if type(raw) is int and IMIN <= raw <= IMAX else None


def _text(raw: Any, _top: bool) -> int | None:
    # a text that was cut is longer than what its image holds
    if type(raw) is not str or not raw.isascii():
        return None
    return int.from_bytes(raw[:8].encode().ljust(8, b"\0"), "big") + IMIN


def _floating(raw: Any, top: bool) -> int | None:
    if type(raw) is not float or not _LEAST < raw < _MOST:
        return None
    single: float = _single.unpack(_single.pack(raw))[0]
    value = (single if single > raw else raw) if top else (single if single < raw else raw)
    bits: int = _long.unpack(_double.pack(value or 0.0))[0]
    return bits if bits >= 0 else bits ^ IMAX


def _date(raw: Any, _top: bool) -> int | None:
    try:
        if type(raw) is str and len(raw) == 10 and raw[4] == "-":
            return date.fromisoformat(raw).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    return None


def _timestamp(raw: Any, top: bool) -> int | None:
    if type(raw) is not str or len(raw) not in _ISO_LENGTHS or raw[-1] != "Z" or raw[10] != "T":
        return None
    try:
        since = datetime.fromisoformat(raw[:-1]) - _EPOCH
    except (ValueError, TypeError):
        return None
    image = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if image % 1000:
        return image
    if top:
        return image + 999
    return image if image >= 0 else None


def _decimal(unit: int) -> StatReader:
    def read(raw: Any, _top: bool) -> int | None:
        if type(raw) is int:
            return raw * unit if -(10**_EXACT_DIGITS) < raw * unit < 10**_EXACT_DIGITS else None
        if type(raw) is not float or not -1e15 < raw * unit < 1e15:
            return None
        image = round(raw * unit)
        # more digits than the scale has are left to the general way
        return image if image / unit == raw else None

    return read
