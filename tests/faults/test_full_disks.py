"""Disks without space: a typed error, nothing half-written, and everything works once there is room."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import CatalogError, CatalogFullError, DeltaError, DeltaSqlError
from support.invariants import check_table
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(folder: Path, *, size: str = "4m") -> Iterator[Path]:
    """A disk of its own at a folder, what was there included; skips where mounting is not allowed."""
    aside = folder.with_name(folder.name + ".aside")
    folder.mkdir(exist_ok=True)
    shutil.copytree(folder, aside)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.decode().strip()}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Not a byte left inside the block."""
    ballast = disk / ".ballast"
    with ballast.open("wb", buffering=0) as file:
        for block in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * block)
            except OSError:
                continue
    try:
        yield
    finally:
        ballast.unlink()


@pytest.mark.parametrize("engine_name", ["sqlite", "duckdb"])
def test_a_catalog_on_a_full_disk_refuses_and_recovers(engine_name: str, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with small_disk(folder, size="8m"):
        uri = f"deltasql://{engine_name}/{folder}/catalog.db"
        with Catalog(uri) as catalog:
            catalog.write("t", ids(1), location=tmp_path / "t")
            before = {p.name for p in (tmp_path / "t").iterdir()}
            refused = 0
            with full(folder):
                for number in range(10, 60):
                    try:
                        catalog.write("t", ids(number), mode="append")
                    except CatalogError as error:
                        refused += 1
                        last = error
                        break
                assert refused, "the disk was never full"
                assert isinstance(last, CatalogFullError), last
                there = ids_of(catalog.table("t"))
            assert number not in there
            catalog.write("t", ids(2), mode="append")
            found = check_table(catalog, "t", published=True)
            assert found.ids == sorted([*there, 2])
            files = {p.name for p in (tmp_path / "t").glob("*.parquet")}
            assert len(files - before) == found.versions - 1, "the refused append left its file"


def test_a_table_on_a_full_disk_takes_nothing_and_recovers(catalog_uri: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as folder, Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=folder / "t")
        catalog.write("t", ids(2), mode="append")
        with full(folder):
            with pytest.raises(DeltaSqlError):
                catalog.write("t", ids(3), mode="append")
            with pytest.raises(DeltaError):
                catalog.table("t").delete("id = 1")
            assert check_table(catalog, "t", published=True).ids == [1, 2]
        catalog.write("t", ids(4), mode="append")
        assert check_table(catalog, "t", published=True).ids == [1, 2, 4]


def test_a_log_on_a_full_disk_falls_behind_and_catches_up(catalog_uri: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=root)
        with small_disk(root / "_delta_log", size="64k") as log:
            # times of files are the commits' own, and copying to the disk has kept them
            with full(log):
                for number in (2, 3):
                    catalog.write("t", ids(number), mode="append")
                found = check_table(catalog, "t")
                assert (found.versions, found.published) == (3, 1), "the commits stand, the log waits"
                assert {p.name for p in log.iterdir()} == {f"{0:020}.json", ".ballast"}, "no part of a file"
            catalog.write("t", ids(4), mode="append")
            found = check_table(catalog, "t", published=True)
            assert found.ids == [1, 2, 3, 4]
