"""The phases of an import: plan, load, verify, make visible. An interrupted import resumes in its phase."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from deltalakedb import telemetry
from deltalakedb.delta_log.commit_file import commit_digest
from deltalakedb.delta_log.listing import list_log
from deltalakedb.delta_log.names import commit_path
from deltalakedb.delta_log.reader import FileTxnLogReader
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
from deltalakedb.metastore import audit, commits, files, imports, registry
from deltalakedb.metastore.rows import Head
from deltalakedb.transfer.importing.loader import LoadTask, TornCheckpointError
from deltalakedb.transfer.importing.options import ImportOptions, LoadEngine, Tick, location_lease, peak_bytes
from deltalakedb.transfer.importing.plan import base_checkpoint, make_plan, stamps_of
from deltalakedb.transfer.importing.proof import BatchProof
from deltalakedb.transfer.reports import ImportPlan, ImportProgress, ImportReport, VerifyReport
from deltalakedb.transfer.verifying.log_replay import WINDOW
from deltalakedb.transfer.verifying.verifier import Subject, compare_rows, proven, verify_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.address import Address
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.leases import Lease

logger = logging.getLogger(__name__)

#: maximum number of load rounds; each one after the first loads commits added to the source meanwhile
_ROUNDS = 3
#: files of the last commits that are packed; planning reads the JSON of fewer in about a millisecond
_PACKED_TAIL = 64


class Import:
    """Runs one import, new or interrupted, to its end."""

    def __init__(self, database: Database, address: Address, location: str, options: ImportOptions) -> None:
        self._database, self._address, self._location, self._options = database, address, location, options
        self._reader = FileTxnLogReader(location, options.storage_for(location))
        self._reader.versions()  # raises if there is no log
        self._name, self._resumed = address.table or "", False
        self._phases: dict[str, float] = {}
        self._skipped: set[int] = set()
        self._row: ImportRow
        self._plan: ImportPlan
        self._lease: Lease

    @cached_property
    def _engine(self) -> LoadEngine:
        return self._options.start()

    def run(self) -> ImportReport:
        began = time.perf_counter()
        # check the name and the location before recording anything
        registry.refuse_taken(self._database, self._name, self._location)
        imports.find_open(self._database, self._name, self._location)
        with location_lease(self._database, self._location) as self._lease:
            while True:
                try:
                    report = self._load_and_verify()
                    break
                except TornCheckpointError as torn:
                    if not self._skip(torn.version):
                        raise (torn.__cause__ or torn) from None
            head = self._make_visible(report)
        failpoint("import.finalized")
        self._tune(self._database.dialect.after_load)
        telemetry.emit("import_progress_ratio", 1.0, table=self._name)
        num_versions = head.version - head.first_version + 1
        return ImportReport(
            self._name,
            self._location,
            *(head.version, head.first_version, num_versions, head.num_files, head.size_bytes),
            seconds=round(time.perf_counter() - began, 3),
            import_id=self._row.import_id,
            action="resumed" if self._resumed else "imported",
            digest=report.digest,
            verification=report,
            phases=dict(self._phases),
            passed_over=self._plan.passed_over,
            peak_memory_bytes=peak_bytes(),
            engine=self._engine.name,
            note=self._behind_note(head),
        )

    def _behind_note(self, head: Head) -> str | None:
        """A note if other writers have added versions to the log."""
        with suppress(DeltaSqlError):  # the import has succeeded, even if its log cannot be read now
            newest = self._reader.latest_version()
            if newest > head.version and not self._options.following:
                return f"the source is now at version {newest}; run the import again with --catch-up"
        return None

    # ---- phases ----

    def _load_and_verify(self) -> VerifyReport:
        with self._timed("plan"):
            self._begin()
        try:
            with self._database.engine.keep_open():
                with self._timed("load"):
                    self._load()
                failpoint("import.loaded")
                report = self._verify()
                if report.ok and report.level == "data":
                    with self._timed("rows"):
                        report = compare_rows(self._subject(), report)
        except (LogError, ProtocolError) as error:
            # the source is invalid: delete what was loaded from it
            self._undo(self._row, error.message)
            raise
        except Exception as error:
            self._record_error(error.message if isinstance(error, DeltaSqlError) else str(error))
            raise
        if not report.ok:
            self._raise_difference(report)
        failpoint("import.verified")
        return report

    def _raise_difference(self, report: VerifyReport) -> NoReturn:
        found = report.differences[0]
        if found.kind == "rows":
            message = found.detail
            suggestion = (
                "the table is not visible, and the loaded batches are kept: restore missing data files and "
                "import again, or import with a lower verification level; "
                f"`deltasql import --undo {self._name}` deletes the loaded batches"
            )
            self._record_error(message)
        else:
            path = f" ({found.path})" if found.path else ""
            why = f"{report.num_differences} differences, the first: {found.detail}{path}"
            message = f"the imported table differs from the log: {why}"
            suggestion = "the import was undone; check the log, then import again"
            self._undo(self._row, why)
        raise VerificationError(
            message, table=self._name, version=found.version, suggestion=suggestion, report=report
        )

    def _begin(self) -> None:
        """Resume an interrupted import, or begin a new one."""
        found = imports.find_open(self._database, self._name, self._location)
        if found is not None and (why := self._outdated(found)) is not None:
            logger.warning("%s: restarting the import: %s", self._name, why)
            self._undo(found, why)
            found = None
        if found is None:
            plan = self._plan = self._make_plan()
            self._row = imports.begin(
                self._database,
                self._lease,
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
            return
        self._resumed, self._row, plan = True, found, ImportPlan.from_dict(found.plan)
        if self._options.history not in ("auto", plan.history):
            raise InvalidArgumentError(
                f"the import was started with history={plan.history!r}, not {self._options.history!r}",
                table=self._name,
                suggestion="resume it without this option, or undo it: "
                f"`deltasql import --undo {self._name}`",
            )
        self._plan = replace(plan, engine=self._engine.name)

    def _outdated(self, row: ImportRow) -> str | None:
        """Return why the batches that an import has loaded cannot be reused; None if they can.

        A batch is a range of a checkpoint's rows or of commits. If the log was replaced, or the checkpoint
        was rewritten in another order, the same range has different content.
        """
        done, plan = imports.receipts(self._database, row.import_id), ImportPlan.from_dict(row.plan)
        if not done:
            return None
        listing, first = list_log(self._reader.store), plan.first_version
        if plan.base == "checkpoint":
            try:
                stamps = stamps_of(base_checkpoint(listing, plan))
            except LogMissingError:
                return f"the checkpoint of version {first} was deleted"
            if stamps != plan.stamps:
                return f"the checkpoint of version {first} was rewritten"
        newest = max((r.ends for r in done if r.kind == "tail"), default=first)
        if newest > listing.latest:
            return f"the log ends before version {newest}, which was loaded"
        for version in sorted({first, newest} & listing.commits.keys()):
            known = commits.by_id(self._database, row.table_id, version)
            if known is None or known.sha256 is None:
                continue  # a version loaded from a checkpoint has no digest
            if commit_digest(self._reader.store, commit_path(version)).sha256 != known.sha256:
                return f"version {version} of the log was rewritten"
        return None

    def _make_plan(self) -> ImportPlan:
        return make_plan(self._reader, self._address, self._location, self._options, self._skipped)

    def _load(self) -> None:
        database, reader, lease = self._database, self._reader, self._lease
        self._tune(database.dialect.before_load)
        for left in reversed(range(_ROUNDS)):
            plan, progress, rate = self._plan, self._report_progress, self._options.rate
            proves = self._options.verify == "digest"
            self._engine.load(LoadTask(database, self._row, plan, reader, lease, progress, rate, proves))
            newest = reader.latest_version()
            if newest <= plan.version or not left:
                break
            plan = self._plan = replace(plan, version=newest, num_versions=newest - plan.first_version + 1)
            total = plan.num_batches + 1
            with database.write() as session:
                imports.require(session, lease)
                self._row = imports.extend(
                    session, self._row, plan.to_dict(), source_version=newest, batches_total=total
                )
        files.pack_if_due(database, self._row.table_id, at_least=_PACKED_TAIL)
        with database.write() as session:
            imports.require(session, lease)
            self._row = imports.set_phase(session, self._row, "verifying")

    def _verify(self) -> VerifyReport:
        total, done = max(1, self._plan.base_rows), 0

        def tick(rows: int = WINDOW) -> None:
            nonlocal done
            done = min(total, done + rows)
            self._report_progress(ImportProgress("verifying", done, total))

        tick(0)
        with self._timed("verify"):
            subject = self._subject(tick)
            report = self._proven(subject) or verify_loaded(subject, self._options.verify)
        tick(total)
        return report

    def _proven(self, subject: Subject) -> VerifyReport | None:
        """The report by the receipts' proofs; None if they lack some of the base, or something differs."""
        found = imports.proofs(self._database, self._row.import_id)
        rows = sum(ends - begins + 1 for begins, ends, _ in found)
        proofs = [BatchProof.from_bytes(proof) for _, _, proof in found if proof is not None]
        is_whole = rows == self._plan.base_rows and len(proofs) == len(found)
        if self._plan.base != "checkpoint" or self._options.verify != "digest" or not is_whole:
            return None
        return proven(subject, proofs)

    def _subject(self, tick: Tick = lambda: None) -> Subject:
        versions, storage = (self._plan.first_version, self._plan.version), self._options.storage_options
        return Subject(
            self._database, self._row, self._reader, *versions, storage, engine=self._engine, tick=tick
        )

    def _make_visible(self, report: VerifyReport) -> Head:
        """Make the table visible in one transaction; the sums of the receipts become its head."""
        row, plan = self._row, self._plan
        with self._timed("finalize"):
            done = imports.receipts(self._database, row.import_id)
            counters = ("num_files", "size_bytes", "num_records", "files_without_count")
            counts = (sum(getattr(receipt, name) for receipt in done) for name in counters)
            timestamp = self._reader.timestamp_of(plan.version)
            head = Head(plan.version, timestamp, plan.first_version, *counts)
        if (head.num_files, head.size_bytes) != (report.num_files, report.size_bytes):
            raise VerificationError(
                f"the receipts record {head.num_files} files, but the catalog has {report.num_files}",
                table=self._name,
                suggestion=f"undo the import with `deltasql import --undo {self._name}`, then import again",
            )
        details = {"phases": self._phases, "level": report.level, "resumed": self._resumed}
        with self._database.write() as session:
            imports.require(session, self._lease)
            next_seq, following = max((r.next_file_seq for r in done), default=0), self._options.following
            imports.show_table(session, row, head, next_file_seq=next_seq, following=following)
            imports.set_phase(session, row, "finalized", digest=report.digest, details=details)
            facts: dict[str, Any] = {
                "first_version": head.first_version,
                "files": head.num_files,
                "digest": report.digest,
            }
            audit.record(session, "import", row, version=head.version, txn=row.import_id, **facts)
            failpoint("import.before_finalize")
        return head

    # ---- helpers ----

    def _tune(self, statements: Sequence[str]) -> None:
        """Run the engine's tuning statements before or after a bulk load; they are optional."""
        for statement in statements:
            try:
                with self._database.read() as session:
                    session.run(statement)
            except CatalogError as error:  # for example, another process is writing
                logger.info("%s: skipped %s: %s", self._name, statement, error.message)

    def _skip(self, version: int | None) -> bool:
        """Skip the torn checkpoint of a version; return whether the import can start from an older one."""
        if version is None or version in self._skipped:
            return False
        self._skipped.add(version)
        try:
            self._make_plan()
        except LogError:
            return False
        return True

    def _undo(self, row: ImportRow, message: str) -> None:
        imports.undo_rows(self._database, row, self._lease)
        with self._database.write() as session:
            imports.set_phase(session, row, "failed", error=message)

    def _record_error(self, message: str) -> None:
        """Record why the import stopped, if the database can be reached."""
        with suppress(Exception), self._database.write() as session:  # the first error is the one to raise
            imports.set_phase(session, self._row, self._row.phase, error=message)

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
