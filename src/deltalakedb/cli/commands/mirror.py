"""``deltasql mirror``: how tables reach their _delta_log, and what to do when they do not."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.catalog.outbox import MirrorStatus
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.lake import Catalog
    from deltalakedb.mirror.drift import DriftReport, Finding
    from deltalakedb.mirror.reconciler import Pass


@click.group("mirror")
@common
def command() -> None:
    """Look after the copy of every table in its _delta_log: status, publishing, pausing, mending.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror run --watch
      deltasql mirror verify sales.orders
    """


@contextmanager
def _open(invocation: Invocation, table: str | None) -> Iterator[tuple[Catalog, str | None]]:
    """The catalog that is meant, and the table's name where one is."""
    if table is None:
        with invocation.open_catalog() as catalog:
            yield catalog, None
    else:
        with invocation.open_table(table) as opened:
            yield opened


# ---- looking -------------------------------------------------------------------------------------------


@command.command("status")
@click.argument("table", required=False)
@common
@click.pass_obj
def status(invocation: Invocation, table: str | None) -> int:
    """Show how far each log is behind its table, and why. Exit code 5 where a table is frozen.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror status sales.orders --json
    """
    with _open(invocation, table) as (catalog, name):
        found = catalog.mirror.status(name)
    rows = [s.to_dict() | {"published_at": render.iso(s.published_at)} for s in found]
    invocation.output.result(
        {"catalog": catalog.uri, "tables": rows},
        lambda screen: _view_status(screen, found),
        brief=[f"{s.table} {s.versions_behind}" for s in found if s.versions_behind],
    )
    return ExitCode.FROZEN if any(s.state == "frozen" for s in found) else ExitCode.OK


def _view_status(screen: Screen, found: Sequence[MirrorStatus]) -> None:
    if not found:
        screen.line("The catalog holds no tables.")
        return
    headers = ("NAME", "VERSION", "PUBLISHED", "BEHIND", "SECONDS", "CHECKPOINT", "STATE", "WHY")
    rows = [
        (
            s.table,
            str(s.version),
            str(s.published_version) if s.published_version >= 0 else "-",
            render.count(s.versions_behind),
            f"{s.seconds_behind:.0f}",
            str(s.checkpoint_version) if s.checkpoint_version >= 0 else "-",
            "paused" if s.paused and s.state == "active" else s.state,
            _why(s),
        )
        for s in found
    ]
    screen.table(headers, rows, right=headers[1:6])


def _why(status: MirrorStatus) -> str:
    if status.state_reason:
        return status.state_reason
    if status.error is None:
        return "-"
    return f"{status.error} ({render.many(status.attempts, 'attempt')})"


@command.command("verify")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--no-replay", is_flag=True, help="Compare bytes only: faster, and blind to wrong checkpoints.")
@common
@click.pass_obj
def verify(invocation: Invocation, tables: tuple[str, ...], no_replay: bool) -> int:
    """Compare log and catalog at every version: bytes, replay, checkpoints. Nothing is changed.

    Without a table all are compared. Exit code 3 for drift, 5 where somebody else's commit stands in the
    place of ours.

    \b
    Examples:
      deltasql mirror verify
      deltasql mirror verify sales.orders --json
    """
    targets = [invocation.table_address(table) for table in tables]
    address, *others = {t.catalog for t in targets} or {invocation.catalog_address()}
    if others:
        raise click.UsageError("the tables lie in several catalogs: compare one at a time")
    with invocation.open_catalog(address) as catalog:
        names = [t.table or "" for t in targets] or [t.name for t in catalog.tables()]
        reports = [catalog.mirror.verify(name, replay=not no_replay) for name in names]
    findings = [f for report in reports for f in report.findings]
    invocation.output.result(
        {"ok": not findings, "tables": [r.to_dict() for r in reports]},
        lambda screen: _view_reports(screen, reports),
        brief=[f"{r.table} {f.version} {f.kind}: {f.detail}" for r in reports for f in r.findings],
    )
    return _code_of(findings)


def _view_reports(screen: Screen, reports: Sequence[DriftReport]) -> None:
    for report in reports:
        versions = render.many(report.versions_checked, "version")
        if report.ok:
            screen.line(f"{report.table}: {versions}, the log is what the catalog says.")
            continue
        screen.line(f"{report.table}: {versions}, {render.many(len(report.findings), 'finding')}", "bold red")
        _view_findings(screen, report.findings)
    if not reports:
        screen.line("The catalog holds no tables.")


def _view_findings(screen: Screen, findings: Sequence[Finding]) -> None:
    rows = [(str(f.version), f.kind, f.detail) for f in findings]
    screen.table(("VERSION", "KIND", "DETAIL"), rows, right=("VERSION",))


