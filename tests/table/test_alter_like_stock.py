"""ALTER TABLE: metadata and protocol become what stock makes of them, and what the protocol asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from deltalakedb import (
    Catalog,
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    TableFeatures,
    Transaction,
    write_deltalake,
)
from deltalakedb.exceptions import ConflictError, UnsupportedFeatureError, UnsupportedOperationError
from deltalakedb.table.handle import require_handle
from support.lake import files_below, ids, ids_of, root_of
from support.twins import Twins, rows_of, sales

if TYPE_CHECKING:
    from conftest import TableUri

SQLITE = pytest.mark.parametrize("engine_name", ["sqlite"])
NOTES = CommitProperties(custom_metadata={"who": "me"}, app_transactions=[Transaction("app", 1)])
HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def state(table: deltalake.DeltaTable) -> dict[str, Any]:
    """What ALTER changes."""
    metadata, protocol = table.metadata(), table.protocol()
    return {
        "schema": sorted(table.schema().fields, key=lambda f: f.name),
        "name": metadata.name,
        "description": metadata.description,
        "configuration": metadata.configuration,
        "versions": (protocol.min_reader_version, protocol.min_writer_version),
        "reader": sorted(protocol.reader_features or ()),
        "writer": sorted(protocol.writer_features or ()),
    }


def altered(twins: Twins, operation: Any) -> None:
    """Alter both, and find the same state in the catalog, in the folder and in stock's table."""
    twins.both(operation)
    ours, stock = twins.open()
    assert state(ours) == state(stock) == state(deltalake.DeltaTable(ours.table_uri))


def test_everything_that_can_be_altered(twins: Twins) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("place", pa.string()),
            pa.field("amount", pa.float64()),
            pa.field("nested", pa.struct([pa.field("a", pa.int32())])),
        ]
    )
    rows = pa.table(
        {"id": [1, 2], "place": ["x", "y"], "amount": [0.5, None], "nested": [{"a": 1}, None]}, schema=schema
    )
    twins.write(rows, partition_by=["place"])
    columns = [
        Field("n", PrimitiveType("integer")),
        Field("list", ArrayType(PrimitiveType("string"), contains_null=True)),
        Field("map", MapType(PrimitiveType("string"), PrimitiveType("date"), value_contains_null=True)),
        Field("nested", StructType([Field("b", PrimitiveType("string"))])),
    ]
    for operation in (
        lambda t: t.alter.add_columns(columns, commit_properties=NOTES, post_commithook_properties=HOOKS),
        lambda t: t.alter.add_columns(Field("one", "date")),
        lambda t: t.alter.add_constraint({"positive": "id > 0", "known": "place IN ('x', 'y')"}),
        lambda t: t.alter.add_constraint({"positive": "id > 0"}),
        lambda t: t.alter.drop_constraint("known"),
        lambda t: t.alter.drop_constraint("known", raise_if_not_exists=False),
        lambda t: t.alter.drop_column_not_null("id"),
        lambda t: t.alter.set_table_properties(
            {"delta.checkpointInterval": "7", "delta.appendOnly": "false"}
        ),
        lambda t: t.alter.set_table_properties({"my.own": "x"}, raise_if_not_exists=False),
        lambda t: t.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
        lambda t: t.alter.set_table_name("a name"),
        lambda t: t.alter.set_table_description("a description"),
        lambda t: t.alter.set_column_metadata("id", {"comment": "the key", "more": "x"}),
        lambda t: t.alter.set_column_metadata("id", {"comment": "changed"}),
        lambda t: t.alter.set_table_properties({"delta.enableDeletionVectors": "true"}),
        lambda t: t.alter.add_columns(Field("later", "timestamp_ntz")),
        lambda t: t.alter.add_feature(TableFeatures.V2Checkpoint, allow_protocol_versions_increase=True),
        lambda t: t.alter.add_feature([TableFeatures.DomainMetadata, TableFeatures.RowTracking], True),
    ):
        altered(twins, operation)
    ours = DeltaTable(twins.uri)
    assert ours.transaction_version("app") == 1
    assert ours.history()[-2]["who"] == "me"
    assert len([h for h in ours.history() if h["operation"].startswith(("ADD", "SET", "DROP"))]) == 12


@SQLITE
def test_constraints_hold_for_rows_that_are_there_and_rows_to_come(twins: Twins) -> None:
    twins.write(sales(*range(10)))
    twins.both_fail(lambda t: t.alter.add_constraint({"few": "id < 5"}))
    twins.both_fail(lambda t: t.alter.add_constraint({"unknown": "nothing > 5"}))
    twins.both_fail(lambda t: t.alter.add_constraint({}))
    altered(twins, lambda t: t.alter.add_constraint({"few": "id < 50"}))
    twins.both_fail(lambda t: t.alter.add_constraint({"few": "id < 60"}))
    twins.both_fail(lambda t: deltalake.write_deltalake(t, sales(99), mode="append"))
    twins.both_fail(lambda t: t.update({"id": "id + 100"}))


