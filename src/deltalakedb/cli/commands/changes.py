"""Commands that commit to tables: write, alter, optimize and restore."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import Invocation, is_location
from deltalakedb.cli.options import (
    CHANGING,
    PAIR,
    VERSION_OR_TIME,
    columns_of,
    command,
    flag,
    option,
    table_command,
)

if TYPE_CHECKING:
    from deltalakedb.catalog import Catalog
    from deltalakedb.table.write.source_files import FileFormat


_INPUT = click.Path(exists=True, dir_okay=False, allow_dash=True)


@command("write")
@click.argument("table")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_INPUT)
@option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "json", "parquet"]),
    help="The format of the files; default: by their names.",
)
@option("--delimiter", metavar="CHARACTER", help="Of CSV files; default: a comma, or a tab for .tsv.")
@option("--null", "null_text", metavar="TEXT", help="A text that is null in CSV files, such as NULL.")
@option(
    "--mode",
    type=click.Choice(["append", "overwrite", "error", "ignore"]),
    default="append",
    show_default=True,
    help="What to do if the table exists.",
)
@option("--location", metavar="DIR", help="The folder of a new table; default: one below the catalog's root.")
@option("--partition-by", metavar="COLUMNS", help="Partition columns of a new table, separated by commas.")
@option(
    "--schema-mode",
    type=click.Choice(["merge", "overwrite"]),
    help="Add new columns to the table, or replace its schema with --mode overwrite.",
)
def write(
    cli: Invocation,
    table: str,
    files: tuple[str, ...],
    file_format: FileFormat | None,
    delimiter: str | None,
    location: str | None,
    partition_by: str | None,
    **how: Any,
) -> None:
    """Write the rows of CSV, JSON lines or Parquet files to a table, in one commit.

    The table is created if it does not exist. FILE is a path, or - for the input, which needs --format. CSV
    files have the column names in their first line, JSON files one object per line; both may be compressed
    (.gz, .zst, .bz2, .lz4). Values are read in the types of the table's columns. A new table's types are
    found out from the first rows; `deltasql create --schema` sets them instead.

    A value of a CSV file that is empty is null; "" in quotes is an empty text. --null names another text for
    null. A partition column has no empty texts: they are null.

    \b
    Examples:
      deltasql write sales.orders orders.csv --location /srv/lake/orders
      deltasql write sales.orders january.parquet february.parquet --partition-by day
      deltasql write sales.orders today.jsonl.gz --schema-mode merge
      psql -c "\\copy orders to stdout csv header" | deltasql write sales.orders - --format csv
    """
    if delimiter is not None and len(delimiter := delimiter.replace("\\t", "\t")) != 1:
        raise click.UsageError("--delimiter is one character")
    if "-" in files and file_format is None:
        raise click.UsageError("the input has no name to tell its format: pass --format csv, json or parquet")
    if "-" in files and len(files) > 1:
        raise click.UsageError("- cannot be read together with other files")
    if how["schema_mode"] == "overwrite" and how["mode"] != "overwrite":
        raise click.UsageError("--schema-mode overwrite needs --mode overwrite")
    address = cli.table_address(table, new=not is_location(table))
    name, where = address.require_table(), location or address.location
    with cli.open_catalog(address) as catalog:
        is_new = catalog.find(name) is None
        if is_new and where is None and catalog.root is None:
            raise click.UsageError(
                f"{name} does not exist, and no location is given for it: pass --location DIR, or set a root "
                "for new tables with `deltasql init --root DIR`"
            )
        done = catalog.write_files(
            name,
            [sys.stdin.buffer] if files == ("-",) else files,
            file_format=file_format,
            delimiter=delimiter,
            location=where,
            partition_by=columns_of(partition_by) or None,
            **how,
        )
        row = catalog.describe(name)
    version = None if done.commit is None else done.commit.version
    document = {
        "table": name,
        "version": version,
        "rows": done.num_rows,
        "created": is_new,
        "location": row.location,
    }
    if version is None:
        line = f"{name} exists, and --mode ignore leaves it as it is: nothing was written."
    else:
        created = f" Created the table at {row.location}." if is_new else ""
        line = f"Wrote {render.many(done.num_rows, 'row')} to {name}, version {version}.{created}"
    cli.show(document, line, [] if version is None else [str(version)])


def _check_alter(*, table: str | None, **asked: Any) -> None:
    if not any(value not in (None, ()) for value in asked.values()):
        raise click.UsageError(f"nothing to change of {table}: pass --add-column, --set or another option")


@table_command("alter", check=_check_alter)
@option("--add-column", "columns", metavar="NAME:TYPE", multiple=True, help="Add a column; repeatable.")
@option(
    "--comment",
    "comments",
    metavar="COLUMN=TEXT",
    type=PAIR,
    multiple=True,
    help="Set a column's comment; repeatable.",
)
@option("--drop-not-null", metavar="COLUMN", multiple=True, help="Let a column be null; repeatable.")
@option(
    "--add-constraint",
    metavar="NAME=SQL",
    type=PAIR,
    multiple=True,
    help="Add a condition that every row must fulfil; repeatable.",
)
@option("--drop-constraint", metavar="NAME", multiple=True, help="Drop a constraint; repeatable.")
@option("--set", "properties", type=PAIR, multiple=True, help="Set a table property; repeatable.")
@option("--unset", metavar="KEY", multiple=True, help="Remove a table property; repeatable.")
@option("--description", metavar="TEXT", help="Set the description in the table's metadata.")
def alter(
    cli: Invocation,
    catalog: Catalog,
    name: str,
    columns: tuple[str, ...],
    comments: tuple[tuple[str, str], ...],
    drop_not_null: tuple[str, ...],
    add_constraint: tuple[tuple[str, str], ...],
    drop_constraint: tuple[str, ...],
    properties: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    description: str | None,
) -> None:
    """Change columns, constraints, properties and the description of a table, all in one commit.

    New columns are null in existing rows. A new constraint is checked against all rows first. Properties that
    begin with delta. must be known ones; others are yours. Types are those of `deltasql create`.

    \b
    Examples:
      deltasql alter sales.orders --add-column 'note:string' --comment note='What the customer said'
      deltasql alter sales.orders --set delta.appendOnly=true --unset owner
      deltasql alter sales.orders --add-constraint 'positive=amount > 0'
    """
    import deltalake

    from deltalakedb.cli.schema_text import read_schema

    schema = read_schema(",".join(columns)) if columns else None
    done = catalog.alter_table(
        name,
        add_columns=None if schema is None else deltalake.Schema.from_json(schema.to_json()),
        column_comments=dict(comments),
        drop_not_null=drop_not_null,
        add_constraints=dict(add_constraint),
        drop_constraints=drop_constraint,
        set_properties=dict(properties),
        unset_properties=unset,
        description=description,
    )
    version = catalog.describe(name).head.version if done is None else done.version
    cli.show({"table": name, "version": version}, f"Altered {name}, version {version}.", [str(version)])


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class _Size(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).strip())
        size = 0 if found is None else int(float(found[1]) * _UNITS[found[2].upper()])
        if size <= 0:
            self.fail(f"{value!r} is not a size: write bytes, or a number with KiB, MiB or GiB", param, ctx)
        return size


@table_command("optimize")
@option("--zorder", metavar="COLUMNS", help="Order rows by these columns, separated by commas, on a Z-curve.")
@option("--where", metavar="SQL", help="Only partitions that fulfil a condition on partition columns.")
@option(
    "--target-size",
    type=_Size(),
    help="The size of new files, such as 128MiB; default: the table's property, or 100 MiB.",
)
def optimize(
    cli: Invocation,
    catalog: Catalog,
    name: str,
    zorder: str | None,
    where: str | None,
    target_size: int | None,
) -> None:
    """Join small data files into larger ones, or reorder rows with --zorder. Rows stay the same.

    Writers are not disturbed. The old files stay for time travel until `deltasql vacuum` deletes them.

    \b
    Examples:
      deltasql optimize sales.orders
      deltasql optimize sales.orders --where "day >= '2026-11-01'" --target-size 256MiB
      deltasql optimize sales.orders --zorder city,customer
    """
    from deltalakedb.table.alter import check_columns
    from deltalakedb.table.arguments import partition_filters
    from deltalakedb.table.handle import require_handle

    table, before = catalog.table(name), catalog.describe(name).head.version
    filters = None if where is None else partition_filters(where, catalog.log(name).snapshot().metadata)
    how: dict[str, Any] = {"partition_filters": filters, "target_size": target_size}
    columns = columns_of(zorder) or []
    if zorder is not None and not columns:
        raise click.UsageError("--zorder needs the names of columns")
    check_columns(require_handle(table), columns)
    if by := [c for c in columns if c in table.metadata().partition_columns]:
        raise click.UsageError(f"--zorder cannot order by {by[0]}: {name} is partitioned by it")
    metrics = table.optimize.z_order(columns, **how) if columns else table.optimize.compact(**how)
    added, removed = metrics["numFilesAdded"], metrics["numFilesRemoved"]
    document = {
        "table": name,
        "version": table.version(),
        "files_added": added,
        "files_removed": removed,
        "partitions": metrics["partitionsOptimized"],
        "size_added": json.loads(metrics["filesAdded"])["totalSize"],
        "size_removed": json.loads(metrics["filesRemoved"])["totalSize"],
    }
    verb = "Ordered" if columns else "Joined"
    files = f"{render.many(removed, 'file')} of {name} into {render.count(added)}"
    line = f"{verb} {files}, version {table.version()}."
    if not added and not removed:
        line = f"There is nothing to {'order' if columns else 'join'}: {name} stays at version {before}."
    cli.show(document, line, [str(table.version())])


@table_command("restore", CHANGING)
@option(
    "--to",
    type=VERSION_OR_TIME,
    required=True,
    help="A version, or a time in ISO 8601, UTC unless it has a zone.",
)
@flag("--ignore-missing-files", "Leave out files of that version that were deleted.")
def restore(
    cli: Invocation, catalog: Catalog, name: str, to: Any, ignore_missing_files: bool, dry_run: bool
) -> None:
    """Make a table what it was at an earlier version or time, in a new commit. History stays.

    Refused if a vacuum has deleted files of that version.

    \b
    Examples:
      deltasql restore sales.orders --to 12 --dry-run
      deltasql restore sales.orders --to 2026-11-15T12:00Z --yes
    """
    how = {"ignore_missing_files": ignore_missing_files}
    report = catalog.restore_table(name, to, dry_run=True, **how)
    if not dry_run:
        cli.confirm(f"Restore {name} to version {report.restored_version}?")
        report = catalog.restore_table(name, to, **how)
    verb = "Would restore" if dry_run else "Restored"
    back, removed = render.count(report.num_restored), render.count(report.num_removed)
    line = f"{verb} {name} to version {report.restored_version}, as version {report.version}."
    cli.show(report, [line, {"files back": back, "files removed": removed}], [str(report.version)])
