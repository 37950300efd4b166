"""Commands about tables: list, show, schema, history, create and drop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.options import (
    CHANGING,
    FILE,
    PAIR,
    SNAPSHOT,
    columns_of,
    command,
    flag,
    number,
    option,
    table_command,
)
from deltalakedb.cli.output import Item, Rows
from deltalakedb.exceptions import TableExistsError

# `--help` and wrong usage are answered without databases and Arrow, so commands import those when they run
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation
    from deltalakedb.metastore.outbox import Lag
    from deltalakedb.metastore.rows import OpenTable, Table
    from deltalakedb.metastore.txn_log import SqlTxnLogReader


def _row(table: Table) -> dict[str, Any]:
    data = table.to_dict()
    for internal in ("table_id", "records_counted"):
        data.pop(internal)
    times = ("created_at", "updated_at", "committed_at")
    return data | {name: render.iso(data[name]) for name in times}


@command("list")
@option("--namespace", metavar="NAME", help="Only the tables of a namespace and below it.")
def list_tables(cli: Invocation, namespace: str | None) -> None:
    """List the tables of a catalog.

    \b
    Examples:
      deltasql list
      deltasql list --namespace sales
      deltasql list --quiet | xargs -n1 deltasql show
    """
    with cli.open_catalog() as catalog:
        tables = catalog.tables(namespace=namespace)
    rows = [
        (
            t.name,
            t.head.version,
            render.count(t.head.num_files),
            render.count(t.head.rows),
            render.size(t.head.size_bytes),
            render.iso(t.head.timestamp),
            t.state,
        )
        for t in tables
    ]
    where = f"The namespace {namespace}" if namespace else "The catalog"
    cli.show(
        {"catalog": catalog.uri, "tables": [_row(t) for t in tables]},
        [Rows("NAME|VERSION>|FILES>|ROWS>|SIZE>|COMMITTED|STATE", rows)]
        if rows
        else f"{where} holds no tables.",
        [t.name for t in tables],
    )


@table_command("show", SNAPSHOT)
def show(cli: Invocation, catalog: Catalog, name: str, version: int | None) -> None:
    """Show one table: its location, version, size, properties and publishing state.

    With --version or --at: its files, rows, size, properties and protocol at that version.

    \b
    Examples:
      deltasql show sales.orders
      deltasql show prod:sales.orders --at 2026-11-15
      deltasql show /srv/lake/orders
      deltasql show 'deltasql://sqlite//srv/lake/meta.db?table=sales.orders' --json
    """
    from deltalakedb.metastore import outbox

    log = catalog.log(name)
    opened = _at_version(log.open(version), log)
    lag = outbox.lag(log.database, opened.table.table_id)
    metadata = opened.snapshot.metadata
    document = {
        "catalog": catalog.uri,
        **_row(opened.table),
        "id": metadata.id,
        "description": metadata.description,
        "partition_columns": metadata.partition_columns,
        "properties": dict(metadata.configuration),
        "protocol": opened.snapshot.protocol.to_dict(),
        "unpublished_versions": lag.versions,
        "oldest_unpublished_at": render.iso(lag.oldest_at),
    }
    cli.show(document, _view_show(opened, lag), [opened.table.location])


def _at_version(opened: OpenTable, log: SqlTxnLogReader) -> OpenTable:
    """The table with the counters of the version that is open, not those of the newest."""
    from deltalakedb.metastore.files import scan_files

    if opened.is_head:
        return opened
    found = scan_files(log.database, opened, ("size", "num_records"))
    sizes, counts = (found.column(name).to_pylist() for name in ("size", "num_records"))
    head = replace(
        opened.table.head,
        version=opened.snapshot.version,
        timestamp=opened.snapshot.timestamp,
        num_files=len(sizes),
        size_bytes=sum(sizes),
        num_records=sum(n or 0 for n in counts),
        files_without_count=counts.count(None),
    )
    return replace(opened, table=replace(opened.table, head=head))


def _view_show(opened: OpenTable, lag: Lag) -> Iterator[Item]:
    table, head = opened.table, opened.table.head
    metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    published = f"up to version {table.published_version}" if table.published_version >= 0 else "nothing yet"
    if lag.versions:
        published += f"; {render.many(lag.versions, 'version')} waiting since {render.iso(lag.oldest_at)}"
    rows = "unknown (some files have no row count)" if head.rows is None else render.count(head.rows)
    yield table.name, "bold"
    yield {
        "comment": table.comment,
        "description": metadata.description,
        "location": table.location,
        "state": table.state + (f": {table.state_reason}" if table.state_reason else ""),
        "version": f"{head.version}, committed {render.iso(head.timestamp)}",
        "first version": str(head.first_version or ""),
        "files": render.count(head.num_files),
        "rows": rows,
        "size": f"{render.size(head.size_bytes)} ({head.size_bytes:,} bytes)",
        "partitioned by": ", ".join(metadata.partition_columns),
        "published": published,
        "protocol": f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}",
        "features": ", ".join(features),
        "properties": _pairs(metadata.configuration),
        "tags": _pairs(table.tags),
        "created": render.iso(table.created_at),
    }


def _pairs(values: Mapping[str, str | None]) -> str:
    return "\n".join(f"{k} = {v}" for k, v in sorted(values.items()))


@table_command("schema", SNAPSHOT)
def table_schema(cli: Invocation, catalog: Catalog, name: str, version: int | None) -> None:
    """Show a table's columns as a tree; with --json, the Delta schema.

    \b
    Examples:
      deltasql schema sales.orders
      deltasql schema sales.orders --version 3
      deltasql schema sales.orders --json > orders.json
    """
    from deltalakedb.cli.schema_text import column_tree, type_label
    from deltalakedb.protocol.schema import parse_schema

    snapshot = catalog.log(name).snapshot(version)
    schema = parse_schema(snapshot.metadata.schema_string)
    title = f"{name} (version {snapshot.version})", "bold"
    tree = column_tree(schema, snapshot.metadata.partition_columns)
    cli.show(schema, [title, *tree], [f"{f.name}: {type_label(f.type)}" for f in schema.fields])


@table_command("history")
@number("--limit", "N", "Show only the newest N commits.")
def history(cli: Invocation, catalog: Catalog, name: str, limit: int | None) -> None:
    """Show a table's commits, the newest first.

    \b
    Examples:
      deltasql history sales.orders --limit 10
      deltasql history sales.orders --json
    """
    published = catalog.describe(name).published_version
    found = catalog.commits(name, limit=limit)
    shown = [
        c.to_dict() | {"committed_at": render.iso(c.committed_at), "published": c.version <= published}
        for c in found
    ]
    rows = [
        (
            c.version,
            render.iso(c.committed_at),
            c.operation or None,
            f"+{c.num_added} -{c.num_removed}",
            c.actor or None,
            "yes" if c.version <= published else "waiting",
        )
        for c in found
    ]
    table = Rows("VERSION>|COMMITTED|OPERATION|FILES|BY|PUBLISHED", rows)
    cli.show({"table": name, "commits": shown}, [table], [str(c.version) for c in found])


@command("create", CHANGING)
@click.argument("table")
@option("--location", metavar="DIR", help="The folder of its files; default: one below catalog.root.")
@option("--schema", "text", metavar="COLUMNS|FILE", help="id:long!,city:string, or a Delta schema's .json.")
@option("--from-parquet", "parquet", metavar="FILE", type=FILE, help="Take the columns of a Parquet file.")
@option("--like", metavar="TABLE", help="Take columns and partitioning of another table.")
@option("--partition-by", metavar="COLUMNS", help="Partition columns, separated by commas.")
@option("--property", "properties", type=PAIR, multiple=True, help="A table property; repeatable.")
@option("--description", help="The description in the table's metadata.")
@option("--comment", help="A comment in the catalog.")
@option("--tag", "tags", type=PAIR, multiple=True, help="A tag in the catalog; repeatable.")
@flag("--if-not-exists", "Do nothing if the table exists.")
def create_table(
    cli: Invocation,
    table: str,
    location: str | None,
    partition_by: str | None,
    properties: tuple[tuple[str, str], ...],
    tags: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    text: str | None,
    parquet: str | None,
    like: str | None,
    **texts: Any,
) -> None:
    """Create an empty table, and the catalog if there is none.

    Types are Delta's: long, integer, short, byte, double, float, decimal(p,s), string, boolean, binary, date,
    timestamp, timestamp_ntz, array<…>, map<…,…>, struct<…>. A ! after a type makes it NOT NULL.

    \b
    Examples:
      deltasql create sales.orders --schema 'id:long!,city:string,day:date' --partition-by day \\
          --location /srv/lake/orders
      deltasql create events --from-parquet sample.parquet --location events \\
          --property delta.appendOnly=true --tag team=web
    """
    from deltalakedb.table.alter import known_properties, split_properties
    from deltalakedb.table.locations import normal_location
    from deltalakedb.table.write.write import create_table as create_table_at

    if sum(given is not None for given in (text, parquet, like)) != 1:
        raise click.UsageError("no columns are given: pass one of --schema, --from-parquet and --like")
    address = cli.table_address(table, new=True)
    name, where = address.require_table(), location or address.location
    with cli.open_catalog(address, create=True, dry_run=dry_run) as catalog:
        schema, columns = _columns(cli, text, parquet, like)
        columns = columns_of(partition_by) if partition_by is not None else columns
        there = catalog.find(name)
        if there is not None and not if_not_exists:
            raise TableExistsError(
                f"the table already exists at {there.location}",
                table=name,
                version=there.head.version,
                suggestion="choose another name, or pass --if-not-exists",
            )
        if unknown := [c for c in columns or () if c not in _names(schema)]:
            raise click.UsageError(
                f"the partition column {unknown[0]!r} is not in the schema: {', '.join(_names(schema))}"
            )
        if there is None:
            address = address.catalog.with_table(name, location=where and normal_location(where))
            deltas, own = split_properties(dict(properties))
            with known_properties(name, deltas):
                create_table_at(
                    address.to_uri(redact=False),
                    schema,
                    mode="ignore" if if_not_exists else "error",
                    partition_by=columns,
                    configuration=deltas or None,
                    own_properties=own,
                    tags=dict(tags),
                    dry_run=dry_run,
                    **texts,
                )
        row = there if dry_run else catalog.find(name)
    uri = address.catalog.with_table(name).to_uri()
    place = where if row is None else row.location
    created = there is None and not dry_run
    verb = "Created" if created else "Would create" if there is None else "Already exists:"
    line = f"{verb} {name}" + (f" at {place}" if place else " under the catalog's root")
    document = {
        "table": name,
        "address": uri,
        "location": place,
        "version": None if row is None else row.head.version,
        "created": created,
        "dry_run": dry_run,
    }
    cli.show(document, [line, (f"  address: {uri}", "dim")] if created else line, [uri])


def _names(schema: Any) -> list[str]:
    """The columns of a schema of Delta or Arrow."""
    fields = schema.fields if hasattr(schema, "fields") else schema
    return [field.name for field in fields]


def _columns(
    cli: Invocation, text: str | None, parquet: str | None, like: str | None
) -> tuple[Any, list[str] | None]:
    """The schema as the library takes it, and the partition columns that come with it."""
    import deltalake

    from deltalakedb.cli.schema_text import read_schema

    if text is not None:
        return deltalake.Schema.from_json(read_schema(text).to_json()), None
    if parquet is not None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_schema(parquet).remove_metadata(), None
        except pa.ArrowInvalid as error:
            raise click.UsageError(f"{parquet} is not a Parquet file") from error
    with cli.open_tables([like or ""]) as (catalog, names):
        metadata = catalog.log(names[0]).snapshot().metadata
    return deltalake.Schema.from_json(metadata.schema_string), list(metadata.partition_columns)


@table_command("drop", CHANGING)
@flag("--force", "Drop it even if unpublished commits are lost.")
def drop_table(cli: Invocation, catalog: Catalog, name: str, force: bool, dry_run: bool) -> None:
    """Remove a table from the catalog. Its data files and _delta_log stay as a plain Delta table.

    \b
    Examples:
      deltasql drop sales.orders --dry-run
      deltasql drop sales.orders --yes
    """
    row = catalog.describe(name)
    what = f"{name} (version {row.head.version}, {render.many(row.head.num_files, 'file')})"
    if not dry_run:
        cli.confirm(f"Drop {what} from {catalog.uri}? Its files at {row.location} stay.")
    catalog.drop_table(name, force=force, dry_run=dry_run)
    document = {"table": name, "dropped": not dry_run, "dry_run": dry_run, "version": row.head.version}
    document |= {"location": row.location, "files_kept": True}
    verb, stay = ("Would drop", "would stay") if dry_run else ("Dropped", "stay")
    kept = f"Its data files and _delta_log {stay} at {row.location} as a plain Delta table."
    cli.show(document, [f"{verb} {what}.", kept])
