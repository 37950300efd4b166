"""The reconciler: over all tables, once, as a service or a thread; any number of publishers do no harm."""

from __future__ import annotations

import os
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.metastore import outbox
from deltalakedb.mirror.reconciler import ReconcilerThread
from deltalakedb.settings import Config
from support.lake import ids
from support.mirrors import append, append_outside, commit_file, logged, outside_ids, same_everywhere
from support.processes import Child, results, until

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.metastore.database import Database

#: 10,000 is the goal; a smaller one shows the same
BACKLOG = int(os.environ.get("DELTASQL_TEST_BACKLOG", "1000"))
COMMIT_BYTES = 20_000


def test_a_pass_publishes_every_table(catalog: Catalog, silent: Catalog, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    for name in names:
        catalog.write(name, ids(0), location=tmp_path / name)
    append(silent, 1, 2, name="a")
    append(silent, 1, name="c")
    done = catalog.mirror.run()
    assert (done.published, done.failed, done.diverged) == (3, (), ())
    for name in names:
        same_everywhere(catalog, tmp_path / name, name)


def test_one_tables_trouble_does_not_hold_up_the_others(
    catalog: Catalog, silent: Catalog, tmp_path: Path
) -> None:
    for name in ("broken", "diverged", "fine"):
        catalog.write(name, ids(0), location=tmp_path / name)
        append(silent, 1, name=name)
    (tmp_path / "broken" / "_delta_log").rename(tmp_path / "aside")
    (tmp_path / "broken" / "_delta_log").write_text("in the way")
    append_outside(tmp_path / "diverged", 7)
    with pytest.warns(UserWarning, match="diverged is frozen"):
        done = catalog.mirror.run()
    assert (done.published, done.failed, done.diverged) == (1, ("broken",), ("diverged",))
    same_everywhere(catalog, tmp_path / "fine", "fine")
    assert {s.table: s.state for s in catalog.mirror.status()}["diverged"] == "frozen"
    assert catalog.mirror.run().diverged == (), "a frozen table is left alone"


def test_a_service_publishes_until_it_is_told_to_stop(catalog: Catalog, silent: Catalog, root: Path) -> None:
    stop = threading.Event()
    done = []
    service = threading.Thread(target=lambda: done.append(catalog.mirror.run(stop=stop, interval=0.02)))
    service.start()
    try:
        for number in range(1, 4):
            append(silent, number)
            until(lambda n=number: commit_file(root, n).exists())  # type: ignore[misc]
    finally:
        stop.set()
        service.join()
    assert done[0].published == 3
    same_everywhere(catalog, root)


def test_a_service_that_is_stopped_before_it_begins_does_nothing(
    catalog: Catalog, silent: Catalog, root: Path
) -> None:
    append(silent, 1)
    stop = threading.Event()
    stop.set()
    assert catalog.mirror.run(stop=stop).published == 0
    assert logged(root) == [0]


def test_a_thread_reconciles_for_as_long_as_it_is_wanted(
    catalog: Catalog, silent: Catalog, root: Path
) -> None:
    with catalog.mirror.thread(interval=0.02) as thread:
        assert isinstance(thread, ReconcilerThread)
        append(silent, 1, 2)
        until(lambda: commit_file(root, 2).exists())
    append(silent, 3)
    assert "deltasql-reconciler" not in {t.name for t in threading.enumerate()}
    assert logged(root) == [0, 1, 2]
    assert catalog.mirror.publish("t").published == 1


def test_publishers_in_many_threads_do_no_harm(catalog: Catalog, silent: Catalog, root: Path) -> None:
    append(silent, *range(1, 16))
    start = threading.Barrier(6)
    published = []

    def publish() -> None:
        start.wait()
        published.append(catalog.mirror.publish("t").published)

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(published) == 15, "threads of one process share the work"
    assert catalog.mirror.status()[0].published_version == 15
    same_everywhere(catalog, root)


def publish_all(uri: str) -> int:
    return Catalog(uri).mirror.publish("t").published


def test_publishers_in_several_processes_do_no_harm(
    catalog_uri: str, catalog: Catalog, silent: Catalog, root: Path, tmp_path: Path
) -> None:
    append(silent, *range(1, 16))
    catalog.close()
    silent.close()
    children = [Child(publish_all, catalog_uri, folder=tmp_path) for _ in range(3)]
    assert sum(results(children)) >= 15
    status = catalog.mirror.status()[0]
    assert (status.published_version, status.versions_behind, status.state) == (15, 0, "active")
    same_everywhere(catalog, root)


def test_writers_and_reconcilers_side_by_side_do_no_harm(
    catalog_uri: str, catalog: Catalog, root: Path
) -> None:
    with catalog.mirror.thread(interval=0.001):
        append(catalog, *range(1, 11))
    same_everywhere(catalog, root)
    assert outside_ids(root) == list(range(11))


_TEXT = {
    "sqlite": "CAST({} AS BLOB)",
    "duckdb": "encode({})",
    "postgres": "convert_to({}, 'UTF8')",
}


def pile_up(database: Database, last: int) -> None:
    """Make a backlog at once: versions 1 to ``last`` of `t`, as large as a commit of some dozens of files."""
    engine = database.dialect.name
    versions = "WITH RECURSIVE v(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM v WHERE n < ?) "
    if engine != "sqlite":
        versions = "WITH v AS (SELECT n FROM generate_series(1, CAST(? AS BIGINT)) AS s(n)) "
    padding = f"substr(hex(zeroblob({COMMIT_BYTES})), 1, {COMMIT_BYTES})"
    if engine != "sqlite":
        padding = f"repeat('0', {COMMIT_BYTES})"
    line = f"""'{{"commitInfo":{{"n":' || v.n || ',"pad":"' || {padding} || '"}}}}' || chr(10)"""
    line = line.replace("chr(10)", "char(10)") if engine == "sqlite" else line
    with database.write() as session:
        session.run(
            versions
            + "INSERT INTO dl_commits SELECT c.table_id, v.n, 'backlog-' || v.n, 0, c.timestamp + v.n, "
            "'WRITE', c.is_blind_append, c.data_change, 0, 0, NULL, 'sql', c.actor, c.sha256, "
            f"{COMMIT_BYTES} "
            "FROM dl_commits c CROSS JOIN v",
            (last,),
        )
        session.run(
            f"{versions} INSERT INTO dl_commit_bytes SELECT t.table_id, v.n, {_TEXT[engine].format(line)} "
            "FROM dl_tables t CROSS JOIN v",
            (last,),
        )
        session.run(
            versions + "INSERT INTO dl_outbox (table_id, version, state, attempts) "
            "SELECT t.table_id, v.n, 'pending', 0 "
            "FROM dl_tables t CROSS JOIN v",
            (last,),
        )
        session.run("UPDATE dl_heads SET head_version = ?", (last,))


def test_a_long_backlog_is_drained_in_order_and_in_bounded_memory(
    catalog_uri: str, root: Path, database: Database
) -> None:
    pile_up(database, BACKLOG)
    with Catalog(catalog_uri, config=Config(publish={"fsync": False})) as catalog:
        assert catalog.mirror.status()[0].versions_behind == BACKLOG
        tracemalloc.start()
        try:
            done = catalog.mirror.run()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert done.published == BACKLOG
        status = catalog.mirror.status()[0]
        assert (status.published_version, status.versions_behind) == (BACKLOG, 0)
    assert logged(root) == list(range(BACKLOG + 1))
    assert commit_file(root, BACKLOG).read_text().startswith(f'{{"commitInfo":{{"n":{BACKLOG},')
    assert peak < BACKLOG * COMMIT_BYTES / 2, f"{peak} bytes were held at a time"


def test_large_commits_are_taken_in_few_at_a_time(
    catalog: Catalog, root: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_BATCH_BYTES", COMMIT_BYTES * 2 + 1)
    table = catalog.describe("t").table_id
    pile_up(database, 8)
    assert [c.version for c in outbox.waiting(database, table, limit=200)] == [1, 2, 3]
    assert [c.version for c in outbox.waiting(database, table, limit=2)] == [1, 2]
    monkeypatch.setattr(outbox, "MAX_BATCH_BYTES", 1)
    assert [c.version for c in outbox.waiting(database, table, limit=200)] == [1], "one goes in any case"
    assert catalog.mirror.run().published == 8
    assert logged(root) == list(range(9))


@pytest.mark.parametrize("interval", [float("nan"), float("inf"), -1, 0, "5", None, True])
def test_a_pause_between_passes_must_be_a_length_of_time(catalog: Catalog, interval: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="interval"):
        catalog.mirror.thread(interval=interval)
    with pytest.raises(InvalidArgumentError, match="interval"):
        catalog.mirror.run(stop=threading.Event(), interval=interval)
