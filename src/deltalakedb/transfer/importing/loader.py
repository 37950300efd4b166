"""The local engine: this process writes batches, each in one transaction with its receipt."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from deltalakedb.delta_log.checkpoint import CheckpointScan, Window
from deltalakedb.delta_log.commit_file import commit_digest, is_large, iter_actions, iter_pieces, iter_state
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import LogCorruptError, VersionMissingError
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import files, imports
from deltalakedb.metastore.files import Counts
from deltalakedb.metastore.imports import Receipt
from deltalakedb.metastore.ratify import CommitFacts, Ratification, apply_state, write_commits
from deltalakedb.protocol.actions import Add, CommitInfo, Remove
from deltalakedb.protocol.codec import decode_commit
from deltalakedb.protocol.commit_rules import check_one_vector, check_places
from deltalakedb.transfer.importing.encoding.changes import STATE, Changes, summary
from deltalakedb.transfer.importing.encoding.tails import write_tail
from deltalakedb.transfer.importing.encoding.windows import Encoders, ahead, prepare, write_window
from deltalakedb.transfer.importing.engines import TornCheckpointError
from deltalakedb.transfer.importing.plan import base_checkpoint, tail_batches
from deltalakedb.transfer.importing.report import ImportProgress
from deltalakedb.transfer.resources import peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.imports import BatchKind
    from deltalakedb.protocol.actions import Action
    from deltalakedb.protocol.slots import SlotEncoder
    from deltalakedb.transfer.importing.encoding.tails import ReadyTail
    from deltalakedb.transfer.importing.encoding.windows import PreparedWindow
    from deltalakedb.transfer.importing.engines import LoadTask
    from deltalakedb.transfer.importing.plan import ImportPlan

#: a batch of commits that was encoded elsewhere, or None
Tails: TypeAlias = "Callable[[range], ReadyTail | None]"


class LocalEngine:
    """Loads a table in this process."""

    name = "local"

    def load(self, task: LoadTask, tails: Tails = lambda _: None) -> None:
        """Load every batch that has no receipt yet.

        Args:
            task: What to load.
            tails: Called for each batch of commits, which may have been encoded elsewhere.
        """
        _Load(task).run(tails)

    def open(self, task: LoadTask) -> None:
        """Load only the state of the first version, which every batch of the base needs."""
        _Load(task).open()

    def log_digest(self, reader: FileTxnLogReader, version: int, *, tick: Callable[[], None]) -> None:  # noqa: ARG002
        """None: the caller reads the log."""
        return

    def row_digest(self, location: str, version: int) -> None:  # noqa: ARG002
        """None: the caller reads the rows."""
        return


class _Load:
    def __init__(self, task: LoadTask) -> None:
        self._task, self._plan, self._row = task, task.plan, task.row
        self._table_id = task.row.table_id
        self._listing = list_log(task.reader.store)
        done = imports.receipts(task.database, task.row.import_id)
        self._batch = len(done)
        self._next_seq = max((r.next_file_seq for r in done), default=0)
        self._bases = [r for r in done if r.kind == "base"]
        tails = [r for r in done if r.kind == "tail"]
        first = self._plan.first_version
        self._version = tails[-1].ends + 1 if tails else first + (self._plan.base != "none")
        #: positions at which loaded batches of the base begin; a cluster loads them in any order
        self._begun = {r.begins for r in self._bases if r.ends >= r.begins}
        rows = sum(r.ends - r.begins + 1 for r in self._bases)
        steps = rows + self._version - first - (self._plan.base != "none")
        total = self._plan.base_rows + self._plan.version - first + (self._plan.base == "none")
        self._pace = Pace(task, total, steps, sum(r.actions for r in done))

    def run(self, tails: Tails) -> None:
        """State, base and tail, as far as each is missing."""
        self._pace.report()
        if self._plan.base != "none":
            self._base()
            # what follows looks files up by their paths
            imports.restore_indexes(self._task.database, self._row, self._task.lease, planning=False)
        for versions in tail_batches(self._listing, range(self._version, self._plan.version + 1)):
            if is_large(self._listing.commits.get(versions.start)):
                self._large(versions.start)
            elif (ready := tails(versions)) is not None:
                self._ready(versions, ready)
            else:
                self._tail(versions)

    # ---- the base ----

    def open(self) -> None:
        """The state of the first version, if it is missing."""
        if not self._bases:
            self._first_state()

    def _base(self) -> None:
        self.open()
        size, after = self._plan.batch_size, 0
        while after in self._begun:
            after += size
        with self._task.database.read() as session:
            encoders = Encoders.of(session, self._table_id, self._task.paths)
        missing = (w for w in self._windows(after) if w.begin not in self._begun)
        try:
            for window in ahead(prepare(w, encoders) for w in missing):
                self._write_window(window, encoders)
        except LogCorruptError as error:
            raise TornCheckpointError.of(error, self._plan.first_version) from error

    def _windows(self, after: int) -> Iterator[Window]:
        """What is left of the first version's files."""
        plan, reader = self._plan, self._task.reader
        if plan.base == "checkpoint":
            scan = CheckpointScan(reader.store, base_checkpoint(self._listing, plan))
            yield from scan.windows(plan.batch_size, after=after)
            return
        actions: list[Action] = [*reader.tombstones(plan.first_version), *reader.files(plan.first_version)]
        for begin in range(after, len(actions), plan.batch_size):
            part = actions[begin : begin + plan.batch_size]
            yield Window(begin, begin + len(part), (part,))

    def _first_state(self) -> None:
        """Metadata, protocol, txns and domains of the first version, and its commit."""
        version, reader = self._plan.first_version, self._task.reader
        snapshot = reader.snapshot(version)
        state: list[Action] = [snapshot.protocol, snapshot.metadata]
        state += [*reader.txns(version).values(), *reader.domains(version).values()]
        large = is_large(self._listing.commits.get(version))
        commit = None if large else self._commit(version)[0]
        began = time.monotonic()
        with self._task.database.write() as session:
            imports.require(session, self._task.lease)
            apply_state(session, self._table_id, version, state)
            if commit is not None:
                write_commits(session, self._table_id, [commit])
            else:
                info, facts = summary(iter_actions(reader.store, commit_path(version)))
                self._note_large(session, version, info, facts)
            receipt = self._receipt(session, 0, "base", 0, -1, 0, Counts(), 0, began)
            failpoint("import.batch_written")
        self._note(receipt, 0)

    def _write_window(self, window: PreparedWindow, encoders: Encoders) -> None:
        began = time.monotonic()
        with self._task.database.write() as session:
            imports.require(session, self._task.lease)
            counts, actions = write_window(
                session, self._table_id, self._plan.first_version, window, encoders
            )
            number = base_batch(self._plan, window.begin)
            receipt = self._receipt(
                session, number, "base", window.begin, window.end - 1, actions, counts, window.end, began
            )
            failpoint("import.batch_written")
        self._note(receipt, window.end - window.begin)

    # ---- the tail ----

    def _tail(self, versions: range) -> None:
        began = time.monotonic()
        loaded = [self._commit(v) for v in versions]
        named = {a.path for _, actions in loaded for a in actions if isinstance(a, Add | Remove)}
        with self._task.database.write() as session:
            imports.require(session, self._task.lease)
            changes = Changes(session, self._table_id, self._next_seq, self._encoder(session), named)
            for commit, actions in loaded:
                changes.apply(commit.version, actions)
            changes.rows.flush()
            write_commits(session, self._table_id, [commit for commit, _ in loaded])
            receipt = self._tail_receipt(
                session,
                versions,
                changes.added + changes.removed,
                changes.counts,
                changes.rows.next_seq,
                began,
            )
        self._note(receipt, len(versions))

    def _ready(self, versions: range, tail: ReadyTail) -> None:
        """Commits that were parsed and encoded elsewhere."""
        began = time.monotonic()
        commits = [
            replace(self._ratification(c.version, c.actions, c.data), facts=c.facts) for c in tail.commits
        ]
        with self._task.database.write() as session:
            imports.require(session, self._task.lease)
            encoder = self._encoder(session)
            counts, next_seq = write_tail(session, self._table_id, self._next_seq, tail, encoder)
            write_commits(session, self._table_id, commits)
            actions = sum(c.facts.added + c.facts.removed for c in tail.commits)
            receipt = self._tail_receipt(session, versions, actions, counts, next_seq, began)
        self._note(receipt, len(versions))

    def _large(self, version: int) -> None:
        """A commit that is not held in memory: its state, then its removes, then its adds."""
        began = time.monotonic()
        store, path = self._task.reader.store, commit_path(version)
        state = [a for a in iter_state(store, path) if isinstance(a, (*STATE, CommitInfo))]
        database, lease = self._task.database, self._task.lease
        with database.write() as session:
            imports.require(session, lease)
            changes = Changes(session, self._table_id, self._next_seq, self._encoder(session), set())
            changes.apply(version, [a for a in state if isinstance(a, STATE)])
            for kind in (Remove, Add):
                for piece in iter_pieces(store, path, kind):
                    check_places(piece, self._task.paths)
                    changes.look_up(piece)
                    changes.apply(version, piece)
                    changes.rows.flush()
                    imports.require(session, lease)
            facts = CommitFacts(changes.data_change, changes.added, changes.removed)
            self._note_large(session, version, state, facts)
            receipt = self._tail_receipt(
                session,
                range(version, version + 1),
                changes.added + changes.removed,
                changes.counts,
                changes.rows.next_seq,
                began,
            )
        self._note(receipt, 1)

    def _note_large(
        self, session: Session, version: int, state: Sequence[Action], facts: CommitFacts
    ) -> None:
        """The row of a commit whose bytes stay in the log alone."""
        found = commit_digest(self._task.reader.store, commit_path(version))
        imports.note_large_commit(
            session,
            self._table_id,
            self._ratification(version, state, None),
            replace(facts, sha256=found.sha256, size=found.size),
        )

    def _commit(self, version: int) -> tuple[Ratification, Sequence[Action]]:
        reader, data = self._task.reader, None
        try:
            data = reader.commit_bytes(version)
        except VersionMissingError:
            if version > self._plan.first_version or self._plan.base == "none":
                raise
        actions = [] if data is None else decode_commit(data, source=commit_path(version))
        check_places(actions, self._task.paths)
        check_one_vector(actions, self._task.paths, version=version)
        return self._ratification(version, actions, data), actions

    def _ratification(self, version: int, actions: Sequence[Action], data: bytes | None) -> Ratification:
        return Ratification(
            version=version,
            timestamp=self._task.reader.timestamp_of(version),
            actions=actions,
            data=data,
            txn_uuid=self._row.import_id,
            ordinal=version,
            origin="import",
            published=True,
        )

    # ---- both ----

    def _encoder(self, session: Session) -> SlotEncoder:
        return files.slot_encoder(session, self._table_id)

    def _receipt(
        self,
        session: Session,
        batch: int,
        kind: BatchKind,
        begins: int,
        ends: int,
        actions: int,
        counts: Counts,
        next_seq: int,
        began: float,
    ) -> Receipt:
        receipt = receipt_of(session, batch, kind, (begins, ends), actions, counts, next_seq, began)
        imports.write_receipt(session, self._row.import_id, receipt)
        return receipt

    def _tail_receipt(
        self, session: Session, versions: range, actions: int, counts: Counts, next_seq: int, began: float
    ) -> Receipt:
        """The receipt of a batch of commits, which is all that was left to write of it."""
        receipt = self._receipt(
            session, self._batch, "tail", versions.start, versions.stop - 1, actions, counts, next_seq, began
        )
        failpoint("import.batch_written")
        return receipt

    def _note(self, receipt: Receipt, steps: int) -> None:
        failpoint("import.batch_done")
        self._batch += 1
        self._next_seq = max(self._next_seq, receipt.next_file_seq)
        if receipt.kind == "base":
            self._bases.append(receipt)
        self._pace.step(steps, receipt.actions)


