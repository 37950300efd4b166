"""Log clean-up: delete expired files of a log, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.delta_log.checkpoint import is_complete, named_sidecars
from deltalakedb.delta_log.listing import Checkpoint, newest_at, parse_listing
from deltalakedb.delta_log.names import LOG_FOLDER, SIDECAR_FOLDER, TRANSACTION_FOLDER, parse_name
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.exceptions import ConfigError, LogCorruptError
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.properties import DAY_MS, duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.storage import ObjectMeta, Store

#: how long the log keeps old versions, and removed files; by property of the table
_LOG_RETENTION = ("delta.logRetentionDuration", 30 * DAY_MS)
FILE_RETENTION = ("delta.deletedFileRetentionDuration", 7 * DAY_MS)
#: a sidecar is written before the checkpoint that names it, so a young one may be about to be named
SIDECAR_GRACE_MS = DAY_MS
#: a temporary file that has not changed for so long has no writer any more
TEMPORARY_GRACE_MS = DAY_MS
#: folders that publishers write to
_WRITTEN = (LOG_FOLDER, SIDECAR_FOLDER, TRANSACTION_FOLDER)


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Files to delete.

    Attributes:
        checkpoint: The version whose checkpoint covers them; None if nothing can be deleted.
        delete: The files, in the order in which to delete them.
        reason: Why nothing is deleted, or not more.
    """

    checkpoint: int | None
    delete: tuple[ObjectMeta, ...]
    reason: str


def retention_ms(metadata: Metadata, which: tuple[str, int] = _LOG_RETENTION) -> int:
    """A duration of the table's properties, such as ``interval 30 days``, in milliseconds."""
    name, default = which
    text = metadata.configuration.get(name)
    if (found := default if text is None else duration_ms(text)) is None:
        what = f"the property {name} is not a duration: {text!r}"
        raise ConfigError(what, suggestion="write it as: interval 30 days")
    return found


def plan_cleanup(
    files: Iterable[ObjectMeta],
    *,
    now_ms: int,
    retention: int,
    times: Mapping[int, int] | None = None,
    needed_from: int | None = None,
    whole: Callable[[Checkpoint], bool] = lambda _: True,
) -> CleanupPlan:
    """Decide which files of a log to delete; nothing is read or deleted here.

    These stay: the newest version that is older than the retention and all later ones, the newest whole
    checkpoint at or below that version, and that checkpoint's commit with all that follow. Without such a
    checkpoint nothing is deleted.

    Args:
        files: The files in ``_delta_log``.
        now_ms: Now, in epoch milliseconds.
        retention: How long versions must stay readable, in milliseconds.
        times: When versions were committed; by default their files' times.
        needed_from: Versions from here on stay whatever their age, such as those that are not published.
        whole: Whether a checkpoint can be trusted.
    """
    found = list(files)
    listing = parse_listing(found)
    versions = listing.versions
    if not versions or versions[-1] != listing.latest:
        return CleanupPlan(None, (), "the newest version of the log cannot be rebuilt")
    moments = {**listing.file_times, **(times or {})}
    cutoff = newest_at(versions, now_ms - retention, lambda version: moments[version])
    if cutoff is None:
        return CleanupPlan(None, (), "every version is younger than the retention")
    if needed_from is not None:
        cutoff = min(cutoff, needed_from)
    for base in sorted((v for v in listing.checkpoints if v <= cutoff), reverse=True):
        # from a log with a gap after the checkpoint nothing is deleted
        if listing.files_between(base, versions[-1]) is None:
            continue
        if any(whole(checkpoint) for checkpoint in listing.checkpoints[base]):
            return CleanupPlan(base, _files_before(found, base), f"version {base} has a checkpoint")
    return CleanupPlan(None, (), f"no whole checkpoint covers the versions below {cutoff}")


def clean_log(
    store: Store,
    *,
    now_ms: int,
    retention: int,
    times: Mapping[int, int] | None = None,
    needed_from: int | None = None,
    dry_run: bool = False,
) -> CleanupPlan:
    """Delete expired log files, unreferenced sidecars and leftover temporary files; see `plan_cleanup`.

    If a run is interrupted, the log reads the same, and the next run finishes the work.
    """
    if (hint := last_checkpoint(store)) is not None:
        # readers that follow the hint must find what it names
        needed_from = hint if needed_from is None else min(hint, needed_from)
    plan = plan_cleanup(
        store.list(LOG_FOLDER),
        now_ms=now_ms,
        retention=retention,
        times=times,
        needed_from=needed_from,
        whole=lambda checkpoint: is_complete(store, checkpoint),
    )
    for meta in () if dry_run else plan.delete:
        store.delete(meta.path)
        failpoint("cleanup.between_files")
    more = delete_temporary_files(store, now_ms=now_ms, dry_run=dry_run)
    if plan.checkpoint is not None:
        gone = {meta.path for meta in plan.delete}
        sidecars = tuple(_unreferenced_sidecars(store, now_ms - max(retention, SIDECAR_GRACE_MS), gone))
        if not dry_run:
            store.delete_all(meta.path for meta in sidecars)
        more += sidecars
    return replace(plan, delete=plan.delete + more)


def delete_temporary_files(
    store: Store, *, now_ms: int, older_than_ms: int = 0, dry_run: bool = False
) -> tuple[ObjectMeta, ...]:
    """Delete temporary files of dead writers, which have not changed for a day or for a longer given time."""
    before = now_ms - max(TEMPORARY_GRACE_MS, older_than_ms)
    dead = tuple(m for folder in _WRITTEN for m in store.temporary_files(folder) if m.modified_ms < before)
    if not dry_run:
        store.delete_all(meta.path for meta in dead)
    return dead


def _files_before(files: Collection[ObjectMeta], base: int) -> tuple[ObjectMeta, ...]:
    named = ((parse_name(meta.name), meta) for meta in files)
    # a compacted file that starts at or before the checkpoint has no use any more
    gone = [(n.version, m.path, m) for n, m in named if n and n.version < base + (n.kind == "compacted")]
    return tuple(meta for _, _, meta in sorted(gone, key=lambda item: item[:2]))


def _unreferenced_sidecars(store: Store, older_than_ms: int, gone: Collection[str]) -> Iterable[ObjectMeta]:
    sidecars = [meta for meta in store.list(SIDECAR_FOLDER) if meta.modified_ms < older_than_ms]
    named: set[str] = set()
    for meta in store.list(LOG_FOLDER) if sidecars else ():
        name = parse_name(meta.name)
        if meta.path not in gone and name is not None and name.kind in ("checkpoint", "v2"):
            try:
                named |= named_sidecars(store, Checkpoint(name.version, (meta,)))
            except LogCorruptError:
                # which sidecars a torn checkpoint names is unknown, so all stay
                return []
    return [meta for meta in sidecars if meta.path not in named]
