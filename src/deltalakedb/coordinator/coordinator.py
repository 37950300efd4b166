"""The coordinator: ratifies and publishes the commits of every writer, then writes due checkpoints."""

from __future__ import annotations

import logging
import os
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from deltalakedb.commit.committer import LogAheadError, commit
from deltalakedb.commit.request import CommitRequest, NewTable, Received, TableChange, Write
from deltalakedb.commit.versions import info_of
from deltalakedb.coordinator import rebase
from deltalakedb.coordinator.rebase import read_foreign_commit
from deltalakedb.delta_log.names import LAST_CHECKPOINT, LOG_FOLDER, commit_path
from deltalakedb.delta_log.optional_files import last_checkpoint
from deltalakedb.delta_log.reader import FileTxnLogReader
from deltalakedb.exceptions import (
    CatalogBusyError,
    CatalogCorruptError,
    CommitUnknownError,
    ConflictError,
    DeltaSqlError,
    DivergedWarning,
    LogError,
    LogGapError,
    ProtocolError,
    StorageError,
    TableFrozenError,
    TableMissingError,
    UnsupportedOperationError,
)
from deltalakedb.metastore import outbox, registry, snapshots
from deltalakedb.metastore.files import pack_if_due
from deltalakedb.mirror.checkpointer import DUE, CheckpointOptions
from deltalakedb.mirror.drift import (
    ADOPT,
    AHEAD_HINT,
    FOREIGN_COMMITS,
    FREEZE,
    commit_file_state,
    log_differences,
    newest_beyond,
    refuse_rewritten,
    require_data,
    require_folder,
)
from deltalakedb.mirror.publisher import Published, Target, publish_all
from deltalakedb.mirror.reconciler import PUBLISHER, checkpoint_due, reconcile
from deltalakedb.protocol.actions import CommitInfo, Metadata
from deltalakedb.protocol.commit_rules import decode_received
from deltalakedb.protocol.features import FENCE, SPARK_FEATURES, with_writer_features, without_writer_feature
from deltalakedb.protocol.properties import checkpoint_interval
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING
from deltalakedb.protocol.txn_log import Committed, Conflict
from deltalakedb.retry import Retries
from deltalakedb.storage.store import Store, local_path, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalakedb.coordinator.rebase import Resolved
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.rows import Table
    from deltalakedb.mirror import Options
    from deltalakedb.protocol.actions import Protocol

logger = logging.getLogger(__name__)

#: how often one commit adopts foreign commits and tries again before it gives up
_MAX_ADOPTIONS = 5
#: recent files are counted after each of so many versions
_PACK_EVERY = 64
#: how many conflicting commits of other writers the change of a fence survives
_MAX_FENCE_CONFLICTS = 4


@dataclass(frozen=True, slots=True)
class Adoption:
    """Versions that were copied from the log."""

    versions: tuple[int, ...] = ()


