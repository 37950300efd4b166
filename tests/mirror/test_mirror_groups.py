"""Manifests of transactions over several tables: once, by whoever publishes the last table, in every mode."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.mirror.reconciler import PUBLISHER
from deltalakedb.settings import Config
from support.lake import ids
from support.mirrors import append, append_outside, blocked, logged
from support.processes import Child, arm

if TYPE_CHECKING:
    from pathlib import Path

only_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Path:
    """The folder that holds the tables `a` and `b`, each at version 0."""
    folder = tmp_path / "lake"
    for name in "ab":
        catalog.write(name, ids(0), location=folder / name)
    return folder


def both(catalog: Catalog, number: int) -> str:
    """One commit in each table, together; the transaction's id."""
    with catalog.transaction() as tx:
        tx.write("a", ids(number))
        tx.write("b", ids(number))
    return tx.uuid


def manifests(root: Path) -> dict[str, Any]:
    """The versions by table in every manifest beside a table, by the transaction's id."""
    found = [json.loads(p.read_text()) for p in (root / "_delta_transactions").glob("*.json")]
    return {m["txnId"]: {t["name"]: t["version"] for t in m["tables"]} for m in found}


def told(lake: Path) -> dict[str, Any]:
    """The manifests, which must be the same beside both tables."""
    a, b = (manifests(lake / name) for name in "ab")
    assert a == b
    return a


def test_a_manifest_waits_until_every_table_is_published(catalog: Catalog, lake: Path) -> None:
    with blocked(lake / "b"):
        first = both(catalog, 1)
        assert logged(lake / "a") == [0, 1]
        assert told(lake) == {}, "b is not published"
        append(catalog, 2, name="a")
    catalog.mirror.pause("a")
    second = both(catalog, 3)
    assert told(lake) == {first: {"a": 1, "b": 1}}, "the next writer of b published it, and was the last"
    catalog.mirror.resume("a")
    assert told(lake) == {first: {"a": 1, "b": 1}, second: {"a": 3, "b": 2}}


@only_sqlite
def test_a_manifest_goes_with_the_commit_files_that_it_tells_of(catalog: Catalog, lake: Path) -> None:
    for name in "ab":
        catalog.table(name).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    first, second = both(catalog, 1), both(catalog, 2)
    append(catalog, 3, name="b")
    catalog.mirror.checkpoint("a")
    catalog.mirror.checkpoint("b")
    names = [f"_delta_transactions/{txn}.json" for txn in (first, second)]
    would = catalog.mirror.clean("a", dry_run=True)
    assert [m.path for m in would.delete if m.path in names] == [names[0]], "the newest commit file stays"
    assert len(manifests(lake / "a")) == 2
    catalog.mirror.clean("a")
    assert (manifests(lake / "a"), logged(lake / "a")) == ({second: {"a": 3, "b": 3}}, [3])
    assert set(manifests(lake / "b")) == {first, second}, "each table has its own"
    catalog.mirror.clean("b")
    assert manifests(lake / "b") == {}


def test_a_reconciler_writes_the_manifests_of_a_backlog(
    catalog: Catalog, silent: Catalog, lake: Path
) -> None:
    made = [both(silent, number) for number in range(1, 4)]
    assert told(lake) == {}
    catalog.mirror.publish("b")
    assert told(lake) == {}
    catalog.mirror.run()
    assert told(lake) == {txn: {"a": n, "b": n} for n, txn in enumerate(made, start=1)}


def test_the_background_writes_manifests_too(catalog_uri: str, catalog: Catalog, lake: Path) -> None:
    with Catalog(catalog_uri, config=Config(publish={"mode": "background"})) as background:
        made = both(background, 1)
        assert PUBLISHER.flush()
    assert told(lake) == {made: {"a": 1, "b": 1}}


@only_sqlite
def resolve_a(uri: str, points: str) -> None:
    catalog = Catalog(uri)
    arm(points)
    catalog.mirror.resolve("a")


@only_sqlite
def test_a_manifest_waits_for_a_table_whose_commit_is_to_be_resolved(
    catalog_uri: str, catalog: Catalog, lake: Path, tmp_path: Path
) -> None:
    catalog.write("c", ids(0), location=lake / "c")
    for name in "ac":
        catalog.mirror.pause(name)
    with catalog.transaction() as tx:
        for name in "abc":
            tx.write(name, ids(1))
    append_outside(lake / "a", 77)
    catalog.close()
    Child(resolve_a, catalog_uri, "resolve.rebuilt=kill", folder=tmp_path).died()
    assert catalog.mirror.resume("c").published == 1
    assert [manifests(lake / name) for name in "abc"] == [{}, {}, {}]
    assert catalog.mirror.resolve("a").ours == {1: 2}
    catalog.mirror.resume("a")
    assert [manifests(lake / name) for name in "abc"] == [{tx.uuid: {"a": 2, "b": 1, "c": 1}}] * 3
    assert catalog.mirror.status("c")[0].manifests_missing == 0


