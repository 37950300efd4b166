"""``deltasql vacuum``: delete files that no retained version of a table needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common, spark_engine

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen


@click.command("vacuum")
@click.argument("table")
@click.option(
    "--retention-hours",
    type=click.IntRange(min=0),
    metavar="HOURS",
    help="How long removed files stay; by default what the table's property says, or a week.",
)
@click.option(
    "--no-check", is_flag=True, help="Allow a shorter retention than the table's: readers may lose files."
)
@click.option("--full", is_flag=True, help="Also list the table's folder, for files that no version knows.")
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    help="A version whose files stay; may be given more than once.",
)
@click.option("--output", metavar="PATH", help="Write the list there as Parquet, with --engine spark.")
@spark_engine
@changing
@common
@click.pass_obj
def command(
    invocation: Invocation,
    table: str,
    retention_hours: int | None,
    no_check: bool,
    full: bool,
    keep_versions: tuple[int, ...],
    output: str | None,
    engine: str,
    master: str | None,
    remote: str | None,
    dry_run: bool,
) -> int:
    """Delete files that no version needs which the retention lets a reader ask for.

    Time travel to versions older than the retention ends with it. Files of open transactions stay. With
    --engine spark, executors list the table's folder; that needs --dry-run and --full.

    \b
    Examples:
      deltasql vacuum sales.orders --dry-run
      deltasql vacuum sales.orders --full --keep-version 7 --yes
      deltasql vacuum web.clicks --full --dry-run --engine spark --output s3://bucket/garbage
    """
    if engine == "spark":
        if not (dry_run and full) or no_check or keep_versions:
            raise click.UsageError(
                "--engine spark only lists files: it needs --dry-run and --full, and takes neither "
                "--no-check nor --keep-version"
            )
        return _list_by_spark(invocation, table, retention_hours, output, master, remote)
    if output is not None:
        raise click.UsageError("--output needs --engine spark")
    with invocation.open_table(table) as (catalog, name):
        opened = catalog.table(name)
        wanted = {
            "retention_hours": retention_hours,
            "enforce_retention_duration": not no_check,
            "full": full,
            "keep_versions": list(keep_versions) or None,
        }
        files = opened.vacuum(dry_run=True, **wanted)  # type: ignore[arg-type]  # one mapping for both calls
        if not dry_run and files:
            if not invocation.confirm(f"Delete {render.many(len(files), 'file')} of {name}?"):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
            files = opened.vacuum(dry_run=False, **wanted)  # type: ignore[arg-type]

    def view(screen: Screen) -> None:
        done = "Would delete" if dry_run else "Deleted"
        screen.line(f"{done} {render.many(len(files), 'file')} of {name}.")
        for path in files:
            screen.line(f"  {path}")

    document = {"table": name, "dry_run": dry_run, "files": files, "version": opened.version()}
    invocation.output.result(document, view, brief=files)
    return ExitCode.OK


def _list_by_spark(
    invocation: Invocation,
    table: str,
    retention_hours: int | None,
    output: str | None,
    master: str | None,
    remote: str | None,
) -> int:
    from deltalakedb.spark.maintenance import vacuum_list

    with invocation.open_table(table) as (catalog, name):
        done = vacuum_list(
            invocation.spark_session(master, remote),
            catalog.table_uri(name),
            retention_hours=retention_hours,
            output=output,
        )
    paths = list(done.paths or ())

    def view(screen: Screen) -> None:
        screen.line(
            f"Would delete {render.many(done.num_files, 'file')} of {name} ({render.size(done.size_bytes)}), "
            f"{done.num_unknown:,} of them in no version{f'; see {output}' if output else ''}."
        )
        for path in paths:
            screen.line(f"  {path}")

    document = {
        "table": name,
        "dry_run": True,
        "files": None if done.paths is None else paths,
        "version": done.version,
        "num_files": done.num_files,
        "size_bytes": done.size_bytes,
        "num_unknown": done.num_unknown,
        "output": output,
    }
    invocation.output.result(document, view, brief=paths)
    return ExitCode.OK
