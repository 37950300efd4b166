"""Commands that move whole tables in and out of a catalog, and compare them with their logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import Invocation, stop_on_signal
from deltalakedb.cli.options import (
    CHANGING,
    ENGINES,
    IMPORTING,
    LEASING,
    choice,
    command,
    flag,
    interval,
    number,
    option,
    table_command,
    verification,
)
from deltalakedb.cli.output import ExitCode, Item, Rows, exit_code, view_reports
from deltalakedb.transfer import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.catalog import Catalog
    from deltalakedb.transfer import Level, reports


@command("import", IMPORTING, CHANGING, LEASING)
@click.argument("path")
@click.argument("table", required=False)
@flag("--undo", "Undo an import instead: give TABLE alone. No file of the table is touched.")
@number(
    "--keep-batches",
    "N",
    "With --undo, keep the first N batches of an unfinished import, which continues from there.",
)
@flag("--catch-up", "Import only the commits that other writers made since the import.")
@flag("--follow", "Keep a read-only copy of a table that other engines write, until Ctrl-C or SIGTERM.")
@interval(10.0, "With --follow, the pause between two looks at the log.")
@flag("--once", "With --follow, look once and exit, for cron.")
def import_(
    cli: Invocation,
    path: str,
    table: str | None,
    undo: bool,
    keep_batches: int | None,
    catch_up: bool,
    follow: bool,
    interval: float,
    once: bool,
    dry_run: bool,
    **how: Any,
) -> int:
    """Import the Delta table at PATH as TABLE, in place. No file is moved or rewritten.

    The table becomes visible at the end, once it is loaded and compared with its log. To continue an import
    that was interrupted, run the same command again. From then on write to the table only through the
    catalog; any engine may read its folder. Exit code 3 if the comparison fails, 75 if another import of the
    table is running.

    With --follow other engines keep writing the table: the catalog keeps a read-only copy of its metadata,
    reads its log at intervals, and reports how far the copy is behind. `--undo` removes it.

    With --undo, an unfinished import loses what it loaded, and a finished one becomes a plain Delta table
    again, with every commit that was made since in its log. Refused for a table that was never imported, for
    one with unpublished commits, while it is frozen (exit code 5), and if log and catalog differ (exit
    code 3). `deltasql export --in-place` works for every table.

    \b
    Examples:
      deltasql import /srv/lake/orders sales.orders --dry-run
      deltasql import /srv/lake/orders sales.orders --history full --verify full
      deltasql import /srv/lake/orders sales.orders --catch-up
      deltasql import s3://theirs/orders partner.orders --follow --interval 30
      deltasql import /srv/lake/clicks web.clicks --engine spark --master 'local[8]'
      deltasql import --undo sales.orders --dry-run
      deltasql import --undo sales.orders --keep-batches 10 --yes
    """
    from deltalakedb.settings import use_config
    from deltalakedb.transfer.importing.api import import_table
    from deltalakedb.transfer.importing.plan import plan_import

    if undo:
        if table is not None or catch_up or follow:
            raise click.UsageError("--undo takes TABLE alone, and neither --catch-up nor --follow")
        _undo(cli, path, dry_run=dry_run, keep_batches=keep_batches, verify=how["verify"])
        return ExitCode.OK
    if table is None:
        raise click.UsageError("give PATH and TABLE, or --undo and TABLE")
    if keep_batches is not None:
        raise click.UsageError("--keep-batches needs --undo")
    if once and not follow:
        raise click.UsageError("--once needs --follow")
    if follow and (catch_up or dry_run):
        raise click.UsageError("--follow excludes --catch-up and --dry-run")
    if catch_up and dry_run:
        raise click.UsageError(
            "--dry-run plans a first import and does not go with --catch-up: `deltasql mirror status --look` "
            "shows how far the log is ahead"
        )
    address = cli.table_address(table, new=True)
    uri, shown = address.to_uri(redact=False), address.to_uri()
    with use_config(cli.settings()):
        if dry_run:
            planned = {k: v for k, v in how.items() if k not in ("verify", "rate_limit")}
            plan = plan_import(path, uri, **planned)
            cli.show({**plan.to_dict(), "address": shown, "dry_run": True}, _view_plan(plan), [shown])
            return ExitCode.OK
        with cli.resumable("what is loaded stays"), cli.progress(f"importing {address.table}") as advance:

            def report(progress: reports.ImportProgress) -> None:
                verb = "importing" if progress.phase == "loading" else "verifying"
                advance(progress.done, progress.total, f"{verb} {address.table}")

            how["progress"] = report
            if follow:
                return _follow(cli, path, uri, interval, once=once, **how)
            done = import_table(path, uri, catch_up=catch_up, **how)
    cli.show({**done.to_dict(), "address": shown, "dry_run": False}, _view_import(done, shown), [shown])
    return ExitCode.OK


def _undo(cli: Invocation, table: str, *, dry_run: bool, **how: Any) -> None:
    from deltalakedb.transfer.rollback import rollback_import

    with cli.open_tables([table]) as (catalog, (name,)):
        report = rollback_import(catalog.table_uri(name), dry_run=True, **how)
        if not dry_run:
            batches = "1 batch" if report.batches == 1 else f"{report.batches:,} batches"
            what = (
                f"Make {report.table} a plain Delta table again?"
                if report.action == "released"
                else f"Drop {batches} of the unfinished import of {report.table}?"
            )
            cli.confirm(f"{what} Its files at {report.location} stay.")
            report = rollback_import(catalog.table_uri(name), **how)
    would = "would be" if dry_run else "is"
    if report.action == "released":
        view: list[Item] = [f"{report.table} {would} a plain Delta table again, version {report.version}."]
    else:
        counts = {"batches dropped": render.count(report.batches), "kept": render.count(report.batches_left)}
        view = [f"The unfinished import of {report.table} {would} {report.action}.", counts]
    cli.show(report, [*view, f"Its files stay at {report.location}."])


def _follow(cli: Invocation, path: str, uri: str, interval: float, *, once: bool, **how: Any) -> int:
    """Follow until Ctrl-C or SIGTERM, with a line for every look that found something."""
    from deltalakedb.transfer.following import follow_table

    def report(found: reports.FollowReport) -> None:
        if found.error is not None:
            cli.note(f"{found.table}: the log cannot be reached: {found.error}")
        elif not once and found.action != "unchanged":
            cli.note(_followed(found))

    if not once:
        cli.note(f"Following {path}; Ctrl-C ends it.")
    with stop_on_signal() as stop:
        last = follow_table(path, uri, interval=interval, once=once, stop=stop, on_report=report, **how)
    cli.show(last, _followed(last), [last.table])
    # a log that could not be reached is worth another try
    return ExitCode.OK if last.error is None else ExitCode.TRY_AGAIN


def _followed(report: reports.FollowReport) -> str:
    where = f"{report.table} is at version {report.version}"
    if report.error is not None:
        return f"{where}; the log cannot be reached: {report.error}"
    what = {"imported": "Imported; ", "caught up": f"{render.many(report.brought, 'version')} imported; "}
    behind = f", {render.many(report.lag, 'version')} behind the log" if report.lag else ", the log's newest"
    late = f" (was {report.seconds_behind:.0f} s behind)" if report.brought else ""
    return f"{what.get(report.action, '')}{where}{behind}{late}."


def _view_plan(plan: reports.ImportPlan) -> Iterator[Item]:
    yield f"Would import {plan.location} as {plan.table}"
    yield {
        "versions": _versions(plan),
        "files": ("" if plan.exact else "about ") + render.count(plan.num_files),
        "size": None if plan.size_bytes is None else render.size(plan.size_bytes),
        "batches": render.count(plan.num_batches),
        "time": f"about {plan.seconds:.0f} s (estimated)" if plan.seconds >= 1 else "below a second",
        "memory": f"about {render.size(plan.memory_bytes)} (estimated)",
        "database": f"about {render.size(plan.database_bytes)} larger (estimated)",
        "engine": f"{plan.engine} ({plan.engine_reason})",
        "note": plan.note,
        "torn checkpoints": ", ".join(map(str, plan.passed_over)),
    }


def _view_import(done: reports.ImportReport, address: str) -> Iterator[Item]:
    if done.action == "unchanged":
        yield f"{done.table} has every commit of its log: nothing to do."
        return
    verbs = {"imported": "Imported", "resumed": "Resumed and imported", "caught up": "Caught up with"}
    checked = done.verification
    phases = ", ".join(f"{name} {spent:.1f}" for name, spent in done.phases.items())
    yield f"{verbs[done.action]} {done.location} as {done.table}"
    yield {
        "versions": _versions(done),
        "files": render.count(done.num_files),
        "size": render.size(done.size_bytes),
        "verified": None if checked is None else f"{checked.level}, {checked.digest or 'equal'}",
        "engine": None if done.engine == "local" else done.engine,
        "note": done.note,
        "torn checkpoints": ", ".join(map(str, done.passed_over)),
        "took": f"{done.seconds:g} s" + (f" ({phases})" if phases else ""),
        "address": address,
    }


def _versions(found: reports.ImportPlan | reports.ImportReport) -> str:
    return f"{found.first_version} to {found.version} ({render.count(found.num_versions)})"


@command("import-all", IMPORTING, CHANGING, LEASING)
@click.argument("root", required=False)
@option(
    "--list",
    "list_file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file of lines NAME PATH instead of a place to search; - reads them from the input.",
)
@option("--namespace", metavar="NAME", help="The namespace of the tables that are found.")
@number("--parallel", "N", "Tables to import at the same time.", 1)
@flag("--no-catch-up", "Leave tables that were imported before as they are.")
def import_all(
    cli: Invocation, root: str | None, list_file: str | None, no_catch_up: bool, dry_run: bool, **how: Any
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
    from deltalakedb.settings import use_config
    from deltalakedb.transfer.importing.api import import_tables

    if (root is None) == (list_file is None):
        raise click.UsageError("give ROOT or --list FILE, one of them")
    source = root if root is not None else _read_list(list_file or "-")
    address = cli.catalog_address()
    again = cli.resumable("tables that are finished stay, and so does what is loaded of the others")
    with use_config(cli.settings()), again, cli.progress("importing tables") as advance:

        def progress(done: int, total: int, outcome: reports.TableOutcome) -> None:
            advance(done, total)
            if outcome.error is not None:
                cli.note(f"{outcome.table} failed: {outcome.error.message}")
                if outcome.error.suggestion:
                    cli.note(f"  → {outcome.error.suggestion}")

        how |= {"catch_up": not no_catch_up, "dry_run": dry_run, "progress": progress}
        report = import_tables(source, address.to_uri(redact=False), **how)
    rows = []
    for table in report.tables:
        found = table.report or table.plan
        numbers = (None, None) if found is None else (found.version, render.count(found.num_files))
        where = table.location if table.error is None else table.error.message
        rows.append((table.table, table.outcome, *numbers, where))
    failed = f", {len(report.failed)} failed" if report.failed else ""
    line = f"{render.many(len(rows), 'table')}{failed}, {report.seconds:g} s."
    view: list[Item] = [Rows("NAME|OUTCOME|VERSION>|FILES>|LOCATION", rows), line]
    view = view if rows else ["No Delta tables were found."]
    document = {**report.to_dict(), "catalog": address.to_uri(), "dry_run": dry_run}
    cli.show(document, view, [f"{t.table} {t.outcome}" for t in report.tables])
    error = next((t.error for t in report.failed if t.error is not None), None)
    return ExitCode.OK if error is None else exit_code(error)


def _read_list(name: str) -> Mapping[str, str]:
    try:
        # what editors put before a text is no part of a name
        text = (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the list is not UTF-8: {error.reason} at byte {error.start}") from error
    found: dict[str, str] = {}
    for at, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise click.UsageError(f"line {at} of the list is not of the form NAME PATH: {line!r}")
        if words[0] in found:
            raise click.UsageError(f"line {at} of the list names {words[0]} again")
        found[words[0]] = words[1].strip()
    return found


@command("import-status")
@click.argument("table", required=False)
def import_status(cli: Invocation, table: str | None) -> None:
    """Show imports, running and ended: phase, batches, rate, time left, memory, error.

    \b
    Examples:
      deltasql import-status
      deltasql import-status sales.orders --json
    """
    from deltalakedb.transfer.importing import api

    address = cli.catalog_address() if table is None else cli.table_address(table)
    with cli.open_catalog(address.catalog):
        found = api.import_status(address.to_uri(redact=False))
    rows = [
        (
            s.table,
            s.phase + (", interrupted" if s.finished_at is None and not s.at_work else ""),
            f"{s.batches_done}/{s.batches_total}",
            render.count(s.actions_done),
            None if s.rate is None else f"{s.rate:,.0f}/s",
            None if s.seconds_left is None else f"{s.seconds_left:.0f} s",
            render.size(s.memory_bytes) if s.memory_bytes else None,
            render.iso(s.updated_at),
            s.error or None,
        )
        for s in found
    ]
    view: list[Item] = []
    for s in found:
        if s.lag is not None:
            behind = f"{render.many(s.lag, 'version')} behind" if s.lag else "up to date"
            view.append(f"{s.table} follows {s.location}: {behind} at {render.iso(s.looked_at)}")
    view.append(Rows("NAME|PHASE|BATCHES>|ACTIONS>|RATE>|LEFT>|MEMORY>|UPDATED|ERROR", rows))
    document = {"catalog": address.catalog.to_uri(), "imports": found}
    cli.show(document, view if found else "There were no imports.", [f"{s.table} {s.phase}" for s in found])


@table_command("export", CHANGING, LEASING)
@click.argument("path", required=False)
@flag("--in-place", "Publish everything and remove the table from the catalog; its files stay.")
@choice(
    "--history", ["full", "newest"], "full", "Which versions to write: full is all that the catalog holds."
)
@choice(
    "--data", ["copy", "link", "none"], "copy", "Copy data files, make hard links, or write the log alone."
)
@verification("How the result is compared with the catalog.")
def export(
    cli: Invocation, catalog: Catalog, name: str, path: str | None, in_place: bool, dry_run: bool, **how: Any
) -> None:
    """Write TABLE as a plain Delta table to PATH, or let it leave the catalog with --in-place.

    A copy at PATH, another place, leaves the catalog's table as it is. With --in-place the table stays where
    it is: everything is published and compared, and then the table is removed from the catalog. Exit code 3
    if the plain table differs from the catalog; the table is not removed then.

    \b
    Examples:
      deltasql export sales.orders /archive/orders
      deltasql export sales.orders /archive/orders --history newest --data link
      deltasql export sales.orders --in-place --yes
    """
    from deltalakedb.transfer.exporting import export_table

    if in_place == (path is not None):
        raise click.UsageError("give PATH or --in-place, one of them")
    if in_place and not dry_run:
        where = catalog.describe(name).location
        cli.confirm(f"Remove {name} from the catalog? Its files at {where} stay.")
    with cli.progress(f"exporting {name}") as progress:
        report = export_table(catalog.table_uri(name), path, dry_run=dry_run, progress=progress, **how)
    catalog_has = "keeps its own"
    if in_place:
        catalog_has = "would no longer have it" if dry_run else "no longer has it"
    published = render.many(report.num_published, "commit") if report.num_published else None
    fields = {
        "versions": f"{report.first_version} to {report.version}",
        "files": render.count(report.num_files),
        "size": render.size(report.size_bytes),
        "left outside": render.count(report.files_outside) if report.files_outside else None,
        "vacuumed before": render.count(report.files_gone) if report.files_gone else None,
        "versions lost": render.count(report.versions_gone) if report.versions_gone else None,
        "published first": published,
        "catalog": catalog_has,
    }
    verb = "Would export" if dry_run else "Exported"
    line = f"{verb} {report.table} to {report.location}"
    if in_place:
        line = f"{report.table} {'would be' if dry_run else 'is'} a plain Delta table at {report.location}"
    cli.show(report, [line, fields], [report.location])


@command("verify", ENGINES)
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@choice("--level", LEVELS, "digest", "How thorough to be.")
def verify(cli: Invocation, tables: tuple[str, ...], level: str, **engine: Any) -> int:
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
    from deltalakedb.transfer.verifying.verifier import verify_table

    with cli.open_tables(tables) as (catalog, names):
        uris = [catalog.table_uri(name) for name in names or [table.name for table in catalog.tables()]]
        found = [verify_table(uri, cast("Level", level), **engine) for uri in uris]
    ok = all(r.ok for r in found)
    differing = [f"{r.table} {r.num_differences}" for r in found if not r.ok]
    cli.show({"ok": ok, "level": level, "tables": found}, view_reports(found), differing)
    return ExitCode.OK if ok else ExitCode.DRIFT
