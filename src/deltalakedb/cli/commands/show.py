"""``deltasql show``: one table at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli import render
from deltalakedb.cli.documents import table_document
from deltalakedb.cli.options import common
from deltalakedb.metastore import outbox

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.metastore.outbox import Lag
    from deltalakedb.metastore.values import OpenTable


@click.command("show")
@click.argument("table")
@common
@click.pass_obj
def command(invocation: Invocation, table: str) -> None:
    """Show one table: where it lies, its version, size, properties and publishing state.

    \b
    Examples:
      deltasql show sales.orders
      deltasql show 'deltasql://sqlite//srv/lake/meta.db?table=sales.orders' --json
    """
    with invocation.open_table(table) as (catalog, name):
        log = catalog.log(name)
        opened = log.open()
        lag = outbox.lag(log.database, opened.table.table_id)
        document = _document(opened, lag, catalog.uri)
    invocation.output.result(
        document, lambda screen: _view(screen, opened, lag), brief=[opened.table.location]
    )


def _document(opened: OpenTable, lag: Lag, catalog: str) -> dict[str, Any]:
    metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
    return {
        "catalog": catalog,
        **table_document(opened.table),
        "id": metadata.id,
        "description": metadata.description,
        "partition_columns": list(metadata.partition_columns),
        "properties": dict(metadata.configuration),
        "protocol": protocol.to_dict(),
        "unpublished_versions": lag.versions,
        "oldest_unpublished_at": render.iso(lag.oldest_at),
    }


def _view(screen: Screen, opened: OpenTable, lag: Lag) -> None:
    table, head = opened.table, opened.table.head
    metadata, protocol = opened.snapshot.metadata, opened.snapshot.protocol
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    published = f"up to version {table.published_version}" if table.published_version >= 0 else "nothing yet"
    if lag.versions:
        published += f"; {render.many(lag.versions, 'version')} waiting since {render.iso(lag.oldest_at)}"
    rows = "unknown: some files do not tell" if head.rows is None else render.count(head.rows)
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
