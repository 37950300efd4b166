"""Rows of the catalog as values: tables, their heads and their files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.json_text import JsonValue, part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.protocol.txn_log import Snapshot


@dataclass(frozen=True, slots=True)
class Head:
    """A table's newest version and its counters."""

    version: int
    timestamp: int
    first_version: int
    num_files: int
    size_bytes: int
    num_records: int
    files_without_count: int

    @property
    def rows(self) -> int | None:
        """The number of rows; None if some file has no row count."""
        return None if self.files_without_count else self.num_records


#: the fields of a head, in order, and their names in a table's plain data
head_values = attrgetter(*(f.name for f in fields(Head)))
_HEAD = (
    "version", "committed_at", "first_version", "num_files", "size_bytes", "records_counted",
    "files_without_count",
)  # fmt: skip
#: the fields of a table that are the same in its plain data
_PLAIN = (
    "name", "location", "state", "state_reason", "comment", "created_at", "updated_at", "published_version",
    "table_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table(JsonValue):
    """A row of the registry, with the head it had when it was read."""

    table_id: int
    name: str
    location: str
    state: str
    state_reason: str | None
    comment: str | None
    tags: Mapping[str, str]
    settings: Mapping[str, Any]
    created_at: int
    updated_at: int
    head: Head
    published_version: int = -1

    @property
    def namespace(self) -> str | None:
        """The part of the name before the last dot."""
        return self.name.rpartition(".")[0] or None

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data."""
        head = dict(zip(_HEAD, head_values(self.head), strict=True))
        own = {name: getattr(self, name) for name in _PLAIN}
        maps = {"tags": dict(self.tags), "settings": dict(self.settings)}
        return {**own, **maps, **head, "num_records": self.head.rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The table from the result of ``to_dict``."""
        return cls(
            **{name: part(data, name, cls) for name in _PLAIN},
            tags=dict(part(data, "tags", cls)),
            settings=dict(part(data, "settings", cls)),
            head=Head(*(part(data, name, cls) for name in _HEAD)),
        )


@dataclass(frozen=True, slots=True)
class File(JsonValue):
    """A data file of a table: the action that describes it, and since which version the table has it."""

    add: Add
    add_version: int
    num_records: int | None = None

    _parts = {"add": Add}

    @property
    def path(self) -> str:
        """Its path as the log spells it: relative to the table's root, or absolute."""
        return self.add.path

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.add.size

    @property
    def partition_values(self) -> Mapping[str, str | None]:
        """Partition column -> value, as text."""
        return self.add.partition_values


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table opened at a version, by one query."""

    table: Table
    snapshot: Snapshot

    @property
    def is_head(self) -> bool:
        """Whether this was the newest version when it was read."""
        return self.snapshot.version == self.table.head.version


@dataclass(frozen=True, slots=True)
class LockedTable:
    """A table whose head this transaction holds.

    Attributes:
        metadata_version: The version that brought the live metadata; ``protocol_version`` likewise.
        digest: The sha256 of the newest commit's bytes, if they are known.
        published_version: The newest version that was known to be published when the lock was taken; -1 if
            an earlier one was not.
        paused: Publishing was paused then.
    """

    table: Table
    next_file_seq: int
    metadata_version: int = -1
    protocol_version: int = -1
    frozen: bool = False
    digest: str | None = None
    published_version: int = -1
    paused: bool = False
