"""``deltasql import``: take over a plain Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import changing, common
from deltalakedb.config import get_config, use_config
from deltalakedb.log.reader import FileTxnLogReader
from deltalakedb.table.places import normal_location
from deltalakedb.transfer.importer import History, ImportProgress, first_version, import_table

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("import")
@click.argument("path")
@click.argument("table")
@click.option(
    "--history",
    type=click.Choice(["auto", "checkpoint", "full"]),
    default="auto",
    show_default=True,
    help="Which versions to load: full is all that the log holds, checkpoint those from the newest one on.",
)
@changing
@common
@click.pass_obj
def command(invocation: Invocation, path: str, table: str, history: str, dry_run: bool) -> None:
    """Take over the plain Delta table at PATH as TABLE. Nothing of it is moved or changed.

    From then on write to it only through the catalog; everybody may go on reading its folder.

    \b
    Examples:
      deltasql import /srv/lake/orders sales.orders --dry-run
      deltasql import /srv/lake/orders sales.orders --history full
    """
    address = invocation.table_address(table)
    which = cast("History", history)
    with use_config(invocation.settings()):
        if dry_run:
            document = _plan(path, which)
        else:
            with invocation.output.progress(f"importing {address.table}") as advance:

                def report(progress: ImportProgress) -> None:
                    advance(progress.versions_done, progress.versions_total)

                done = import_table(path, address.to_uri(redact=False), history=which, progress=report)
            document = done.to_dict()
    document = {**document, "table": address.table, "address": address.to_uri(), "dry_run": dry_run}
    invocation.output.result(document, lambda screen: _view(screen, document), brief=[address.to_uri()])


def _plan(path: str, history: History) -> dict[str, Any]:
    location = normal_location(path)
    reader = FileTxnLogReader(location, get_config().storage_options_for(location))
    newest = reader.latest_version()
    first = first_version(reader, history)
    files = list(reader.files())
    return {
        "location": location,
        "version": newest,
        "first_version": first,
        "num_versions": newest - first + 1,
        "num_files": len(files),
        "size_bytes": sum(f.size for f in files),
    }


def _view(screen: Screen, document: dict[str, Any]) -> None:
    verb = "Would import" if document["dry_run"] else "Imported"
    screen.line(f"{verb} {document['location']} as {document['table']}")
    versions = f"{document['first_version']} to {document['version']}"
    screen.fields(
        [
            ("versions", f"{versions} ({render.count(document['num_versions'])})"),
            ("files", render.count(document["num_files"])),
            ("size", render.size(document["size_bytes"])),
            ("took", f"{document['seconds']:g} s" if "seconds" in document else None),
            ("address", document["address"]),
        ]
    )
