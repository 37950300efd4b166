"""Names of the files in ``_delta_log`` and beside it: formatted and parsed in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

LOG_FOLDER = "_delta_log"
SIDECAR_FOLDER = "_delta_log/_sidecars"
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
#: beside the data: Delta's readers and vacuums leave folders of such names alone
TRANSACTION_FOLDER = "_delta_transactions"

_MAX_VERSION = 2**63 - 1

LogFileKind: TypeAlias = Literal["commit", "checkpoint", "part", "v2", "compacted", "checksum"]

_NAME = re.compile(
    r"(?P<version>\d{20})\.(?:"
    r"(?P<commit>json)"
    r"|(?P<checksum>crc)"
    r"|(?P<end>\d{20})\.compacted\.json"
    r"|(?P<checkpoint>checkpoint\.parquet)"
    r"|checkpoint\.(?P<part>\d{10})\.(?P<of>\d{10})\.parquet"
    r"|checkpoint\.(?P<uuid>[0-9a-fA-F-]{36})\.(?P<format>json|parquet)"
    r")",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class LogName:
    """What a file name in the log says."""

    kind: LogFileKind
    version: int
    end: int | None = None  # the last version of a compacted file
    part: int = 1
    parts: int = 1


def parse_name(name: str) -> LogName | None:
    """What a file name says, or None for a file that is none of the log's.

    Example:
        >>> parse_name("00000000000000000010.checkpoint.parquet")
        LogName(kind='checkpoint', version=10, end=None, part=1, parts=1)
    """
    if (match := _NAME.fullmatch(name)) is None or (version := int(match["version"])) > _MAX_VERSION:
        return None
    if match["commit"]:
        return LogName("commit", version)
    if match["checksum"]:
        return LogName("checksum", version)
    if match["checkpoint"]:
        return LogName("checkpoint", version)
    if match["uuid"]:
        return LogName("v2", version)
    if match["end"]:
        end = int(match["end"])
        return LogName("compacted", version, end=end) if version <= end <= _MAX_VERSION else None
    part, parts = int(match["part"]), int(match["of"])
    return LogName("part", version, part=part, parts=parts) if 1 <= part <= parts else None


def manifest_path(txn: str) -> str:
    """Where the manifest of a transaction over several tables lies, below each table's root."""
    return f"{TRANSACTION_FOLDER}/{txn}.json"


def commit_path(version: int) -> str:
    """The path of a commit under the table's root."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """The path of a classic checkpoint in one file."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def checkpoint_part_path(version: int, part: int, parts: int) -> str:
    """The path of one part of a multi-part checkpoint, counted from 1."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"


def v2_checkpoint_path(version: int, uuid: str, file_format: Literal["json", "parquet"] = "parquet") -> str:
    """The path of a V2 checkpoint."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.{uuid}.{file_format}"


def compacted_path(start: int, end: int) -> str:
    """The path of a compacted file over the versions from ``start`` to ``end``."""
    return f"{LOG_FOLDER}/{start:020d}.{end:020d}.compacted.json"


def checksum_path(version: int) -> str:
    """The path of a version's checksum."""
    return f"{LOG_FOLDER}/{version:020d}.crc"
