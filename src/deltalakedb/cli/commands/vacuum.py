"""``deltasql vacuum``: delete files that no retained version of a table needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("vacuum")
@click.argument("table")
@click.option(
    "--retention-hours",
    type=click.IntRange(min=0),
    metavar="HOURS",
    help="How long removed files stay; by default what the table's property says, or a week.",
)
@click.option(
    "--no-check", is_flag=True, help="Allow a shorter retention than the table's: readers may lose files."
)
@click.option("--full", is_flag=True, help="Also list the table's folder, for files that no version knows.")
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    help="A version whose files stay; may be given more than once.",
)
@changing
@common
@click.pass_obj
def command(
    invocation: Invocation,
    table: str,
    retention_hours: int | None,
    no_check: bool,
    full: bool,
    keep_versions: tuple[int, ...],
    dry_run: bool,
) -> int:
    """Delete files that no version needs which the retention lets a reader ask for.

    Time travel to versions older than the retention ends with it. Files of open transactions stay.

    \b
    Examples:
      deltasql vacuum sales.orders --dry-run
      deltasql vacuum sales.orders --full --keep-version 7 --yes
    """
    with invocation.open_table(table) as (catalog, name):
        opened = catalog.table(name)
        wanted = {
            "retention_hours": retention_hours,
            "enforce_retention_duration": not no_check,
            "full": full,
            "keep_versions": list(keep_versions) or None,
        }
        files = opened.vacuum(dry_run=True, **wanted)  # type: ignore[arg-type]  # one mapping for both calls
        if not dry_run and files:
            if not invocation.confirm(f"Delete {render.many(len(files), 'file')} of {name}?"):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
            files = opened.vacuum(dry_run=False, **wanted)  # type: ignore[arg-type]

    def view(screen: Screen) -> None:
        done = "Would delete" if dry_run else "Deleted"
        screen.line(f"{done} {render.many(len(files), 'file')} of {name}.")
        for path in files:
            screen.line(f"  {path}")

    document = {"table": name, "dry_run": dry_run, "files": files, "version": opened.version()}
    invocation.output.result(document, view, brief=files)
    return ExitCode.OK
