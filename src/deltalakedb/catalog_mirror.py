"""What users hold as ``Catalog.mirror``: status, publishing, pausing, verifying and repairing logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.coordinator import fence, guard
from deltalakedb.coordinator.coordinator import Coordinator
from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError
from deltalakedb.metastore import outbox, registry
from deltalakedb.mirror import checkpointer, groups, outside, reconciler, repair
from deltalakedb.transfer.verifying.verifier import verify_head

if TYPE_CHECKING:
    import threading

    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind, WrittenCheckpoint
    from deltalakedb.delta_log.cleanup import CleanupPlan
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.mirror.rebase import Resolved
    from deltalakedb.mirror.reconciler import Pass
    from deltalakedb.mirror.repair import Repaired
    from deltalakedb.transfer.verifying.report import Level, VerifyReport

_PAUSED = "mirror.paused"


class Mirror:
    """How a catalog's tables reach their `_delta_log`, and what to do when they do not.

    Example:
        >>> [s.table for s in catalog.mirror.status() if s.versions_behind]
        []
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def status(self, name: str | None = None, *, look: bool = False) -> list[MirrorStatus]:
        """How far each table is published, or one of them.

        Args:
            name: The table; by default all.
            look: Look into the logs too, for versions that the catalog does not know (``ahead``). It costs a
                request for each table.
        """
        if name is not None:
            registry.find(self._database, name)
        found = outbox.status(self._database, name)
        return [outside.looked_at(self._database, s) for s in found] if look else found

    def publish(self, name: str) -> Pass:
        """Publish everything that waits of one table, now."""
        table = registry.find(self._database, name)
        done = reconciler.reconcile(self._database, name, checkpoints=reconciler.FORCED)
        groups.write_missing(self._database, table_id=table.table_id, force=True)
        return done.with_left(outbox.status(self._database, name))

    def run(self, *, stop: threading.Event | None = None, interval: float = 1.0) -> Pass:
        """Publish everything that waits of all tables: once, or again and again until told to stop.

        Args:
            stop: Set it to end; without one there is a single pass.
            interval: Seconds between two passes.
        """
        reconciler.checked_interval(interval)
        if stop is None:
            return reconciler.run_once(self._database)
        return reconciler.watch(self._database, stop=stop, interval=interval)

    def thread(self, *, interval: float = 1.0) -> reconciler.ReconcilerThread:
        """A reconciler for a long-lived process, as a context manager."""
        return reconciler.ReconcilerThread(self._database, interval=interval)

    def pause(self, name: str | None = None) -> None:
        """Let publishing stand still, for one table or the whole catalog; commits go on."""
        self._pause(name, paused=True)

    def resume(self, name: str | None = None) -> Pass:
        """Let publishing go on, and catch up.

        Without a name the catalog's pause ends. Tables that were paused by name stay so, since somebody had a
        reason of their own: the answer's ``paused`` names them.
        """
        self._pause(name, paused=False)
        return self.run() if name is None else self.publish(name)

    def _pause(self, name: str | None, *, paused: bool) -> None:
        if name is None:
            registry.set_setting(self._database, _PAUSED, "true" if paused else None)
        else:
            outbox.set_paused(self._database, registry.find(self._database, name), paused)

    def checkpoint(self, name: str, *, kind: CheckpointKind | None = None) -> WrittenCheckpoint:
        """Write a checkpoint of the newest published version."""
        return checkpointer.checkpoint(self._database, name, kind=kind, storage_options=self._options(name))

    def clean(self, name: str, *, dry_run: bool = False) -> CleanupPlan:
        """Delete log files whose retention has ended and that a published checkpoint covers.

        Args:
            name: The table.
            dry_run: Only tell which.
        """
        options = self._options(name)
        return checkpointer.clean(self._database, name, storage_options=options, dry_run=dry_run)

    def prune(self, name: str, *, dry_run: bool = False) -> checkpointer.Pruned:
        """Delete the bytes of published commits that a published checkpoint covers from the catalog."""
        return checkpointer.prune(self._database, name, dry_run=dry_run)

    def compact(self, name: str, start: int, end: int, *, dry_run: bool = False) -> str | None:
        """Write a log compaction file over some published versions; its path, or None where it was there.

        Args:
            name: The table.
            start: The first version.
            end: The last version, above the first.
            dry_run: Only tell what would be written.
        """
        table = registry.find(self._database, name)
        registry.refuse_followed(table)
        for version in (start, end):
            if isinstance(version, bool) or not isinstance(version, int):
                raise ArgumentTypeError(f"a version must be a whole number, not {version!r}", table=name)
        return checkpointer.compact(
            self._database, name, start, end, storage_options=self._options(name), dry_run=dry_run
        )

    def verify(self, name: str, *, replay: bool = True) -> VerifyReport:
        """Compare a table's log with the catalog at every version, and every checkpoint.

        This is `verify_table` at level ``full``, which compares no checkpoints.

        Args:
            name: The table.
            replay: Replay the log and its checkpoints; otherwise only the bytes of commit files are compared,
                as at level ``commits``.
        """
        table = registry.find(self._database, name)
        level: Level = "full" if replay else "commits"
        return verify_head(self._database, table, level, self._options(name), checkpoints=True)

    def repair(self, name: str, *, dry_run: bool = False, create_folder: bool = False) -> Repaired:
        """Rewrite commit files and checkpoints that are missing or damaged from the catalog.

        Args:
            name: The table.
            dry_run: Change nothing, and report what would be rewritten.
            create_folder: Write the log even if nothing of the table is at its location.
        """
        options = self._options(name)
        return repair.repair(
            self._database, name, storage_options=options, dry_run=dry_run, create_folder=create_folder
        )

    def rebuild(self, name: str, location: str | os.PathLike[str]) -> tuple[int, int]:
        """Make the whole log of a table from the catalog into an empty place."""
        if not isinstance(location, str | os.PathLike):
            raise ArgumentTypeError(f"a location must be a path or a URL, not {location!r}", table=name)
        place = os.fspath(location)
        options = self._database.engine.config.storage_options_for(place)
        return repair.rebuild(self._database, name, place, storage_options=options)

    def recover(self, name: str) -> guard.Adoption:
        """Catch up with a log that is ahead of the catalog."""
        return guard.recover(self._database, name, storage_options=self._options(name))

    def resolve(
        self,
        name: str,
        *,
        keep: Literal["theirs"] = "theirs",
        allow_split: bool = False,
        dry_run: bool = False,
    ) -> Resolved:
        """Decide a divergence: their commits stay, ours that were never published are committed on top.

        Other tables that diverged and share a transaction with this one are resolved with it.

        Args:
            name: The table.
            keep: Whose commits stay where they are; a log file is never overwritten.
            allow_split: Lose the part of a transaction in this table although its other parts stand in other
                tables, where they cannot be taken back; by default that is an UnsupportedOperationError.
            dry_run: Change nothing, and report what would become of each commit of ours.
        """
        if keep != "theirs":
            raise InvalidArgumentError(
                f"keep={keep!r} is not possible: a log file is never overwritten",
                suggestion="to keep ours, move their commit files away by hand, then repair",
            )
        return Coordinator(self._database).recommit(name, allow_split=allow_split, dry_run=dry_run)

    def fence(self, name: str) -> int | None:
        """Let writers that do not know the catalog refuse the table; readers go on reading it.

        A commit adds the writer feature ``deltasqlManaged`` to the table's protocol.

        Returns:
            The version that did it, or None where the fence stood already.
        """
        return fence.set_fence(self._database, name, fenced=True)

    def unfence(self, name: str) -> int | None:
        """Take the fence away; the version that did it, or None where there was none."""
        return fence.set_fence(self._database, name, fenced=False)

    def policy(self, name: str) -> str:
        """What happens to commits that others put beyond the head: ``freeze`` or ``adopt``."""
        return str(registry.find(self._database, name).settings.get(outside.POLICY, outside.FREEZE))

    def set_policy(self, name: str, policy: Literal["freeze", "adopt"]) -> None:
        """What to do with commits that others put beyond the head: ``freeze``, or ``adopt`` them."""
        if policy not in (outside.FREEZE, outside.ADOPT):
            raise InvalidArgumentError(f"unknown policy {policy!r}", suggestion="use freeze or adopt")
        registry.set_table_setting(self._database, name, outside.POLICY, policy)

    def _options(self, name: str) -> dict[str, Any] | None:
        location = registry.find(self._database, name).location
        return self._database.engine.config.storage_options_for(location)
