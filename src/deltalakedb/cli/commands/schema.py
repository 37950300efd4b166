"""``deltasql schema``: a table's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deltalakedb.cli.options import common
from deltalakedb.protocol.schema import ArrayType, DataType, MapType, StructType, parse_schema

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation


@click.command("schema")
@click.argument("table")
@click.option(
    "--version", metavar="N", type=click.IntRange(min=0), help="The schema at a version; default: the newest."
)
@common
@click.pass_obj
def command(invocation: Invocation, table: str, version: int | None) -> None:
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
