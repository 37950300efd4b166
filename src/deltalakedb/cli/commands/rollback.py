"""``deltasql rollback``: take an import back."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import LEVEL, changing, common
from deltalakedb.transfer.rollback import rollback_import

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.transfer.verifying.report import Level


@click.command("rollback")
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
@changing
@common
@click.pass_obj
def command(invocation: Invocation, table: str, keep_batches: int | None, verify: str, dry_run: bool) -> int:
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
            if not invocation.confirm(f"Shall I {what}? Its files at {report.location} stay."):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
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
