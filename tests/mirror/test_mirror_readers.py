"""What readers of the folder get beside the versions: times to travel by, and what belongs together."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, NewTable, TableChange
from deltalakedb.protocol.actions import Protocol
from support.lake import ids, ids_of
from support.mirrors import append, commit_file, outside_ids

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog
    from deltalakedb.metastore.database import Database


ICT = Protocol(min_reader_version=1, min_writer_version=7, writer_features=("inCommitTimestamp",))


def at(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="milliseconds")


def spread(catalog: Catalog, database: Database, last: int) -> list[int]:
    """Give waiting commits times far apart, as if they had been made on other days."""
    day = 24 * 3_600_000
    with database.write() as session:
        session.run("UPDATE dl_commits SET timestamp = timestamp - (? - version) * ?", (last + 1, day))
        rows = session.rows("SELECT timestamp FROM dl_commits ORDER BY version")
    return [r[0] for r in rows]


def test_travel_by_time_is_the_same_in_the_folder_and_in_sql(
    catalog: Catalog, silent: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "late"
    silent.write("t", ids(0), location=root)
    append(silent, 1, 2, 3)
    times = spread(catalog, catalog.log("t").database, 3)
    assert catalog.mirror.publish("t").published == 4
    assert [commit_file(root, v).stat().st_mtime_ns // 10**6 for v in range(4)] == times
    for version, time in enumerate(times):
        for moment in (time, time + 1, time + 3_600_000):
            stock, ours = deltalake.DeltaTable(root), catalog.table("t")
            stock.load_as_version(at(moment))
            ours.load_as_version(at(moment))
            assert (stock.version(), ours.version()) == (version, version)
            assert ids_of(stock) == ids_of(ours)
    just_before = catalog.table("t")
    just_before.load_as_version(at(times[2] - 1))
    assert just_before.version() == 1


def test_commit_times_in_the_commits_are_those_of_the_catalog(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "ict"
    catalog.create_table("model", ids(0).schema, location=tmp_path / "model")
    model = catalog.log("model")
    metadata = replace(model.snapshot().metadata, configuration={"delta.enableInCommitTimestamps": "true"})
    change = TableChange(NewTable("t", str(root)), [[ICT, metadata]])
    commit(model.database, CommitRequest([change]))
    catalog.mirror.publish("t")
    append(catalog, 1, 2)
    history = {h["version"]: h["timestamp"] for h in catalog.table("t").history()}
    for version in range(3):
        first = json.loads(commit_file(root, version).read_bytes().splitlines()[0])
        assert first["commitInfo"]["inCommitTimestamp"] == history[version], "and it is the first action"
        assert commit_file(root, version).stat().st_mtime_ns // 10**6 == history[version]
    assert outside_ids(root) == [1, 2]
    assert catalog.mirror.verify("t").ok


def manifests(root: Path) -> list[dict[str, object]]:
    return [json.loads(p.read_text()) for p in (root / "_delta_transactions").glob("*.json")]


def test_a_manifest_names_the_versions_of_one_transaction(catalog: Catalog, tmp_path: Path) -> None:
    roots = {name: tmp_path / name for name in ("a", "b")}
    for name, root in roots.items():
        catalog.write(name, ids(0), location=root)
    append(catalog, 1, name="b")
    with catalog.transaction() as tx:
        tx.write("a", ids(1))
        tx.write("b", ids(2))
    wanted = {("a", str(roots["a"]), 1), ("b", str(roots["b"]), 2)}
    for root in roots.values():
        (manifest,) = manifests(root)
        assert manifest["txnId"] == tx.uuid
        tables = manifest["tables"]
        assert isinstance(tables, list)
        assert {(t["name"], t["location"], t["version"]) for t in tables} == wanted
        for table in tables:
            stock = deltalake.DeltaTable(table["location"], version=table["version"])
            assert ids_of(stock) == ids_of(catalog.table(table["name"], version=table["version"]))


def test_a_commit_of_one_table_needs_no_manifest(catalog: Catalog, root: Path) -> None:
    with catalog.transaction() as tx:
        tx.write("t", ids(1))
    append(catalog, 2)
    assert manifests(root) == []


def test_a_manifest_does_not_disturb_stock_vacuum(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("a", "b"):
        catalog.write(name, ids(0), location=tmp_path / name)
    with catalog.transaction() as tx:
        tx.write("a", ids(1))
        tx.write("b", ids(1))
    found = deltalake.DeltaTable(tmp_path / "a").vacuum(retention_hours=0, enforce_retention_duration=False)
    assert found == []
    assert len(manifests(tmp_path / "a")) == 1


@pytest.mark.parametrize("deletion", ["id = 1", "part = 'a'"])
def test_deletes_and_overwrites_reach_the_folder_like_appends(
    catalog: Catalog, tmp_path: Path, deletion: str
) -> None:
    root = tmp_path / "p"
    catalog.write("p", ids(1, 2), location=root, partition_by="part")
    catalog.write("p", ids(3, part="b"), mode="append")
    catalog.table("p").delete(deletion)
    catalog.write("p", ids(4, part="c"), mode="overwrite")
    for version in range(4):
        assert outside_ids(root, version=version) == ids_of(catalog.table("p", version=version))
    assert catalog.mirror.verify("p").ok
