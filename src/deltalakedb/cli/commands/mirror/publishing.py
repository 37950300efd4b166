"""``deltasql mirror run``, ``pause`` and ``resume``: publishing what waits, or letting it wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import common
from deltalakedb.cli.signals import until_told
from deltalakedb.mirror.reconciler import checked_interval

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.mirror.reconciler import Pass


@click.command("run", short_help="Publish what waits, once or as a service.")
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

    A table whose last attempt failed is left alone until its next try is due; naming it forces one. What was
    left is named: frozen tables (exit code 5), failed and waiting ones and those whose checkpoint or the
    manifest of whose transaction cannot be written (75), paused ones (0: somebody wants it so).

    \b
    Examples:
      deltasql mirror run
      deltasql mirror run sales.orders
      deltasql mirror run --watch --interval 5
    """
    if watch and table is not None:
        raise click.UsageError("--watch looks after all tables: leave the name out")
    with invocation.open_maybe(table) as (catalog, name):
        if watch:
            checked_interval(interval)
            invocation.output.note(f"Publishing the tables of {catalog.uri}; Ctrl-C ends it.")
            with until_told() as stop:
                done = catalog.mirror.run(stop=stop, interval=interval)
        else:
            done = catalog.mirror.run() if name is None else catalog.mirror.publish(name)
    return _tell_pass(invocation, done)


def _tell_pass(invocation: Invocation, done: Pass, **more: Any) -> int:
    failed, diverged = sorted(set(done.failed)), sorted(set(done.diverged))
    frozen = sorted(set(done.frozen) - set(diverged))

    def view(screen: Screen) -> None:
        made = f", {render.many(done.checkpoints, 'checkpoint')} written" if done.checkpoints else ""
        screen.line(f"{render.many(done.published, 'version')} published{made}.")
        for name in failed:
            screen.line(f"  ! {name} waits: `deltasql mirror status {name}` says why", "yellow")
        for name in diverged:
            screen.line(f"  ✗ {name} is frozen: somebody else's commit stands in the place of ours", "red")
        for name in frozen:
            screen.line(f"  ✗ {name} is frozen: `deltasql mirror status {name}` says why", "red")
        for name in done.backing_off:
            screen.line(
                f"  ! {name} failed and waits for its next try: `deltasql mirror run {name}`", "yellow"
            )
        for name in done.no_checkpoint:
            why = f"`deltasql mirror status {name}` says why"
            screen.line(f"  ! the checkpoint of {name} cannot be written: {why}", "yellow")
        for name in done.no_manifest:
            why = f"`deltasql mirror status {name}` says why"
            screen.line(f"  ! the manifest of a transaction cannot be written beside {name}: {why}", "yellow")
        for name in done.paused:
            whole = "`deltasql mirror resume` where the whole catalog is"
            screen.line(f"  - {name} is paused: `deltasql mirror resume {name}`, {whole}")
        for name in done.late:
            screen.line(f"  ! {name} is behind for more than a minute", "red")

    document = {
        **more,
        "published": done.published,
        "checkpoints": done.checkpoints,
        "failed": failed,
        "diverged": diverged,
        "frozen": list(done.frozen),
        "backing_off": list(done.backing_off),
        "paused_tables": list(done.paused),
        "late": list(done.late),
        "no_checkpoint": list(done.no_checkpoint),
        "no_manifest": list(done.no_manifest),
    }
    invocation.output.result(document, view, brief=[*failed, *diverged, *frozen, *done.backing_off])
    if diverged or frozen:
        return ExitCode.FROZEN
    waits = failed or done.backing_off or done.late or done.no_checkpoint or done.no_manifest
    return ExitCode.TRY_AGAIN if waits else ExitCode.OK


@click.command("pause", short_help="Let publishing stand still.")
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
    with invocation.open_maybe(table) as (catalog, name):
        catalog.mirror.pause(name)
    what = name or "every table"
    command = "deltasql mirror resume" + (f" {name}" if name else "")
    invocation.output.result(
        {"table": name, "paused": True},
        lambda screen: screen.line(f"Publishing of {what} stands still until `{command}`."),
    )


@click.command("resume")
@click.argument("table", required=False)
@common
@click.pass_obj
def resume(invocation: Invocation, table: str | None) -> int:
    """Let publishing go on, and catch up.

    Without a table the pause of the whole catalog ends. Tables that were paused by name stay so, and are
    named: resume each by its name.

    \b
    Examples:
      deltasql mirror resume sales.orders
      deltasql mirror resume
    """
    with invocation.open_maybe(table) as (catalog, name):
        done = catalog.mirror.resume(name)
    return _tell_pass(invocation, done, table=name, paused=False)
