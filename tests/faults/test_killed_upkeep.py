"""OPTIMIZE, RESTORE, VACUUM and conversions that are killed: no row is lost, the next run does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog, DeltaTable, convert_to_deltalake
from deltalakedb.address import parse_address
from deltalakedb.metastore import registry
from deltalakedb.metastore.database import Database
from deltalakedb.metastore.files import packs
from support.catalogs import ENGINES
from support.invariants import check_table
from support.lake import files_below, ids, ids_of
from support.packs import make_packs_small, packs_of, recent_ids, state_of
from support.processes import Child, arm

SEED = range(1, 4)
#: one on each side of every step; the others are tried by the kills of plain writers
POINTS = ("data.after", "commit.before_commit", "commit.after", "publish.before_put")
#: these write no data; vacuum makes one commit before it deletes and one after
OF_RESTORE = POINTS[1:]
OF_VACUUM = (*OF_RESTORE, "vacuum.deleting")
STANDS = ("commit.after", "publish.before_put")


def prepare(uri: str, folder: str) -> None:
    catalog = Catalog(uri)
    for number in SEED:
        catalog.write("t", ids(number), mode="append", location=f"{folder}/t")


def operate(table: Any, operation: str) -> None:
    if operation == "compact":
        table.optimize.compact()
    elif operation == "restore":
        table.restore(2)
    else:
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def append_and_die(uri: str, operation: str, number: int, point: str) -> None:
    """Somebody appends a row, or for vacuum removes one, and the operation is killed."""
    catalog = Catalog(uri)
    catalog.write("t", ids(100 + number), mode="append")
    if operation == "vacuum":
        catalog.table("t").delete(f"id = {100 + number}")
    arm(f"{point}=kill")
    operate(catalog.table("t"), operation)


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize(
    ("operation", "points"), [("compact", POINTS), ("restore", OF_RESTORE), ("vacuum", OF_VACUUM)]
)
def test_upkeep_killed_anywhere_loses_no_row(
    operation: str, points: tuple[str, ...], catalog_uri: str, tmp_path: Path
) -> None:
    Child(prepare, catalog_uri, str(tmp_path), folder=tmp_path).result()
    rows = set(SEED)
    root = tmp_path / "t"
    for number, point in enumerate(points):
        with Catalog(catalog_uri) as catalog:
            before = catalog.table("t").version()
        Child(append_and_die, catalog_uri, operation, number, point, folder=tmp_path).died()
        if operation == "restore" and point in STANDS:
            rows = set(SEED)
        elif operation != "vacuum":
            rows.add(100 + number)
        made = 1 + (point in STANDS) if operation != "vacuum" else 2 + (point != "commit.before_commit")
        with Catalog(catalog_uri) as catalog:
            table = catalog.table("t")
            assert table.version() == before + made, point
            assert ids_of(table) == sorted(rows), point
            # older versions may ask for files that a vacuum has deleted
            check_table(catalog, "t", since=table.version())
    Child(operate_again, catalog_uri, operation, folder=tmp_path).result()
    with Catalog(catalog_uri) as catalog:
        table = catalog.table("t")
        check_table(catalog, "t", published=True, since=table.version())
        assert ids_of(table) == sorted(SEED if operation == "restore" else rows)
        assert ids_of(deltalake.DeltaTable(str(root))) == ids_of(table)
        catalog.gc("t", older_than_hours=0)
        assert not (root / "_deltasql").exists()
        assert ids_of(catalog.table("t")) == ids_of(table)
    if operation == "vacuum":
        live = {Path(uri).name for uri in table.file_uris()}
        assert {p.name for p in root.glob("*.parquet")} == live


def operate_again(uri: str, operation: str) -> None:
    catalog = Catalog(uri)
    operate(catalog.table("t"), operation)
    catalog.mirror.publish("t")  # where it was all done already, nobody else would


def convert(uri: str, folder: str, point: str | None) -> None:
    if point is not None:
        arm(f"{point}=kill")
    convert_to_deltalake(f"{uri}?table=t&location={folder}/t", mode="ignore")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_conversion_killed_anywhere_is_done_by_the_next_one(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for number in SEED:
        pq.write_table(ids(number), root / f"{number}.parquet")
    before = files_below(root)
    for point in (*POINTS, None):
        child = Child(convert, catalog_uri, str(tmp_path), point, folder=tmp_path)
        child.result() if point is None else child.died()
        found = DeltaTable.is_deltatable(f"{catalog_uri}?table=t")
        assert found == (point in STANDS or point is None), point
        assert before <= files_below(root)
        if found:
            with Catalog(catalog_uri) as catalog:
                assert ids_of(catalog.table("t")) == list(SEED)
                check_table(catalog, "t")
                catalog.mirror.run()
                catalog.drop_table("t")
            for left in sorted((root / "_delta_log").rglob("*"), reverse=True):
                left.unlink()
            (root / "_delta_log").rmdir()


def pack(uri: str, how: str, point: str | None) -> int:
    """Pack what is recent, or pack everything anew, in packs of a few files."""
    with pytest.MonkeyPatch.context() as patch:
        make_packs_small(patch, 4)
        database = Database.open(parse_address(uri))
        table_id = registry.find(database, "t").table_id
        if point is not None:
            arm(f"{point}=kill")
        return (
            packs.rebuild(database, table_id)
            if how == "rebuild"
            else packs.pack_if_due(database, table_id, at_least=1)
        )


@pytest.mark.parametrize("engine_name", ENGINES)
def test_a_packer_killed_anywhere_has_changed_nothing(catalog_uri: str, tmp_path: Path) -> None:
    Child(prepare, catalog_uri, str(tmp_path), folder=tmp_path).result()
    count = len(SEED)
    for how, packed in (("pack", 0), ("rebuild", count)):
        for point in ("pack.deleted", "pack.written", None):
            database = Database.open(parse_address(catalog_uri))
            before = state_of(database, "t")
            database.close()
            child = Child(pack, catalog_uri, how, point, folder=tmp_path)
            done = child.result() if point is None else child.died()
            assert done in (None, count)
            database = Database.open(parse_address(catalog_uri))
            table_id = registry.find(database, "t").table_id
            assert state_of(database, "t") == before, (how, point)
            expected = count if point is None else packed
            assert sum(p.num_files for p in packs_of(database, table_id)) == expected, (how, point)
            assert len(recent_ids(database, table_id)) == count - expected, (how, point)
            database.close()
            with Catalog(catalog_uri) as catalog:
                check_table(catalog, "t", published=True)
                assert ids_of(catalog.table("t")) == list(SEED)
