"""Checkpoints by the writers themselves: when they are due, who may forbid them, and at what cost."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, PostCommitHookProperties, telemetry, write_deltalake
from deltalakedb.metastore import leases
from deltalakedb.mirror.reconciler import PUBLISHER
from deltalakedb.settings import Config
from support.lake import ids, ids_of
from support.mirrors import append, commit_file, logged, outside_ids
from support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_NOW = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def thrice(catalog: Catalog, tmp_path: Path) -> Path:
    """The folder of a table `t` at version 0 that wants a checkpoint every three commits."""
    root = tmp_path / "lake" / "t"
    every = {"delta.checkpointInterval": "3"}
    catalog.create_table("t", ids(0).schema, location=root, configuration=every)
    return root


def hint(root: Path) -> int | None:
    file = root / "_delta_log" / "_last_checkpoint"
    return json.loads(file.read_text())["version"] if file.exists() else None


def statements(work: Callable[[], Any]) -> list[str]:
    found: list[str] = []
    stop = telemetry.subscribe(
        lambda e: found.append(e.labels["statement"]) if e.name == "sql_statement" else None
    )
    try:
        work()
    finally:
        stop()
    return found


def test_the_writer_that_passes_the_interval_writes_the_checkpoint(catalog: Catalog, thrice: Path) -> None:
    hints = []
    for number in range(1, 8):
        append(catalog, number)
        hints.append(hint(thrice))
    assert hints == [None, None, 3, 3, 3, 6, 6]
    assert catalog.mirror.status("t")[0].checkpoint_version == 6
    assert catalog.mirror.run().checkpoints == 0, "nothing is left to do"
    for version in range(6):
        commit_file(thrice, version).unlink()
    assert outside_ids(thrice) == list(range(1, 8))
    assert catalog.mirror.verify("t").ok


@only_sqlite
def test_a_commit_that_is_not_due_one_asks_the_database_nothing_more(catalog: Catalog, thrice: Path) -> None:
    without = Catalog(catalog.uri, config=Config(publish={"checkpoints": False}))
    append(catalog, 1)
    append(without, 2)
    append(without, 3)
    assert hint(thrice) is None, "a setting leaves them to the reconciler"
    plain = statements(lambda: append(without, 4))
    assert statements(lambda: append(catalog, 5)) == plain
    assert len(statements(lambda: append(catalog, 6))) > len(plain)
    assert hint(thrice) == 6


@only_sqlite
def test_whoever_publishes_the_version_writes_its_checkpoint(
    catalog: Catalog, silent: Catalog, thrice: Path
) -> None:
    append(silent, 1, 2, 3)
    append(catalog, 4)
    assert hint(thrice) == 4, "the newest published version, since 3 was passed"
    catalog.mirror.checkpoint("t")
    append(catalog, 5, 6)
    assert hint(thrice) == 6, "passed again, though only two commits after the last"


@only_sqlite
def test_hooks_forbid_a_checkpoint_whatever_the_operation(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "each"
    always = {"delta.checkpointInterval": "1"}
    uri = catalog._address.with_table("t", location=str(root)).to_uri()
    write_deltalake(uri, ids(0), configuration=always, post_commithook_properties=NOT_NOW)
    uri = catalog.table_uri("t")
    table = catalog.table("t")
    write_deltalake(uri, ids(1), mode="append", post_commithook_properties=NOT_NOW)
    write_deltalake(uri, ids(2), mode="append", schema_mode="merge", post_commithook_properties=NOT_NOW)
    deltalake.write_deltalake(table, ids(3), mode="append", post_commithook_properties=NOT_NOW)
    table.delete("id = 3", post_commithook_properties=NOT_NOW)
    table.update({"id": "20"}, predicate="id = 2", post_commithook_properties=NOT_NOW)
    table.merge(
        ids(1, 5), "s.id = t.id", source_alias="s", target_alias="t", post_commithook_properties=NOT_NOW
    ).when_not_matched_insert_all().execute()
    again = {"mode": "overwrite", "predicate": "id = 5", "post_commithook_properties": NOT_NOW}
    write_deltalake(uri, ids(5), **again)  # type: ignore[arg-type]
    with catalog.transaction() as tx:
        tx.write("t", ids(6))
        tx.write("t", ids(7), post_commithook_properties=NOT_NOW)
    assert table.version() < catalog.table("t").version() == 8
    assert hint(root) is None
    table.delete("id = 7")
    assert hint(root) == 9
    assert ids_of(catalog.table("t")) == outside_ids(root) == [0, 1, 5, 6, 20]


@only_sqlite
def test_hooks_hold_in_the_background_too(catalog_uri: str, thrice: Path) -> None:
    with Catalog(catalog_uri, config=Config(publish={"mode": "background"})) as catalog:
        for number in range(1, 4):
            catalog.write("t", ids(number), mode="append", post_commithook_properties=NOT_NOW)
        assert PUBLISHER.flush()
        assert (logged(thrice), hint(thrice)) == ([0, 1, 2, 3], None)
        append(catalog, 4, 5)
        assert PUBLISHER.flush()
        assert hint(thrice) is None, "the next one that is passed"
        append(catalog, 6)
        assert PUBLISHER.flush()
        assert hint(thrice) == 6


@only_sqlite
@pytest.mark.parametrize("by", ["property", "hook", "neither", "forbidden"])
def test_the_log_is_cleaned_up_after_a_checkpoint_only_where_somebody_asks(
    catalog: Catalog, tmp_path: Path, by: str
) -> None:
    root = tmp_path / "c"
    wanted = {"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 seconds"}
    if by in ("property", "forbidden"):
        wanted["delta.enableExpiredLogCleanup"] = "true"
    catalog.create_table("c", ids(0).schema, location=root, configuration=wanted)
    hooks = {"hook": PostCommitHookProperties(cleanup_expired_logs=True)}
    hooks["forbidden"] = PostCommitHookProperties(cleanup_expired_logs=False)
    for number in range(1, 5):
        catalog.write("c", ids(number), mode="append", post_commithook_properties=hooks.get(by))
    assert hint(root) == 4
    assert logged(root) == ([4] if by in ("property", "hook") else [0, 1, 2, 3, 4])
    assert outside_ids(root) == [1, 2, 3, 4]
    assert catalog.mirror.verify("c").ok


@only_sqlite
def test_trouble_with_a_checkpoint_never_fails_the_commit(
    catalog: Catalog, thrice: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(catalog, 1, 2)
    in_the_way = thrice / "_delta_log" / f"{3:020}.checkpoint.parquet"
    in_the_way.mkdir()
    append(catalog, 3)
    assert ids_of(catalog.table("t")) == [1, 2, 3]
    assert "the checkpoint of t must wait" in caplog.text
    in_the_way.rmdir()
    with catalog._database.write() as session:
        session.run("DELETE FROM dl_settings")  # as if the time until the next try had passed
    lease = leases.acquire(catalog.log("t").database, f"checkpoint:{catalog.describe('t').table_id}")
    assert lease is not None
    with caplog.at_level(logging.INFO):
        append(catalog, 4, 5, 6)
    assert "a checkpoint or the clean-up of t is already in progress" in caplog.text
    assert hint(thrice) is None
    leases.release(catalog.log("t").database, lease)
    assert catalog.mirror.run().checkpoints == 1
    assert hint(thrice) == 6
    assert outside_ids(thrice) == [1, 2, 3, 4, 5, 6]


def append_one(uri: str, number: int) -> None:
    with Catalog(uri) as catalog:
        append(catalog, number)


@only_sqlite
@pytest.mark.parametrize("point", ["before_put", "after_put", "after_hint", "after_note"])
def test_a_writer_that_is_killed_while_it_writes_a_checkpoint_has_committed(
    catalog_uri: str, catalog: Catalog, thrice: Path, tmp_path: Path, point: str
) -> None:
    append(catalog, 1, 2)
    Child(append_one, catalog_uri, 3, folder=tmp_path, points=f"checkpoint.{point}=kill").died()
    assert ids_of(catalog.table("t")) == outside_ids(thrice) == [1, 2, 3]
    assert hint(thrice) == (3 if point in ("after_hint", "after_note") else None)
    append(catalog, 4)
    assert outside_ids(thrice) == [1, 2, 3, 4]
    assert catalog.mirror.verify("t").ok


@only_sqlite
@pytest.mark.parametrize("count", [1, 2])
def test_a_cleaner_that_is_killed_leaves_a_log_that_reads_the_same(
    catalog_uri: str, catalog: Catalog, tmp_path: Path, count: int
) -> None:
    root = tmp_path / "lake" / "t"
    now = {"delta.logRetentionDuration": "interval 0 seconds"}
    catalog.create_table("t", ids(0).schema, location=root, configuration=now)
    append(catalog, 1, 2, 3)
    catalog.mirror.checkpoint("t")
    points = f"cleanup.between_files=kill@{count}"
    Child(clean, catalog_uri, folder=tmp_path, points=points).died()
    assert logged(root) == [0, 1, 2, 3][count:]
    assert outside_ids(root) == [1, 2, 3]
    assert catalog.mirror.verify("t").ok
    with catalog.log("t").database.write() as session:
        session.run("UPDATE dl_leases SET expires_at = 1")
    assert len(catalog.mirror.clean("t").delete) >= 3 - count
    assert logged(root) == [3]
    assert outside_ids(root) == [1, 2, 3]


def clean(uri: str) -> None:
    Catalog(uri).mirror.clean("t")


@only_sqlite
def test_a_scratch_table_is_never_checkpointed_itself(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "s"
    catalog.write(
        "s", pa.table({"id": [1, 2]}), location=root, configuration={"delta.checkpointInterval": "1"}
    )
    catalog.table("s").delete("id = 1")
    names = {p.name for p in root.rglob("*") if "checkpoint" in p.name}
    assert names == {"_last_checkpoint", f"{1:020}.checkpoint.parquet"}


def settled_by(catalog_uri: str, **settings: Any) -> Catalog:
    return Catalog(catalog_uri, config=Config(publish=settings))


def test_a_tail_of_many_bytes_is_due_a_checkpoint(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    with settled_by(catalog_uri, checkpoint_tail_bytes=4_000) as catalog:
        catalog.write("t", ids(0), location=root)
        hints = []
        for number in range(1, 12):
            append(catalog, number)
            hints.append(hint(root))
    first = next(v for v in hints if v is not None)
    sizes = [commit_file(root, version).stat().st_size for version in range(first + 1)]
    assert sum(sizes) >= 4_000 > sum(sizes[:-1])
    assert outside_ids(root) == list(range(12))


@only_sqlite
def test_a_reconciler_writes_a_checkpoint_of_what_has_waited_long_enough(
    catalog_uri: str, tmp_path: Path
) -> None:
    root = tmp_path / "lake" / "t"
    with settled_by(catalog_uri, checkpoint_after_s=3600) as catalog:
        catalog.write("t", ids(0), location=root)
        append(catalog, 1)
        assert catalog.mirror.run().checkpoints == 0
        database = catalog.log("t").database
        with database.write() as session:
            session.run("UPDATE dl_commits SET timestamp = timestamp - 3700000")
        assert catalog.mirror.run().checkpoints == 1
        assert catalog.mirror.run().checkpoints == 0
        assert hint(root) == 1


def test_bytes_that_a_checkpoint_covers_can_be_pruned(catalog: Catalog, thrice: Path) -> None:
    assert catalog.mirror.prune("t").commits == 0, "there is no checkpoint yet"
    append(catalog, 1, 2, 3, 4)
    assert catalog.mirror.prune("t", dry_run=True).to_dict() == {"table": "t", "upto": 2, "commits": 3}
    assert catalog.mirror.prune("t").commits == 3
    assert catalog.mirror.prune("t").commits == 0
    kept = catalog.query("SELECT version FROM dl_commit_bytes ORDER BY version")["version"].to_pylist()
    assert kept == [3, 4], "the checkpoint's own commit stays"
    sums = catalog.query("SELECT sha256, size_bytes FROM dl_commits").to_pylist()
    assert all(row["sha256"] and row["size_bytes"] for row in sums)
    assert catalog.mirror.verify("t").ok
    append(catalog, 5)
    assert ids_of(catalog.table("t")) == outside_ids(thrice) == [1, 2, 3, 4, 5]
    assert ids_of(DeltaTable(catalog.table_uri("t"), version=2)) == [1, 2]
    commit_file(thrice, 1).write_bytes(b"{}")
    assert not catalog.mirror.verify("t").ok, "the digest is still known"


@only_sqlite
def test_a_setting_prunes_after_every_checkpoint(catalog_uri: str, tmp_path: Path) -> None:
    with settled_by(catalog_uri, keep_bytes=False) as catalog:
        every = {"delta.checkpointInterval": "3"}
        catalog.create_table("t", ids(0).schema, location=tmp_path / "t", configuration=every)
        append(catalog, 1, 2, 3, 4)
        kept = catalog.query("SELECT version FROM dl_commit_bytes")["version"].to_pylist()
    assert sorted(kept) == [3, 4]


@only_sqlite
@pytest.mark.parametrize("bad", ["0", "-5", "abc"])
def test_a_property_that_is_no_interval_fails_no_commit(catalog: Catalog, tmp_path: Path, bad: str) -> None:
    every = {"delta.checkpointInterval": bad}
    deltalake.DeltaTable.create(str(tmp_path / "t"), ids(0).schema, configuration=every)
    catalog.register("t", tmp_path / "t")
    append(catalog, 1, 2)
    assert ids_of(catalog.table("t")) == outside_ids(tmp_path / "t") == [1, 2]
    assert catalog.mirror.run().checkpoints == 0
