"""``deltasql gc``: delete what operations that died have left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("gc")
@click.argument("table", required=False)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Younger files stay: somebody may be about to commit them.",
)
@changing
@common
@click.pass_obj
def command(invocation: Invocation, table: str | None, older_than: float, dry_run: bool) -> int:
    """Delete what operations that died have left under the folders of one table, or of all.

    Files that a version ever named are not touched: that is what `deltasql vacuum` is for. Tables that are
    frozen, or whose log is ahead of the catalog, are left alone.

    \b
    Examples:
      deltasql gc --dry-run
      deltasql gc sales.orders --yes --json
    """
    with invocation.open_maybe(table) as (catalog, name):
        found = catalog.gc(name, older_than_hours=older_than, dry_run=True)
        count = sum(len(g.files) + len(g.work_folders) for g in found)
        if not dry_run and count:
            if not invocation.confirm(f"Delete {render.many(count, 'file')} that no version knows?"):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
            found = catalog.gc(name, older_than_hours=older_than)

    def view(screen: Screen) -> None:
        for g in found:
            if g.kept is not None:
                screen.line(f"{g.table} was left alone: {g.kept}")
        if not count:
            screen.line("Nothing was left behind.")
            return
        screen.line("Would delete:" if dry_run else "Deleted:")
        rows = [
            [g.table, str(len(g.files)), render.size(g.size_bytes), str(len(g.work_folders))]
            for g in found
            if g.files or g.work_folders
        ]
        screen.table(
            ("table", "files", "size", "work folders"), rows, right=("files", "size", "work folders")
        )

    document = {"dry_run": dry_run, "tables": [g.to_dict() for g in found]}
    invocation.output.result(document, view, brief=[path for g in found for path in g.files])
    return ExitCode.OK
