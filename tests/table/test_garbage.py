"""What a writer leaves that was killed: known for clean-up, and nothing else is touched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, import_table
from deltalakedb.exceptions import TableMissingError
from deltalakedb.table.write_locks import WORK_FOLDER
from support.feeds import FEED
from support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path


def append(uri: str, number: int) -> None:
    with Catalog(uri) as catalog:
        catalog.write("t", pa.table({"id": [number]}), mode="append")


def rewrite(uri: str, number: int) -> None:
    with Catalog(uri) as catalog:
        catalog.table("t").update(updates={"id": "id + 1"}, predicate=f"id = {number}")


def in_transaction(uri: str, number: int) -> None:
    with Catalog(uri) as catalog, catalog.transaction() as tx:
        tx.write("t", pa.table({"id": [number]}))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with a table that has a live and a removed file, and change data."""
    made = Catalog(f"deltasql://sqlite/{tmp_path}/meta.db")
    made.write("t", pa.table({"id": [1, 2]}), location=tmp_path / "t", configuration=FEED)
    made.table("t").update(updates={"id": "9"}, predicate="id = 2")
    return made


def test_what_killed_writers_left_is_deleted_and_nothing_else(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "t"
    before = {p for p in root.rglob("*") if p.is_file()}
    uri = catalog.uri
    for work in (append, rewrite, in_transaction):
        child = Child(work, uri, 9, folder=tmp_path, points="data.after=kill")
        child.died()
    left = {p for p in root.rglob("*") if p.is_file()} - before
    assert len([p for p in left if p.suffix == ".parquet"]) >= 3
    unfinished = root / ".part-00000-x.parquet.tmp"
    unfinished.write_text("x")
    (seen,) = catalog.gc("t", older_than_hours=0, dry_run=True)
    assert not seen.deleted
    assert len(seen.work_folders) == 1, "the locks of the others ended with them"
    assert catalog.gc(dry_run=True)[0].files == (), "they may be somebody's who is about to commit"
    (found,) = catalog.gc(older_than_hours=0)
    assert found.to_dict() == {**seen.to_dict(), "deleted": True}
    assert {str(unfinished.relative_to(root)), *found.files} == set(found.files)
    assert {p for p in root.rglob("*") if p.is_file()} == before
    assert not (root / WORK_FOLDER).exists()
    assert catalog.gc(older_than_hours=0)[0].files == ()
    assert sorted(catalog.table("t").to_pyarrow_table()["id"].to_pylist()) == [1, 9]
    assert catalog.table("t", version=0).to_pyarrow_table().num_rows == 2
    assert len(pa.table(catalog.table("t").load_cdf().read_all())) == 4


def test_files_of_versions_before_an_import_stay(tmp_path: Path) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, pa.table({"id": [1]}))
    deltalake.write_deltalake(root, pa.table({"id": [2]}), mode="overwrite")
    (root / "of-nobody.parquet").write_text("x")
    for path in root.glob("*.parquet"):
        stat = path.stat()
        os.utime(path, (stat.st_atime - 5, stat.st_mtime - 5))
    with Catalog(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        import_table(str(root), catalog.table_uri("t"), history="checkpoint")
        assert catalog.gc(older_than_hours=0)[0].files == ()
        (root / "later.parquet").write_text("x")
        assert catalog.gc("t", older_than_hours=0)[0].files == ("later.parquet",)
        with pytest.raises(TableMissingError):
            catalog.gc("nope")
    assert len(list(root.glob("*.parquet"))) == 3
