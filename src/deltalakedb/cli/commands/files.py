"""Commands about the files of tables: files, vacuum, gc and checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, command
from deltalakedb.metastore.files import scan_files
from deltalakedb.protocol.codec import decode_json
from deltalakedb.table.filters import predicate_of

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind


_COLUMNS = ("path", "size", "num_records", "modification_time", "partition_values", "add_version")


@command("files")
@click.argument("table")
@click.option("--where", metavar="SQL", help="Only files that may hold rows for a condition.")
@click.option(
    "--version", metavar="N", type=click.IntRange(min=0), help="The files at a version; default: the newest."
)
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="Show at most so many.")
def list_files(
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


@command("vacuum", changing)
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
def vacuum(
    invocation: Invocation,
    table: str,
    retention_hours: int | None,
    no_check: bool,
    full: bool,
    keep_versions: tuple[int, ...],
    dry_run: bool,
) -> int:
    """Delete data files that no retained version references.

    Time travel to versions older than the retention ends with it. Files of open transactions stay.

    \b
    Examples:
      deltasql vacuum sales.orders --dry-run
      deltasql vacuum sales.orders --full --keep-version 7 --yes
    """
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
            invocation.confirm(f"Delete {render.many(len(files), 'file')} of {name}?")
            files = opened.vacuum(dry_run=False, **wanted)  # type: ignore[arg-type]

    def view(screen: Screen) -> None:
        done = "Would delete" if dry_run else "Deleted"
        screen.line(f"{done} {render.many(len(files), 'file')} of {name}.")
        for path in files:
            screen.line(f"  {path}")

    document = {"table": name, "dry_run": dry_run, "files": files, "version": opened.version()}
    invocation.output.result(document, view, brief=files)
    return ExitCode.OK


@command("gc", changing)
@click.argument("table", required=False)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Younger files stay: another process may be about to commit them.",
)
def gc(invocation: Invocation, table: str | None, older_than: float, dry_run: bool) -> int:
    """Delete data files that crashed operations left in the folder of one table, or of all.

    Files that a version ever named are not touched: that is what `deltasql vacuum` is for. Tables that are
    frozen, or whose log is ahead of the catalog, are left alone.

    \b
    Examples:
      deltasql gc --dry-run
      deltasql gc sales.orders --yes --json
    """
    with invocation.open_optional(table) as (catalog, name):
        found = catalog.gc(name, older_than_hours=older_than, dry_run=True)
        count = sum(len(g.files) + len(g.work_folders) for g in found)
        if not dry_run and count:
            invocation.confirm(f"Delete {render.many(count, 'file')} that no version knows?")
            found = catalog.gc(name, older_than_hours=older_than)

    def view(screen: Screen) -> None:
        for g in found:
            if g.kept is not None:
                screen.line(f"{g.table} was left alone: {g.kept}")
        if not count:
            screen.line("No leftover files.")
            return
        screen.line("Would delete:" if dry_run else "Deleted:")
        rows = [
            [g.table, str(len(g.files)), render.size(g.size_bytes), str(len(g.work_folders))]
            for g in found
            if g.files or g.work_folders
        ]
        screen.table(
            ("table", "files", "size", "work folders"), rows, right=("files", "size", "work folders")
        )

    document = {"dry_run": dry_run, "tables": [g.to_dict() for g in found]}
    invocation.output.result(document, view, brief=[path for g in found for path in g.files])
    return ExitCode.OK


@command("checkpoint")
@click.argument("table")
@click.option(
    "--kind",
    type=click.Choice(["classic", "v2"]),
    help="One file, or V2 with sidecars; by default what the table asks for.",
)
def checkpoint(invocation: Invocation, table: str, kind: str | None) -> None:
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
