"""Commands that move whole tables in and out of a catalog, and compare them with their logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import stop_on_signal
from deltalakedb.cli.errors import ExitCode, exit_code
from deltalakedb.cli.options import LEVEL, changing, command, engines, importing, leasing
from deltalakedb.settings import use_config
from deltalakedb.transfer.exporting.export import export_table
from deltalakedb.transfer.following import follow_table
from deltalakedb.transfer.importing import report as import_reports
from deltalakedb.transfer.importing.api import import_table
from deltalakedb.transfer.importing.many import import_tables
from deltalakedb.transfer.importing.plan import plan_import
from deltalakedb.transfer.rollback import rollback_import
from deltalakedb.transfer.verifying.report import LEVELS
from deltalakedb.transfer.verifying.verifier import verify_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.transfer.exporting.copying import DataMode
    from deltalakedb.transfer.exporting.export import ExportHistory
    from deltalakedb.transfer.following import FollowReport
    from deltalakedb.transfer.importing.engines import EngineName
    from deltalakedb.transfer.importing.many import ManyReport, TableOutcome
    from deltalakedb.transfer.importing.options import History
    from deltalakedb.transfer.importing.plan import ImportPlan
    from deltalakedb.transfer.importing.report import ImportProgress, ImportReport
    from deltalakedb.transfer.verifying.report import Level, VerifyReport


@command("import", importing, changing, leasing)
@click.argument("path")
@click.argument("table")
@click.option(
    "--catch-up",
    is_flag=True,
    help="Import only the commits that other writers made since the import.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Keep a read-only copy of a table that other engines write, until Ctrl-C or SIGTERM.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.01, max=86_400),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow, the pause between two looks at the log.",
)
@click.option("--once", is_flag=True, help="With --follow, look once and end, as cron likes it.")
def import_(
    invocation: Invocation,
    path: str,
    table: str,
    history: str,
    verify: str,
    catch_up: bool,
    follow: bool,
    interval: float,
    once: bool,
    batch_size: int | None,
    rate: int | None,
    engine: str,
    master: str | None,
    remote: str | None,
    dry_run: bool,
) -> int:
    """Import the Delta table at PATH as TABLE, in place. No file is moved or rewritten.

    The table becomes visible at the end, once it is loaded and compared with its log. An import that was
    interrupted goes on where it stopped when the same command is run again. From then on write to the table
    only through the catalog; any engine may read its folder. Exit code 3 if the comparison fails,
    75 if another import of the table is running.

    With --follow other engines go on writing the table: the catalog keeps a read-only copy of its metadata,
    reads its log again and again, and reports how far the copy is behind. `deltasql rollback` removes it.

    \b
    Examples:
      deltasql import /srv/lake/orders sales.orders --dry-run
      deltasql import /srv/lake/orders sales.orders --history full --verify full
      deltasql import /srv/lake/orders sales.orders --catch-up
      deltasql import s3://theirs/orders partner.orders --follow --interval 30
      deltasql import /srv/lake/clicks web.clicks --engine spark --master 'local[8]'
    """
    if once and not follow:
        raise click.UsageError("--once goes with --follow")
    if follow and (catch_up or dry_run):
        raise click.UsageError("--follow goes with neither --catch-up nor --dry-run")
    if catch_up and dry_run:
        raise click.UsageError(
            "--dry-run plans a first import and does not go with --catch-up: `deltasql mirror status --look` "
            "shows how far the log is ahead"
        )
    address = invocation.table_address(table)
    uri = address.to_uri(redact=False)
    which, level = cast("History", history), cast("Level", verify)
    who: dict[str, Any] = {"engine": engine, "master": master, "remote": remote}
    with use_config(invocation.settings()):
        if dry_run:
            plan = plan_import(path, uri, history=which, batch_size=batch_size, **who)
            document = {**plan.to_dict(), "address": address.to_uri(), "dry_run": True}
            invocation.output.result(
                document, lambda screen: _view_plan(screen, plan), brief=[address.to_uri()]
            )
            return ExitCode.OK
        with invocation.output.progress(f"importing {address.table}") as advance:

            def tell(progress: ImportProgress) -> None:
                verb = "importing" if progress.phase == "loading" else "verifying"
                advance(progress.done, progress.total, f"{verb} {address.table}")

            if follow:
                first: dict[str, Any] = {"history": which, "verify": level, "progress": tell, **who}
                first |= {"batch_size": batch_size, "rate_limit": rate}
                last = _follow(invocation, path, uri, interval, once=once, first=first)
                return _tell_last(invocation, last)
            done = import_table(
                path,
                uri,
                history=which,
                verify=level,
                catch_up=catch_up,
                batch_size=batch_size,
                rate_limit=rate,
                progress=tell,
                **who,
            )
    document = {**done.to_dict(), "address": address.to_uri(), "dry_run": False}
    invocation.output.result(
        document, lambda screen: _view_import(screen, done, address.to_uri()), brief=[address.to_uri()]
    )
    return ExitCode.OK


def _follow(
    invocation: Invocation,
    path: str,
    uri: str,
    interval: float,
    *,
    once: bool,
    first: Mapping[str, Any],
) -> FollowReport:
    """Follow until Ctrl-C or SIGTERM, with a line for every look that found something.

    Args:
        invocation: The command.
        path: The table's root.
        uri: The copy's address.
        interval: Seconds between two looks.
        once: Look once.
        first: How the table is imported if there is no copy yet.
    """

    def tell(report: FollowReport) -> None:
        if report.error is not None:
            invocation.output.note(f"{report.table}: the log cannot be reached: {report.error}")
        elif not once and report.action != "unchanged":
            invocation.output.note(_followed(report))

    if not once:
        invocation.output.note(f"Following {path}; Ctrl-C ends it.")
    with stop_on_signal() as stop:
        return follow_table(path, uri, interval=interval, once=once, stop=stop, on_report=tell, **first)


def _tell_last(invocation: Invocation, last: FollowReport) -> int:
    """What the last look found; a log that could not be reached is worth another try."""
    invocation.output.result(last.to_dict(), lambda screen: screen.line(_followed(last)), brief=[last.table])
    return ExitCode.OK if last.error is None else ExitCode.TRY_AGAIN


def _followed(report: FollowReport) -> str:
    if report.error is not None:
        return f"{report.table} is at version {report.version}; the log cannot be reached: {report.error}"
    what = {"imported": "Imported; ", "caught up": f"{render.many(report.brought, 'version')} brought in; "}
    where = f"{report.table} is at version {report.version}"
    behind = f", {render.many(report.lag, 'version')} behind the log" if report.lag else ", the log's newest"
    late = f" (was {report.seconds_behind:.0f} s behind)" if report.brought else ""
    return f"{what.get(report.action, '')}{where}{behind}{late}."


def _view_plan(screen: Screen, plan: ImportPlan) -> None:
    screen.line(f"Would import {plan.location} as {plan.table}")
    about = "" if plan.exact else "about "
    screen.fields(
        [
            ("versions", _versions(plan.first_version, plan.version, plan.num_versions)),
            ("files", about + render.count(plan.num_files)),
            ("size", None if plan.size_bytes is None else render.size(plan.size_bytes)),
            ("batches", render.count(plan.num_batches)),
            ("time", f"about {plan.seconds:.0f} s (estimated)" if plan.seconds >= 1 else "below a second"),
            ("memory", f"about {render.size(plan.memory_bytes)} (estimated)"),
            ("database", f"about {render.size(plan.database_bytes)} larger (estimated)"),
            ("engine", plan.engine),
            ("note", plan.note),
            ("torn checkpoints", ", ".join(map(str, plan.passed_over)) or None),
        ]
    )


def _view_import(screen: Screen, done: ImportReport, address: str) -> None:
    if done.action == "unchanged":
        screen.line(f"{done.table} has every commit of its log: nothing to do.")
        return
    verbs = {"imported": "Imported", "resumed": "Resumed and imported", "caught up": "Caught up with"}
    screen.line(f"{verbs[done.action]} {done.location} as {done.table}")
    checked = done.verification
    screen.fields(
        [
            ("versions", _versions(done.first_version, done.version, done.num_versions)),
            ("files", render.count(done.num_files)),
            ("size", render.size(done.size_bytes)),
            ("verified", None if checked is None else f"{checked.level}, {checked.digest or 'equal'}"),
            ("engine", None if done.engine == "local" else done.engine),
            ("note", done.note),
            ("torn checkpoints", ", ".join(map(str, done.passed_over)) or None),
            ("took", _phases(done.phases, done.seconds)),
            ("address", address),
        ]
    )


def _versions(first: int, last: int, count: int) -> str:
    return f"{first} to {last} ({render.count(count)})"


def _phases(phases: Any, seconds: float) -> str:
    parts = ", ".join(f"{name} {spent:.1f}" for name, spent in phases.items())
    return f"{seconds:g} s" + (f" ({parts})" if parts else "")


@command("import-all", importing, changing, leasing)
@click.argument("root", required=False)
@click.option(
    "--list",
    "list_file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file of lines NAME PATH instead of a place to search; - reads them from the input.",
)
@click.option("--namespace", metavar="NAME", help="Put before the names of tables that are found.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Tables at a time.")
@click.option("--no-catch-up", is_flag=True, help="Leave tables that were imported before as they are.")
def import_all(
    invocation: Invocation,
    root: str | None,
    list_file: str | None,
    namespace: str | None,
    history: str,
    verify: str,
    batch_size: int | None,
    rate: int | None,
    parallel: int | None,
    no_catch_up: bool,
    engine: str,
    master: str | None,
    remote: str | None,
    dry_run: bool,
) -> int:
    """Import every Delta table below ROOT, a folder or a bucket's prefix, in place.

    A table's name is its path below ROOT with dots for slashes; a table that the catalog already has keeps
    its name. A table that fails, or whose path is not a valid name, does not stop the others. Run the command
    again to continue: finished tables only import their new commits. The exit code is 0 if all tables
    succeeded, else that of the first failure.

    \b
    Examples:
      deltasql import-all /srv/lake --dry-run
      deltasql import-all /srv/lake --namespace raw --parallel 4
      deltasql import-all --list tables.txt --json
    """
    if (root is None) == (list_file is None):
        raise click.UsageError("give ROOT or --list FILE, one of them")
    source = root if root is not None else _read_list(list_file or "-")
    address = invocation.catalog_address()
    with (
        use_config(invocation.settings()),
        invocation.output.progress("importing tables") as advance,
    ):

        def tell(done: int, total: int, outcome: TableOutcome) -> None:
            advance(done, total)
            if outcome.error is not None:
                invocation.output.note(f"{outcome.table} failed: {outcome.error.message}")
                if outcome.error.suggestion:
                    invocation.output.note(f"  → {outcome.error.suggestion}")

        report = import_tables(
            source,
            address.to_uri(redact=False),
            namespace=namespace,
            history=cast("History", history),
            verify=cast("Level", verify),
            catch_up=not no_catch_up,
            parallel=parallel,
            batch_size=batch_size,
            rate_limit=rate,
            dry_run=dry_run,
            engine=cast("EngineName", engine),
            master=master,
            remote=remote,
            progress=tell,
        )
    document = {**report.to_dict(), "catalog": address.to_uri(), "dry_run": dry_run}
    invocation.output.result(
        document,
        lambda screen: _view_import_all(screen, report),
        brief=[f"{t.table} {t.outcome}" for t in report.tables],
    )
    failed = next((t.error for t in report.failed if t.error is not None), None)
    return ExitCode.OK if failed is None else exit_code(failed)


def _read_list(name: str) -> Mapping[str, str]:
    try:
        # what editors put before a text is no part of a name
        text = (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the list is not UTF-8: {error.reason} at byte {error.start}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise click.UsageError(f"line {number} of the list is not of the form NAME PATH: {line!r}")
        if words[0] in found:
            raise click.UsageError(f"line {number} of the list names {words[0]} again")
        found[words[0]] = words[1].strip()
    return found


def _view_import_all(screen: Screen, report: ManyReport) -> None:
    if not report.tables:
        screen.line("No Delta tables were found.")
        return
    rows = []
    for table in report.tables:
        shown = table.report or table.plan
        rows.append(
            (
                table.table,
                table.outcome,
                "-" if shown is None else str(shown.version),
                "-" if shown is None else render.count(shown.num_files),
                table.location if table.error is None else table.error.message,
            )
        )
    headers = ("NAME", "OUTCOME", "VERSION", "FILES", "LOCATION")
    screen.table(headers, rows, right=headers[2:4])
    failed = f", {len(report.failed)} failed" if report.failed else ""
    screen.line(f"{render.many(len(report.tables), 'table')}{failed}, {report.seconds:g} s.")


@command("import-status")
@click.argument("table", required=False)
def import_status(invocation: Invocation, table: str | None) -> None:
    """Show imports, running and ended: phase, batches, rate, time left, memory, error.

    \b
    Examples:
      deltasql import-status
      deltasql import-status sales.orders --json
    """
    address = invocation.catalog_address() if table is None else invocation.table_address(table)
    with invocation.open_catalog(address.catalog):
        found = import_reports.import_status(address.to_uri(redact=False))

    def view(screen: Screen) -> None:
        if not found:
            screen.line("There were no imports.")
            return
        rows = [
            (
                s.table,
                s.phase + (", interrupted" if s.finished_at is None and not s.at_work else ""),
                f"{s.batches_done}/{s.batches_total}",
                render.count(s.actions_done),
                "-" if s.rate is None else f"{s.rate:,.0f}/s",
                "-" if s.seconds_left is None else f"{s.seconds_left:.0f} s",
                render.size(s.memory_bytes) if s.memory_bytes else "-",
                render.iso(s.updated_at) or "-",
                s.error or "-",
            )
            for s in found
        ]
        for s in found:
            if s.lag is not None:
                behind = f"{render.many(s.lag, 'version')} behind" if s.lag else "in step"
                screen.line(f"{s.table} follows {s.location}: {behind} at {render.iso(s.looked_at)}")
        headers = ("NAME", "PHASE", "BATCHES", "ACTIONS", "RATE", "LEFT", "MEMORY", "UPDATED", "ERROR")
        screen.table(headers, rows, right=headers[2:7])

    document = {"catalog": address.catalog.to_uri(), "imports": [s.to_dict() for s in found]}
    invocation.output.result(document, view, brief=[f"{s.table} {s.phase}" for s in found])


@command("rollback", changing, leasing)
@click.argument("table")
@click.option(
    "--keep-batches",
    type=click.IntRange(0),
    metavar="N",
    help="Of an unfinished import keep the first N batches; it goes on from there.",
)
@click.option(
    "--verify",
    type=LEVEL,
    default="digest",
    show_default=True,
    help="How log and catalog are compared first.",
)
def rollback(invocation: Invocation, table: str, keep_batches: int | None, verify: str, dry_run: bool) -> int:
    """Take an import back. No file of the table is touched.

    An unfinished import loses what it loaded. A finished one becomes a plain Delta table again, with every
    commit that was made since in its log. Refused while commits are not published, while the table is frozen
    (exit code 5), and if log and catalog differ (exit code 3). A table that was created in the catalog has no
    import to take back: use deltasql export --in-place or deltasql drop.

    \b
    Examples:
      deltasql rollback sales.orders --dry-run
      deltasql rollback sales.orders --yes
      deltasql rollback sales.orders --keep-batches 10 --yes
    """
    address = invocation.table_address(table)
    with invocation.open_catalog(address):
        uri, level = address.to_uri(redact=False), cast("Level", verify)
        report = rollback_import(uri, keep_batches=keep_batches, verify=level, dry_run=True)
        if not dry_run:
            drops = render.many(report.batches, "batch").replace("batchs", "batches")
            what = (
                f"make {report.table} a plain Delta table again"
                if report.action == "released"
                else f"drop {drops} of the unfinished import of {report.table}"
            )
            invocation.confirm(f"Shall I {what}? Its files at {report.location} stay.")
            report = rollback_import(uri, keep_batches=keep_batches, verify=level)

    def view(screen: Screen) -> None:
        would = "would be" if dry_run else "is"
        if report.action == "released":
            screen.line(f"{report.table} {would} a plain Delta table again, version {report.version}.")
        else:
            screen.line(f"The unfinished import of {report.table} {would} {report.action}.")
            screen.fields(
                [
                    ("batches dropped", render.count(report.batches)),
                    ("kept", render.count(report.batches_left)),
                ]
            )
        screen.line(f"Its files stay at {report.location}.")

    invocation.output.result(report.to_dict(), view)
    return ExitCode.OK


@command("export", changing, leasing)
@click.argument("table")
@click.argument("path", required=False)
@click.option(
    "--in-place",
    is_flag=True,
    help="Publish everything and remove the table from the catalog; its files stay.",
)
@click.option(
    "--history",
    type=click.Choice(["full", "newest"]),
    default="full",
    show_default=True,
    help="Which versions to write: full is all that the catalog holds.",
)
@click.option(
    "--data",
    type=click.Choice(["copy", "link", "none"]),
    default="copy",
    show_default=True,
    help="Copy data files, make hard links, or write the log alone.",
)
@click.option(
    "--verify",
    type=LEVEL,
    default="digest",
    show_default=True,
    help="How the result is compared with the catalog.",
)
def export(
    invocation: Invocation,
    table: str,
    path: str | None,
    in_place: bool,
    history: str,
    data: str,
    verify: str,
    dry_run: bool,
) -> int:
    """Write TABLE as a plain Delta table to PATH; the catalog keeps its own.

    With --in-place the table stays where it is: everything is published, compared, and the catalog forgets
    the table; PATH must be another place. Exit code 3 if the plain table differs from the catalog;
    nothing is forgotten then.

    \b
    Examples:
      deltasql export sales.orders /archive/orders
      deltasql export sales.orders /archive/orders --history newest --data link
      deltasql export sales.orders --in-place --yes
    """
    if in_place == (path is not None):
        raise click.UsageError("give PATH or --in-place, one of them")
    address = invocation.table_address(table)
    with invocation.open_catalog(address) as catalog:
        if in_place and not dry_run:
            where = catalog.describe(address.table or "").location
            invocation.confirm(f"Remove {table} from the catalog? Its files at {where} stay.")
        with invocation.output.progress(f"exporting {address.table}") as advance:
            report = export_table(
                address.to_uri(redact=False),
                path,
                history=cast("ExportHistory", history),
                data=cast("DataMode", data),
                verify=cast("Level", verify),
                dry_run=dry_run,
                progress=advance,
            )

    def view(screen: Screen) -> None:
        verb = "Would export" if dry_run else "Exported"
        screen.line(f"{verb} {report.table} to {report.location}")
        screen.fields(
            [
                ("versions", f"{report.first_version} to {report.version}"),
                ("files", render.count(report.num_files)),
                ("size", render.size(report.size_bytes)),
                ("left outside", render.count(report.files_outside) if report.files_outside else None),
                ("vacuumed before", render.count(report.files_gone) if report.files_gone else None),
                ("versions lost", render.count(report.versions_gone) if report.versions_gone else None),
                ("catalog", "has forgotten it" if in_place and not dry_run else "keeps its own"),
            ]
        )

    invocation.output.result(report.to_dict(), view, brief=[report.location])
    return ExitCode.OK


@command("verify", engines)
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option(
    "--level", type=click.Choice(LEVELS), default="digest", show_default=True, help="How thorough to be."
)
def verify(
    invocation: Invocation,
    tables: tuple[str, ...],
    level: str,
    engine: str,
    master: str | None,
    remote: str | None,
) -> int:
    """Compare tables with their logs, at the newest published version. Nothing is changed.

    Levels: commits (the bytes of every commit file), counts (files, bytes, metadata), digest (every live
    file), full (every field at every version, and the bytes of every commit), data (full, and the rows,
    through the catalog and by stock deltalake). Without a table all are compared. Exit code 3 if they differ.
    With --engine spark a Spark job makes the log's digest, and delta-spark reads the plain table's rows; what
    differs is compared here.

    \b
    Examples:
      deltasql verify
      deltasql verify sales.orders --level full
      deltasql verify --level counts --quiet || mail -s drift ops@example.com
    """
    address, names = invocation.one_catalog(tables)
    with invocation.open_catalog(address) as catalog:
        names = names or [t.name for t in catalog.tables()]
        who: dict[str, Any] = {"engine": engine, "master": master, "remote": remote}
        reports = [verify_table(catalog.table_uri(name), cast("Level", level), **who) for name in names]
    invocation.output.result(
        {"ok": all(r.ok for r in reports), "level": level, "tables": [r.to_dict() for r in reports]},
        lambda screen: _view_verify(screen, reports),
        brief=[f"{r.table} {r.num_differences}" for r in reports if not r.ok],
    )
    return ExitCode.OK if all(r.ok for r in reports) else ExitCode.DRIFT


def _view_verify(screen: Screen, reports: Sequence[VerifyReport]) -> None:
    if not reports:
        screen.line("The catalog holds no tables.")
    for report in reports:
        what = f"{report.table}, version {report.version}, {render.many(report.num_files, 'file')}"
        if report.ok:
            more = (
                f", {render.many(report.versions_checked, 'version')}" if report.versions_checked > 1 else ""
            )
            rows = f", {render.many(report.rows_checked, 'row')}" if report.rows_checked else ""
            screen.line(f"{what}{more}{rows}: the catalog holds what the log says ({report.level}).")
            continue
        screen.line(f"{what}: {render.many(report.num_differences, 'difference')}", "bold red")
        rows_ = [(str(d.version), d.kind, d.path or "-", d.detail) for d in report.differences]
        screen.table(("VERSION", "KIND", "PATH", "DETAIL"), rows_, right=("VERSION",))
        if report.num_differences > len(report.differences):
            screen.line(f"and {render.count(report.num_differences - len(report.differences))} more")
