"""``deltasql checkpoint``: write a checkpoint of a table's newest published version."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind


@click.command("checkpoint")
@click.argument("table")
@click.option(
    "--kind",
    type=click.Choice(["classic", "v2"]),
    help="One file, or V2 with sidecars; by default what the table asks for.",
)
@common
@click.pass_obj
def command(invocation: Invocation, table: str, kind: str | None) -> None:
    """Write a checkpoint, so that readers of _delta_log begin there instead of at version 0.

    It is streamed from the catalog. A complete classic checkpoint of the same version is left as it is.
    `deltasql mirror run` does this on its own whenever delta.checkpointInterval commits have passed.

    \b
    Examples:
      deltasql checkpoint sales.orders
      deltasql checkpoint sales.orders --kind v2 --json
    """
    with invocation.open_table(table) as (catalog, name):
        written = catalog.mirror.checkpoint(name, kind=cast("CheckpointKind | None", kind))

    def view(screen: Screen) -> None:
        files = render.many(written.num_add_files, "file")
        size = render.size(written.size_in_bytes)
        what = f"{written.kind} checkpoint of {name} at version {written.version}: {files}, {size}."
        screen.line(
            f"Wrote a {what}" if written.created else f"There was already a {what} It was left as it is."
        )

    document = {
        "table": name,
        "version": written.version,
        "kind": written.kind,
        "paths": list(written.paths),
        "actions": written.size,
        "size_in_bytes": written.size_in_bytes,
        "num_add_files": written.num_add_files,
        "created": written.created,
    }
    invocation.output.result(document, view, brief=written.paths)
