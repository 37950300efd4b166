"""Names of the files in ``_delta_log`` and of transaction manifests: formatted and parsed in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

LOG_FOLDER = "_delta_log"
SIDECAR_FOLDER = "_delta_log/_sidecars"
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
#: beside the data: Delta's readers and vacuums ignore folders of such names
TRANSACTION_FOLDER = "_delta_transactions"

_MAX_VERSION = 2**63 - 1

LogFileKind: TypeAlias = Literal["commit", "checkpoint", "part", "v2", "compacted", "checksum"]

_PLAIN: tuple[LogFileKind, ...] = ("commit", "checksum", "checkpoint", "v2")
_NAME = re.compile(
    r"(?P<version>\d{20})\.(?:"
    r"(?P<commit>json)"
    r"|(?P<checksum>crc)"
    r"|(?P<end>\d{20})\.compacted\.json"
    r"|(?P<checkpoint>checkpoint\.parquet)"
    r"|checkpoint\.(?P<part>\d{10})\.(?P<of>\d{10})\.parquet"
    r"|checkpoint\.(?P<v2>[0-9a-fA-F-]{36})\.(?:json|parquet)"
    r")",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class LogName:
    """A parsed file name."""

    kind: LogFileKind
    version: int
    end: int | None = None  # the last version of a compacted file
    part: int = 1
    parts: int = 1


def parse_name(name: str) -> LogName | None:
    """Parse a file name; None if it is not a file of the log.

    Example:
        >>> parse_name("00000000000000000010.checkpoint.parquet")
        LogName(kind='checkpoint', version=10, end=None, part=1, parts=1)
    """
    if (match := _NAME.fullmatch(name)) is None or (version := int(match["version"])) > _MAX_VERSION:
        return None
    for kind in _PLAIN:
        if match[kind]:
            return LogName(kind, version)
    if match["end"]:
        end = int(match["end"])
        return LogName("compacted", version, end=end) if version <= end <= _MAX_VERSION else None
    part, parts = int(match["part"]), int(match["of"])
    return LogName("part", version, part=part, parts=parts) if 1 <= part <= parts else None


def manifest_path(txn: str) -> str:
    """The path of the manifest of a transaction over several tables, under each table's root."""
    return f"{TRANSACTION_FOLDER}/{txn}.json"


def commit_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def v2_checkpoint_path(version: int, uuid: str) -> str:
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.{uuid}.parquet"


def compacted_path(start: int, end: int) -> str:
    return f"{LOG_FOLDER}/{start:020d}.{end:020d}.compacted.json"


def checksum_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.crc"
