"""What a transaction became, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.protocol.txn_log import Committed


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What a transaction became.

    Attributes:
        txn_uuid: The transaction's id.
        commits: The tables it changed, by the names they have now, with their new versions and times.
        replayed: An earlier call had done it already, and nothing was written now.
    """

    txn_uuid: str
    commits: Mapping[str, Committed]
    replayed: bool = False

    @property
    def versions(self) -> dict[str, int]:
        """The new version of each table."""
        return {name: done.version for name, done in self.commits.items()}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return {"txn_uuid": self.txn_uuid, "versions": self.versions, "replayed": self.replayed}