def _code_of(findings: Sequence[Finding]) -> ExitCode:
    if any(f.kind == "foreign" for f in findings):
        return ExitCode.FROZEN
    return ExitCode.DRIFT if findings else ExitCode.OK


# ---- publishing ----------------------------------------------------------------------------------------


@command.command("run")
@click.argument("table", required=False)
@click.option("--watch", is_flag=True, help="Go on until told to stop, by Ctrl-C or SIGTERM.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="With --watch, the pause between two rounds.",
)
@common
@click.pass_obj
def run(invocation: Invocation, table: str | None, watch: bool, interval: float) -> int:
    """Publish what waits, and write due checkpoints: once, or as a service. Any number may run.

    A table whose last attempt failed is left alone until its next try is due; naming it forces one.
    Exit code 75 where something could not be published yet, 5 where a table diverged.

    \b
    Examples:
      deltasql mirror run
      deltasql mirror run sales.orders
      deltasql mirror run --watch --interval 5
    """
    if watch and table is not None:
        raise click.UsageError("--watch looks after all tables: leave the name out")
    with _open(invocation, table) as (catalog, name):
        if watch:
            invocation.output.note(f"Publishing the tables of {catalog.uri}; Ctrl-C ends it.")
            with _until_told() as stop:
                done = catalog.mirror.run(stop=stop, interval=interval)
        else:
            done = catalog.mirror.run() if name is None else catalog.mirror.publish(name)
    return _tell_pass(invocation, done)


@contextmanager
def _until_told() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that the round under way is finished."""
    stop = threading.Event()
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_pass(invocation: Invocation, done: Pass, **more: Any) -> int:
    failed, diverged = sorted(set(done.failed)), sorted(set(done.diverged))

    def view(screen: Screen) -> None:
        made = f", {render.many(done.checkpoints, 'checkpoint')} written" if done.checkpoints else ""
        screen.line(f"{render.many(done.published, 'version')} published{made}.")
        for name in failed:
            screen.line(f"  ! {name} waits: `deltasql mirror status {name}` says why", "yellow")
        for name in diverged:
            screen.line(f"  ✗ {name} is frozen: somebody else's commit stands in the place of ours", "red")

    document = {
        **more,
        "published": done.published,
        "checkpoints": done.checkpoints,
        "failed": failed,
        "diverged": diverged,
    }
    invocation.output.result(document, view, brief=[*failed, *diverged])
    if diverged:
        return ExitCode.FROZEN
    return ExitCode.TRY_AGAIN if failed else ExitCode.OK


@command.command("pause")
@click.argument("table", required=False)
@common
@click.pass_obj
def pause(invocation: Invocation, table: str | None) -> None:
    """Let publishing stand still, for a table or the whole catalog. Commits go on.

    Readers of _delta_log keep an older, consistent state.

    \b
    Examples:
      deltasql mirror pause sales.orders
      deltasql mirror pause
    """
    with _open(invocation, table) as (catalog, name):
        catalog.mirror.pause(name)
    what = name or "every table"
    invocation.output.result(
        {"table": name, "paused": True},
        lambda screen: screen.line(f"Publishing of {what} stands still until `deltasql mirror resume`."),
    )


@command.command("resume")
@click.argument("table", required=False)
@common
@click.pass_obj
def resume(invocation: Invocation, table: str | None) -> int:
    """Let publishing go on, and catch up. A table that was paused by name is resumed by name.

    \b
    Examples:
      deltasql mirror resume sales.orders
      deltasql mirror resume
    """
    with _open(invocation, table) as (catalog, name):
        done = catalog.mirror.resume(name)
    return _tell_pass(invocation, done, table=name, paused=False)


# ---- mending -------------------------------------------------------------------------------------------


@command.command("repair")
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@common
@click.pass_obj
def repair(invocation: Invocation, table: str, dry_run: bool) -> int:
    """Rewrite commit files that are missing or damaged, from the catalog's bytes.

    Commits of others are left alone: exit code 5 where one stands in the place of ours, 3 where other drift
    is left.

    \b
    Examples:
      deltasql mirror repair sales.orders --dry-run
      deltasql mirror repair sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        done = catalog.mirror.repair(name, dry_run=dry_run)

    def view(screen: Screen) -> None:
        verb = "would be rewritten" if dry_run else "rewritten"
        which = f": {', '.join(map(str, done.rewritten))}" if done.rewritten else ""
        screen.line(f"{render.many(len(done.rewritten), 'commit file')} {verb}{which}.")
        if done.left:
            screen.line("Left alone:")
            _view_findings(screen, done.left)

    left = [{"kind": f.kind, "version": f.version, "detail": f.detail} for f in done.left]
    document = {"table": name, "dry_run": dry_run, "rewritten": list(done.rewritten), "left": left}
    invocation.output.result(document, view, brief=[str(v) for v in done.rewritten])
    return _code_of(done.left)


