"""Table properties: their names, the values that Delta allows, and how they are read."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from deltalakedb.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deltalakedb.protocol.actions import Metadata

APPEND_ONLY: Final = "delta.appendOnly"
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
CHECKPOINT_POLICY: Final = "delta.checkpointPolicy"
IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
#: since when commits carry their own time; missing if that is version 0
ENABLEMENT_VERSION: Final = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP: Final = "delta.inCommitTimestampEnablementTimestamp"
INDEXED_COLUMNS: Final = "delta.dataSkippingNumIndexedCols"
MAPPING_MODE: Final = "delta.columnMapping.mode"
ROW_TRACKING: Final = "delta.enableRowTracking"
STATS_COLUMNS: Final = "delta.dataSkippingStatsColumns"
#: the rest of the name is a constraint's own
CONSTRAINT_PREFIX: Final = "delta.constraints."
#: the rest of the name is a feature's; such a property changes the protocol and is not kept
FEATURE_PREFIX: Final = "delta.feature."

DAY_MS: Final = 86_400_000
_DEFAULT_CHECKPOINT_INTERVAL: Final = 100
_BIGGEST: Final = 2**63 - 1
_DIGITS: Final = 19
_UNITS: Final = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": DAY_MS,
    "week": 7 * DAY_MS,
}
_INTERVAL: Final = re.compile(r"(?<![\d.])(\d++(?:\.\d++)?+)\s++([a-z]+?)s?\b", re.ASCII)
_LONGEST_DURATION: Final = 1000


def is_on(metadata: Metadata, name: str) -> bool:
    """Whether a boolean table property is set."""
    return (metadata.configuration.get(name) or "").lower() == "true"


def mapping_mode(metadata: Metadata) -> str:
    """How columns are mapped to the names in data files: ``none``, ``name`` or ``id``."""
    return (metadata.configuration.get(MAPPING_MODE) or "none").lower()


def enablement(metadata: Metadata) -> dict[str, str]:
    """The properties that say since when commits carry their own time; none if that is version 0."""
    names = (ENABLEMENT_VERSION, ENABLEMENT_TIMESTAMP)
    return {name: value for name in names if (value := metadata.configuration.get(name)) is not None}


def with_ict_enablement(metadata: Metadata, before: Metadata, *, version: int, timestamp: int) -> Metadata:
    """Record since when commits carry their own time, unless ``before``, the old metadata, has it."""
    since = {ENABLEMENT_VERSION: str(version), ENABLEMENT_TIMESTAMP: str(timestamp)}
    if is_on(before, IN_COMMIT_TIMESTAMPS):
        since = enablement(before)
    return replace(metadata, configuration={**metadata.configuration, **since})


def duration_ms(text: str) -> int | None:
    """A duration such as ``interval 30 days`` in milliseconds; None if the text is not a duration."""
    if len(text) > _LONGEST_DURATION:
        return None
    plain = text.strip().lower().removeprefix("interval").strip()
    parts = _INTERVAL.findall(plain)
    if not parts or _INTERVAL.sub("", plain).strip() or any(unit not in _UNITS for _, unit in parts):
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return int(total) if total <= _BIGGEST else None


def number_or(text: str | None, default: int) -> int:
    """The whole number of 64 bits that a property holds, or the default."""
    plain = (text or "").strip()
    digits = plain.removeprefix("-")
    # int() refuses thousands of digits, and takes long for less
    if not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > _DIGITS:
        return default
    number = int(plain)
    return number if abs(number) <= _BIGGEST else default


def checkpoint_interval(metadata: Metadata | None) -> int:
    """Commits between two checkpoints; the default if the table's property is not a number above zero."""
    text = None if metadata is None else metadata.configuration.get("delta.checkpointInterval")
    # stock stores any text, and a commit must not fail for it
    return int(text) if text is not None and _is_count(text) else _DEFAULT_CHECKPOINT_INTERVAL


