"""Actions in one line, for tests that build logs by hand."""

from __future__ import annotations

import json
from typing import Any

from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Protocol, Remove

SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"day","type":"string","nullable":true,"metadata":{}}]}'
)


def protocol(**fields: Any) -> Protocol:
    """The oldest protocol there is, unless told otherwise."""
    return Protocol(**{"min_reader_version": 1, "min_writer_version": 2, **fields})


def metadata(**fields: Any) -> Metadata:
    """A table of two columns, partitioned by ``day``."""
    defaults = {
        "id": "5f1c3c5e-0000-4000-8000-000000000000",
        "schema_string": SCHEMA,
        "partition_columns": ("day",),
        "created_time": 1_700_000_000_000,
    }
    return Metadata(**{**defaults, **fields})


def add(path: str, **fields: Any) -> Add:
    """A file of 100 bytes and 7 rows."""
    defaults: dict[str, Any] = {
        "partition_values": {"day": "2024-01-01"},
        "size": 100,
        "modification_time": 1_700_000_000_000,
        "data_change": True,
        "stats": '{"numRecords":7,"minValues":{"id":1},"maxValues":{"id":9},"nullCount":{"id":0}}',
    }
    return Add(path=path, **{**defaults, **fields})


def remove(path: str, **fields: Any) -> Remove:
    """The removal of such a file."""
    defaults: dict[str, Any] = {
        "deletion_timestamp": 1_700_000_000_500,
        "data_change": True,
        "extended_file_metadata": True,
        "partition_values": {"day": "2024-01-01"},
        "size": 100,
    }
    return Remove(path=path, **{**defaults, **fields})


def info(operation: str, **fields: Any) -> CommitInfo:
    """What a writer says of its commit."""
    return CommitInfo(extra={"timestamp": 1_700_000_000_000, "operation": operation, **fields})


def features(*names: str) -> Protocol:
    """A protocol that only names features of writers."""
    return protocol(min_reader_version=1, min_writer_version=7, writer_features=names)


def schema_with(field: dict[str, Any]) -> str:
    """The schema of `support.lake.ids`, its first column changed."""
    first = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    other = {"name": "part", "type": "string", "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [{**first, **field}, other]})