def base_batch(plan: ImportPlan, begin: int) -> int:
    """The number of the batch that begins at a position of the base; number 0 is the state."""
    return 1 + begin // plan.batch_size


def receipt_of(
    session: Session,
    batch: int,
    kind: BatchKind,
    between: tuple[int, int],
    actions: int,
    counts: Counts,
    next_seq: int,
    began: float,
) -> Receipt:
    """The receipt of a batch whose loading began at some moment."""
    return Receipt(
        batch,
        kind,
        *between,
        actions,
        counts.num_files,
        counts.size_bytes,
        counts.num_records,
        counts.files_without_count,
        next_seq,
        session.now_ms(),
        int((time.monotonic() - began) * 1000),
        peak_bytes(),
    )


@dataclass(slots=True)
class Pace:
    """Progress and the rate limit of one run."""

    task: LoadTask
    total: int
    done: int
    seen: int
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    here: int = 0

    def step(self, steps: int, actions: int) -> None:
        """Count a batch, wait if it was faster than the rate limit, and report."""
        self.done += steps
        self.steps += steps
        self.seen += actions
        self.here += actions
        if limit := self.task.rate_limit:
            ahead = self.here / limit - (time.monotonic() - self.began)
            if ahead > 0:
                _sleep(ahead)
        self.report()

    def report(self) -> None:
        """Report how far it is."""
        passed = max(time.monotonic() - self.began, 1e-6)
        left = passed / self.steps * max(0, self.total - self.done) if self.steps else None
        progress = ImportProgress(
            "loading",
            self.done,
            self.total,
            self.seen,
            round(self.here / passed, 1),
            None if left is None else round(left, 1),
        )
        self.task.on_progress(progress)


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
