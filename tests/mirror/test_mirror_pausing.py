"""Pausing and resuming: commits go on, readers of the folder keep an older, consistent state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog, DeltaTable
from deltalakedb.exceptions import TableMissingError
from support.lake import ids, ids_of
from support.mirrors import append, logged, outside_ids, same_everywhere
from support.processes import Child, until

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.metastore.database import Database


def test_readers_outside_keep_the_older_state_while_a_table_is_paused(
    catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    catalog.write("u", ids(0), location=tmp_path / "u")
    catalog.mirror.pause("t")
    append(catalog, 1, 2)
    catalog.table("t").delete("id = 0")
    append(catalog, 1, name="u")
    assert ids_of(catalog.table("t")) == [1, 2]
    assert (logged(root), outside_ids(root)) == ([0], [0])
    assert outside_ids(tmp_path / "u") == [0, 1], "another table goes on"
    paused = {s.table: (s.paused, s.versions_behind) for s in catalog.mirror.status()}
    assert paused == {"t": (True, 3), "u": (False, 0)}
    assert catalog.mirror.run().published == 0
    assert catalog.mirror.publish("t").published == 0, "neither by name"
    assert catalog.mirror.resume("t").published == 3
    assert catalog.mirror.status("t")[0].paused is False
    same_everywhere(catalog, root)


def test_a_paused_catalog_publishes_no_table(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    catalog.mirror.pause()
    append(catalog, 1)
    catalog.write("u", ids(0), location=tmp_path / "u")
    append(catalog, 1, name="u")
    assert [s.paused for s in catalog.mirror.status()] == [True, True]
    assert catalog.mirror.run().published == 0
    assert catalog.mirror.publish("u").published == 0
    assert logged(root) == [0]
    assert not (tmp_path / "u" / "_delta_log").exists()
    assert catalog.mirror.resume().published == 3
    same_everywhere(catalog, root)
    same_everywhere(catalog, tmp_path / "u", "u")


def test_resuming_the_catalog_leaves_a_table_paused_that_was_paused_by_name(
    catalog: Catalog, root: Path
) -> None:
    catalog.mirror.pause("t")
    catalog.mirror.pause()
    append(catalog, 1)
    assert catalog.mirror.run().paused == ("t",)
    still = catalog.mirror.resume()
    assert (still.published, still.paused) == (0, ("t",)), "it is named"
    assert catalog.mirror.status()[0].paused
    done = catalog.mirror.resume("t")
    assert (done.published, done.paused) == (1, ())
    assert outside_ids(root) == [0, 1]


def test_pausing_twice_is_pausing_once(catalog: Catalog, root: Path) -> None:
    for _ in range(2):
        catalog.mirror.pause()
        catalog.mirror.pause("t")
    append(catalog, 1)
    catalog.mirror.resume()
    assert catalog.mirror.resume("t").published == 1
    assert catalog.mirror.resume("t").published == 0


def test_only_what_exists_can_be_paused(catalog: Catalog) -> None:
    with pytest.raises(TableMissingError):
        catalog.mirror.pause("nothing")
    with pytest.raises(TableMissingError):
        catalog.mirror.resume("nothing")


def test_a_pause_holds_for_writers_that_came_before_it(
    catalog: Catalog, root: Path, table_uri: TableUri
) -> None:
    early = DeltaTable(table_uri("t"))
    catalog.mirror.pause("t")
    early.delete("id = 0")
    assert logged(root) == [0]
    actions = [
        r["action"] for r in catalog.query("SELECT action FROM dl_audit ORDER BY audit_id").to_pylist()
    ]
    assert "pause" in actions


def somebody_waits_for(catalog: Catalog, backend: int) -> bool:
    sql = "SELECT count(*) AS n FROM pg_stat_activity WHERE ? = ANY(pg_blocking_pids(pid))"
    return bool(catalog.query(sql, (backend,)).to_pylist()[0]["n"])


def append_one(uri: str, number: int) -> None:
    append(Catalog(uri), number)


def delete_all(uri: str) -> None:
    Catalog(uri).table("t").delete()


@pytest.mark.parametrize("engine_name", ["postgres"])
@pytest.mark.parametrize("name", ["t", None])
def test_an_append_that_waited_while_a_pause_began_is_not_published(
    catalog_uri: str, catalog: Catalog, database: Database, root: Path, tmp_path: Path, name: str | None
) -> None:
    append(catalog, 1)
    with database.write() as session:
        ((backend, _),) = session.rows("SELECT pg_backend_pid(), table_id FROM dl_heads FOR UPDATE")
        writer = Child(append_one, catalog_uri, 2, folder=tmp_path)
        until(lambda: somebody_waits_for(catalog, backend))
        catalog.mirror.pause(name)
    writer.result()
    assert (logged(root), outside_ids(root)) == ([0, 1], [0, 1])
    assert catalog.mirror.status("t")[0].versions_behind == 1
    assert catalog.mirror.resume(name).published == 1
    same_everywhere(catalog, root)


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_a_commit_that_stands_when_a_pause_begins_is_not_published(
    catalog_uri: str, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    writer = Child(delete_all, catalog_uri, folder=tmp_path, points="commit.after=stop")
    writer.pause()
    catalog.mirror.pause("t")
    writer.resume()
    writer.result()
    assert (logged(root), outside_ids(root)) == ([0], [0])
    assert catalog.mirror.resume("t").published == 1
    assert outside_ids(root) == []


def run_mirror(uri: str) -> int:
    return Catalog(uri).mirror.run().published


@pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])
def test_a_pause_holds_in_the_middle_of_a_backlog(
    catalog_uri: str, catalog: Catalog, silent: Catalog, root: Path, tmp_path: Path
) -> None:
    append(silent, 1, 2, 3)
    reconciler = Child(run_mirror, catalog_uri, folder=tmp_path, points="publish.after_put=stop@1")
    reconciler.pause()
    catalog.mirror.pause()
    reconciler.resume()
    assert reconciler.result() == 1, "what was put is noted"
    assert logged(root) == [0, 1]
    assert catalog.mirror.resume().published == 2
    same_everywhere(catalog, root)
