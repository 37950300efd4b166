"""``deltasql list``: the tables of a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.documents import table_document
from deltalakedb.cli.options import common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("list")
@click.option("--namespace", metavar="NAME", help="Only the tables of a namespace and below it.")
@common
@click.pass_obj
def command(invocation: Invocation, namespace: str | None) -> None:
    """List the tables of a catalog.

    \b
    Examples:
      deltasql list
      deltasql list --namespace sales
      deltasql list --quiet | xargs -n1 deltasql show
    """
    with invocation.open_catalog() as catalog:
        tables = catalog.tables(namespace=namespace)

    def view(screen: Screen) -> None:
        if not tables:
            where = f"The namespace {namespace} holds" if namespace else "The catalog holds"
            screen.line(f"{where} no tables.")
            return
        rows = [
            (
                t.name,
                str(t.head.version),
                render.count(t.head.num_files),
                render.count(t.head.rows),
                render.size(t.head.size_bytes),
                render.iso(t.head.timestamp) or "-",
                t.state,
            )
            for t in tables
        ]
        headers = ("NAME", "VERSION", "FILES", "ROWS", "SIZE", "COMMITTED", "STATE")
        screen.table(headers, rows, right=headers[1:5])

    document = {"catalog": catalog.uri, "tables": [table_document(t) for t in tables]}
    invocation.output.result(document, view, brief=[t.name for t in tables])
