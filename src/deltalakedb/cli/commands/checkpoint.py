"""``deltasql checkpoint``: write a checkpoint of a table's newest published version."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import common, spark_engine

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind


@click.command("checkpoint")
@click.argument("table")
@click.option(
    "--kind",
    type=click.Choice(["classic", "multipart", "v2"]),
    help="One file, several parts or V2 with sidecars; by default what the table asks for.",
)
@click.option(
    "--rows-per-part",
    type=click.IntRange(min=1),
    metavar="FILES",
    help="About how many files a part has, with --engine spark.",
)
@spark_engine
@common
@click.pass_obj
def command(
    invocation: Invocation,
    table: str,
    kind: str | None,
    rows_per_part: int | None,
    engine: str,
    master: str | None,
    remote: str | None,
) -> None:
    """Write a checkpoint, so that readers of _delta_log begin there instead of at version 0.

    It is streamed from the catalog. A whole checkpoint of the same kind and version is left as it is; several
    parts are written where there are more than 500,000 files. `deltasql mirror run` does this on its own
    whenever delta.checkpointInterval commits have passed. With --engine spark, executors write the parts and
    read the catalog, which must be on Postgres, or on SQLite with a local master.

    \b
    Examples:
      deltasql checkpoint sales.orders
      deltasql checkpoint sales.orders --kind v2 --json
      deltasql checkpoint web.clicks --engine spark --master spark://host:7077
    """
    if engine == "spark" and kind is not None:
        raise click.UsageError("--kind does not go with --engine spark, which writes parts or sidecars")
    if engine == "local" and rows_per_part is not None:
        raise click.UsageError("--rows-per-part needs --engine spark")
    with invocation.open_table(table) as (catalog, name):
        if engine == "local":
            written = catalog.mirror.checkpoint(name, kind=cast("CheckpointKind | None", kind))
        else:
            from deltalakedb.delta_log.checkpoint_writer import ROWS_PER_PART
            from deltalakedb.spark.maintenance import checkpoint

            spark, rows = invocation.spark_session(master, remote), rows_per_part or ROWS_PER_PART
            written = checkpoint(spark, catalog.table_uri(name), rows_per_part=rows)

    def view(screen: Screen) -> None:
        files = render.many(written.num_add_files, "file")
        size = render.size(written.size_in_bytes)
        if kind is not None and kind != written.kind:
            screen.line(f"So few files make a {written.kind} checkpoint: a {kind} one would have one part.")
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
        "parts": written.parts,
        "created": written.created,
    }
    invocation.output.result(document, view, brief=written.paths)
