"""``deltasql import``: take over a plain Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common, importing
from deltalakedb.cli.signals import until_told
from deltalakedb.config import use_config
from deltalakedb.transfer.following import follow_table
from deltalakedb.transfer.importing.api import import_table
from deltalakedb.transfer.importing.plan import plan_import

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.transfer.following import FollowReport
    from deltalakedb.transfer.importing.options import History
    from deltalakedb.transfer.importing.plan import ImportPlan
    from deltalakedb.transfer.importing.report import ImportProgress, ImportReport
    from deltalakedb.transfer.verifying.report import Level


@click.command("import")
@click.argument("path")
@click.argument("table")
@importing
@click.option(
    "--catch-up",
    is_flag=True,
    help="Bring only the commits that others made since the import; nothing where there are none.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Keep a read-only copy of a table that others go on writing, until it is told to end.",
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
@changing
@common
@click.pass_obj
def command(
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
    """Take over the plain Delta table at PATH as TABLE. Nothing of it is moved or changed.

    The table becomes visible at the end, once it is loaded and compared with its log. An import that was
    interrupted goes on where it stopped when the same command is run again. From then on write to the table
    only through the catalog; everybody may go on reading its folder. Exit code 3 where the comparison fails,
    75 where another import of the table is at work.

    With --follow the table stays in others' hands: the catalog keeps a read-only copy of its metadata, looks
    at its log again and again, and tells how far the copy is behind. `deltasql rollback` forgets the copy.

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
        document, lambda screen: _view(screen, done, address.to_uri()), brief=[address.to_uri()]
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
        first: How the table is imported where there is no copy yet.
    """

    def tell(report: FollowReport) -> None:
        if report.error is not None:
            invocation.output.note(f"{report.table}: the log cannot be reached: {report.error}")
        elif not once and report.action != "unchanged":
            invocation.output.note(_followed(report))

    if not once:
        invocation.output.note(f"Following {path}; Ctrl-C ends it.")
    with until_told() as stop:
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


def _view(screen: Screen, done: ImportReport, address: str) -> None:
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
