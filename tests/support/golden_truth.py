"""The truth about golden tables, compared with what a transaction log says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.stats import parse_stats

if TYPE_CHECKING:
    from deltalakedb.protocol.txn_log import TxnLogReader


def files_of(log: TxnLogReader, version: int) -> list[list[Any]]:
    """The live files as the truth lists them."""
    rows = []
    for add in log.files(version):
        stats = parse_stats(add.stats)
        records = None if stats is None else stats.num_records
        rows.append(
            [canonical_path(add.path), add.size, dict(add.partition_values), add.dv_id or None, records]
        )
    return sorted(rows, key=lambda row: (row[0], row[3] or ""))


def tombstones_of(log: TxnLogReader, version: int) -> list[list[Any]]:
    """The removed files as the truth lists them."""
    rows = [[canonical_path(r.path), r.dv_id or None, r.deletion_timestamp] for r in log.tombstones(version)]
    return sorted(rows, key=lambda row: (row[0], row[1] or ""))


def check_version(log: TxnLogReader, version: int, truth: dict[str, Any]) -> None:
    """Everything that a log says of one version, against the truth."""
    snapshot = log.snapshot(version)
    assert snapshot.version == version
    protocol = snapshot.protocol.to_dict()
    for key in ("readerFeatures", "writerFeatures"):
        assert sorted(protocol.pop(key, [])) == (truth["protocol"].get(key) or []), key
    assert protocol == {k: v for k, v in truth["protocol"].items() if k.startswith("min")}
    metadata, want = snapshot.metadata, truth["metadata"]
    assert (metadata.id, metadata.name, metadata.description) == (
        want["id"],
        want["name"],
        want["description"],
    )
    assert metadata.schema_string == want["schemaString"]
    assert list(metadata.partition_columns) == want["partitionColumns"]
    assert dict(metadata.configuration) == want["configuration"]
    assert metadata.created_time == want["createdTime"]
    assert files_of(log, version) == truth["files"]
    assert tombstones_of(log, version) == truth["tombstones"]
    assert {app: txn.version for app, txn in log.txns(version).items()} == truth["txns"]
    assert {name: domain.configuration for name, domain in log.domains(version).items()} == truth["domains"]
