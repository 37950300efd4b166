"""``deltasql create``: a new, empty table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import deltalake

from deltalakedb.cli.options import PAIR, changing, common
from deltalakedb.cli.schema_text import read_schema
from deltalakedb.exceptions import TableExistsError
from deltalakedb.table.new_tables import taken_out

if TYPE_CHECKING:
    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.uri import Address


@click.command("create")
@click.argument("table")
@click.option("--location", metavar="DIR", help="Where its files lie; default: a folder under catalog.root.")
@click.option(
    "--schema", "text", metavar="COLUMNS|FILE", help="id:long!,city:string, or a Delta schema's .json."
)
@click.option(
    "--from-parquet",
    "parquet",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Take the columns of a Parquet file.",
)
@click.option("--like", metavar="TABLE", help="Take columns and partitioning of another table.")
@click.option("--partition-by", metavar="COLUMNS", help="Partition columns, separated by commas.")
@click.option("--property", "properties", type=PAIR, multiple=True, help="A table property; repeatable.")
@click.option("--description", help="The description in the table's metadata.")
@click.option("--comment", help="A comment in the catalog.")
@click.option("--tag", "tags", type=PAIR, multiple=True, help="A tag in the catalog; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing where the table exists.")
@changing
@common
@click.pass_obj
def command(
    invocation: Invocation,
    table: str,
    location: str | None,
    text: str | None,
    parquet: str | None,
    like: str | None,
    partition_by: str | None,
    properties: tuple[tuple[str, str], ...],
    description: str | None,
    comment: str | None,
    tags: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create an empty table; the catalog too, where there is none.

    Types are Delta's: long, integer, short, byte, double, float, decimal(p,s), string, boolean, binary, date,
    timestamp, timestamp_ntz, array<…>, map<…,…>, struct<…>. A ! behind a type makes it NOT NULL.

    \b
    Examples:
      deltasql create sales.orders --schema 'id:long!,city:string,day:date' --partition-by day \\
          --location /srv/lake/orders
      deltasql create events --from-parquet sample.parquet --location events \\
          --property delta.appendOnly=true --tag team=web
    """
    if sum(given is not None for given in (text, parquet, like)) != 1:
        raise click.UsageError("say what its columns are: one of --schema, --from-parquet and --like")
    address = invocation.table_address(table)
    name, where = address.table or "", location or address.location
    with invocation.open_catalog(address, create=not dry_run) as catalog:
        schema, columns = _columns(invocation, text, parquet, like)
        if partition_by is not None:
            columns = [c.strip() for c in partition_by.split(",") if c.strip()]
        if where is None and catalog.root is None:
            raise click.UsageError("say where its files shall lie: --location DIR, or set catalog.root")
        there = catalog.find(name)
        if there is not None and not if_not_exists:
            raise TableExistsError(
                f"the table already exists at {there.location}",
                table=name,
                version=there.head.version,
                suggestion="take another name, or say --if-not-exists",
            )
        if there is None and dry_run:
            taken_out({"configuration": dict(properties)}, table=name)  # refuses what cannot be
        elif there is None:
            catalog.create_table(
                name,
                schema,
                location=where,
                mode="ignore" if if_not_exists else "error",
                partition_by=columns,
                description=description,
                configuration=dict(properties),
                comment=comment,
                tags=dict(tags),
            )
        _show(invocation, catalog, address, where, created=there is None, dry_run=dry_run)


def _columns(
    invocation: Invocation, text: str | None, parquet: str | None, like: str | None
) -> tuple[Any, list[str] | None]:
    """The schema as the library takes it, and the partition columns that come with it."""
    if text is not None:
        return deltalake.Schema.from_json(read_schema(text).to_json()), None
    if parquet is not None:
        import pyarrow.parquet as pq

        return pq.read_schema(parquet).remove_metadata(), None
    with invocation.open_table(like or "") as (catalog, name):
        metadata = catalog.log(name).snapshot().metadata
    return deltalake.Schema.from_json(metadata.schema_string), list(metadata.partition_columns)


def _show(
    invocation: Invocation,
    catalog: Catalog,
    target: Address,
    where: str | None,
    *,
    created: bool,
    dry_run: bool,
) -> None:
    name = target.table or ""
    address = target.catalog.with_table(name).to_uri()
    row = catalog.find(name)
    location = row.location if row is not None else where

    def view(screen: Screen) -> None:
        verb = "Would create" if dry_run and created else "Created" if created else "There is already"
        screen.line(f"{verb} {name}" + (f" at {location}" if location else " under the catalog's root"))
        if created and not dry_run:
            screen.line(f"  address: {address}", "dim")

    document = {
        "table": name,
        "address": address,
        "location": location,
        "version": None if row is None else row.head.version,
        "created": created and not dry_run,
        "dry_run": dry_run,
    }
    invocation.output.result(document, view, brief=[address])
