"""What may be written directly; everything else has a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import BloomFilterProperties, ColumnProperties, CommitProperties, WriterProperties

from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.protocol.actions import Format, Metadata, Protocol
from deltalakedb.protocol.txn_log import Snapshot
from deltalakedb.table.write.parquet import plan_append

ARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long", "nullable": False, "metadata": {}},
    {"name": "name", "type": "string", "nullable": True, "metadata": {"comment": "kept"}},
]


def table(
    fields: list[dict[str, Any]] | None = None,
    *,
    protocol: Protocol | None = None,
    configuration: dict[str, str] | None = None,
    partition_columns: tuple[str, ...] = (),
) -> Snapshot:
    schema = json.dumps({"type": "struct", "fields": FIELDS if fields is None else fields})
    return Snapshot(
        3,
        0,
        protocol or Protocol(min_reader_version=1, min_writer_version=2),
        Metadata(
            id="x",
            schema_string=schema,
            configuration=configuration or {},
            partition_columns=partition_columns,
        ),
    )


def with_features(*features: str) -> Protocol:
    readers = tuple(f for f in features if f in ("columnMapping", "deletionVectors", "timestampNtz"))
    return Protocol(
        min_reader_version=3, min_writer_version=7, reader_features=readers, writer_features=features
    )


def field(type_: Any, **metadata: Any) -> list[dict[str, Any]]:
    return [*FIELDS, {"name": "c", "type": type_, "nullable": True, "metadata": metadata}]


def eligible(snapshot: Snapshot, arrow: pa.Schema, options: Any = None, *, also: Any = ()) -> str | None:
    """Why an append cannot be written directly, or None if it can."""
    try:
        plan_append(snapshot, arrow, options, also=also)
    except UnsupportedOperationError as error:
        return error.message.removeprefix("this append cannot be written directly: ")
    return None


def test_a_plain_append_is_eligible() -> None:
    assert eligible(table(), ARROW) is None
    assert eligible(table(partition_columns=("name",)), ARROW) is None


@pytest.mark.parametrize(
    "snapshot",
    [
        table(protocol=Protocol(min_reader_version=2, min_writer_version=6)),
        table(protocol=with_features("appendOnly", "changeDataFeed", "deletionVectors", "v2Checkpoint")),
        table(configuration={"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "none"}),
    ],
    ids=["old versions", "features", "change feed"],
)
def test_features_that_ask_nothing_of_an_append_are_no_hindrance(snapshot: Snapshot) -> None:
    assert eligible(snapshot, ARROW) is None


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (table(configuration={"delta.constraints.positive": "id > 0"}), "delta.constraints.positive"),
        (table(configuration={"delta.columnMapping.mode": "name"}), "column mapping"),
        (table(protocol=with_features("rowTracking", "domainMetadata")), "domainMetadata, rowTracking"),
        (table(protocol=with_features("nobodyKnowsThis")), "nobodyKnowsThis"),
        (table(protocol=Protocol(min_reader_version=1, min_writer_version=8)), "writer version 8"),
        (table(protocol=Protocol(min_reader_version=3, min_writer_version=7)), "list of reader features"),
        (table(partition_columns=("id", "name")), "partition columns only"),
        (table(partition_columns=("gone",)), "contradicts itself"),
    ],
)
def test_tables_that_ask_more_are_not_eligible(snapshot: Snapshot, reason: str) -> None:
    assert reason in (eligible(snapshot, ARROW) or "")


@pytest.mark.parametrize(
    ("fields", "arrow", "reason"),
    [
        (field("long", **{"delta.generationExpression": "id"}), pa.int64(), "delta.generationExpression"),
        (field("long", **{"delta.identity.start": 1}), pa.int64(), "delta.identity.start"),
        (field("long", **{"delta.invariants": "{}"}), pa.int64(), "delta.invariants"),
        (field("variant"), pa.string(), "'c' has a type"),
        (field("void"), pa.null(), "'c' has a type"),
        (
            field({"type": "array", "elementType": "long", "containsNull": False}),
            pa.list_(pa.int64()),
            "array refuses nulls",
        ),
        (
            field({"type": "map", "keyType": "long", "valueType": "long", "valueContainsNull": False}),
            pa.map_(pa.int64(), pa.int64()),
            "map refuses null values",
        ),
        (
            field({"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False}]}),
            pa.struct([("x", pa.int64())]),
            "'x' refuses nulls",
        ),
    ],
)
def test_columns_that_ask_more_are_not_eligible(
    fields: list[dict[str, Any]], arrow: pa.DataType, reason: str
) -> None:
    assert reason in (eligible(table(fields), ARROW.append(pa.field("c", arrow))) or "")


def test_a_binary_partition_column_is_not_eligible() -> None:
    snapshot = table(field("binary"), partition_columns=("c",))
    assert "'c' has a type" in (eligible(snapshot, ARROW.append(pa.field("c", pa.binary()))) or "")


def test_features_that_the_caller_takes_care_of_are_allowed() -> None:
    snapshot = table(protocol=with_features("rowTracking", "domainMetadata"))
    assert eligible(snapshot, ARROW, also={"rowTracking", "domainMetadata"}) is None


def test_files_of_another_format_are_not_eligible() -> None:
    snapshot = table()
    other = replace(snapshot, metadata=replace(snapshot.metadata, format=Format(provider="orc")))
    assert "orc" in (eligible(other, ARROW) or "")


@pytest.mark.parametrize(
    "arrow",
    [
        pa.schema([("id", pa.int64())]),
        pa.schema([("id", pa.int64()), ("name", pa.string()), ("more", pa.int64())]),
        pa.schema([("ID", pa.int64()), ("name", pa.string())]),
        pa.schema([("id", pa.int64()), ("name", pa.string()), ("name", pa.string())]),
    ],
    ids=["missing", "extra", "case", "twice"],
)
def test_data_with_other_columns_is_not_eligible(arrow: pa.Schema) -> None:
    assert eligible(table(), arrow) is not None


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("integer", pa.int64()),
        ("long", pa.uint8()),
        ("long", pa.float64()),
        ("long", pa.string()),
        ("float", pa.float64()),
        ("double", pa.int32()),
        ("string", pa.int64()),
        ("string", pa.binary()),
        ("date", pa.date64()),
        ("date", pa.timestamp("us")),
        ("timestamp", pa.timestamp("us")),
        ("timestamp_ntz", pa.timestamp("us", "UTC")),
        ("decimal(5,2)", pa.decimal128(6, 2)),
        ("decimal(5,2)", pa.decimal128(5, 3)),
        ("decimal(5,2)", pa.decimal256(5, 2)),
        ("string", pa.uuid()),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.list_(pa.int64(), 2)),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.list_(pa.null())),
        (
            {"type": "struct", "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "long"}]},
            pa.struct([("y", pa.int64()), ("x", pa.int64())]),
        ),
    ],
)
def test_data_that_would_need_a_doubtful_cast_is_not_eligible(kind: Any, source: pa.DataType) -> None:
    reason = eligible(table(field(kind)), ARROW.append(pa.field("c", source)))
    assert reason == f"the column 'c' comes as {source}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema_mode": "merge"}, "schema_mode"),
        ({"predicate": "id = 1"}, "predicate"),
        ({"configuration": {"a": "b"}}, "configuration"),
        ({"a_new_option": 1}, "a_new_option"),
        ({"partition_by": ["id"]}, "partition_by"),
        ({"writer_properties": WriterProperties(compression="LZ4")}, "compression LZ4"),
        ({"writer_properties": WriterProperties(compression="GZIP", compression_level=0)}, "GZIP(0)"),
        ({"writer_properties": WriterProperties(data_page_row_count_limit=5)}, "data_page_row_count_limit"),
        ({"writer_properties": WriterProperties(max_row_group_size=0)}, "max_row_group_size"),
        ({"writer_properties": WriterProperties(data_page_size_limit=0)}, "data_page_size_limit"),
        ({"writer_properties": WriterProperties(statistics_truncate_length=0)}, "truncate_length"),
        (
            {"writer_properties": WriterProperties(column_properties={"id": ColumnProperties()})},
            "column_properties",
        ),
        ({"writer_properties": WriterProperties(dictionary_page_size_limit=9)}, "dictionary_page_size_limit"),
        ({"writer_properties": WriterProperties(write_batch_size=100)}, "write_batch_size"),
        *(
            ({"writer_properties": WriterProperties(default_column_properties=column)}, "default_column_prop")
            for column in (
                ColumnProperties(statistics_enabled="NONE"),
                ColumnProperties(encoding="PLAIN"),
                ColumnProperties(bloom_filter_properties=BloomFilterProperties(True)),
                ColumnProperties(dictionary_enabled=False, statistics_enabled="PAGE"),
            )
        ),
    ],
)
def test_options_that_the_writer_cannot_follow_are_not_eligible(options: dict[str, Any], reason: str) -> None:
    assert reason in (eligible(table(), ARROW, options) or "")


def test_options_that_say_nothing_about_files_are_no_hindrance() -> None:
    options = {
        "mode": "append",
        "schema_mode": None,
        "target_file_size": 1000,
        "commit_properties": CommitProperties(),
        "writer_properties": WriterProperties(compression="ZSTD", compression_level=3),
        "partition_by": "name",
    }
    assert eligible(table(partition_columns=("name",)), ARROW, options) is None
