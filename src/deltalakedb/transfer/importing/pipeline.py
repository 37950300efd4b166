"""The phases of an import: plan, load, verify, make visible. An interrupted import resumes in its phase."""

from __future__ import annotations

import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalakedb import telemetry
from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.exceptions import (
    CatalogError,
    DeltaSqlError,
    InvalidArgumentError,
    LogError,
    LogMissingError,
    ProtocolError,
    VerificationError,
)
from deltalakedb.failpoints import failpoint
from deltalakedb.metastore import audit, commits, imports, registry
from deltalakedb.metastore.rows import Head
from deltalakedb.transfer.importing.engines import Choice, LoadTask, TornCheckpointError
from deltalakedb.transfer.importing.loader import LocalEngine
from deltalakedb.transfer.importing.plan import ImportPlan, base_checkpoint, make_plan, stamps_of
from deltalakedb.transfer.importing.report import ImportProgress, ImportReport
from deltalakedb.transfer.resources import location_lease, peak_bytes
from deltalakedb.transfer.verifying.log_replay import WINDOW
from deltalakedb.transfer.verifying.verifier import Subject, verify_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.address import Address
    from deltalakedb.delta_log.reader import FileTxnLogReader
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease
    from deltalakedb.transfer.importing.engines import LoadEngine
    from deltalakedb.transfer.importing.options import ImportOptions
    from deltalakedb.transfer.verifying.report import VerifyReport

logger = logging.getLogger(__name__)

#: the most load rounds; every round after the first loads commits that the source has received since
_ROUNDS = 3