def test_a_table_that_was_only_read_is_no_part_of_it(catalog: Catalog, lake: Path) -> None:
    with catalog.transaction() as tx:
        tx.table("a").to_pyarrow_table()
        tx.write("b", ids(1))
    assert told(lake) == {}
    with catalog.transaction() as tx:
        tx.write("a", ids(1))
        tx.table("b").delete("id = 0")
        tx.rename_table("b", "c")
    assert told(lake) == {tx.uuid: {"a": 1, "c": 2}}, "its tables have their names of now"


def work(uri: str, number: int) -> None:
    both(Catalog(uri), number)


@only_sqlite
@pytest.mark.parametrize("point", ["publish.manifest=kill", "publish.manifest=kill@2"])
def test_a_publisher_killed_before_a_manifest_is_followed_by_one_who_writes_it(
    catalog_uri: str, catalog: Catalog, lake: Path, tmp_path: Path, point: str
) -> None:
    Child(work, catalog_uri, 1, folder=tmp_path, points=point).died()
    assert [logged(lake / name) for name in "ab"] == [[0, 1], [0, 1]]
    assert manifests(lake / "b") == {}
    assert catalog.mirror.run().published == 2, "they were put and not noted"
    (txn,) = told(lake)
    assert told(lake) == {txn: {"a": 1, "b": 1}}


@only_sqlite
def test_a_manifest_that_failed_is_written_by_the_next(catalog_uri: str, lake: Path, tmp_path: Path) -> None:
    Child(work, catalog_uri, 1, folder=tmp_path, points="publish.manifest=error").result()
    assert told(lake) == {}
    assert [logged(lake / name) for name in "ab"] == [[0, 1], [0, 1]]
    with Catalog(catalog_uri) as catalog:
        append(catalog, 2, name="b")
    assert list(told(lake).values()) == [{"a": 1, "b": 1}]


def block_manifests(root: Path) -> Path:
    """Let no manifest be put beside a table, whoever tries; what to remove when that shall end."""
    in_the_way = root / "_delta_transactions"
    shutil.rmtree(in_the_way, ignore_errors=True)
    in_the_way.write_text("in the way")
    return in_the_way


def missing(catalog: Catalog) -> dict[str, int]:
    return {s.table: s.manifests_missing for s in catalog.mirror.status()}


def make_due(catalog: Catalog) -> None:
    """Let the next try be now, as if the time had passed."""
    with catalog._database.write() as session:
        (row,) = session.rows("SELECT name, value FROM dl_settings WHERE name LIKE 'mirror.manifest.%'")
        tables, error, attempts, _ = json.loads(row[1])
        session.run(
            "UPDATE dl_settings SET value = ? WHERE name = ?",
            (json.dumps([tables, error, attempts, 0]), row[0]),
        )


def test_a_manifest_that_could_not_be_written_is_owed_until_it_is_there(catalog: Catalog, lake: Path) -> None:
    in_the_way = block_manifests(lake / "b")
    txn = both(catalog, 1)
    assert [logged(lake / name) for name in "ab"] == [[0, 1], [0, 1]], "the commits do not wait for it"
    assert manifests(lake / "a") == {txn: {"a": 1, "b": 1}}
    assert missing(catalog) == {"a": 0, "b": 1}
    (status,) = catalog.mirror.status("b")
    assert "_delta_transactions" in (status.manifest_error or "")
    assert status.versions_behind == 0
    again = catalog.mirror.run()
    assert again.no_manifest == ("b",), "it is left alone for a while, and named"
    make_due(catalog)
    assert catalog.mirror.run().no_manifest == ("b",), "tried in vain"
    assert catalog.mirror.status("b")[0].manifest_retry_in is not None
    in_the_way.unlink()
    make_due(catalog)
    assert catalog.mirror.run().no_manifest == ()
    assert told(lake) == {txn: {"a": 1, "b": 1}}
    assert missing(catalog) == {"a": 0, "b": 0}


@only_sqlite
def test_naming_a_table_tries_its_manifests_at_once(catalog: Catalog, lake: Path) -> None:
    in_the_way = block_manifests(lake / "b")
    txn = both(catalog, 1)
    in_the_way.unlink()
    assert catalog.mirror.publish("a").no_manifest == ()
    assert missing(catalog) == {"a": 0, "b": 1}, "a lacks none"
    assert catalog.mirror.publish("b").no_manifest == ()
    assert told(lake) == {txn: {"a": 1, "b": 1}}


@only_sqlite
def test_the_next_transaction_writes_what_the_last_one_could_not(
    catalog_uri: str, catalog: Catalog, lake: Path, tmp_path: Path
) -> None:
    in_the_way = block_manifests(lake / "b")
    both(catalog, 1)
    in_the_way.unlink()
    make_due(catalog)
    Child(work, catalog_uri, 2, folder=tmp_path).result()
    assert list(told(lake).values()) in (
        [{"a": 1, "b": 1}, {"a": 2, "b": 2}],
        [{"a": 2, "b": 2}, {"a": 1, "b": 1}],
    )
    assert missing(catalog) == {"a": 0, "b": 0}


@only_sqlite
def test_nobody_waits_for_the_manifest_of_tables_that_are_gone(catalog: Catalog, lake: Path) -> None:
    block_manifests(lake / "b")
    both(catalog, 1)
    catalog.drop_table("a")
    make_due(catalog)
    assert catalog.mirror.run().no_manifest == ()
    assert missing(catalog) == {"b": 0}
