"""How far each log is behind, why, and when the next try is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import InvalidArgumentError, TableFrozenError, TableMissingError
from deltalakedb.settings import Config
from support.lake import ids
from support.mirrors import append, append_outside, blocked, logged, outside_ids, same_everywhere

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.metastore.database import Database

#: a writer that neither publishes nor looks at the log
BLIND = Config(publish={"mode": "off", "look_ahead": "off"})


def row(catalog: Catalog, version: int) -> dict[str, object]:
    found = catalog.query("SELECT * FROM dl_outbox WHERE version = ?", (version,)).to_pylist()
    return found[0]


def make_due(database: Database) -> None:
    """Let the next try be now, as if the time had passed."""
    with database.write() as session:
        session.run("UPDATE dl_outbox SET next_try_at = 0 WHERE state = 'failed'")


def test_a_published_table_is_not_behind(catalog: Catalog, root: Path) -> None:
    append(catalog, 1, 2)
    (status,) = catalog.mirror.status()
    assert (status.table, status.location, status.state) == ("t", str(root), "active")
    assert (status.version, status.published_version, status.checkpoint_version) == (2, 2, -1)
    assert (status.versions_behind, status.seconds_behind) == (0, 0.0)
    assert (status.attempts, status.error, status.paused) == (0, None, False)
    assert status.published_at is not None
    assert status.to_dict()["published_version"] == 2


def test_waiting_versions_and_the_age_of_the_oldest_are_told(
    catalog: Catalog, silent: Catalog, root: Path, database: Database
) -> None:
    append(silent, 1, 2, 3)
    with database.write() as session:
        session.run("UPDATE dl_commits SET timestamp = timestamp - 90000 WHERE version = 1")
    (status,) = catalog.mirror.status("t")
    assert (status.version, status.published_version, status.versions_behind) == (3, 0, 3)
    assert 90.0 <= status.seconds_behind < 90.0 + 300
    assert logged(root) == [0]


def test_one_table_is_told_apart_from_others(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    catalog.write("u", ids(1), location=tmp_path / "u")
    assert [s.table for s in catalog.mirror.status()] == ["t", "u"]
    assert [s.table for s in catalog.mirror.status("u")] == ["u"]
    with pytest.raises(TableMissingError):
        catalog.mirror.status("v")


def test_a_failed_publish_is_told_with_its_reason_and_next_try(catalog: Catalog, root: Path) -> None:
    with blocked(root):
        append(catalog, 1)
        (status,) = catalog.mirror.status()
        failed = row(catalog, 1)
        assert catalog.mirror.publish("t").failed == ("t",)
        again = row(catalog, 1)
    assert (status.versions_behind, status.attempts) == (1, 1)
    assert status.error
    assert (failed["state"], failed["attempts"]) == ("failed", 1)
    assert (again["state"], again["attempts"]) == ("failed", 2)
    first, second = failed["next_try_at"], again["next_try_at"]
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert second > first, "the wait grows"


def test_a_pass_leaves_a_failed_table_alone_until_its_next_try(
    catalog: Catalog, root: Path, database: Database
) -> None:
    with blocked(root):
        append(catalog, 1, 2)
        # far off, so that a slow machine does not reach it
        with database.write() as session:
            session.run("UPDATE dl_outbox SET next_try_at = next_try_at + 3600000 WHERE state = 'failed'")
    assert catalog.mirror.run().published == 0
    assert logged(root) == [0]
    make_due(database)
    assert catalog.mirror.run().published == 2
    assert row(catalog, 1)["error"] is None
    (status,) = catalog.mirror.status()
    assert (status.versions_behind, status.attempts, status.error) == (0, 0, None)
    same_everywhere(catalog, root)


def test_publishing_by_name_does_not_wait_for_the_next_try(catalog: Catalog, root: Path) -> None:
    with blocked(root):
        append(catalog, 1)
    assert catalog.mirror.publish("t").published == 1
    assert outside_ids(root) == [0, 1]
    with pytest.raises(TableMissingError):
        catalog.mirror.publish("v")


def test_a_version_is_published_once_and_in_order(catalog: Catalog, silent: Catalog, root: Path) -> None:
    append(silent, 1, 2, 3, 4)
    assert logged(root) == [0]
    assert catalog.mirror.publish("t").published == 4
    inodes = {p.name: p.stat().st_ino for p in (root / "_delta_log").iterdir()}
    assert catalog.mirror.publish("t").published == 0
    assert catalog.mirror.run().published == 0
    assert {p.name: p.stat().st_ino for p in (root / "_delta_log").iterdir()} == inodes
    times = [row(catalog, v)["published_at"] for v in range(1, 5)]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    same_everywhere(catalog, root)


def test_a_file_that_is_there_already_counts_as_published(
    catalog: Catalog, silent: Catalog, root: Path
) -> None:
    append(silent, 1)
    file = root / "_delta_log" / f"{1:020}.json"
    file.write_bytes(catalog.log("t").commit_bytes(1))
    before = file.stat().st_ino
    assert catalog.mirror.run().published == 1
    assert file.stat().st_ino == before
    assert catalog.mirror.status()[0].published_version == 1


def test_the_policy_is_one_of_two(catalog: Catalog, root: Path) -> None:
    assert catalog.mirror.policy("t") == "freeze"
    catalog.mirror.set_policy("t", "adopt")
    assert catalog.mirror.policy("t") == "adopt"
    with pytest.raises(InvalidArgumentError, match="freeze or adopt"):
        catalog.mirror.set_policy("t", "ignore")  # type: ignore[arg-type]


def test_a_look_counts_commits_of_others_beyond_ours_or_in_the_place_of_ours(
    catalog: Catalog, silent: Catalog, root: Path
) -> None:
    assert catalog.mirror.status()[0].ahead is None, "nobody looked"
    assert catalog.mirror.status(look=True)[0].ahead == 0
    append(silent, 1)
    assert catalog.mirror.status("t", look=True)[0].ahead == 0
    catalog.mirror.run()
    append_outside(root, 7, 8)
    assert catalog.mirror.status("t", look=True)[0].ahead == 2
    assert catalog.mirror.status("t")[0].state == "active", "looking changes nothing"
    append(Catalog(silent.uri, config=BLIND), 2)
    assert catalog.mirror.status("t", look=True)[0].ahead == 2, "one of them where ours waits"


def test_a_pass_names_what_it_had_to_leave(
    catalog: Catalog, root: Path, tmp_path: Path, database: Database
) -> None:
    for name in ("paused", "frozen", "failed"):
        catalog.write(name, ids(0), location=tmp_path / name)
    catalog.mirror.pause("paused")
    append(catalog, 1, name="paused")
    append_outside(tmp_path / "frozen", 7)
    with pytest.raises(TableFrozenError):
        append(catalog, 1, name="frozen")
    with blocked(tmp_path / "failed"):
        append(catalog, 1, name="failed")
    with database.write() as session:
        session.run("UPDATE dl_outbox SET next_try_at = next_try_at + 3600000 WHERE state = 'failed'")
        session.run("UPDATE dl_commits SET timestamp = timestamp - 90000 WHERE version = 1")
    done = catalog.mirror.run()
    assert (done.published, done.failed, done.diverged) == (0, (), ())
    assert (done.paused, done.frozen, done.backing_off) == (("paused",), ("frozen",), ("failed",))
    assert done.late == ("failed",), "what is paused waits on purpose"
    (failed,) = (s for s in catalog.mirror.status() if s.table == "failed")
    assert failed.alarm
    assert failed.to_dict()["alarm"] is True
    assert failed.retry_in is not None
    assert failed.retry_in > 1800
    assert catalog.mirror.publish("failed").published == 1
    assert catalog.mirror.run().late == ()