class _Rule(NamedTuple):
    """The allowed values of a property: in words, and as a test."""

    allowed: str
    fits: Callable[[str], bool]


def _is_count(text: str) -> bool:
    plain = text.strip()
    return (number_or(plain, 0) if plain.isdigit() else 0) > 0


def _one_of(*values: str, exact: bool = False) -> _Rule:
    return _Rule(
        f"{', '.join(values[:-1])} or {values[-1]}",
        lambda text: (text if exact else text.strip().lower()) in values,
    )


_SWITCH: Final = _one_of("true", "false")
_COUNT: Final = _Rule("a whole number above zero, such as 100", _is_count)
_SIZE: Final = _Rule("a number of bytes above zero, such as 104857600", _is_count)
_COLUMNS: Final = _Rule(
    "a whole number, or -1 for all columns",
    lambda text: text.strip() == "-1" or (text.strip().isascii() and text.strip().isdigit()),
)
_DURATION: Final = _Rule(
    "a duration in weeks, days, hours, minutes, seconds or milliseconds, such as interval 30 days",
    lambda text: duration_ms(text) is not None,
)

#: the properties of Delta whose values are known; others are left to delta-rs
_RULES: Final[Mapping[str, _Rule]] = {
    APPEND_ONLY: _SWITCH,
    "delta.autoOptimize.autoCompact": _one_of("true", "false", "auto", "legacy"),
    "delta.autoOptimize.optimizeWrite": _one_of("true", "false", "auto"),
    "delta.checkpoint.writeStatsAsJson": _SWITCH,
    "delta.checkpoint.writeStatsAsStruct": _SWITCH,
    "delta.checkpointInterval": _COUNT,
    CHECKPOINT_POLICY: _one_of("classic", "v2"),
    MAPPING_MODE: _one_of("none", "name", "id"),
    INDEXED_COLUMNS: _COLUMNS,
    "delta.deletedFileRetentionDuration": _DURATION,
    CHANGE_DATA_FEED: _SWITCH,
    "delta.enableDeletionVectors": _SWITCH,
    "delta.enableExpiredLogCleanup": _SWITCH,
    IN_COMMIT_TIMESTAMPS: _SWITCH,
    ROW_TRACKING: _SWITCH,
    "delta.isolationLevel": _one_of("Serializable", "WriteSerializable", "SnapshotIsolation", exact=True),
    "delta.logRetentionDuration": _DURATION,
    "delta.minReaderVersion": _one_of("1", "2", "3"),
    "delta.minWriterVersion": _one_of("1", "2", "3", "4", "5", "6", "7"),
    "delta.randomPrefixLength": _COUNT,
    "delta.randomizeFilePrefixes": _SWITCH,
    "delta.setTransactionRetentionDuration": _DURATION,
    "delta.targetFileSize": _SIZE,
    "delta.tuneFileSizesForRewrites": _SWITCH,
}

#: their names
KNOWN: Final = tuple(_RULES)


def check_properties(given: Mapping[str, str | None], *, table: str | None = None) -> None:
    """Refuse a value that Delta does not allow for a property it knows.

    delta-rs stores such values as they are, and every engine interprets them differently.
    """
    for name, value in given.items():
        rule = _one_of("supported", "enabled") if name.startswith(FEATURE_PREFIX) else _RULES.get(name)
        # None is a property that is not set, as in stock
        if rule is not None and value is not None and not rule.fits(str(value)):
            what = f"the table property {name} cannot be {value!r}"
            raise InvalidArgumentError(what, table=table, suggestion=f"use {rule.allowed}")


def without_feature_names(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Properties without those that only name a feature."""
    return {name: value for name, value in given.items() if not name.startswith(FEATURE_PREFIX)}


def unknown_names(given: Mapping[str, str | None]) -> list[str]:
    """Properties of a caller's own; delta-rs may know some of them."""
    return [name for name in given if name not in _RULES and not name.startswith(CONSTRAINT_PREFIX)]
