"""``deltasql files``: which files a table has, or which of them a condition needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import common
from deltalakedb.metastore.files import scan_files
from deltalakedb.protocol.codec import decode_json
from deltalakedb.table.filters import predicate_of

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen

_COLUMNS = ("path", "size", "num_records", "modification_time", "partition_values", "add_version")


@click.command("files")
@click.argument("table")
@click.option("--where", metavar="SQL", help="Only files that may hold rows for a condition.")
@click.option(
    "--version", metavar="N", type=click.IntRange(min=0), help="The files at a version; default: the newest."
)
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="Show at most so many.")
@common
@click.pass_obj
def command(
    invocation: Invocation, table: str, where: str | None, version: int | None, limit: int | None
) -> None:
    """List a table's live files; with --where, the plan of a query.

    \b
    Examples:
      deltasql files sales.orders
      deltasql files sales.orders --where "city = 'Rome' AND id > 100"
      deltasql files sales.orders --version 3 --quiet
    """
    with invocation.open_table(table) as (catalog, name):
        log = catalog.log(name)
        opened = log.open(version)
        predicate = predicate_of(where, opened.snapshot.metadata)
        found = scan_files(log.database, opened, _COLUMNS, where=predicate)
    files = [_file(row) for row in found.slice(0, limit).to_pylist()]
    document = {
        "table": name,
        "version": opened.snapshot.version,
        "where": where,
        "num_files": found.num_rows,
        "files": files,
    }
    invocation.output.result(
        document, lambda screen: _view(screen, document), brief=[f["path"] for f in files]
    )


def _file(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": row["path"],
        "size": row["size"],
        "num_records": row["num_records"],
        "modified_at": render.iso(row["modification_time"]),
        "added_in_version": row["add_version"],
        "partition_values": decode_json(row["partition_values"]),
    }


def _view(screen: Screen, document: dict[str, Any]) -> None:
    files, total = document["files"], document["num_files"]
    if files:
        rows = [
            (
                f["path"],
                render.size(f["size"]),
                render.count(f["num_records"]),
                str(f["added_in_version"]),
                ", ".join(f"{k}={'null' if v is None else v}" for k, v in f["partition_values"].items())
                or "-",
            )
            for f in files
        ]
        headers = ("PATH", "SIZE", "ROWS", "ADDED IN", "PARTITION")
        screen.table(headers, rows, right=headers[1:4])
    which = "may hold rows for the condition" if document["where"] else f"at version {document['version']}"
    shown = f", {len(files)} shown" if len(files) < total else ""
    screen.line(f"{render.many(total, 'file')} {which}{shown}", "dim")
