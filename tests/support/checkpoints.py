"""States of tables as the content of checkpoints, for tests that write them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb.delta_log.checkpoint import is_complete
from deltalakedb.delta_log.checkpoint_writer import CheckpointContent
from deltalakedb.delta_log.listing import list_log
from deltalakedb.protocol.json_text import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalakedb.delta_log import FileTxnLogReader
    from deltalakedb.protocol.actions import Add
    from deltalakedb.storage import Store

FILES = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modification_time", pa.int64()),
        ("data_change", pa.bool_()),
        ("stats", pa.string()),
        ("partition_values", pa.string()),
        ("tags", pa.string()),
        ("deletion_vector", pa.string()),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("clustering_provider", pa.string()),
        ("add_extra", pa.string()),
    ]
)


def part_path(version: int, part: int, parts: int) -> str:
    """The path of one part of a multi-part checkpoint, which is read and not written any more."""
    return f"_delta_log/{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"


def batches(adds: Iterable[Add], rows: int = 3) -> Iterator[pa.RecordBatch]:
    """Adds as the batches that a catalog gives, small ones so that there are several."""
    found = [_row(add) for add in adds]
    for at in range(0, len(found), rows):
        yield pa.RecordBatch.from_pylist(found[at : at + rows], schema=FILES)


def content(reader: FileTxnLogReader, version: int, **changes: Any) -> CheckpointContent:
    """What a checkpoint of a version holds; for ``stats_as_…`` see `with_stats`."""
    snapshot = reader.snapshot(version)
    fields: dict[str, Any] = {
        "version": version,
        "protocol": snapshot.protocol,
        "metadata": snapshot.metadata,
        "files": batches(reader.files(version)),
        "tombstones": reader.tombstones(version),
        "txns": tuple(reader.txns(version).values()),
        "domains": tuple(reader.domains(version).values()),
    }
    stats = {name: changes.pop(name) for name in [*changes] if name.startswith("stats_as_")}
    return with_stats(CheckpointContent(**{**fields, **changes}), **stats)


def with_stats(
    found: CheckpointContent, *, stats_as_json: bool | None = None, stats_as_struct: bool | None = None
) -> CheckpointContent:
    """The same content, with the columns that a table has whose properties request statistics so."""
    wanted = {"writeStatsAsJson": stats_as_json, "writeStatsAsStruct": stats_as_struct}
    properties = {f"delta.checkpoint.{k}": str(v).lower() for k, v in wanted.items() if v is not None}
    metadata = replace(found.metadata, configuration={**found.metadata.configuration, **properties})
    made = replace(found)
    if properties:
        made.__dict__["schema"] = replace(found, metadata=metadata).schema
    return made


def checkpoint_version(store: Store, version: int | None = None) -> int | None:
    """The newest complete checkpoint that leads to a version, or None if commits alone must do."""
    listing = list_log(store)
    for plan in listing.plans(listing.latest if version is None else version):
        if plan.checkpoint is None or is_complete(store, plan.checkpoint):
            return None if plan.checkpoint is None else plan.checkpoint.version
    raise AssertionError("no complete checkpoint leads there")


def state(reader: FileTxnLogReader, version: int, *, stats: bool = True) -> dict[str, Any]:
    """All that a version holds, without what a checkpoint leaves out by rule."""
    files = [add.to_dict() for add in reader.files(version)]
    dead = [remove.to_dict() for remove in reader.tombstones(version)]
    for action in [*files, *dead]:
        action["dataChange"] = None
    for action in [*dead, *([] if stats else files)]:
        action.pop("stats", None)
    for action in dead:
        action.pop("tags", None)
    return {
        "protocol": reader.snapshot(version).protocol,
        "metadata": reader.snapshot(version).metadata,
        "files": sorted(files, key=str),
        "dead": sorted(dead, key=str),
        "txns": reader.txns(version),
        "domains": reader.domains(version),
    }


def _row(add: Add) -> dict[str, Any]:
    vector = add.deletion_vector
    return {
        "path": add.path,
        "size": add.size,
        "modification_time": add.modification_time,
        "data_change": add.data_change,
        "stats": add.stats,
        "partition_values": encode_json(add.partition_values),
        "tags": None if add.tags is None else encode_json(add.tags),
        "deletion_vector": None if vector is None else encode_json(vector.to_dict()),
        "base_row_id": add.base_row_id,
        "default_row_commit_version": add.default_row_commit_version,
        "clustering_provider": add.clustering_provider,
        "add_extra": None,
    }
