"""Log compaction: the commits from one version to another as one file of reconciled actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.delta_log.names import commit_path, compacted_path
from deltalakedb.exceptions import InvalidArgumentError, LogGapError, ProtocolError
from deltalakedb.protocol.actions import Action, DomainMetadata
from deltalakedb.protocol.codec import decode_commit, encode_commit
from deltalakedb.protocol.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.storage import Store


def compact(commits: Iterable[tuple[int, bytes]]) -> bytes:
    """The reconciled actions of consecutive commits, as a compacted file's bytes.

    What a later commit cancels is gone; removed files and removed domains stay, since the state before the
    first commit may hold them. Provenance and change data are no part of it: they stay in the commits.

    Args:
        commits: Versions and their bytes, ascending without a gap.

    Raises:
        LogGapError: A version is missing or out of order.
        LogCorruptError: A commit is torn.
        ProtocolError: A commit holds an action that nobody here knows how to reconcile.
    """
    state, domains, last = Replay(), dict[str, DomainMetadata](), None
    for version, data in commits:
        if last is not None and version != last + 1:
            raise LogGapError(
                f"version {version} does not follow version {last}",
                version=version,
                suggestion="compact consecutive commits only",
            )
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
    small: list[Action] = [a for a in (state.protocol, state.metadata) if a is not None]
    return encode_commit(
        [
            *small,
            *state.txns.values(),
            *domains.values(),
            *state.tombstones.values(),
            *state.files.values(),
        ]
    )


def write_compaction(store: Store, start: int, end: int, *, dry_run: bool = False) -> str | None:
    """Compact published commits into one file beside them; its path, or None where there is one already.

    Args:
        store: The table's root.
        start: The first version.
        end: The last version, above the first.
        dry_run: Write nothing; the commits are read and must be fit for it.

    Raises:
        StorageMissingError: A commit is not there.
        LogCorruptError, ProtocolError: As `compact`.
    """
    if not 0 <= start < end:
        raise InvalidArgumentError(
            f"the versions {start} to {end} are no range to compact",
            suggestion="give a first version from 0 on and a later last one",
        )
    path = compacted_path(start, end)
    if store.exists(path):
        return None
    data = compact((version, store.get(commit_path(version))) for version in range(start, end + 1))
    return path if dry_run or store.put_new(path, data) else None