@SQLITE
def test_what_stock_refuses_to_alter_is_refused_alike(twins: Twins) -> None:
    twins.write(sales(*range(3)))
    for refused in (
        lambda t: t.alter.add_columns([Field("id", "string")]),
        lambda t: t.alter.drop_constraint("nothing"),
        lambda t: t.alter.drop_column_not_null("nothing"),
        lambda t: t.alter.set_table_properties({"not.a.property": "x"}),
        lambda t: t.alter.set_table_properties({"delta.columnMapping.mode": "name"}),
        lambda t: t.alter.set_table_properties({"delta.enableChangeDataFeed": "perhaps"}),
        lambda t: t.alter.set_table_properties({"delta.minWriterVersion": "99"}),
        lambda t: t.alter.set_table_name("x" * 300),
        lambda t: t.alter.set_table_description("x" * 5000),
        lambda t: t.alter.set_column_metadata("nothing", {"a": "b"}),
        lambda t: t.alter.set_column_metadata("id", {"delta.columnMapping.id": "1"}),
        lambda t: t.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=False),
        lambda t: t.alter.set_table_name("a", commit_properties=CommitProperties({"timestamp": 1})),
    ):
        twins.both_fail(refused)


def test_properties_that_are_fulfilled_here_bring_their_features(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    table = DeltaTable(uri)
    table.alter.set_table_properties(
        {"delta.enableInCommitTimestamps": "true", "delta.enableChangeDataFeed": "true"}
    )
    assert set(table.protocol().writer_features or ()) >= {"inCommitTimestamp", "changeDataFeed"}
    configuration = table.metadata().configuration
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "1"
    assert "inCommitTimestamp" in table.history(1)[0]
    with pytest.raises(deltalake.exceptions.DeltaError):
        table.alter.set_table_properties({"delta.enableInCommitTimestamps": "true", "no.such": "x"})
    with pytest.raises(UnsupportedOperationError, match="row ids"):
        table.alter.set_table_properties({"delta.enableRowTracking": "true"})
    assert table.version() == 1
    DeltaTable.create(table_uri("rows"), Schema([Field("id", "long"), Field("part", "string")]))
    rows = DeltaTable(table_uri("rows"))
    rows.alter.set_table_properties({"delta.enableRowTracking": "true"})
    assert set(rows.protocol().writer_features or ()) >= {"domainMetadata", "rowTracking"}
    write_deltalake(rows, ids(1, 2), mode="append")
    assert require_handle(rows).source.scan(("base_row_id",)).to_pylist() == [{"base_row_id": 0}]


@SQLITE
def test_a_table_that_begins_to_name_its_features_names_those_it_uses(table_uri: TableUri) -> None:
    """Stock forgets them, and with them that rows must not be deleted."""
    uri = table_uri("t")
    write_deltalake(uri, ids(1), configuration={"delta.appendOnly": "true"})
    table = DeltaTable(uri)
    assert table.protocol().writer_features is None
    table.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)
    assert set(table.protocol().writer_features or ()) == {"appendOnly", "changeDataFeed"}


@SQLITE
def test_features_for_other_engines_can_be_added_though_rows_are_then_written_there(twins: Twins) -> None:
    twins.write(ids(1))
    altered(
        twins,
        lambda t: t.alter.add_feature(
            [TableFeatures.IdentityColumns, TableFeatures.IcebergCompatV1],
            allow_protocol_versions_increase=True,
        ),
    )
    with pytest.raises(UnsupportedFeatureError, match="icebergCompatV1"):
        write_deltalake(twins.uri, ids(2), mode="append")
    with pytest.raises(UnsupportedFeatureError):
        DeltaTable(twins.uri).alter.set_table_name("x")


def test_who_alters_and_who_writes_at_the_same_time(table_uri: TableUri, catalog_uri: str) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))

    def stale(version: int) -> DeltaTable:
        table = DeltaTable(uri)
        table.load_as_version(version)
        return table

    write_deltalake(uri, ids(2), mode="append")
    stale(0).alter.set_table_description("appends do not matter")
    assert DeltaTable(uri).version() == 2
    write_deltalake(uri, ids(3), mode="append")
    root = root_of(DeltaTable(uri))
    before = files_below(root)
    for lost in (
        lambda: stale(2).alter.add_constraint({"c": "id < 3"}),  # the new row may break it
        lambda: stale(1).alter.set_table_name("two cannot change metadata"),
        lambda: write_deltalake(stale(1), ids(9), mode="append"),
    ):
        with pytest.raises(ConflictError):
            lost()
    assert files_below(root) == before
    assert not (root / "_deltasql").exists()
    assert ids_of(DeltaTable(uri)) == [1, 2, 3]
    with Catalog(catalog_uri) as catalog:
        assert catalog.mirror.verify("t").ok
    assert rows_of(DeltaTable(uri)) == rows_of(deltalake.DeltaTable(root))
