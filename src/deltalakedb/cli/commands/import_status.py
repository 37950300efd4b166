"""``deltasql import-status``: how imports stand, asked of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import common
from deltalakedb.transfer.importing.report import import_status

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("import-status")
@click.argument("table", required=False)
@common
@click.pass_obj
def command(invocation: Invocation, table: str | None) -> None:
    """Show imports, running and ended: phase, batches, rate, time left, memory, error.

    \b
    Examples:
      deltasql import-status
      deltasql import-status sales.orders --json
    """
    address = invocation.catalog_address() if table is None else invocation.table_address(table)
    with invocation.open_catalog(address.catalog):
        found = import_status(address.to_uri(redact=False))

    def view(screen: Screen) -> None:
        if not found:
            screen.line("There were no imports.")
            return
        rows = [
            (
                s.table,
                s.phase + (", interrupted" if s.finished_at is None and not s.at_work else ""),
                f"{s.batches_done}/{s.batches_total}",
                render.count(s.actions_done),
                "-" if s.rate is None else f"{s.rate:,.0f}/s",
                "-" if s.seconds_left is None else f"{s.seconds_left:.0f} s",
                render.size(s.memory_bytes) if s.memory_bytes else "-",
                render.iso(s.updated_at) or "-",
                s.error or "-",
            )
            for s in found
        ]
        for s in found:
            if s.lag is not None:
                behind = f"{render.many(s.lag, 'version')} behind" if s.lag else "in step"
                screen.line(f"{s.table} follows {s.location}: {behind} at {render.iso(s.looked_at)}")
        headers = ("NAME", "PHASE", "BATCHES", "ACTIONS", "RATE", "LEFT", "MEMORY", "HEARD OF", "ERROR")
        screen.table(headers, rows, right=headers[2:7])

    document = {"catalog": address.catalog.to_uri(), "imports": [s.to_dict() for s in found]}
    invocation.output.result(document, view, brief=[f"{s.table} {s.phase}" for s in found])
