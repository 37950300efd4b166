"""Writers that are killed at every failpoint: the next process goes on as if nothing had happened."""

from __future__ import annotations

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

TXN = "6f9619ff-8b86-4011-b42d-00c04fc964ff"
OPERATIONS = ("append", "delete", "both")
#: points from which on the commit stands
STANDS = ("commit.after", "publish.before_put", "publish.after_put", "publish.after_mark", "publish.between_tables")
#: how many tables of the transaction are published when it is killed there
PUBLISHED = {"publish.after_put": 1, "publish.after_mark": 1, "publish.between_tables": 1}
CASES = [
    (operation, point)
    for operation in OPERATIONS
    for point in POINTS
    if operation == "both" or point != "publish.between_tables"
]


def operate(catalog: Catalog, operation: str) -> dict[str, Any]:
    """The operation under test; repeated, it must not be done twice."""
    once = CommitProperties(app_transactions=[Transaction("kill-test", 1)])
    if operation == "append":
        catalog.write("a", ids(100), mode="append", commit_properties=once)
    elif operation == "delete":
        catalog.table("a").delete("id = 2", commit_properties=once)
    else:
        with catalog.transaction(txn_uuid=TXN) as tx:
            tx.write("a", ids(100))
            tx.table("b").delete("id = 2")
        return {name: [c.version, c.replayed] for name, c in tx.commits.items()}
    return {}


def prepare_and_die(uri: str, folder: str, operation: str, point: str) -> None:
    catalog = Catalog(uri)
    for name in ("a", "b"):
        catalog.write(name, ids(1, 2, 3), location=f"{folder}/{name}")
    catalog.write("a", ids(4), mode="append")
    acknowledge(Path(folder, "prepared.acks"), table="a", id=4, version=1)
    arm(f"{point}=kill")
    operate(catalog, operation)


def go_on(uri: str, folder: str, operation: str) -> dict[str, Any]:
    """A fresh process: others write first, then the killed one's work is done again."""
    catalog = Catalog(uri)
    versions = {}
    for name, number in (("a", 200), ("b", 201)):
        with catalog.transaction() as tx:
            tx.write(name, ids(number))
        versions[name] = tx.commits[name].version
        acknowledge(Path(folder, "next.acks"), table=name, id=number, version=versions[name])
    return {"next": versions, "again": operate(catalog, operation)}


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize(("operation", "point"), CASES)
def test_a_writer_killed_anywhere_leaves_all_or_nothing(
    operation: str, point: str, catalog_uri: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    Child(prepare_and_die, catalog_uri, str(lake), operation, point, folder=tmp_path).died()
    stands = point in STANDS
    on_a, on_b = operation != "never" and stands, operation == "both" and stands

    with Catalog(catalog_uri) as catalog:
        # as the crash left it: SQL is right, the log is behind and never wrong
        a, b = check_table(catalog, "a"), check_table(catalog, "b")
        assert (a.versions, b.versions) == (2 + on_a, 1 + on_b)
        assert (a.published, b.published) == (2 + PUBLISHED.get(point, 0), 1)
        gone = {2} if operation == "delete" and stands else set()
        assert a.ids == sorted({1, 2, 3, 4, *([100] if operation != "delete" and stands else [])} - gone)
        assert b.ids == ([1, 3] if on_b else [1, 2, 3])

    told = Child(go_on, catalog_uri, str(lake), operation, folder=tmp_path).result()

    assert told["next"] == {"a": 2 + on_a, "b": 1 + on_b}
    with Catalog(catalog_uri) as catalog:
        a, b = (check_table(catalog, name, published=True) for name in ("a", "b"))
        check_transactions(catalog)
        for name in ("a", "b"):
            check_acknowledged(catalog, name, acknowledged(lake))
        if operation == "delete":
            assert a.ids == [1, 3, 4, 200]
            assert b.ids == [1, 2, 3, 201]
        else:
            assert a.ids == [1, 2, 3, 4, 100, 200]
            assert b.ids == ([1, 3, 201] if operation == "both" else [1, 2, 3, 201])
        # the repeated operation became no second version where the first one stands
        assert a.versions == 4
        assert b.versions == 2 + (operation == "both")
        if operation == "both":
            assert told["again"]["a"] == ([2, True] if stands else [3, False])


def test_failpoints_of_the_environment_hold_from_the_first_import(table_uri: TableUri, tmp_path: Path) -> None:
    script = """
        import sys
        import pyarrow as pa
        from deltalakedb import write_deltalake
        for number in range(3):
            write_deltalake(sys.argv[1], pa.table({"id": [number]}), mode="append")
            print(number, flush=True)
    """
    import os

    environment = {**os.environ, "DELTASQL_FAILPOINTS": "commit.after=kill@2"}
    process = child(script, table_uri("t"), env=environment)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out.split()) == (-9, ["0"]), err
