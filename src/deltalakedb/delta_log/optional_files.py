"""Files that make a log faster to read: ``_last_checkpoint``, version checksums and compacted commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.delta_log.names import LAST_CHECKPOINT, checksum_path, commit_path, compacted_path
from deltalakedb.exceptions import (
    InvalidArgumentError,
    LogCorruptError,
    LogGapError,
    ProtocolError,
    StorageMissingError,
)
from deltalakedb.protocol.actions import (
    Action,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
    decode_commit,
    encode_commit,
)
from deltalakedb.protocol.json_text import decode_json, encode_json
from deltalakedb.protocol.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalakedb.delta_log.checkpoint_writer import WrittenCheckpoint
    from deltalakedb.storage import Store

# ---- _last_checkpoint ----


def last_checkpoint(store: Store) -> int | None:
    """The version that ``_last_checkpoint`` names: a hint that may be stale, wrong, garbage or missing."""
    try:
        hint = decode_json(store.get(LAST_CHECKPOINT))
    except (StorageMissingError, LogCorruptError):
        return None
    version = hint.get("version") if isinstance(hint, dict) else None
    return version if type(version) is int and version >= 0 else None


def write_last_checkpoint(store: Store, written: WrittenCheckpoint) -> bool:
    """Point readers to a checkpoint whose files are there; False if the hint names a newer one.

    It has no checksum, which the protocol leaves to writers.
    """
    if (last_checkpoint(store) or 0) > written.version:
        return False
    hint = {"version": written.version, "size": written.size, "sizeInBytes": written.size_in_bytes}
    store.put(LAST_CHECKPOINT, encode_json({**hint, "numOfAddFiles": written.num_add_files}).encode())
    return True


# ---- version checksums ----


def version_checksum(
    protocol: Protocol,
    metadata: Metadata,
    *,
    num_files: int,
    size_bytes: int,
    txns: Iterable[Txn],
    domains: Iterable[DomainMetadata],
    in_commit_timestamp: int | None = None,
) -> dict[str, Any]:
    """The content of ``N.crc``: a table's state in numbers, by which readers check their replay."""
    stamp = {} if in_commit_timestamp is None else {"inCommitTimestampOpt": in_commit_timestamp}
    return {
        "tableSizeBytes": size_bytes,
        "numFiles": num_files,
        "numMetadata": 1,
        "numProtocol": 1,
        **stamp,
        "metadata": metadata.to_dict(),
        "protocol": protocol.to_dict(),
        "setTransactions": [txn.to_dict() for txn in txns],
        "domainMetadata": [domain.to_dict() for domain in domains],
    }


def write_checksum(store: Store, version: int, checksum: Mapping[str, Any]) -> bool:
    """Write a version's checksum, after its commit; False if there is one already, which stays."""
    return store.put_new(checksum_path(version), encode_json(checksum).encode())


# ---- compacted commits ----


def compact(commits: Iterable[tuple[int, bytes]]) -> bytes:
    """The reconciled actions of consecutive commits, as a compacted file's bytes.

    Actions that a later commit cancels are left out; removed files and domains stay, since the state before
    the first commit may have them. Provenance and change data stay in the commits.

    Raises:
        LogGapError: A version is missing or out of order.
        LogCorruptError: A commit is torn.
        ProtocolError: A commit has an action of an unknown kind, which cannot be reconciled.
    """
    state, domains, last = Replay(), dict[str, DomainMetadata](), None
    for version, data in commits:
        if last is not None and version != last + 1:
            what = f"version {version} does not follow version {last}"
            raise LogGapError(what, version=version, suggestion="compact consecutive commits only")
        last = version
        actions = decode_commit(data, source=commit_path(version))
        state.commit(actions)
        domains |= {action.domain: action for action in actions if isinstance(action, DomainMetadata)}
    if state.unknown:
        raise ProtocolError(
            f"actions of the kind {', '.join(sorted(state.unknown))} cannot be compacted",
            version=last,
            suggestion="leave these commits as they are: a compacted file is optional",
        )
    found: list[Action] = [a for a in (state.protocol, state.metadata) if a is not None]
    found += [*state.txns.values(), *domains.values(), *state.tombstones.values(), *state.files.values()]
    return encode_commit(found)


def write_compaction(store: Store, start: int, end: int, *, dry_run: bool = False) -> str | None:
    """Compact published commits into one file beside them; its path, or None if there is one already.

    With ``dry_run`` the commits are read and checked as well. It raises what `compact` raises, and
    StorageMissingError if a commit does not exist.
    """
    if not 0 <= start < end:
        raise InvalidArgumentError(f"Expected 0 <= start < end, got {start} and {end}")
    path = compacted_path(start, end)
    if store.exists(path):
        return None
    data = compact((version, store.get(commit_path(version))) for version in range(start, end + 1))
    return path if dry_run or store.put_new(path, data) else None