class Coordinator:
    """The one way from a request to a published commit. It keeps no state between calls.

    Args:
        database: The catalog.
        options: Storage options by location; those of other locations come from the settings.
    """

    def __init__(self, database: Database, options: Mapping[str, Options] | None = None) -> None:
        self._database = database
        self._options = options or {}

    def storage_options(self, location: str) -> Options:
        return self._database.engine.config.storage_options_for(location, self._options.get(location))

    def store(self, table: Table) -> Store:
        return open_store(table.location, self.storage_options(table.location))

    # ---- commits made here -----------------------------------------------------------------------------

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

        ``delete_files`` deletes the new data files. It is called if the commit certainly did not happen, or
        was already made by an earlier call. Only our own errors are certain: an interrupt or the exception of
        a signal handler may have come after the commit, so the files stay, and `gc` deletes those that no
        version needs.

        Raises:
            ConflictError: Another writer was first, and nothing happened.
            CommitUnknownError: The outcome is not known.
        """
        try:
            outcome = self._commit_guarded(request)
        except CommitUnknownError:
            raise
        except DeltaSqlError:
            delete_files()
            raise
        if isinstance(outcome, Conflict):
            delete_files()
            raise _conflict_error(outcome)
        if outcome and all(c.replayed for c in outcome):
            delete_files()  # an earlier call made this commit: its files are used, not these
        return outcome

    def ratify_or_conflict(self, request: CommitRequest) -> list[Committed] | Conflict:
        """Check that the tables may be written to, then ratify; a conflict is returned, not raised."""
        for table in (c.table for c in request.changes if c.versions):
            if not isinstance(table, NewTable):
                require_writable(self._database, table, self.store(table))
        return self._commit_guarded(request)

    def _commit_guarded(self, request: CommitRequest) -> list[Committed] | Conflict:
        """Commit, unless the log has foreign commits that ours would collide with.

        Object stores respond slowly, so they are queried before the head is locked, and only if
        ``publish.look_ahead`` is ``always``.
        """
        look_ahead = self._database.engine.config.publish.look_ahead
        for change in request.changes if look_ahead == "always" else ():
            table = change.table
            if change.versions and not isinstance(table, NewTable) and local_path(table.location) is None:
                self.handle_foreign_commits(table)
        for _ in range(_MAX_ADOPTIONS):
            try:
                guard = None if look_ahead == "off" else log_is_ahead
                return commit(self._database, request, guard=guard)
            except LogAheadError as ahead:
                self.handle_foreign_commits(ahead.table)
        raise CatalogBusyError(
            f"other writers keep adding commits to _delta_log; gave up after {_MAX_ADOPTIONS} attempts "
            "to adopt them",
            suggestion="let one side write: see `deltasql mirror status`",
        )

    def follow_up(
        self,
        done: Sequence[tuple[TableChange, Committed]],
        *,
        group: str | None = None,
        renamed: bool = False,
        checkpoints: Mapping[str, CheckpointOptions] | None = None,
    ) -> None:
        """Publish what was committed and write due checkpoints, as the settings say.

        A writer publishes its own commits and some older unpublished ones (``publish.help_predecessors``).
        Errors are logged: the commit stands.

        Args:
            done: The changes with their commits.
            group: The id of the transaction, if it may have changed several tables.
            renamed: Tables may have been renamed or dropped by the same commit.
            checkpoints: By location; the default is `DUE`.
        """
        self._pack_files(done)
        database, settings = self._database, self._database.engine.config.publish
        if settings.mode == "off":
            return
        with after_commit("it could not be published"):
            targets = []
            for change, committed in done:
                table = change.table
                if renamed or isinstance(table, NewTable):
                    if (found := registry.find_location(database, table.location)) is None:
                        continue  # dropped
                    table = found
                wanted = (checkpoints or {}).get(table.location, DUE)
                read = None if change.read is None else change.read.metadata
                metadata = next((a for a in change.actions if isinstance(a, Metadata)), read)
                write = wanted.write and settings.checkpoints
                options = CheckpointOptions(write, wanted.cleanup, checkpoint_interval(metadata))
                given = self.storage_options(table.location)
                targets.append(Target(table, given, committed.unpublished, options))
            if settings.mode == "background":
                for one in targets:
                    PUBLISHER.soon(database, one)
                return
            limit, group = settings.help_predecessors + 1, group if len(targets) > 1 else None
            published = publish_all(database, targets, group=group, limit=limit, seconds=1.0)
            # after all tables are published, since those of one transaction should appear together
            for one, result in zip(targets, published, strict=True):
                # most commits need no query to decide this
                if result.may_need_checkpoint(one.checkpoints) or self._is_large(one):
                    checkpoint_due(database, one.table.name, one.checkpoints, one.storage_options)

    def _pack_files(self, done: Sequence[tuple[TableChange, Committed]]) -> None:
        """Pack the statistics of recent files, if there are many: looked for every few versions."""
        for change, committed in done:
            if not isinstance(change.table, NewTable) and committed.version % _PACK_EVERY == 0:
                with after_commit("statistics of its files could not be packed"):
                    pack_if_due(self._database, change.table.table_id)

    def _is_large(self, one: Target) -> bool:
        """Whether a commit is at least an eighth of the bytes after which a checkpoint is due."""
        limit = self._database.engine.config.publish.checkpoint_tail_bytes
        if not (limit and one.checkpoints.write and one.known):
            return False
        return 8 * sum(len(data) for _, _, data in one.known.commits) >= limit

    # ---- commits of other engines ----------------------------------------------------------------------

    def receive(
        self, table: Table | NewTable, version: int, data: bytes
    ) -> tuple[Committed, Published] | None:
        """Commit what another engine made as the next version of a table, and publish it.

        It is published even if the settings say otherwise, since its writer looks for the file at once.

        Returns:
            The commit and how it was published; None if the table changed meanwhile: try again.

        Raises:
            ProtocolError: The commit is not allowed.
            TableFrozenError: The table is frozen, or was frozen because of foreign commits.
        """
        database, before = self._database, None
        try:
            if not isinstance(table, NewTable):
                require_writable(database, table, self.store(table), log=True)
                if version > table.head.version + 1:
                    # the engine saw a later version in the log than the catalog has: a foreign commit
                    if self.handle_foreign_commits(table):
                        return None
                    raise ProtocolError(
                        f"version {version} would leave a gap after version {table.head.version}",
                        table=table.name,
                        version=version,
                        suggestion=f"the next version is {table.head.version + 1}",
                    )
                opened = snapshots.open_table(database, table.name)
                if opened.snapshot.version != version - 1:
                    return None
                table, before = opened.table, opened.snapshot
            protocol, metadata = (before.protocol, before.metadata) if before else (None, None)
            actions = decode_received(data, version=version, protocol=protocol, metadata=metadata)
            info = info_of(actions)
            blind = before and info and info.extra.get("isBlindAppend") is True
            change = TableChange(table, [actions], before, NOTHING if blind else EVERYTHING, Received(data))
            outcome = self._commit_guarded(CommitRequest([change]))
        except TableMissingError:
            return None
        if isinstance(outcome, Conflict):
            return None
        made = registry.find(database, table.name) if isinstance(table, NewTable) else table
        target = Target(made, self.storage_options(made.location), outcome[0].unpublished)
        return outcome[0], publish_all(database, [target])[0]

    def check_at_open(self, table: Table) -> bool:
        """Adopt foreign commits or freeze the table when it is opened; return whether any were adopted.

        Errors become warnings, so the table can be read even without permission to write, or if it is frozen.
        """
        try:
            return table.state == "active" and self.handle_foreign_commits(table)
        except DeltaSqlError as error:
            warnings.warn(f"{table.name}: {error.message}; {error.suggestion}", DivergedWarning, stacklevel=2)
            return False

    def handle_foreign_commits(self, table: Table) -> bool:
        """Adopt foreign commits beyond the head, or freeze the table, by its policy.

        Returns:
            Whether any were adopted.

        Raises:
            TableFrozenError: The log is ahead and the policy is to freeze.
            TableFollowedError: The table belongs to another catalog, and its log is ahead as a rule.
        """
        registry.refuse_followed(table)
        try:
            if (newest := newest_beyond(self._database, table, self.store(table))) is None:
                return False
        except StorageError as error:
            # an unreadable log does not block a commit; publishing finds a foreign commit later
            logger.warning("the log of %s could not be checked: %s", table.name, error.message)
            return False
        if table.settings.get(FOREIGN_COMMITS, FREEZE) == ADOPT:
            return bool(self.adopt(table.name).versions)
        reason = f"_delta_log has version {newest}, which the catalog did not make"
        registry.freeze(self._database, table, reason, version=table.head.version)
        text = f"the table is frozen: {reason}"
        raise TableFrozenError(text, table=table.name, version=table.head.version, suggestion=AHEAD_HINT)

    def adopt(self, name: str, *, origin: str = "adopt") -> Adoption:
        """Copy every commit of the log beyond the head into the catalog, in order and byte for byte.

        ``origin`` names the operation that copies them, for the history.

        Raises:
            LogGapError: Versions were cleaned up before the catalog had copied them.
            LogCorruptError: The log was rewritten, and does not continue the catalog's versions.
            UnsupportedFeatureError: A commit enables a feature that cannot be read here.
        """
        database, table = self._database, registry.find(self._database, name)
        reader = FileTxnLogReader(table.location, self.storage_options(table.location))
        refuse_rewritten(database, table, reader.store)
        done: list[int] = []
        version = table.head.version + 1
        while True:
            if reader.store.exists(commit_path(version)):
                done += [version] if self._adopt_one(name, reader, version, origin) else []
                version += 1
            elif (newest := newest_beyond(database, registry.find(database, name), reader.store)) is None:
                break
            elif not reader.store.exists(commit_path(version)):
                raise LogGapError(
                    f"version {version} was cleaned up before the catalog had it; the log is at {newest}",
                    table=name,
                    version=version,
                    suggestion=f"`deltasql drop {name} --force` forgets what the catalog knows and leaves "
                    "all files; then `deltasql import` imports the table again",
                )
        if done:
            level = logging.INFO if origin == "import" else logging.WARNING  # an import expects them
            logger.log(level, "%s: commits of other writers that were adopted: %d", name, len(done))
        return Adoption(tuple(done))

    def _adopt_one(self, name: str, reader: FileTxnLogReader, version: int, origin: str) -> bool:
        """Copy one commit; return False if another process has already copied it."""
        opened = snapshots.open_table(self._database, name)
        # commit a copy only on top of its predecessor: otherwise it would get another version number
        if opened.snapshot.version == version - 1:
            actions, copy = read_foreign_commit(reader, version, name, origin)
            if opened.table.state == registry.FOLLOWING:
                copy = replace(
                    copy, txn_uuid=None
                )  # transaction ids of the other catalog have no meaning in this one
            change = TableChange(opened.table, [actions], opened.snapshot, origin=copy)
            record_published = partial(outbox.advance, table_id=opened.table.table_id, version=version)
            outcome = commit(self._database, CommitRequest([change], statements=[record_published]))
            if not isinstance(outcome, Conflict):
                return True
        if commit_file_state(self._database, opened.table, reader.store, version) != "ours":
            raise ConflictError(
                f"another writer committed version {version} while it was adopted",
                table=name,
                version=version,
                suggestion="look at `deltasql mirror status`, then try again",
            )
        return False

    # ---- both sides have commits -----------------------------------------------------------------------

    def recover(self, name: str) -> Adoption:
        """Catch up with a log that is ahead of the catalog, after the database was restored from a backup.

        Raises:
            TableFolderMissingError: The location has neither log nor data, for example an unmounted share.
            TableFrozenError: Both sides have a version that the other does not have.
        """
        database, table = self._database, registry.find(self._database, name)
        store = self.store(table)
        require_data(database, table, store)
        found = log_differences(database, table, store)
        if foreign := next((f for f in found if f.kind == "foreign"), None):
            raise _diverged_error(table, foreign.version)
        if damaged := next((f for f in found if f.kind == "commit"), None):
            raise CatalogCorruptError(damaged.detail, table=name, version=damaged.version)
        self._record_published(table, store)
        adopted = self.adopt(name, origin="recover")
        if table.state == "frozen":
            registry.unfreeze(database, table, f"versions recovered from the log: {len(adopted.versions)}")
        return adopted

    def _record_published(self, table: Table, store: Store) -> None:
        """Record commits that are in the log as published: an older backup has them as unpublished."""
        known: list[int] = []
        for version in outbox.waiting_versions(self._database, table.table_id):
            state = commit_file_state(self._database, table, store, version)
            if state == "absent":
                if store.exists(commit_path(table.head.version + 1)):
                    raise LogError(
                        f"version {version} of the catalog is not in the log, and later ones are",
                        table=table.name,
                        version=version,
                        suggestion="move the later ones out of _delta_log, then recover again",
                    )
                break  # it is not published yet, nor are later ones
            if state != "ours":
                raise _diverged_error(table, version)
            known.append(version)
        if known:
            outbox.mark_published(self._database, {table.table_id: known})

    def recommit(self, name: str, *, allow_split: bool = False, dry_run: bool = False) -> Resolved:
        """Resolve a divergence by `rebase.resolve`, and publish all tables that it resolved."""
        database, mode = self._database, self._database.engine.config.publish.mode
        options = self.storage_options(registry.find(database, name).location)
        done = rebase.resolve(
            database, name, storage_options=options, allow_split=allow_split, dry_run=dry_run
        )
        for one in () if dry_run else (name, *done.also):
            with after_commit(f"{one} could not be published"):
                table = registry.find(database, one)
                given = self.storage_options(table.location)
                if mode == "background":
                    PUBLISHER.soon(database, Target(table, given))
                elif mode == "sync":
                    reconcile(database, one, storage_options=given)
        return done

    def set_fence(self, name: str, *, fenced: bool) -> int | None:
        """Add or remove the fence by a commit; its version, or None if there was nothing to do.

        The fence is a writer feature that only the catalog's writers know, so all others refuse to write.
        """
        attempts = Retries(_MAX_FENCE_CONFLICTS)
        while True:
            opened = snapshots.open_table(self._database, name)
            table, before = opened.table, opened.snapshot.protocol
            require_writable(self._database, table, self.store(table))
            if _is_fenced(before) == fenced:
                return None
            after = with_writer_features(before, [FENCE]) if fenced else without_writer_feature(before, FENCE)
            operation = "ADD FEATURE" if fenced else "DROP FEATURE"
            info = CommitInfo(extra={"operation": operation, "operationParameters": {"name": FENCE}})
            origin = Write(handled_features=SPARK_FEATURES)
            change = TableChange(table, [[info, after]], opened.snapshot, NOTHING, origin)
            try:
                return self.commit(CommitRequest([change]))[0].version
            except ConflictError as error:
                time.sleep(attempts.pause(error))


def refuse_fenced(database: Database, table: Table) -> None:
    """Refuse to leave a fenced table to writers that cannot get in."""
    if _is_fenced(snapshots.open_table(database, table.name).snapshot.protocol):
        raise UnsupportedOperationError(
            "the table is fenced: once it is dropped, no engine can write to it",
            table=table.name,
            suggestion="remove the fence with Catalog.mirror.unfence, or pass force=True",
            command=f"remove the fence with `deltasql mirror fence {table.name} --remove`, or pass --force",
        )


def _is_fenced(protocol: Protocol) -> bool:
    return FENCE in (protocol.writer_features or ())


@contextmanager
def after_commit(failure: str) -> Iterator[None]:
    """Log errors that happen after a commit. The commit stands; raising would make the caller retry it."""
    try:
        yield
    except CatalogBusyError as error:
        logger.info("%s: %s", failure, error.message)
    except DeltaSqlError as error:
        logger.warning("the commit stands, but %s: %s", failure, error.message)
    except Exception:
        logger.exception("the commit stands, but %s", failure)


def _diverged_error(table: Table, version: int) -> TableFrozenError:
    return TableFrozenError(
        f"version {version} of the log is not the one in the catalog: both sides have new commits",
        table=table.name,
        version=version,
        suggestion="`deltasql mirror resolve --keep-theirs` commits ours again on top of the log's",
    )


def _conflict_error(conflict: Conflict) -> ConflictError:
    winner = f"version {conflict.version}" + (f" ({conflict.operation})" if conflict.operation else "")
    return ConflictError(
        f"{conflict.detail}; {winner} was first",
        table=conflict.table,
        version=conflict.version,
        suggestion="read the table again and repeat the write, or let Catalog.run repeat it",
        command="run the command again: it reads the table again",
        kind=conflict.kind,
        operation=conflict.operation,
        files=conflict.files,
        predicate=conflict.predicate,
    )


# ---- checks around a commit ----------------------------------------------------------------------------


def require_writable(database: Database, table: Table, store: Store, *, log: bool = False) -> None:
    """Check, before data files are written, that a table may be written to.

    Table operations, transactions, Spark and the HTTP service all call this, so a new precondition of writing
    belongs here. Whatever may change between this check and the commit is checked again under the lock of the
    table's head, in `commit/committer.py`. With ``log``, a folder on local disk must also have its
    `_delta_log`: an engine that has already written its data may have created the missing folder itself.

    Raises:
        TableFollowedError: The table belongs to another catalog and is only followed.
        TableFolderMissingError: Versions were published, and the folder is missing or holds no data.
    """
    registry.refuse_followed(table)
    require_folder(database, table, store, log=log)


def log_is_ahead(table: Table, version: int) -> bool:
    """Whether a log on local disk continues after a version; False for an object store.

    A committer calls this while it locks the head. An unreadable log does not block a commit: publishing
    finds a foreign commit later.
    """
    root = local_path(table.location)
    if root is None:
        return False
    if os.path.lexists(f"{root}/{commit_path(version + 1)}"):
        return True
    # the next version may have been cleaned up after a later checkpoint
    try:
        hint = os.stat(f"{root}/{LAST_CHECKPOINT}")  # noqa: PTH116 - checked before every commit
        newest = _last_checkpoint(str(root), (hint.st_ino, hint.st_size, hint.st_mtime_ns, hint.st_ctime_ns))
        if newest is None or newest <= version:
            return False
        # the hint may be wrong, so look for the checkpoint itself
        return any(name.startswith(f"{newest:020}.") for name in os.listdir(f"{root}/{LOG_FOLDER}"))  # noqa: PTH208
    except (OSError, StorageError):
        return False


@lru_cache(maxsize=1024)
def _last_checkpoint(root: str, _stat: tuple[int, ...]) -> int | None:
    """The version that ``_last_checkpoint`` names; cached, since it is read while a head is locked."""
    return last_checkpoint(open_store(root))
