"""The commitInfo of a commit: what its writer said, and what only the commit itself knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb._version import __version__
from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import CommitInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.read_set import Isolation


#: how the engineInfo of our commits begins
_ENGINE: Final = "deltalakedb:"
#: characters of an id that a client may give
_LONGEST_ID: Final = 200


def info_of(actions: Sequence[Action]) -> CommitInfo | None:
    """The commitInfo among some actions."""
    return next((a for a in actions if isinstance(a, CommitInfo)), None)


def own_transaction(actions: Sequence[Action]) -> str | None:
    """The id of the transaction that made a commit, if this library made it and a client can have it."""
    info = (info_of(actions) or CommitInfo()).extra
    txn, engine = info.get("txnId"), info.get("engineInfo")
    if not (isinstance(txn, str) and isinstance(engine, str) and engine.startswith(_ENGINE)):
        return None
    return txn if txn.isprintable() and 0 < len(txn) <= _LONGEST_ID else None


def with_info(
    actions: Sequence[Action],
    *,
    timestamp: int,
    txn: str,
    in_commit: bool,
    read_version: int,
    isolation: Isolation,
    blind: bool,
) -> list[Action]:
    """The actions with their commitInfo first, as in-commit timestamps demand."""
    given = info_of(actions) or CommitInfo()
    info: dict[str, Any] = {"inCommitTimestamp": timestamp} if in_commit else {}
    info["timestamp"] = timestamp
    info.update({k: v for k, v in given.extra.items() if k not in ("timestamp", "inCommitTimestamp")})
    info.setdefault("operation", "WRITE")
    info.setdefault("operationParameters", {})
    if read_version >= 0:
        info["readVersion"] = read_version
    info["isolationLevel"] = isolation
    info["isBlindAppend"] = blind
    info["engineInfo"] = f"{_ENGINE}{__version__}"
    info.setdefault("clientVersion", f"deltalakedb.{__version__}")  # delta-rs names itself in its own
    info["txnId"] = txn
    return [replace(given, extra=info), *(a for a in actions if not isinstance(a, CommitInfo))]


def in_commit_timestamp(actions: Sequence[Action], *, after: int, table: str, version: int) -> int:
    """The time inside a commit that another engine made; it must be later than the one before."""
    info = info_of(actions) or CommitInfo()
    if info.in_commit_timestamp is None or info.in_commit_timestamp <= after:
        raise ProtocolError(
            f"the commit's inCommitTimestamp is {info.in_commit_timestamp}, not after {after}",
            table=table,
            version=version,
            suggestion="in-commit timestamps are on: each commit must carry a later one than its predecessor",
        )
    return info.in_commit_timestamp
