"""``deltasql export``: a SQL-backed table as a plain Delta table, elsewhere or in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import LEVEL, changing, common
from deltalakedb.transfer.exporting.export import export_table

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.transfer.exporting.copying import DataMode
    from deltalakedb.transfer.exporting.export import ExportHistory
    from deltalakedb.transfer.verifying.report import Level


@click.command("export")
@click.argument("table")
@click.argument("path", required=False)
@click.option("--in-place", is_flag=True, help="Leave the table where it is, and let the catalog forget it.")
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
@changing
@common
@click.pass_obj
def command(
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
    the table; PATH must be another place. Exit code 3 where the plain table is not what the catalog says;
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
            if not invocation.confirm(f"Shall the catalog forget {table}? Its files at {where} stay."):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
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
