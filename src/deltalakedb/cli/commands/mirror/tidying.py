"""``deltasql mirror prune``, ``clean`` and ``compact``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("prune", short_help="Delete old commit bytes in the catalog.")
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@common
@click.pass_obj
def prune(invocation: Invocation, table: str, dry_run: bool) -> None:
    """Delete the bytes of published commits that a published checkpoint covers from the catalog.

    Tables, history and time travel stay as they are. What goes is what repair and rebuild would write these
    commits from.

    \b
    Examples:
      deltasql mirror prune sales.orders --dry-run
      deltasql mirror prune sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        done = catalog.mirror.prune(name, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    invocation.output.result(
        {**done.to_dict(), "dry_run": dry_run},
        lambda screen: screen.line(
            f"The bytes of {render.many(done.commits, 'commit')} of {name} {verb}, up to version {done.upto}."
            if done.commits
            else f"There is nothing to delete: no published checkpoint of {name} covers more commits."
        ),
    )


@click.command("clean", short_help="Delete log files that are old and covered.")
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@common
@click.pass_obj
def clean(invocation: Invocation, table: str, dry_run: bool) -> None:
    """Delete log files whose retention has ended and that a published checkpoint covers.

    The retention is the table's delta.logRetentionDuration. Readers outside cannot travel to these versions
    any more; in the catalog they stay. Refused while the table is frozen or its log is ahead of the
    catalog (exit code 5).

    \b
    Examples:
      deltasql mirror clean sales.orders --dry-run
      deltasql mirror clean sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        done = catalog.mirror.clean(name, dry_run=dry_run)
    deleted = [meta.path for meta in done.delete]

    def view(screen: Screen) -> None:
        verb = "would be deleted" if dry_run else "deleted"
        why = f": {done.reason}" if done.reason else ""
        screen.line(f"{render.many(len(deleted), 'log file')} {verb}{why}.")
        for path in deleted if dry_run else ():
            screen.line(f"  {path}")

    document = {"table": name, "checkpoint": done.checkpoint, "deleted": deleted, "reason": done.reason}
    invocation.output.result({**document, "dry_run": dry_run}, view, brief=deleted)


@click.command("compact", short_help="Write one file for a range of versions.")
@click.argument("table")
@click.argument("start", type=click.IntRange(min=0))
@click.argument("end", type=click.IntRange(min=1))
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@common
@click.pass_obj
def compact(invocation: Invocation, table: str, start: int, end: int, dry_run: bool) -> None:
    """Write one log compaction file over a range of published versions.

    Readers that know of such files read it instead of the single commits, which stay.

    \b
    Examples:
      deltasql mirror compact sales.orders 100 199 --dry-run
      deltasql mirror compact sales.orders 100 199
    """
    with invocation.open_table(table) as (catalog, name):
        path = catalog.mirror.compact(name, start, end, dry_run=dry_run)
    verb = "would be" if dry_run else "is"
    invocation.output.result(
        {"table": name, "start": start, "end": end, "path": path, "dry_run": dry_run},
        lambda screen: screen.line(f"{path} {verb} written." if path else "It was there already."),
    )
