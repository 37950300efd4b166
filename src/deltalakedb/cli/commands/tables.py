"""Commands about tables: list, show, schema, history, create and drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import PAIR, changing, command
from deltalakedb.cli.schema_text import read_schema
from deltalakedb.exceptions import TableExistsError
from deltalakedb.protocol.codec import decode_json
from deltalakedb.protocol.schema import ArrayType, DataType, MapType, StructType, parse_schema

# `--help` and wrong usage are answered without databases and Arrow, so commands import those when they run
if TYPE_CHECKING:
    from deltalakedb.address import Address
    from deltalakedb.catalog import Catalog
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.metastore.commits import CommitRow
    from deltalakedb.metastore.outbox import Lag
    from deltalakedb.metastore.rows import OpenTable, Table


_TIMES = ("created_at", "updated_at", "committed_at")


def _table_document(table: Table) -> dict[str, Any]:
    """A row of the registry."""
    data = table.to_dict()
    for internal in ("table_id", "records_counted"):
        data.pop(internal)
    return {key: render.iso(value) if key in _TIMES else value for key, value in data.items()}


@command("list")
@click.option("--namespace", metavar="NAME", help="Only the tables of a namespace and below it.")
def list_tables(invocation: Invocation, namespace: str | None) -> None:
    """List the tables of a catalog.

    \b
    Examples:
      deltasql list
      deltasql list --namespace sales
      deltasql list --quiet | xargs -n1 deltasql show
    """
    with invocation.open_catalog() as catalog:
        tables = catalog.tables(namespace=namespace)

    def view(screen: Screen) -> None:
        if not tables:
            where = f"The namespace {namespace} holds" if namespace else "The catalog holds"
            screen.line(f"{where} no tables.")
            return
        rows = [
            (
                t.name,
                str(t.head.version),
                render.count(t.head.num_files),
                render.count(t.head.rows),
                render.size(t.head.size_bytes),
                render.iso(t.head.timestamp) or "-",
                t.state,
            )
            for t in tables
        ]
        headers = ("NAME", "VERSION", "FILES", "ROWS", "SIZE", "COMMITTED", "STATE")
        screen.table(headers, rows, right=headers[1:5])

    document = {"catalog": catalog.uri, "tables": [_table_document(t) for t in tables]}
    invocation.output.result(document, view, brief=[t.name for t in tables])


@command("show")
@click.argument("table")
def show(invocation: Invocation, table: str) -> None:
    """Show one table: its location, version, size, properties and publishing state.

    \b
    Examples:
      deltasql show sales.orders
      deltasql show 'deltasql://sqlite//srv/lake/meta.db?table=sales.orders' --json
    """
    from deltalakedb.metastore import outbox

    with invocation.open_table(table) as (catalog, name):
        log = catalog.log(name)
        opened = log.open()
        lag = outbox.lag(log.database, opened.table.table_id)
        document = _document(opened, lag, catalog.uri)
    invocation.output.result(
        document, lambda screen: _view_show(screen, opened, lag), brief=[opened.table.location]
    )


def _document(opened: OpenTable, lag: Lag, catalog: str) -> dict[str, Any]:
    metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
    return {
        "catalog": catalog,
        **_table_document(opened.table),
        "id": metadata.id,
        "description": metadata.description,
        "partition_columns": list(metadata.partition_columns),
        "properties": dict(metadata.configuration),
        "protocol": protocol.to_dict(),
        "unpublished_versions": lag.versions,
        "oldest_unpublished_at": render.iso(lag.oldest_at),
    }


def _view_show(screen: Screen, opened: OpenTable, lag: Lag) -> None:
    table, head = opened.table, opened.table.head
    metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    published = f"up to version {table.published_version}" if table.published_version >= 0 else "nothing yet"
    if lag.versions:
        published += f"; {render.many(lag.versions, 'version')} waiting since {render.iso(lag.oldest_at)}"
    rows = "unknown (some files have no row count)" if head.rows is None else render.count(head.rows)
    screen.line(table.name, "bold")
    screen.fields(
        [
            ("comment", table.comment),
            ("description", metadata.description),
            ("location", table.location),
            ("state", table.state + (f": {table.state_reason}" if table.state_reason else "")),
            ("version", f"{head.version}, committed {render.iso(head.timestamp)}"),
            ("first version", str(head.first_version) if head.first_version else None),
            ("files", render.count(head.num_files)),
            ("rows", rows),
            ("size", f"{render.size(head.size_bytes)} ({head.size_bytes:,} bytes)"),
            ("partitioned by", ", ".join(metadata.partition_columns) or None),
            ("published", published),
            ("protocol", f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"),
            ("features", ", ".join(features) or None),
            ("properties", _pairs(metadata.configuration)),
            ("tags", _pairs(table.tags)),
            ("created", render.iso(table.created_at)),
        ]
    )


def _pairs(values: Any) -> str | None:
    return "\n".join(f"{k} = {v}" for k, v in sorted(values.items())) or None


@command("schema")
@click.argument("table")
@click.option(
    "--version", metavar="N", type=click.IntRange(min=0), help="The schema at a version; default: the newest."
)
def table_schema(invocation: Invocation, table: str, version: int | None) -> None:
    """Show a table's columns as a tree; with --json, the Delta schema.

    \b
    Examples:
      deltasql schema sales.orders
      deltasql schema sales.orders --version 3
      deltasql schema sales.orders --json > orders.json
    """
    with invocation.open_table(table) as (catalog, name):
        snapshot = catalog.log(name).snapshot(version)
    schema = parse_schema(snapshot.metadata.schema_string)
    title = f"{name} (version {snapshot.version})"
    partitions = set(snapshot.metadata.partition_columns)
    invocation.output.result(
        schema.to_dict(),
        lambda screen: screen.tree(title, _struct(schema, partitions)),
        brief=[f"{f.name}: {_label(f.type)}" for f in schema.fields],
    )


def _struct(struct: StructType, partitions: set[str] | None = None) -> dict[str, Any]:
    tree = {}
    for field in struct.fields:
        notes = "" if field.nullable else " not null"
        notes += ", partition column" if partitions and field.name in partitions else ""
        comment = field.metadata.get("comment")
        notes += f" ({comment})" if comment else ""
        tree[f"{field.name}: {_label(field.type)}{notes}"] = _below(field.type)
    return tree


def _label(kind: DataType) -> str:
    if isinstance(kind, ArrayType):
        return f"array<{_label(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_label(kind.key_type)}, {_label(kind.value_type)}>"
    return "struct" if isinstance(kind, StructType) else kind.name


def _below(kind: DataType) -> dict[str, Any]:
    if isinstance(kind, ArrayType):
        return _below(kind.element_type)
    if isinstance(kind, MapType):
        return _below(kind.key_type) | _below(kind.value_type)
    return _struct(kind) if isinstance(kind, StructType) else {}


@command("history")
@click.argument("table")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=0), help="Show at most so many, the newest first."
)
def history(invocation: Invocation, table: str, limit: int | None) -> None:
    """Show a table's commits, the newest first.

    \b
    Examples:
      deltasql history sales.orders --limit 10
      deltasql history sales.orders --json
    """
    from deltalakedb.metastore import commits

    with invocation.open_table(table) as (catalog, name):
        row = catalog.describe(name)
        found = commits.history(catalog.log(name).database, row, limit=limit)
    shown = [_commit(c, row) for c in found]
    invocation.output.result(
        {"table": name, "commits": shown},
        lambda screen: _view_history(screen, shown),
        brief=[str(c.version) for c in found],
    )


def _commit(commit: CommitRow, table: Table) -> dict[str, Any]:
    return {
        "version": commit.version,
        "committed_at": render.iso(commit.timestamp),
        "operation": commit.operation,
        "files_added": commit.num_added,
        "files_removed": commit.num_removed,
        "actor": commit.actor,
        "origin": commit.origin,
        "published": commit.version <= table.published_version,
        "transaction": commit.txn_uuid,
        "info": None if commit.info is None else decode_json(commit.info),
    }


def _view_history(screen: Screen, commits: list[dict[str, Any]]) -> None:
    rows = [
        (
            str(c["version"]),
            c["committed_at"],
            c["operation"] or "-",
            f"+{c['files_added']} -{c['files_removed']}",
            c["actor"] or "-",
            "yes" if c["published"] else "waiting",
        )
        for c in commits
    ]
    headers = ("VERSION", "COMMITTED", "OPERATION", "FILES", "BY", "PUBLISHED")
    screen.table(headers, rows, right=headers[:1])


@command("create", changing)
@click.argument("table")
@click.option("--location", metavar="DIR", help="The folder of its files; default: one below catalog.root.")
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
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the table exists.")
def create_table(
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
    if sum(given is not None for given in (text, parquet, like)) != 1:
        raise click.UsageError("no columns are given: pass one of --schema, --from-parquet and --like")
    address = invocation.table_address(table)
    name, where = address.table or "", location or address.location
    with invocation.open_catalog(address, create=not dry_run) as catalog:
        schema, columns = _columns(invocation, text, parquet, like)
        if partition_by is not None:
            columns = [c.strip() for c in partition_by.split(",") if c.strip()]
        if where is None and catalog.root is None:
            raise click.UsageError("no location is given: pass --location DIR, or set catalog.root")
        there = catalog.find(name)
        if there is not None and not if_not_exists:
            raise TableExistsError(
                f"the table already exists at {there.location}",
                table=name,
                version=there.head.version,
                suggestion="choose another name, or pass --if-not-exists",
            )
        if there is None and dry_run:
            from deltalakedb.table.write.create import split_options

            split_options({"configuration": dict(properties)}, table=name)  # refuses what cannot be
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
    import deltalake

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
        verb = "Would create" if dry_run and created else "Created" if created else "Already exists:"
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


@command("drop", changing)
@click.argument("table")
@click.option("--force", is_flag=True, help="Drop it although commits were never published, and lose them.")
def drop_table(invocation: Invocation, table: str, force: bool, dry_run: bool) -> int:
    """Remove a table from the catalog. Its data files and _delta_log stay as a plain Delta table.

    \b
    Examples:
      deltasql drop sales.orders --dry-run
      deltasql drop sales.orders --yes
    """
    with invocation.open_table(table) as (catalog, name):
        row = catalog.describe(name)
        what = f"{name} (version {row.head.version}, {render.many(row.head.num_files, 'file')})"
        if dry_run:
            catalog.drop_table(name, force=force, dry_run=True)
        else:
            invocation.confirm(f"Drop {what} from {catalog.uri}? Its files at {row.location} stay.")
            catalog.drop_table(name, force=force)

    def view(screen: Screen) -> None:
        screen.line(f"Would drop {what}." if dry_run else f"Dropped {what}.")
        stay = "would stay" if dry_run else "stay"
        screen.line(f"Its data files and _delta_log {stay} at {row.location} as a plain Delta table.")

    document = {
        "table": name,
        "dropped": not dry_run,
        "dry_run": dry_run,
        "version": row.head.version,
        "location": row.location,
        "files_kept": True,
    }
    invocation.output.result(document, view)
    return ExitCode.OK
