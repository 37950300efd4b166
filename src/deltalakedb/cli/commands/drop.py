"""``deltasql drop``: forget a table; its files stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("drop")
@click.argument("table")
@click.option("--force", is_flag=True, help="Drop it although commits were never published, and lose them.")
@changing
@common
@click.pass_obj
def command(invocation: Invocation, table: str, force: bool, dry_run: bool) -> int:
    """Forget a table. Its data files and _delta_log stay: what remains is a plain Delta table.

    \b
    Examples:
      deltasql drop sales.orders --dry-run
      deltasql drop sales.orders --yes
    """
    with invocation.open_table(table) as (catalog, name):
        row = catalog.describe(name)
        what = f"{name} (version {row.head.version}, {render.many(row.head.num_files, 'file')})"
        if dry_run:
            catalog.drop_table(name, force=force, dry_run=True)
        else:
            if not invocation.confirm(f"Drop {what} from {catalog.uri}? Its files at {row.location} stay."):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
            catalog.drop_table(name, force=force)

    def view(screen: Screen) -> None:
        screen.line(f"Would drop {what}." if dry_run else f"Dropped {what}.")
        stay = "would stay" if dry_run else "stay"
        screen.line(f"Its data files and _delta_log {stay} at {row.location} as a plain Delta table.")

    document = {
        "table": name,
        "dropped": not dry_run,
        "dry_run": dry_run,
        "version": row.head.version,
        "location": row.location,
        "files_kept": True,
    }
    invocation.output.result(document, view)
    return ExitCode.OK