@command.command("rebuild")
@click.argument("table")
@click.argument("location")
@common
@click.pass_obj
def rebuild(invocation: Invocation, table: str, location: str) -> None:
    """Make the whole log of a table from the catalog, into a place without one.

    Data files are not copied: put the new _delta_log beside them.

    \b
    Examples:
      deltasql mirror rebuild sales.orders /srv/lake/rebuilt
    """
    with invocation.open_table(table) as (catalog, name):
        first, last = catalog.mirror.rebuild(name, location)
    invocation.output.result(
        {"table": name, "location": location, "first_version": first, "version": last},
        lambda screen: screen.line(f"Versions {first} to {last} of {name} are in {location}/_delta_log."),
    )


@command.command("recover")
@click.argument("table")
@common
@click.pass_obj
def recover(invocation: Invocation, table: str) -> None:
    """Take over the commits of a log that is ahead of the catalog, and let the table be written again.

    That is the case after the database came back from an older backup, or after another engine wrote.

    \b
    Examples:
      deltasql mirror recover sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        adopted = catalog.mirror.recover(name).versions
        version = catalog.describe(name).head.version
    told = render.many(len(adopted), "version")
    invocation.output.result(
        {"table": name, "adopted": list(adopted), "version": version},
        lambda screen: screen.line(f"{told} taken over from the log; {name} is at version {version}."),
        brief=[str(v) for v in adopted],
    )


@command.command("resolve")
@click.argument("table")
@click.option(
    "--keep-theirs", is_flag=True, required=True, help="Their commits stay; ours go on top with new versions."
)
@changing
@common
@click.pass_obj
def resolve(invocation: Invocation, table: str, keep_theirs: bool, dry_run: bool) -> int:
    """Decide a divergence: somebody else's commit stands in the log where we committed too.

    Only commits of ours that nobody outside ever saw move. Those that cannot stand beside theirs are lost
    and named: exit code 4.

    \b
    Examples:
      deltasql mirror resolve sales.orders --keep-theirs --dry-run
      deltasql mirror resolve sales.orders --keep-theirs --yes
    """
    del keep_theirs  # the only way there is: it has to be said
    with invocation.open_table(table) as (catalog, name):
        (state,) = catalog.mirror.status(name)
        waiting = render.many(state.versions_behind, "commit")
        if dry_run:
            invocation.output.result(
                {"table": name, "dry_run": True, "waiting": state.versions_behind},
                lambda screen: screen.line(f"{waiting} of {name} would be made again on top of the log's."),
            )
            return ExitCode.OK
        if not invocation.confirm(f"Take over the log of {name}, and make {waiting} of ours again on top?"):
            invocation.output.note("Nothing was changed.")
            return ExitCode.ERROR
        done = catalog.mirror.resolve(name)

    def view(screen: Screen) -> None:
        screen.line(f"{render.many(len(done.theirs), 'commit')} of others taken over.")
        for old, new in done.ours.items():
            screen.line(f"  our version {old} is now version {new}")
        for old, why in done.lost.items():
            screen.line(f"  ✗ our version {old} is lost: {why}", "red")

    document = {
        "table": name,
        "dry_run": False,
        "theirs": list(done.theirs),
        "ours": {str(old): new for old, new in done.ours.items()},
        "lost": {str(old): why for old, why in done.lost.items()},
    }
    invocation.output.result(document, view, brief=[f"lost {v}: {why}" for v, why in done.lost.items()])
    return ExitCode.CONFLICT if done.lost else ExitCode.OK


@command.command("policy")
@click.argument("table")
@click.argument("policy", required=False, type=click.Choice(["freeze", "adopt"]))
@common
@click.pass_obj
def policy(invocation: Invocation, table: str, policy: str | None) -> None:
    """Show or set what happens when another engine commits beyond the catalog's newest version.

    `freeze` refuses writes until a person decides, `adopt` takes such commits over before the next write. A
    commit in the place of one of ours always freezes the table.

    \b
    Examples:
      deltasql mirror policy sales.orders
      deltasql mirror policy sales.orders adopt
    """
    with invocation.open_table(table) as (catalog, name):
        if policy is not None:
            catalog.mirror.set_policy(name, cast('Literal["freeze", "adopt"]', policy))
        now = catalog.mirror.policy(name)
    invocation.output.result(
        {"table": name, "policy": now},
        lambda screen: screen.line(f"Commits of others to {name}: {now}."),
        brief=[now],
    )
