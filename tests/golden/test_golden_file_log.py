"""The file-backed log against what independent replays say of real tables, at every version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.log import FileTxnLogReader, open_file_log
from deltalakedb.protocol.paths import canonical_path
from deltalakedb.protocol.stats import parse_stats
from support.golden import golden_params

if TYPE_CHECKING:
    from support.golden import GoldenTable


def files_of(log: FileTxnLogReader, version: int) -> list[list[Any]]:
    rows = []
    for add in log.files(version):
        stats = parse_stats(add.stats)
        records = None if stats is None else stats.num_records
        rows.append(
            [canonical_path(add.path), add.size, dict(add.partition_values), add.dv_id or None, records]
        )
    return sorted(rows, key=lambda row: (row[0], row[3] or ""))


def tombstones_of(log: FileTxnLogReader, version: int) -> list[list[Any]]:
    rows = [[canonical_path(r.path), r.dv_id or None, r.deletion_timestamp] for r in log.tombstones(version)]
    return sorted(rows, key=lambda row: (row[0], row[1] or ""))


def check_version(log: FileTxnLogReader, version: int, truth: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("table", golden_params())
def test_the_file_log_agrees_with_the_truth(table: GoldenTable) -> None:
    truth = table.truth
    if truth["expect"] == "must_fail":
        with pytest.raises(DeltaSqlError) as caught:
            list(open_file_log(table.path).files())
        assert caught.value.suggestion
        return
    log = open_file_log(table.path)
    assert list(log.versions()) == truth["versions_reachable"]
    assert log.latest_version() == truth["latest"]
    # up and down again, so that both the advancing and the rebuilding of states are seen
    for version in [*truth["versions_reachable"], *reversed(truth["versions_reachable"])]:
        wanted = truth["versions"][str(version)]
        if wanted["metadata"]["schemaString"] is None:
            with pytest.raises(DeltaSqlError):
                log.snapshot(version)
        else:
            check_version(log, version, wanted)
    for version in [*(set(range(truth["latest"])) - set(truth["versions_reachable"])), truth["latest"] + 1]:
        with pytest.raises(DeltaSqlError):
            log.snapshot(version)
    operations = {commit.version: commit.operation for commit in log.history()}
    assert list(operations) == sorted(operations, reverse=True)
    for number, wanted in truth["versions"].items():
        if (info := wanted.get("commit_info")) is not None and int(number) in operations:
            assert operations[int(number)] == info["operation"]
