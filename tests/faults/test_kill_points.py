"""Writers that are killed at every failpoint: the next process goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog, CommitProperties, Transaction
from deltalakedb.failpoints import POINTS
from support.catalogs import ENGINES
from support.invariants import acknowledge, acknowledged, check_acknowledged, check_table, check_transactions
from support.lake import child, ids
from support.processes import Child, arm

if TYPE_CHECKING:
    from conftest import TableUri

OPERATIONS = ("append", "delete", "both")
#: points from which on the commit stands, and how many of its tables may be published when it is killed
#: there; two tables are published side by side
STANDS = {
    "commit.after": {0},
    "publish.before_put": {0},
    "publish.before_link": {0},
    "publish.after_put": {1, 2},
    "publish.after_mark": {1, 2},
    "publish.between_tables": {0, 1},
    "publish.manifest": {2},
}
#: points that only a transaction over two tables comes to
OF_TWO = ("publish.between_tables", "publish.manifest")
#: points beside which a database works; at the others files are written, which is the same on every engine
OF_ENGINES = ("commit.", "publish.after_")
SEED = range(1, 16)


def prepare(uri: str, folder: str) -> None:
    catalog = Catalog(uri)
    for name in ("a", "b"):
        catalog.write(name, ids(*SEED), location=f"{folder}/{name}")


def operate(uri: str, operation: str, number: int) -> dict[str, Any]:
    """The operation under test: row 1000 + number appended to a, or row ``number`` deleted from a or b."""
    catalog = Catalog(uri)
    once = CommitProperties(app_transactions=[Transaction("killed", number)])
    if operation == "append":
        catalog.write("a", ids(1000 + number), mode="append", commit_properties=once)
    elif operation == "delete":
        catalog.table("a").delete(f"id = {number}", commit_properties=once)
    else:
        with catalog.transaction(txn_uuid=str(uuid.UUID(int=number))) as tx:
            tx.write("a", ids(1000 + number))
            tx.table("b").delete(f"id = {number}")
        return {name: [c.version, c.replayed] for name, c in tx.commits.items()}
    return {}


def go_on_and_die(uri: str, folder: str, operation: str, number: int, point: str | None) -> None:
    """A fresh process after the death of number - 1: others write, the killed one's work is done again."""
    if number > 1:
        catalog = Catalog(uri)
        versions = {}
        for name in ("a", "b"):
            with catalog.transaction() as tx:
                tx.write(name, ids(2000 + number))
            versions[name] = tx.commits[name].version
            acknowledge(Path(folder, "next.acks"), table=name, id=2000 + number, version=versions[name])
        told = {"next": versions, "again": operate(uri, operation, number - 1)}
        Path(folder, "told").write_text(json.dumps(told))
    if point is not None:
        arm(f"{point}=kill")
        operate(uri, operation, number)


class Expected:
    """What tables a and b must hold after what happened so far."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.rows = {"a": set(SEED), "b": set(SEED)}
        self.heads = {"a": 0, "b": 0}

    def operated(self, number: int) -> None:
        for name in {"append": "a", "delete": "a", "both": "ab"}[self.operation]:
            self.heads[name] += 1
        if self.operation != "delete":
            self.rows["a"].add(1000 + number)
        if self.operation != "append":
            self.rows["b" if self.operation == "both" else "a"].remove(number)

    def went_on(self, number: int, told: dict[str, Any], *, stood: bool) -> None:
        """The process after number - 1 found what that one left, and did it where it had not happened."""
        assert told["next"] == {name: self.heads[name] + 1 for name in "ab"}
        if self.operation == "both":
            assert told["again"]["a"] == ([self.heads["a"], True] if stood else [self.heads["a"] + 2, False])
        for name in "ab":
            self.heads[name] += 1
            self.rows[name].add(2000 + number)
        if not stood:
            self.operated(number - 1)


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_writer_killed_anywhere_leaves_all_or_nothing(
    operation: str, engine_name: str, catalog_uri: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    Child(prepare, catalog_uri, str(lake), folder=tmp_path).result()
    expected = Expected(operation)
    killed_at = None
    points = [
        p
        for p in POINTS
        if p.startswith(("data.", "commit.", "publish.")) and (operation == "both" or p not in OF_TWO)
    ]
    if engine_name != "sqlite" and os.environ.get("DELTASQL_TEST_ENGINES") != "all":
        points = [p for p in points if p.startswith(OF_ENGINES)]
    for number, point in enumerate([*points, None], start=1):
        process = Child(go_on_and_die, catalog_uri, str(lake), operation, number, point, folder=tmp_path)
        process.result() if point is None else process.died()
        if killed_at is not None:
            told = json.loads((lake / "told").read_text())
            expected.went_on(number, told, stood=killed_at in STANDS)
        before = dict(expected.heads)
        if point in STANDS:
            expected.operated(number)
        # as the crash left it: SQL is right, the log may be behind by this one commit and is never wrong
        behind = 0
        with Catalog(catalog_uri) as catalog:
            for name in "ab":
                found = check_table(catalog, name, since=before[name] if point else 0)
                where = f"{name}, killed at {point}, before that at {killed_at}"
                assert found.ids == sorted(expected.rows[name]), where
                assert found.versions - 1 == expected.heads[name], where
                behind += found.versions - found.published
        committed = sum(expected.heads.values()) - sum(before.values())
        may_be_done = {n for n in STANDS.get(point or "", {0}) if n <= committed}
        assert committed - behind in may_be_done, f"killed at {point}, before that at {killed_at}"
        killed_at = point

    with Catalog(catalog_uri) as catalog:
        check_transactions(catalog)
        for name in "ab":
            check_acknowledged(catalog, name, acknowledged(lake))


PUBLISHING = [p for p in POINTS if p.startswith("publish.")]


def operate_in_trouble(uri: str, folder: str) -> None:
    """Every step after the commit fails once: the commit stands, and nobody is told otherwise."""
    prepare(uri, folder)
    for number, point in enumerate(["commit.after", *PUBLISHING], start=1):
        arm(f"{point}=error@1")
        assert operate(uri, "both", number)["a"] == [number, False], point


def test_what_fails_after_the_commit_does_not_fail_it(catalog_uri: str, tmp_path: Path) -> None:
    Child(operate_in_trouble, catalog_uri, str(tmp_path), folder=tmp_path).result()
    with Catalog(catalog_uri) as catalog:
        for name in "ab":
            catalog.write(name, ids(5000), mode="append")
        a, b = (check_table(catalog, name, published=True) for name in "ab")
        check_transactions(catalog)
    count = 1 + len(PUBLISHING)
    assert a.ids == [*SEED, *(1000 + n for n in range(1, count + 1)), 5000]
    assert b.ids == [*list(SEED)[count:], 5000]
    assert a.versions == b.versions == count + 2


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_failpoints_of_the_environment_hold_from_the_first_import(table_uri: TableUri) -> None:
    script = """
        import sys
        import pyarrow as pa
        from deltalakedb import write_deltalake
        for number in range(3):
            write_deltalake(sys.argv[1], pa.table({"id": [number]}), mode="append")
            print(number, flush=True)
    """
    process = child(script, table_uri("t"), env={**os.environ, "DELTASQL_FAILPOINTS": "commit.after=kill@2"})
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out.split()) == (-9, ["0"]), err
