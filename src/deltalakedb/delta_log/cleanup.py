"""Log clean-up: which files of a log its retention lets go, and their deletion, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalakedb.delta_log.checkpoint import is_complete, named_sidecars
from deltalakedb.delta_log.listing import Checkpoint, last_checkpoint, listing_of, newest_at
from deltalakedb.delta_log.names import LOG_FOLDER, SIDECAR_FOLDER, TRANSACTION_FOLDER, parse_name
from deltalakedb.exceptions import ConfigError, LogCorruptError
from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.properties import DAY_MS, duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from deltalakedb.protocol.actions import Metadata
    from deltalakedb.storage import ObjectMeta, Store

LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_RETENTION_MS = 30 * DAY_MS
#: a sidecar is written before the checkpoint that names it, so a young one may be about to be named
SIDECAR_GRACE_MS = DAY_MS
#: a file that nobody has touched for so long has no writer any more
UNFINISHED_GRACE_MS = DAY_MS
#: where publishers write
_WRITTEN = (LOG_FOLDER, SIDECAR_FOLDER, TRANSACTION_FOLDER)


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """What may go.

    Attributes:
        checkpoint: The version whose checkpoint covers everything that goes; None where nothing goes.
        delete: The files, in the order in which to delete them.
        reason: Why nothing goes, or why not more.
    """

    checkpoint: int | None
    delete: tuple[ObjectMeta, ...]
    reason: str


def retention_ms(metadata: Metadata, name: str = LOG_RETENTION, default: int = DEFAULT_RETENTION_MS) -> int:
    """A duration of the table's properties, such as ``interval 30 days``, in milliseconds.

    Raises:
        ConfigError: The property is no duration.
    """
    if (text := metadata.configuration.get(name)) is None:
        return default
    if (found := duration_ms(text)) is None:
        raise ConfigError(
            f"the property {name} is no duration: {text!r}",
            suggestion="write it as: interval 30 days",
        )
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
    """Decide which files of a log may go; nothing is read or deleted here.

    Kept are the newest version that is older than the retention and all after it, the newest whole checkpoint
    at or below that version, and that checkpoint's own commit with all that follow. Without such a checkpoint
    nothing goes.

    Args:
        files: What lies in ``_delta_log``.
        now_ms: Now, in epoch milliseconds.
        retention: How long versions must stay readable, in milliseconds.
        times: When versions were committed; by default their files' times.
        needed_from: Versions from here on must stay whatever their age, such as those that are not
            published, or that somebody still reads.
        whole: Whether a checkpoint can be trusted.
    """
    found = list(files)
    listing = listing_of(found)
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
        # a chain with a hole behind the checkpoint is no log to delete anything from
        if listing.files_between(base, versions[-1]) is None:
            continue
        if any(whole(checkpoint) for checkpoint in listing.checkpoints[base]):
            return CleanupPlan(base, _before(found, base), f"version {base} has a checkpoint")
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
    """Delete what the retention lets go, sidecars that no checkpoint names any more, and what the dead left.

    A run that dies half-way leaves a log that reads the same; the next one finishes its work.

    Args:
        store: The table's root.
        now_ms: Now, in epoch milliseconds.
        retention: As `retention_ms` gives it.
        times: As `plan_cleanup`.
        needed_from: As `plan_cleanup`.
        dry_run: Only look.

    Returns:
        What was deleted, or would be, and why not more.
    """
    hint = last_checkpoint(store)
    if hint is not None:
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
    plan = replace(plan, delete=plan.delete + sweep(store, now_ms=now_ms, dry_run=dry_run))
    if plan.checkpoint is None:
        return plan
    gone = {meta.path for meta in plan.delete}
    orphans = tuple(_orphans(store, now_ms - max(retention, SIDECAR_GRACE_MS), gone))
    for meta in () if dry_run else orphans:
        store.delete(meta.path)
    return CleanupPlan(plan.checkpoint, plan.delete + orphans, plan.reason)


def sweep(
    store: Store,
    *,
    now_ms: int,
    older_than_ms: int = 0,
    dry_run: bool = False,
) -> tuple[ObjectMeta, ...]:
    """Delete files that their writers never finished; those that were touched in the last day stay.

    Args:
        store: The table's root.
        now_ms: Now, in epoch milliseconds.
        older_than_ms: Those that were touched in this time stay too.
        dry_run: Only look.
    """
    before = now_ms - max(UNFINISHED_GRACE_MS, older_than_ms)
    dead = tuple(
        meta for folder in _WRITTEN for meta in store.unfinished(folder) if meta.modified_ms < before
    )
    for meta in () if dry_run else dead:
        store.delete(meta.path)
    return dead


def _before(files: Collection[ObjectMeta], base: int) -> tuple[ObjectMeta, ...]:
    gone = []
    for meta in files:
        if (name := parse_name(meta.name)) is None:
            continue
        # a compacted file that begins at or below the checkpoint has lost what it stands for
        limit = base + 1 if name.kind == "compacted" else base
        if name.version < limit:
            gone.append((name.version, meta))
    return tuple(meta for _, meta in sorted(gone, key=lambda pair: (pair[0], pair[1].path)))


def _orphans(store: Store, older_than_ms: int, gone: Collection[str]) -> Iterable[ObjectMeta]:
    sidecars = [meta for meta in store.list(SIDECAR_FOLDER) if meta.modified_ms < older_than_ms]
    if not sidecars:
        return []
    named: set[str] = set()
    for meta in store.list(LOG_FOLDER):
        if meta.path in gone:
            continue
        if (name := parse_name(meta.name)) is not None and name.kind in ("checkpoint", "v2"):
            try:
                named |= named_sidecars(store, Checkpoint(name.version, (meta,)))
            except LogCorruptError:
                # what a torn checkpoint names is not known, so every sidecar may be its
                return []
    return [meta for meta in sidecars if meta.path not in named]
