"""What a commit asks for, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.catalog.values import Table
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.log import Snapshot


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that the commit creates."""

    name: str
    location: str
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one table is to become, and what the writer had seen of it.

    Attributes:
        table: The table, or the new table to create.
        actions: The actions, with or without a commitInfo.
        read: The snapshot the writer worked from; None for a new table.
        blind: The writer looked at no rows, so appends of others cannot disturb it.
        exact: The actions are committed as they are, commitInfo included: a copy, not a new commit.
    """

    table: Table | NewTable
    actions: Sequence[Action]
    read: Snapshot | None = None
    blind: bool = False
    exact: bool = False

    @property
    def read_version(self) -> int:
        """The version the writer worked from; -1 for a new table."""
        return -1 if self.read is None else self.read.version
