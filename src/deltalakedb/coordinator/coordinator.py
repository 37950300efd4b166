"""The coordinator: commit, then publish, then checkpoint, for every commit from wherever it comes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deltalakedb.commit.committer import LogAheadError, commit
from deltalakedb.commit.request import CommitRequest, NewTable, Received, TableChange
from deltalakedb.commit.versions import info_of
from deltalakedb.coordinator import guard
from deltalakedb.coordinator.follow_up import after_commit, follow_up
from deltalakedb.coordinator.gate import require_writable
from deltalakedb.exceptions import (
    CatalogBusyError,
    CommitUnknownError,
    ConflictError,
    DeltaSqlError,
    ProtocolError,
    TableMissingError,
)
from deltalakedb.metastore import registry, snapshots
from deltalakedb.mirror import rebase
from deltalakedb.mirror.checkpointer import DUE, CheckpointOptions, interval_of
from deltalakedb.mirror.publisher import Target, publish_all
from deltalakedb.protocol.actions import Metadata
from deltalakedb.protocol.commit_rules import decode_received
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.txn_log import Conflict
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.mirror import Options
    from deltalakedb.mirror.publisher import Published
    from deltalakedb.mirror.rebase import Resolved
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.txn_log import Committed, UnpublishedCommits

logger = logging.getLogger(__name__)

#: how often foreign commits may be adopted before one commit gives up
_ROUNDS = 5


class Coordinator:
    """The one way from a request to a published commit. It holds no state of a commit.

    Args:
        database: The catalog.
        options: Storage options by location, of the tables whose options the caller gave; all others have
            those of the settings.
    """

    def __init__(self, database: Database, options: Mapping[str, Options] | None = None) -> None:
        self._database = database
        self._given = options or {}

    def commit(
        self,
        request: CommitRequest,
        *,
        delete_files: Callable[[], object] = lambda: None,
        checkpoints: Mapping[str, CheckpointOptions] | None = None,
    ) -> list[Committed]:
        """Commit a request and follow it up; arguments as in `ratify` and `follow_up`."""
        done = self.ratify(request, delete_files=delete_files)
        self.follow_up(list(zip(request.changes, done, strict=True)), checkpoints=checkpoints)
        return done

    def ratify(
        self, request: CommitRequest, *, delete_files: Callable[[], object] = lambda: None
    ) -> list[Committed]:
        """Commit a request, without the follow-up.

        Only our own errors are certain. Anything else, such as an interrupt or the exception of a signal
        handler, may have come after the commit: then the new data files stay, and `gc` deletes those that no
        version needs.

        Args:
            request: What to commit.
            delete_files: Deletes the new data files. Called if the commit certainly did not happen, or was
                made before.

        Raises:
            ConflictError: Another writer was first, and nothing happened.
            CommitUnknownError: The outcome is not known.
        """
        try:
            outcome = self._guarded(request)
        except CommitUnknownError:
            raise
        except DeltaSqlError:
            delete_files()
            raise
        if isinstance(outcome, Conflict):
            delete_files()
            raise conflict_error(outcome)
        if outcome and all(c.replayed for c in outcome):
            delete_files()  # done before: this attempt's files belong to no version
        return outcome

    def decide(self, request: CommitRequest) -> list[Committed] | Conflict:
        """Commit a request behind the gate and the guard, without the follow-up; a conflict is returned."""
        for table in (c.table for c in request.changes if c.versions):
            if not isinstance(table, NewTable):
                store = open_store(table.location, self.storage_options(table.location))
                require_writable(self._database, table, store)
        return self._guarded(request)

    def follow_up(
        self,
        done: Sequence[tuple[TableChange, Committed]],
        *,
        group: str | None = None,
        renamed: bool = False,
        checkpoints: Mapping[str, CheckpointOptions] | None = None,
    ) -> None:
        """Publish what was committed, by the settings. Errors are logged: the commit stands.

        Args:
            done: The changes, and what each became.
            group: The transaction, if it may have changed several tables.
            renamed: Tables may have been renamed or dropped by the same commit.
            checkpoints: Whether checkpoints are written and the log cleaned up, by location; by default the
                tables' properties decide.
        """
        if self._database.engine.config.publish.mode == "off":
            return
        with after_commit("its tables could not be found again"):
            now = {t.location: t for t in registry.list_tables(self._database)} if renamed else None
            targets = []
            for change, committed in done:
                table = self._table(change) if now is None else now.get(change.table.location)
                if table is None:
                    continue  # dropped
                wanted = (checkpoints or {}).get(table.location, DUE)
                write = wanted.write and self._database.engine.config.publish.checkpoints
                read = None if change.read is None else change.read.metadata
                metadata = next((a for a in change.actions if isinstance(a, Metadata)), read)
                options = CheckpointOptions(write, wanted.cleanup, interval_of(metadata))
                targets.append(self._target(table, committed.unpublished, options))
            follow_up(self._database, targets, group=group if len(targets) > 1 else None)

    def _target(
        self, table: Table, known: UnpublishedCommits | None = None, checkpoints: CheckpointOptions = DUE
    ) -> Target:
        return Target(table, self.storage_options(table.location), known, checkpoints)

    def _table(self, change: TableChange) -> Table | None:
        if not isinstance(change.table, NewTable):
            return change.table
        try:
            return registry.find(self._database, change.table.name)
        except TableMissingError:
            return None  # dropped a moment ago

    def receive(
        self, table: Table | NewTable, version: int, data: bytes
    ) -> tuple[Committed, Published] | None:
        """Commit what another engine made as the next version of a table, and publish it.

        It is published whatever the settings are, since its writer looks for the file at once.

        Returns:
            What it became; None if the table changed meanwhile, so that the caller has to look again.

        Raises:
            ProtocolError: The commit is not allowed.
            TableFrozenError: The table is frozen, or was frozen because of foreign commits.
        """
        before = None
        if not isinstance(table, NewTable):
            options = self.storage_options(table.location)
            require_writable(self._database, table, open_store(table.location, options), log=True)
            if version > table.head.version + 1:
                # only a log with foreign commits can be further than the catalog
                if guard.handle_foreign_commits(self._database, table, options):
                    return None
                raise ProtocolError(
                    f"version {version} would leave a gap after version {table.head.version}",
                    table=table.name,
                    version=version,
                    suggestion=f"the next version is {table.head.version + 1}",
                )
            try:
                opened = snapshots.open_table(self._database, table.name)
            except TableMissingError:
                return None
            if opened.snapshot.version != version - 1:
                return None
            table, before = opened.table, opened.snapshot
        actions = decode_received(
            data,
            version=version,
            protocol=None if before is None else before.protocol,
            metadata=None if before is None else before.metadata,
        )
        reads = NOTHING if before is not None and _is_blind(actions) else EVERYTHING
        change = TableChange(table, [actions], before, reads, Received(data))
        try:
            outcome = self._guarded(CommitRequest([change]))
        except TableMissingError:
            return None
        if isinstance(outcome, Conflict):
            return None
        made = registry.find(self._database, table.name) if isinstance(table, NewTable) else table
        target = self._target(made, outcome[0].unpublished)
        return outcome[0], publish_all(self._database, [target])[0]

    def recommit(self, name: str, *, allow_split: bool = False, dry_run: bool = False) -> Resolved:
        """Resolve a divergence by `rebase.resolve`, and publish all tables that it resolved."""
        options = self.storage_options(registry.find(self._database, name).location)
        done = rebase.resolve(
            self._database, name, storage_options=options, allow_split=allow_split, dry_run=dry_run
        )
        if not dry_run:
            with after_commit("its tables could not be found again"):
                tables = [registry.find(self._database, one) for one in (name, *done.also)]
                follow_up(self._database, [self._target(table) for table in tables], all_waiting=True)
        return done

    def storage_options(self, location: str) -> Options:
        if location in self._given:
            return self._given[location]
        return self._database.engine.config.storage_options_for(location)

    def _guarded(self, request: CommitRequest) -> list[Committed] | Conflict:
        """Commit, unless the log has foreign commits that ours would collide with."""
        database = self._database
        guard.look_ahead(database, request.changes, self.storage_options)
        for _ in range(_ROUNDS):
            try:
                return commit(database, request, guard=guard.check_under_lock(database))
            except LogAheadError as ahead:
                table = ahead.table
                guard.handle_foreign_commits(database, table, self.storage_options(table.location))
        raise CatalogBusyError(
            f"other writers keep adding commits to _delta_log; gave up after {_ROUNDS} attempts to adopt "
            "them",
            suggestion="let one side write: see `deltasql mirror status`",
        )


def _is_blind(actions: Sequence[Action]) -> bool:
    info = info_of(actions)
    return info is not None and info.extra.get("isBlindAppend") is True


def conflict_error(conflict: Conflict) -> ConflictError:
    winner = f"version {conflict.version}" + (f" ({conflict.operation})" if conflict.operation else "")
    return ConflictError(
        f"{conflict.detail}; {winner} was first",
        table=conflict.table,
        version=conflict.version,
        suggestion="read the table again and repeat the write, or let Catalog.run repeat it",
        kind=conflict.kind,
        operation=conflict.operation,
        files=conflict.files,
        predicate=conflict.predicate,
    )
