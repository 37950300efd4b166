"""Commands about the files of tables: files, vacuum, gc and checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import (
    CHANGING,
    LEASING,
    SNAPSHOT,
    SPARK_ENGINE,
    flag,
    number,
    option,
    table_command,
)
from deltalakedb.cli.output import Item, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation
    from deltalakedb.delta_log.checkpoint_writer import CheckpointKind


_COLUMNS = ("path", "size", "num_records", "modification_time", "partition_values", "add_version")


@table_command("files", SNAPSHOT)
@option("--where", metavar="SQL", help="Only files that may hold rows for a condition.")
@number("--limit", "N", "Show at most N files.")
def list_files(
    cli: Invocation, catalog: Catalog, name: str, where: str | None, version: int | None, limit: int | None
) -> None:
    """List a table's live files; with --where, the plan of a query.

    \b
    Examples:
      deltasql files sales.orders
      deltasql files sales.orders --where "city = 'Rome' AND id > 100"
      deltasql files sales.orders --version 3 --quiet
      deltasql files sales.orders --at 2026-11-15T12:00Z
    """
    from deltalakedb.metastore.files import scan_files
    from deltalakedb.table.arguments import predicate_of

    log = catalog.log(name)
    opened = log.open(version)
    predicate = predicate_of(where, opened.snapshot.metadata)
    found = scan_files(log.database, opened, _COLUMNS, where=predicate)
    shown = found.slice(0, limit)
    about = {"table": name, "version": opened.snapshot.version, "where": where, "num_files": found.num_rows}
    which = "may hold rows for the condition" if where else f"at version {opened.snapshot.version}"
    less = f", {shown.num_rows} shown" if shown.num_rows < found.num_rows else ""
    view: list[Item] = [Rows("PATH|SIZE>|ROWS>|ADDED IN>|PARTITION", _rows(shown))] if shown.num_rows else []
    view.append((f"{render.many(found.num_rows, 'file')} {which}{less}", "dim"))
    cli.show(lambda: about | {"files": _documents(shown)}, view, _cells(shown, "path"))


def _cells(files: pa.Table, *names: str) -> Iterator[Any]:
    """The values of a column, or rows of several; a long list is not in memory as a whole."""
    for batch in files.select(names).to_batches(max_chunksize=10_000):
        columns = [column.to_pylist() for column in batch.columns]
        yield from columns[0] if len(columns) == 1 else zip(*columns, strict=True)


def _rows(files: pa.Table) -> Iterator[tuple[object, ...]]:
    from deltalakedb.protocol.json_text import decode_json

    # many files share their values
    partition = lru_cache(maxsize=10_000)(
        lambda text: ", ".join(f"{k}={v or 'null'}" for k, v in decode_json(text).items())
    )
    for path, size, rows, added, values in _cells(
        files, "path", "size", "num_records", "add_version", "partition_values"
    ):
        yield path, render.size(size), render.count(rows), added, partition(values) or None


def _documents(files: pa.Table) -> list[dict[str, Any]]:
    from deltalakedb.protocol.json_text import decode_json

    return [
        {
            "path": path,
            "size": size,
            "num_records": rows,
            "modified_at": render.iso(modified),
            "added_in_version": added,
            "partition_values": decode_json(values),
        }
        for path, size, rows, modified, values, added in _cells(files, *_COLUMNS)
    ]


@table_command("packs")
@flag("--rebuild", "Build the packs again, recent files included.")
def packs(cli: Invocation, catalog: Catalog, name: str, rebuild: bool) -> None:
    """Show how the statistics of a table's files are stored, or build their packs again.

    Statistics of new files are JSON in the catalog; many of them together become a pack, which planning reads
    by columns. Writers and `deltasql mirror run` pack on their own.

    \b
    Examples:
      deltasql packs sales.orders
      deltasql packs sales.orders --rebuild
    """
    if rebuild:
        catalog.rebuild_packs(name)
    found = catalog.pack_status(name)
    line = (
        f"{render.many(found.packed_files, 'file')} in {render.many(found.packs, 'pack')}, "
        f"{render.size(found.column_bytes)} of columns and {render.size(found.block_bytes)} of JSON; "
        f"{render.many(found.recent_files, 'recent file')}."
    )
    cli.show({"table": name, "rebuilt": rebuild, **asdict(found)}, line, [str(found.packs)])


def _check_vacuum(
    *,
    engine: str,
    output: str | None,
    dry_run: bool,
    full: bool,
    no_check: bool,
    keep_versions: tuple[int, ...],
    **_: Any,
) -> None:
    if engine == "spark" and (not (dry_run and full) or no_check or keep_versions):
        raise click.UsageError(
            "--engine spark only lists files: it needs --dry-run and --full, and takes neither "
            "--no-check nor --keep-version"
        )
    if engine != "spark" and output is not None:
        raise click.UsageError("--output needs --engine spark")


@table_command("vacuum", CHANGING, SPARK_ENGINE, check=_check_vacuum)
@number(
    "--retention-hours",
    "HOURS",
    "How long removed files stay; by default what the table's property says, or a week.",
)
@flag("--no-check", "Allow a shorter retention than the table's: readers may lose files.")
@flag("--full", "Also list the table's folder, for files that no version references.")
@option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    help="A version whose files stay; repeatable.",
)
@option("--output", metavar="PATH", help="Write the list there as Parquet, with --engine spark.")
def vacuum(
    cli: Invocation,
    catalog: Catalog,
    name: str,
    retention_hours: int | None,
    no_check: bool,
    full: bool,
    keep_versions: tuple[int, ...],
    output: str | None,
    dry_run: bool,
    engine: str,
    **servers: Any,
) -> None:
    """Delete data files that no retained version references.

    Time travel to versions older than the retention ends with it. Files of open transactions stay. With
    --engine spark, executors list the table's folder; that needs --dry-run and --full.

    \b
    Examples:
      deltasql vacuum sales.orders --dry-run
      deltasql vacuum sales.orders --full --keep-version 7 --yes
      deltasql vacuum web.clicks --full --dry-run --engine spark --output s3://bucket/garbage
    """
    if engine == "spark":
        _vacuum_list(cli, catalog, name, servers, retention_hours=retention_hours, output=output)
        return
    opened = catalog.table(name)
    wanted: dict[str, Any] = {
        "retention_hours": retention_hours,
        "enforce_retention_duration": not no_check,
        "full": full,
        "keep_versions": list(keep_versions) or None,
    }
    files = opened.vacuum(dry_run=True, **wanted)
    if not dry_run:
        if files:
            cli.confirm(f"Delete {render.many(len(files), 'file')} of {name}?")
        # without files, too: it records the end of a vacuum that was interrupted
        files = opened.vacuum(dry_run=False, **wanted)
    line = f"{'Would delete' if dry_run else 'Deleted'} {render.many(len(files), 'file')} of {name}."
    document = {"table": name, "dry_run": dry_run, "files": files, "version": opened.version()}
    cli.show(document, [line, *(f"  {path}" for path in files)], files)


def _vacuum_list(cli: Invocation, catalog: Catalog, name: str, servers: dict[str, Any], **how: Any) -> None:
    from deltalakedb.spark import sessions
    from deltalakedb.spark.maintenance import vacuum_list

    done = vacuum_list(sessions.start(**servers), catalog.table_uri(name), **how)
    document = asdict(done) | {"dry_run": True}
    document["files"] = document.pop("paths")
    line = (
        f"Would delete {render.many(done.num_files, 'file')} of {name} ({render.size(done.size_bytes)}), "
        f"{done.num_unknown:,} of them in no version{f'; see {done.output}' if done.output else ''}."
    )
    paths = done.paths or ()
    cli.show(document, [line, *(f"  {path}" for path in paths)], paths)


@table_command("gc", CHANGING, required=False)
@option(
    "--older-than",
    metavar="HOURS",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    help="Younger files stay: another process may be about to commit them.",
)
def gc(cli: Invocation, catalog: Catalog, name: str | None, older_than: float, dry_run: bool) -> None:
    """Delete data files that crashed operations left in the folder of one table, or of all.

    Files that a version ever named are not touched: that is what `deltasql vacuum` is for. Tables that are
    frozen, or whose log is ahead of the catalog, are left alone.

    \b
    Examples:
      deltasql gc --dry-run
      deltasql gc sales.orders --yes --json
    """
    found = catalog.gc(name, older_than_hours=older_than, dry_run=True)
    count = sum(len(g.files) + len(g.work_folders) for g in found)
    if not dry_run and count:
        cli.confirm(f"Delete {render.many(count, 'file')} that no version references?")
        found = catalog.gc(name, older_than_hours=older_than)
    leftovers = [g for g in found if g.files or g.work_folders]
    rows = [(g.table, len(g.files), render.size(g.size_bytes), len(g.work_folders)) for g in leftovers]
    view: list[Item] = [f"{g.table} was left alone: {g.kept}" for g in found if g.kept is not None]
    if count:
        view += ["Would delete:" if dry_run else "Deleted:", Rows("TABLE|FILES>|SIZE>|WORK FOLDERS>", rows)]
    else:
        view += ["No leftover files."]
    cli.show({"dry_run": dry_run, "tables": found}, view, [path for g in found for path in g.files])


def _check_checkpoint(*, engine: str, kind: str | None, rows_per_part: int | None, **_: Any) -> None:
    if engine == "spark" and kind is not None:
        raise click.UsageError("--kind does not go with --engine spark, which writes what the table asks for")
    if engine == "local" and rows_per_part is not None:
        raise click.UsageError("--rows-per-part needs --engine spark")


@table_command("checkpoint", LEASING, SPARK_ENGINE, check=_check_checkpoint)
@option(
    "--kind",
    type=click.Choice(["classic", "v2"]),
    help="One file, or V2 with sidecars; by default what the table asks for.",
)
@number("--rows-per-part", "FILES", "About how many files a sidecar has, with --engine spark.", 1)
def checkpoint(
    cli: Invocation,
    catalog: Catalog,
    name: str,
    kind: str | None,
    rows_per_part: int | None,
    engine: str,
    **servers: Any,
) -> None:
    """Write a checkpoint, so that readers of _delta_log begin there instead of at version 0.

    It is streamed from the catalog. A complete classic checkpoint of the same version is left as it is.
    `deltasql mirror run` does this on its own whenever delta.checkpointInterval commits have passed. With
    --engine spark, executors write the sidecars of a V2 checkpoint if the table has the feature v2Checkpoint.
    They read the catalog, which must be on Postgres, or on SQLite with a local master.

    \b
    Examples:
      deltasql checkpoint sales.orders
      deltasql checkpoint sales.orders --kind v2 --json
      deltasql checkpoint web.clicks --engine spark --master spark://host:7077
    """
    if engine == "local":
        written = catalog.mirror.checkpoint(name, kind=cast("CheckpointKind | None", kind))
    else:
        from deltalakedb.delta_log.checkpoint_writer import SIDECAR_ROWS
        from deltalakedb.spark import sessions
        from deltalakedb.spark.maintenance import checkpoint as spark_checkpoint

        spark, rows = sessions.start(**servers), rows_per_part or SIDECAR_ROWS
        written = spark_checkpoint(spark, catalog.table_uri(name), rows_per_part=rows)
    files, size = render.many(written.num_add_files, "file"), render.size(written.size_in_bytes)
    what = f"{written.kind} checkpoint of {name} at version {written.version}: {files}, {size}."
    line = f"Wrote a {what}" if written.created else f"There was already a {what} It was left as it is."
    document = {"table": name, **asdict(written)}
    document["actions"] = document.pop("size")
    cli.show(document, line, written.paths)
