"""Metadata, protocol, txns and domains of a version, as both sides spell them: comparable by meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from deltalakedb.metastore.files import digests
from deltalakedb.mirror.drift import Difference
from deltalakedb.protocol.actions import (
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
    kind_of,
    meaning,
    meaning_of,
)
from deltalakedb.protocol.codec import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalakedb.metastore.database import Database
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.txn_log import TxnLogReader

#: by kind of action, and application or domain
SmallState: TypeAlias = dict[tuple[str, str], Any]


def small_state(reader: TxnLogReader, version: int) -> SmallState:
    """The state of a version by a log."""
    snapshot = reader.snapshot(version)
    found = snapshot.metadata, snapshot.protocol
    return apply_actions({}, [*found, *reader.txns(version).values(), *reader.domains(version).values()])


def apply_actions(state: SmallState, actions: Iterable[Action]) -> SmallState:
    """Apply a commit to a state, in place."""
    for action in actions:
        match action:
            case Metadata() | Protocol():
                state[kind_of(action), ""] = meaning(action)
            case Txn():
                state["txn", action.app_id] = meaning(action)
            case DomainMetadata(removed=True):
                state.pop(("domainMetadata", action.domain), None)
            case DomainMetadata():
                state["domainMetadata", action.domain] = meaning(action)
            case _:  # about files
                pass
    return state


def catalog_states(
    database: Database, table_id: int, first: int, last: int
) -> Iterator[tuple[int, SmallState]]:
    """The state of each of some versions by the catalog; the table need not be visible yet."""
    begun: dict[int, SmallState] = {}
    ended: dict[int, list[tuple[str, str]]] = {}
    for kind, name, since, until, raw in digests.small_rows(database, table_id):
        if until is None or until > first:
            data = decode_json(raw)
            removed = kind == "domainMetadata" and data.get("removed")
            begun.setdefault(max(since, first), {})[kind, name] = None if removed else meaning_of(kind, data)
            if until is not None:
                ended.setdefault(until, []).append((kind, name))
    state: SmallState = {}
    for version in range(first, last + 1):
        for key in ended.get(version, ()):
            state.pop(key, None)
        state |= begun.get(version, {})
        yield version, {key: value for key, value in state.items() if value is not None}


def state_differences(version: int, ours: SmallState, theirs: SmallState) -> Iterator[Difference]:
    """What differs between the states of a version by the catalog and by the log."""
    if ours == theirs:
        return
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            what = {"metaData": "the metadata", "protocol": "the protocol"}.get(key[0], " ".join(key))
            side = "differs" if key in ours and key in theirs else "is not in the log"
            detail = f"{what} {side}" if key in ours else f"{what} is not in the catalog"
            yield Difference("state", version, detail)
