"""The phases of an import: plan, load, verify, finalize; each recorded, each resumed where it died."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from deltalakedb import telemetry
from deltalakedb.exceptions import (
    CatalogError,
    DeltaSqlError,
    InvalidArgumentError,
    LogCorruptError,
    LogError,
    ProtocolError,
    VerificationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import imports, registry
from deltalakedb.transfer.choosing import Choice, EngineWish
from deltalakedb.transfer.engines import LoadTask
from deltalakedb.transfer.finalizing import counted_head, show
from deltalakedb.transfer.holding import held
from deltalakedb.transfer.live import WINDOW
from deltalakedb.transfer.loader import TORN, LocalEngine
from deltalakedb.transfer.memory import memory_bound, peak_bytes
from deltalakedb.transfer.plan import ImportPlan, make_plan
from deltalakedb.transfer.report import ImportProgress, ImportReport
from deltalakedb.transfer.resuming import outdated
from deltalakedb.transfer.verify import Subject, verify_loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.metastore.values import Head
    from deltalakedb.transfer.engines import LoadEngine
    from deltalakedb.transfer.findings import Level, VerifyReport
    from deltalakedb.transfer.plan import History
    from deltalakedb.uri import Address

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

#: how often a source that moved on is followed before the load is finished as it is
_ROUNDS = 3


class Pipeline:
    """One import, from wherever it stands to its end."""

    def __init__(
        self,
        database: Database,
        address: Address,
        location: str,
        reader: FileTxnLogReader,
        *,
        history: History,
        level: Level,
        batch_size: int | None,
        rate_limit: int,
        progress: Callable[[ImportProgress], None] | None,
        wish: EngineWish,
        following: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._database, self._address, self._location, self._reader = database, address, location, reader
        self._history, self._level, self._batch_size = history, level, batch_size
        self._rate_limit, self._progress, self._options = rate_limit, progress, options
        self._wish, self._choice = wish, Choice("local")
        self._engine: LoadEngine = LocalEngine()
        self._name = address.table or ""
        #: the table stays in others' hands
        self._following = following
        self._phases: dict[str, float] = {}
        self._torn: set[int] = set()
        self._resumed = False

    def whole(self) -> ImportReport:
        """Every phase that is left."""
        began = time.perf_counter()
        # what is wrong with the names is told before anything is noted
        registry.refuse_taken(self._database, self._name, self._location)
        begun = imports.find_open(self._database, self._name, self._location)
        if begun is not None and begun.deferred_indexes:
            self._database.leave_indexes()
        with held(self._database, self._location) as lease:
            while True:
                try:
                    row, plan, report = self._loaded_and_verified(lease)
                    break
                except LogCorruptError as error:
                    if not self._may_pass_over(error):
                        raise
            head = self._finalize(row, plan, report, lease)
        failpoint("import.finalized")
        self._tune(self._database.dialect.after_load)
        telemetry.emit("import_progress_ratio", 1.0, table=self._name)
        return ImportReport(
            self._name,
            self._location,
            head.version,
            head.first_version,
            head.version - head.first_version + 1,
            head.num_files,
            head.size_bytes,
            round(time.perf_counter() - began, 3),
            import_id=row.import_id,
            action="resumed" if self._resumed else "imported",
            digest=report.digest,
            verification=report,
            phases=dict(self._phases),
            passed_over=plan.passed_over,
            peak_memory_bytes=peak_bytes(),
            engine=self._engine.name,
            note="; ".join(filter(None, (self._choice.note, self._left_behind(head)))) or None,
        )

    def _left_behind(self, head: Head) -> str | None:
        """What to say where others went on writing to the log."""
        with suppress(DeltaSqlError):  # the table is there, whatever became of its log since
            newest = self._reader.latest_version()
            if newest > head.version and not self._following:
                return f"others went on: the log is at version {newest}, and --catch-up brings the rest"
        return None

    # ---- phases ----

    def _loaded_and_verified(self, lease: Lease) -> tuple[ImportRow, ImportPlan, VerifyReport]:
        row, plan = self._timed("plan", lambda: self._begin(lease))
        try:
            with self._database.engine.kept_open():
                row, plan = self._timed("load", lambda: self._load(row, plan, lease))
                failpoint("import.loaded")
                row, report = self._index_and_verify(row, plan, lease)
        except (LogError, ProtocolError) as error:
            # the source is at fault: what was made of it is of no use
            self._undo(row, lease, error.message)
            raise
        except Exception as error:
            self._note_error(row, error)
            raise
        if not report.ok:
            found = report.differences[0]
            where = f" ({found.path})" if found.path else ""
            message = f"{report.num_differences} differences, the first: {found.detail}{where}"
            self._undo(row, lease, message)
            raise VerificationError(
                f"what was loaded is not what the log says: {message}",
                table=self._name,
                version=found.version,
                suggestion="nothing was made visible; look at the log, then import again",
                report=report,
            )
        if self._level == "data":
            report = self._timed("rows", lambda: self._compare_rows(row, report))
        failpoint("import.verified")
        return row, plan, report

    def _compare_rows(self, row: ImportRow, report: VerifyReport) -> VerifyReport:
        """Compare the rows themselves; where they differ the load stays, to be gone on with."""
        from deltalakedb.transfer.data_rows import check_loaded_rows  # reading data costs time to import

        look = partial(check_loaded_rows, report, self._database, row, self._options, self._engine)
        try:
            return look()
        except Exception as error:
            self._note_error(row, error)
            raise

    def _begin(self, lease: Lease) -> tuple[ImportRow, ImportPlan]:
        """The import that was interrupted, or a new one."""
        found = imports.find_open(self._database, self._name, self._location)
        if found is not None and self._still_fits(found, lease):
            self._resumed = True
            plan = ImportPlan.from_dict(found.plan)
            if self._history not in ("auto", plan.history):
                raise InvalidArgumentError(
                    f"the import was begun with history={plan.history!r}, not {self._history!r}",
                    table=self._name,
                    suggestion=f"go on without it, or drop what is there: `deltasql rollback {self._name}`",
                )
            self._choose(plan)
            return found, plan
        plan = make_plan(
            self._reader,
            self._address,
            self._location,
            history=self._history,
            batch_size=self._batch_size,
            torn=self._torn,
        )
        plan = self._choose(plan)
        row = imports.begin(
            self._database,
            lease,
            name=self._name,
            location=self._location,
            engine=self._engine.name,
            plan=plan.to_dict(),
            first_version=plan.first_version,
            source_version=plan.version,
            batches_total=plan.num_batches,
            files_expected=plan.num_files,
        )
        failpoint("import.planned")
        return row, plan

    def _still_fits(self, row: ImportRow, lease: Lease) -> bool:
        """Whether the interrupted import can go on; else what it loaded is dropped, and it begins anew."""
        why = outdated(self._database, row, ImportPlan.from_dict(row.plan), self._reader)
        if why is not None:
            logger.warning("%s: the import begins anew: %s", self._name, why)
            self._undo(row, lease, why)
        return why is None

    def _choose(self, plan: ImportPlan) -> ImportPlan:
        """Decide on the engine, by the size of what is to be loaded; one that runs already stays."""
        if self._engine.name == "local":
            self._choice = self._wish.decide(num_files=plan.num_files, memory_bytes=plan.memory_bytes)
            self._engine = self._wish.make(self._choice)
        return replace(plan, engine=self._engine.name, note=self._choice.note)

    def _load(self, row: ImportRow, plan: ImportPlan, lease: Lease) -> tuple[ImportRow, ImportPlan]:
        self._tune(self._database.dialect.before_load)
        if plan.base == "checkpoint":
            row = imports.defer_indexes(self._database, row, lease)
        for left in reversed(range(_ROUNDS)):
            task = LoadTask(
                self._database,
                row,
                plan,
                self._reader,
                lease,
                self._tell,
                self._rate_limit,
                prove=self._level != "counts",
            )
            self._engine.load(task)
            newest = self._reader.latest_version()
            if newest <= plan.version or not left:
                break
            # the source moved on meanwhile
            plan = replace(plan, version=newest, num_versions=newest - plan.first_version + 1)
            with self._database.write() as session:
                imports.require(session, lease)
                row = imports.extend(
                    session,
                    row,
                    plan.to_dict(),
                    source_version=newest,
                    batches_total=plan.num_batches + 1,
                )
        with self._database.write() as session:
            imports.require(session, lease)
            row = imports.set_phase(session, row, "verifying")
        return row, plan

    def _index_and_verify(
        self, row: ImportRow, plan: ImportPlan, lease: Lease
    ) -> tuple[ImportRow, VerifyReport]:
        """Build the indexes for planning while what is loaded is compared with the log."""
        verify = partial(self._timed, "verify", lambda: self._verify(row, plan))
        if not row.deferred_indexes:
            return row, verify()
        with ThreadPoolExecutor(1, thread_name_prefix="deltasql-indexes") as pool:
            build = partial(imports.restore_indexes, self._database, row, lease)
            built = pool.submit(copy_context().run, self._timed, "index", build)
            report = verify()
            return built.result(), report

    def _verify(self, row: ImportRow, plan: ImportPlan) -> VerifyReport:
        total, done = max(1, plan.base_rows), 0
        self._tell(ImportProgress("verifying", 0, total))

        def tick() -> None:
            nonlocal done
            done = min(total, done + WINDOW)
            self._tell(ImportProgress("verifying", done, total))

        subject = Subject(
            self._database,
            row.table_id,
            self._name,
            self._reader,
            plan.first_version,
            plan.version,
            memory_bound(),
            tick,
            self._engine,
        )
        report = verify_loaded(subject, self._level)
        self._tell(ImportProgress("verifying", total, total))
        return report

    def _finalize(self, row: ImportRow, plan: ImportPlan, report: VerifyReport, lease: Lease) -> Head:
        """Make the table visible, in one transaction."""
        began = time.perf_counter()
        head, seq = counted_head(self._database, row, self._reader.timestamp_of(plan.version), plan, report)
        self._phases["finalize"] = round(time.perf_counter() - began, 3)
        details = {"phases": self._phases, "level": report.level, "resumed": self._resumed}
        show(self._database, lease, row, head, report, seq, details, following=self._following)
        return head

    # ---- around them ----

    def _tune(self, statements: Sequence[str]) -> None:
        """Let the database do what it likes before and after many rows; the import stands without it."""
        for statement in statements:
            try:
                with self._database.read() as session:
                    session.run(statement)
            except CatalogError as error:  # others are writing, and it can be done at any later time
                logger.info("%s: %s was not possible: %s", self._name, statement, error.message)

    def _may_pass_over(self, error: LogCorruptError) -> bool:
        """Whether a checkpoint that turned out to be torn can be passed over for an older one."""
        torn = error.context.get(TORN)
        if torn is None or torn in self._torn:
            return False
        self._torn.add(torn)
        try:
            make_plan(self._reader, self._address, self._location, history=self._history, torn=self._torn)
        except LogError:
            return False
        return True

    def _undo(self, row: ImportRow, lease: Lease, message: str) -> None:
        imports.undo_rows(self._database, row, lease)
        row = imports.restore_indexes(self._database, row, lease)
        with self._database.write() as session:
            imports.set_phase(session, row, "failed", error=message)

    def _note_error(self, row: ImportRow, error: Exception) -> None:
        """Leave a word on why it stopped; where the database itself is away, nobody can."""
        try:
            with self._database.write() as session:
                told = error.message if isinstance(error, DeltaSqlError) else str(error)
                imports.set_phase(session, row, row.phase, error=told)
        except Exception:  # noqa: S110 - the first error is the one to tell
            pass

    def _tell(self, progress: ImportProgress) -> None:
        share = progress.done / max(1, progress.total)
        ratio = share * 0.8 if progress.phase == "loading" else 0.8 + share * 0.19
        telemetry.emit("import_progress_ratio", ratio, table=self._name)
        if self._progress is not None:
            self._progress(progress)

    def _timed(self, phase: str, work: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        try:
            return work()
        finally:
            self._phases[phase] = round(self._phases.get(phase, 0.0) + time.perf_counter() - began, 3)
