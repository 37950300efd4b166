"""The local engine: loads a table in this process, each batch in one transaction with its receipt."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from deltalakedb.delta_log.checkpoint import CheckpointScan, Window
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_actions, iter_pieces, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import LogCorruptError, VersionMissingError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import imports
from deltalakedb.metastore.files import Counts, FileChanges
from deltalakedb.metastore.imports import BatchKind, ImportRow, Receipt
from deltalakedb.metastore.ratify import CommitFacts, Ratification, apply_state, write_commits
from deltalakedb.protocol.actions import Action, Add, CommitInfo, Metadata, Remove, decode_commit
from deltalakedb.protocol.commit_rules import check_locations, check_unique_files
from deltalakedb.protocol.paths import TablePaths
from deltalakedb.transfer.importing.encoding import (
    OTHERS,
    Layout,
    ReadyTail,
    ahead,
    new_metadata,
    prepare,
    prepare_tail,
    write_tail,
    write_window,
)
from deltalakedb.transfer.importing.options import LoadEngine, peak_bytes
from deltalakedb.transfer.importing.plan import SECOND_PROCESS_FROM, base_checkpoint, tail_batches
from deltalakedb.transfer.importing.second_process import in_second_process
from deltalakedb.transfer.reports import ImportPlan, ImportProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.transfer.importing.encoding import PreparedWindow

#: makes batches of commits ready, in their order, from the layout before the first one
Tails: TypeAlias = "Callable[[LoadTask, Sequence[range], Layout], Iterator[ReadyTail | LargeCommit]]"


class TornCheckpointError(LogCorruptError):
    """The checkpoint that an import starts from is truncated or corrupt; an older one may be readable."""

    @classmethod
    def of(cls, error: LogCorruptError, version: int) -> TornCheckpointError:
        return cls(error.message, version=version, suggestion=error.suggestion, **error.context)


@dataclass(slots=True)
class Batch:
    """One batch of a load, with the values of its receipt (`metastore.imports.Receipt`)."""

    number: int
    kind: BatchKind
    begins: int
    ends: int
    actions: int = 0
    counts: Counts = field(default_factory=Counts)
    next_seq: int = 0
    proof: bytes | None = None
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of_window(cls, plan: ImportPlan, window: PreparedWindow) -> Batch:
        """The batch for a window of the base; batch 0 is the table's state."""
        number = 1 + window.begin // plan.batch_size
        ends = window.end - 1
        return cls(number, "base", window.begin, ends, next_seq=window.end, proof=window.proof)

    def receipt(self, session: Session) -> Receipt:
        spent = int((time.monotonic() - self.began) * 1000)
        what = self.number, self.kind, self.begins, self.ends, self.actions, *astuple(self.counts)
        values: tuple[Any, ...] = (*what, self.next_seq, session.now_ms(), spent, peak_bytes())
        return Receipt(*values)


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Everything that an engine needs to load a table. The import's receipts record the loaded batches.

    Every batch checks the lease in its transaction. The rate limit is in file actions per second.
    """

    database: Database
    row: ImportRow
    plan: ImportPlan
    reader: FileTxnLogReader
    lease: Lease
    on_progress: Callable[[ImportProgress], None]
    rate_limit: int = 0
    #: batches of the base get a proof of what was read
    proves: bool = False

    @property
    def paths(self) -> TablePaths:
        outside = self.database.engine.config.catalog.allow_outside_paths
        return TablePaths(self.row.location, outside, self.row.name)

    @contextmanager
    def writing(self, batch: Batch) -> Iterator[Session]:
        """Open the transaction of a batch, and write its receipt at the end."""
        with self.database.write() as session:
            imports.require(session, self.lease)
            yield session
            imports.write_receipt(session, self.row.import_id, batch.receipt(session), batch.proof)
            failpoint("import.batch_written")
        failpoint("import.batch_done")

    def layout(self) -> Layout:
        """The layout of the newest version that is loaded."""
        with self.database.read() as session:
            return Layout.of(session, self.row.table_id, self.paths)

    def write_window(self, window: PreparedWindow) -> Batch:
        batch = Batch.of_window(self.plan, window)
        with self.writing(batch) as session:
            first = self.plan.first_version
            batch.counts, batch.actions = write_window(session, self.row.table_id, first, window)
        return batch


@dataclass(frozen=True, slots=True)
class LargeCommit:
    """A commit that does not fit in memory: its actions that are about no file."""

    version: int
    actions: tuple[Action, ...]

    @property
    def metadata(self) -> Metadata | None:
        return new_metadata(self.actions)


def ready_tail(task: LoadTask, versions: range, layout: Layout) -> ReadyTail | LargeCommit:
    """Read a batch of commits, and make its rows unless it is one large commit."""
    reader = task.reader
    if len(versions) == 1 and is_large(reader.store.head(path := commit_path(versions.start))):
        state = tuple(a for a in iter_state(reader.store, path) if isinstance(a, OTHERS))
        return LargeCommit(versions.start, state)
    return prepare_tail(((version, reader.commit_bytes(version)) for version in versions), layout)


def ready_tails(
    task: LoadTask, batches: Sequence[range], layout: Layout
) -> Iterator[ReadyTail | LargeCommit]:
    """Make batches of commits ready in this process."""
    for versions in batches:
        ready = ready_tail(task, versions, layout)
        layout = layout.after(ready.metadata)
        yield ready


def _prepared(
    windows: Callable[[], Iterator[Window]],
    begun: frozenset[int],
    version: int,
    layout: Layout,
    proves: bool,
) -> Iterator[PreparedWindow]:
    """The windows that are not loaded yet, encoded; none is kept in memory while the next one is made."""
    missing = filter(lambda window: window.begin not in begun, windows())
    return map(partial(prepare, version=version, layout=layout, proves=proves), missing)


class LocalEngine(LoadEngine):
    """Loads a table in this process."""

    name = "local"

    def load(self, task: LoadTask, tails: Tails = ready_tails) -> None:
        """Load every batch without a receipt; ``tails`` makes batches of commits ready."""
        _Load(task).run(tails)

    def open(self, task: LoadTask) -> None:
        """Load only the state of the first version, which every batch of the base needs."""
        _Load(task).open()


class _Load:
    def __init__(self, task: LoadTask) -> None:
        self._task, self._plan, self._table_id = task, task.plan, task.row.table_id
        self._store, self._listing = task.reader.store, list_log(task.reader.store)
        done = imports.receipts(task.database, task.row.import_id)
        self._batches = len(done)
        self._next_seq = max((r.next_file_seq for r in done), default=0)
        tails = [r for r in done if r.kind == "tail"]
        first = self._plan.first_version + (self._plan.base != "none")
        self._version = tails[-1].ends + 1 if tails else first
        self._is_open = len(tails) < len(done)
        #: first and last row of the loaded batches of the base; Spark loads them in any order
        self._begun = {r.begins: r.ends for r in done if r.kind == "base" and r.ends >= r.begins}
        rows = sum(ends - begins + 1 for begins, ends in self._begun.items())
        total = self._plan.base_rows + self._plan.version - first + 1
        self._pace = Pace(task, total, rows + self._version - first, sum(r.actions for r in done))

    def run(self, tails: Tails) -> None:
        """Load the missing parts of the state, the base and the tail."""
        self._pace.report()
        if self._plan.base != "none":
            self._base()
        batches = list(tail_batches(self._listing, range(self._version, self._plan.version + 1)))
        ready = ahead(tails(self._task, batches, self._task.layout())) if batches else iter(())
        for versions, tail in zip(batches, ready, strict=True):
            batch = Batch(self._batches, "tail", versions.start, versions.stop - 1)
            if isinstance(tail, LargeCommit):
                self._large(batch, tail)
            else:
                self._tail(batch, tail)
            self._next_seq = batch.next_seq
            self._count(batch)

    def _count(self, batch: Batch) -> None:
        self._batches += 1
        self._pace.step(batch.ends - batch.begins + 1, batch.actions)

    # ---- the base ----

    def open(self) -> None:
        """Load the first version's metadata, protocol, txns, domains and commit, unless they are loaded."""
        if self._is_open:
            return
        version, reader = self._plan.first_version, self._task.reader
        snapshot = reader.snapshot(version)
        state: list[Action] = [snapshot.protocol, snapshot.metadata]
        state += [*reader.txns(version).values(), *reader.domains(version).values()]
        commit = self._large_first() if is_large(self._listing.commits.get(version)) else self._first_commit()
        batch = Batch(0, "base", 0, -1)
        with self._task.writing(batch) as session:
            apply_state(session, self._table_id, version, state)
            write_commits(session, self._table_id, [commit])
        self._count(batch)

    def _large_first(self) -> Ratification:
        """The first version's commit, if it is large: its files come from the base."""
        version, info, seen = self._plan.first_version, [], Counter[object]()
        for action in iter_actions(self._store, commit_path(version)):
            if isinstance(action, Add | Remove):
                seen[type(action)] += 1
                seen["changes"] += action.data_change
            elif isinstance(action, CommitInfo):
                info.append(action)
        return self._large_commit(version, info, CommitFacts(seen["changes"] > 0, seen[Add], seen[Remove]))

    def _base(self) -> None:
        self.open()
        after = 0
        while after in self._begun:
            after += self._plan.batch_size
        plan, version = self._plan, self._plan.first_version
        try:
            windows = partial(self._state_windows, after)
            if plan.base == "checkpoint":
                scan = CheckpointScan(self._store, base_checkpoint(self._listing, plan))
                windows = partial(scan.windows, plan.batch_size, after=after)
            make = partial(
                _prepared, windows, frozenset(self._begun), version, self._task.layout(), self._task.proves
            )
            is_large = plan.base == "checkpoint" and plan.base_rows - after > SECOND_PROCESS_FROM
            for window in in_second_process(make) if is_large else ahead(make()):
                self._count(self._task.write_window(window))
                self._next_seq = max(self._next_seq, window.end)
                del window  # before the next one comes
        except LogCorruptError as error:
            raise TornCheckpointError.of(error, version) from error

    def _state_windows(self, after: int) -> Iterator[Window]:
        """The first version's files if it has no checkpoint, from the position ``after`` on."""
        plan, reader = self._plan, self._task.reader
        actions: list[Action] = [*reader.tombstones(plan.first_version), *reader.files(plan.first_version)]
        for begin in range(after, len(actions), plan.batch_size):
            part = actions[begin : begin + plan.batch_size]
            yield Window(begin, begin + len(part), (part,))

    # ---- the tail ----

    def _tail(self, batch: Batch, tail: ReadyTail) -> None:
        commits = [self._commit(c.version, c.actions, c.data, c.facts) for c in tail.commits]
        batch.actions = sum(c.facts.added + c.facts.removed for c in tail.commits)
        with self._task.writing(batch) as session:
            batch.counts, batch.next_seq = write_tail(session, self._table_id, self._next_seq, tail)
            write_commits(session, self._table_id, commits)

    def _large(self, batch: Batch, large: LargeCommit) -> None:
        """Stream a commit that does not fit in memory: its state, then its removes, then its adds."""
        version, path = large.version, commit_path(large.version)
        with self._task.writing(batch) as session:
            apply_state(session, self._table_id, version, large.actions)
            changes = FileChanges(session, self._table_id, self._next_seq, batch.counts, {})
            for kind in (Remove, Add):
                for piece in iter_pieces(self._store, path, kind):
                    imports.require(session, self._task.lease)
                    check_locations(piece, self._task.paths)
                    changes.apply_pieces(version, [piece])
            facts = CommitFacts(changes.data_change, changes.added, changes.removed)
            write_commits(session, self._table_id, [self._large_commit(version, large.actions, facts)])
            batch.actions, batch.next_seq = changes.added + changes.removed, changes.rows.next_seq

    # ---- commits ----

    def _first_commit(self) -> Ratification:
        """The first version's commit; if the version comes from a checkpoint, there may be no commit file."""
        version, data = self._plan.first_version, None
        with suppress(VersionMissingError):
            data = self._task.reader.commit_bytes(version)
        actions = [] if data is None else decode_commit(data, source=commit_path(version))
        check_locations(actions, self._task.paths)
        check_unique_files(actions, self._task.paths, version=version)
        return self._commit(version, actions, data)

    def _large_commit(self, version: int, state: Sequence[Action], facts: CommitFacts) -> Ratification:
        """A commit whose bytes stay in the log; the catalog stores only their digest."""
        found = commit_digest(self._store, commit_path(version))
        return self._commit(version, state, None, replace(facts, sha256=found.sha256, size=found.size))

    def _commit(
        self, version: int, actions: Sequence[Action], data: bytes | None, facts: CommitFacts | None = None
    ) -> Ratification:
        return Ratification(
            version=version,
            timestamp=self._task.reader.timestamp_of(version),
            actions=actions,
            data=data,
            txn_uuid=self._task.row.import_id,
            ordinal=version,
            origin="import",
            published=True,
            facts=facts,
        )


@dataclass(slots=True)
class Pace:
    """Progress and rate limit of one run, which resumes after ``done`` steps and ``seen`` actions."""

    task: LoadTask
    total: int
    done: int
    seen: int
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    actions: int = 0

    def step(self, steps: int, actions: int) -> None:
        """Count a batch, wait if it was faster than the rate limit, and report."""
        self.steps += steps
        self.actions += actions
        if limit := self.task.rate_limit:
            early = self.actions / limit - (time.monotonic() - self.began)
            if early > 0:
                _sleep(early)
        self.report()

    def report(self) -> None:
        passed = max(time.monotonic() - self.began, 1e-6)
        done, seen = self.done + self.steps, self.seen + self.actions
        left = round(passed / self.steps * max(0, self.total - done), 1) if self.steps else None
        rate = round(self.actions / passed, 1)
        self.task.on_progress(ImportProgress("loading", done, self.total, seen, rate, left))


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