class Import:
    """One import, from the phase it is in to its end.

    Args:
        database: The catalog.
        address: The table's address.
        location: Its root.
        reader: Its log.
        options: What the caller asked for.
    """

    def __init__(
        self,
        database: Database,
        address: Address,
        location: str,
        reader: FileTxnLogReader,
        options: ImportOptions,
    ) -> None:
        self._database, self._address, self._location, self._reader = database, address, location, reader
        self._options, self._name = options, address.table or ""
        self._choice = Choice("local")
        self._engine: LoadEngine = LocalEngine()
        self._phases: dict[str, float] = {}
        self._skipped: set[int] = set()
        self._resumed = False

    def run(self) -> ImportReport:
        """Run all remaining phases."""
        began = time.perf_counter()
        # a name or location that is taken is refused before anything is recorded
        registry.refuse_taken(self._database, self._name, self._location)
        interrupted = imports.find_open(self._database, self._name, self._location)
        if interrupted is not None and interrupted.deferred_indexes:
            self._database.leave_indexes()
        with location_lease(self._database, self._location) as lease:
            while True:
                try:
                    row, plan, report = self._load_and_verify(lease)
                    break
                except TornCheckpointError as torn:
                    if not self._skip(torn):
                        raise (torn.__cause__ or torn) from None
            head = self._make_visible(row, plan, report, lease)
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
        """A note if other writers went on writing to the log."""
        with suppress(DeltaSqlError):  # the table is there, whatever happened to its log since
            newest = self._reader.latest_version()
            if newest > head.version and not self._options.following:
                return f"the source is now at version {newest}; import again with --catch-up"
        return None

    # ---- phases ----

    def _load_and_verify(self, lease: Lease) -> tuple[ImportRow, ImportPlan, VerifyReport]:
        with self._timed("plan"):
            row, plan = self._begin(lease)
        try:
            with self._database.engine.kept_open():
                with self._timed("load"):
                    row, plan = self._load(row, plan, lease)
                failpoint("import.loaded")
                row, report = self._index_and_verify(row, plan, lease)
        except (LogError, ProtocolError) as error:
            # the source is invalid, so what was loaded from it is useless
            self._undo(row, lease, error.message)
            raise
        except Exception as error:
            self._record_error(row, error)
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
        if self._options.verify == "data":
            report = self._compare_rows(row, report)
        failpoint("import.verified")
        return row, plan, report

    def _begin(self, lease: Lease) -> tuple[ImportRow, ImportPlan]:
        """The import that was interrupted, or a new one."""
        found = imports.find_open(self._database, self._name, self._location)
        if found is not None and self._can_resume(found, lease):
            self._resumed = True
            plan = ImportPlan.from_dict(found.plan)
            if self._options.history not in ("auto", plan.history):
                raise InvalidArgumentError(
                    f"the import was begun with history={plan.history!r}, not {self._options.history!r}",
                    table=self._name,
                    suggestion=f"go on without it, or drop what is loaded: `deltasql rollback {self._name}`",
                )
            self._choose_engine(plan)
            return found, plan
        plan = make_plan(self._reader, self._address, self._location, self._options, self._skipped)
        plan = self._choose_engine(plan)
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

    def _can_resume(self, row: ImportRow, lease: Lease) -> bool:
        """Whether the interrupted import can go on; otherwise what it loaded is dropped."""
        why = _outdated(self._database, row, ImportPlan.from_dict(row.plan), self._reader)
        if why is not None:
            logger.warning("%s: the import starts again: %s", self._name, why)
            self._undo(row, lease, why)
        return why is None

    def _choose_engine(self, plan: ImportPlan) -> ImportPlan:
        """Choose the engine by the size of the load; an engine that is already running is kept."""
        if self._engine.name == "local":
            engine = self._options.engine
            self._choice = engine.decide(num_files=plan.num_files, memory_bytes=plan.memory_bytes)
            self._engine = engine.make(self._choice)
        return replace(plan, engine=self._engine.name, note=self._choice.note)

    def _load(self, row: ImportRow, plan: ImportPlan, lease: Lease) -> tuple[ImportRow, ImportPlan]:
        database = self._database
        self._tune(database.dialect.before_load)
        if plan.base == "checkpoint":
            row = imports.defer_indexes(database, row, lease)
        for left in reversed(range(_ROUNDS)):
            rate = self._options.rate
            self._engine.load(LoadTask(database, row, plan, self._reader, lease, self._report_progress, rate))
            newest = self._reader.latest_version()
            if newest <= plan.version or not left:
                break
            # the source moved on meanwhile
            plan = replace(plan, version=newest, num_versions=newest - plan.first_version + 1)
            with database.write() as session:
                imports.require(session, lease)
                total = plan.num_batches + 1
                row = imports.extend(session, row, plan.to_dict(), source_version=newest, batches_total=total)
        with database.write() as session:
            imports.require(session, lease)
            row = imports.set_phase(session, row, "verifying")
        return row, plan

    def _index_and_verify(
        self, row: ImportRow, plan: ImportPlan, lease: Lease
    ) -> tuple[ImportRow, VerifyReport]:
        """Build the indexes for planning while what is loaded is compared with the log."""
        if not row.deferred_indexes:
            return row, self._verify(row, plan)

        def build() -> ImportRow:
            with self._timed("index"):
                return imports.restore_indexes(self._database, row, lease)

        with ThreadPoolExecutor(1, thread_name_prefix="deltasql-indexes") as pool:
            built = pool.submit(copy_context().run, build)
            report = self._verify(row, plan)
            return built.result(), report

    def _verify(self, row: ImportRow, plan: ImportPlan) -> VerifyReport:
        total, done = max(1, plan.base_rows), 0
        self._report_progress(ImportProgress("verifying", 0, total))

        def tick() -> None:
            nonlocal done
            done = min(total, done + WINDOW)
            self._report_progress(ImportProgress("verifying", done, total))

        subject = Subject(
            self._database,
            row.table_id,
            self._name,
            self._reader,
            plan.first_version,
            plan.version,
            engine=self._engine,
            tick=tick,
        )
        with self._timed("verify"):
            report = verify_loaded(subject, self._options.verify)
        self._report_progress(ImportProgress("verifying", total, total))
        return report

    def _compare_rows(self, row: ImportRow, report: VerifyReport) -> VerifyReport:
        """Compare the rows of data; if they differ, what is loaded stays for the next run."""
        from deltalakedb.transfer.verifying.data_rows import check_loaded_rows  # imports deltalake's reader

        storage = self._options.storage_for(self._location)
        try:
            with self._timed("rows"):
                return check_loaded_rows(report, self._database, row, storage, self._engine)
        except Exception as error:
            self._record_error(row, error)
            raise

    def _make_visible(self, row: ImportRow, plan: ImportPlan, report: VerifyReport, lease: Lease) -> Head:
        """Make the table visible, in one transaction."""
        database = self._database
        with self._timed("finalize"):
            head, next_file_seq = self._counted_head(row, plan, report)
        details = {"phases": self._phases, "level": report.level, "resumed": self._resumed}
        with database.write() as session:
            imports.require(session, lease)
            imports.show_table(
                session,
                row,
                head,
                next_file_seq=next_file_seq,
                shape=uuid.uuid4().hex,
                following=self._options.following,
            )
            imports.set_phase(session, row, "finalized", digest=report.digest, details=details)
            audit.record(
                session,
                "import",
                table_id=row.table_id,
                table=row.name,
                version=head.version,
                txn=row.import_id,
                first_version=head.first_version,
                files=head.num_files,
                digest=report.digest,
            )
            failpoint("import.before_finalize")
        return head

    def _counted_head(self, row: ImportRow, plan: ImportPlan, report: VerifyReport) -> tuple[Head, int]:
        """The head that the receipts add up to, and the first sequence number that is free.

        Raises:
            VerificationError: The receipts count other files than those that were verified.
        """
        done = imports.receipts(self._database, row.import_id)
        head = Head(
            plan.version,
            self._reader.timestamp_of(plan.version),
            plan.first_version,
            sum(r.num_files for r in done),
            sum(r.size_bytes for r in done),
            sum(r.num_records for r in done),
            sum(r.files_without_count for r in done),
        )
        if (head.num_files, head.size_bytes) != (report.num_files, report.size_bytes):
            raise VerificationError(
                f"the receipts count {head.num_files} files, the catalog holds {report.num_files}",
                table=row.name,
                suggestion=f"roll the import back with `deltasql rollback {row.name}` and start again",
            )
        return head, max((r.next_file_seq for r in done), default=0)

    # ---- helpers ----

    def _tune(self, statements: Sequence[str]) -> None:
        """Run the engine's tuning statements before or after a bulk load; they are optional."""
        for statement in statements:
            try:
                with self._database.read() as session:
                    session.run(statement)
            except CatalogError as error:  # for example while others write; it can be repeated at any time
                logger.info("%s: %s was not possible: %s", self._name, statement, error.message)

    def _skip(self, torn: TornCheckpointError) -> bool:
        """Skip a torn checkpoint; return whether the import can start from an older one."""
        if torn.version is None or torn.version in self._skipped:
            return False
        self._skipped.add(torn.version)
        try:
            make_plan(self._reader, self._address, self._location, self._options, self._skipped)
        except LogError:
            return False
        return True

    def _undo(self, row: ImportRow, lease: Lease, message: str) -> None:
        imports.undo_rows(self._database, row, lease)
        row = imports.restore_indexes(self._database, row, lease)
        with self._database.write() as session:
            imports.set_phase(session, row, "failed", error=message)

    def _record_error(self, row: ImportRow, error: Exception) -> None:
        """Record why the import stopped, if the database can be reached."""
        message = error.message if isinstance(error, DeltaSqlError) else str(error)
        with suppress(Exception), self._database.write() as session:  # the first error is the one to raise
            imports.set_phase(session, row, row.phase, error=message)

    def _report_progress(self, progress: ImportProgress) -> None:
        share = progress.done / max(1, progress.total)
        ratio = share * 0.8 if progress.phase == "loading" else 0.8 + share * 0.19
        telemetry.emit("import_progress_ratio", ratio, table=self._name)
        if self._options.progress is not None:
            self._options.progress(progress)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._phases[phase] = round(self._phases.get(phase, 0.0) + time.perf_counter() - began, 3)


def _outdated(database: Database, row: ImportRow, plan: ImportPlan, reader: FileTxnLogReader) -> str | None:
    """Return why the batches that an import has loaded cannot be reused; None if they can.

    A batch is a range of a checkpoint's rows or of commits. If the log was replaced, or the checkpoint was
    rewritten in another order, the same range has different content.
    """
    done = imports.receipts(database, row.import_id)
    if not done:
        return None
    listing = list_log(reader.store)
    if plan.base == "checkpoint":
        try:
            stamps = stamps_of(base_checkpoint(listing, plan))
        except LogMissingError:
            return f"the checkpoint of version {plan.first_version} is gone"
        if stamps != plan.stamps:
            return f"the checkpoint of version {plan.first_version} was rewritten"
    newest = max((r.ends for r in done if r.kind == "tail"), default=plan.first_version)
    if newest > listing.latest:
        return f"the log ends before version {newest}, which is loaded"
    for version in sorted({plan.first_version, newest} & listing.commits.keys()):
        known = commits.by_id(database, row.table_id, version)
        if known is None or known.sha256 is None:
            continue  # what came from a checkpoint alone has none
        if commit_digest(reader.store, commit_path(version)).sha256 != known.sha256:
            return f"version {version} of the log was rewritten"
    return None
