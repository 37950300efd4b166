"""The checker itself: damage of every kind is found."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from support.invariants import check_acknowledged, check_table
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


@pytest.fixture
def catalog(catalog_uri: str, tmp_path: Path) -> Catalog:
    made = Catalog(catalog_uri)
    for number in range(4):
        made.write("t", ids(number), location=tmp_path / "t", mode="append")
    check_table(made, "t", published=True)
    return made


def log_file(folder: Path, version: int) -> Path:
    return folder / "t" / "_delta_log" / f"{version:020}.json"


def run(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "catalog.db") as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DELETE FROM dl_commits WHERE version = 2", "I1"),
        ("UPDATE dl_commits SET timestamp = 1 WHERE version = 2", "I8"),
        ("UPDATE dl_outbox SET state = 'pending' WHERE version = 1", "I6"),
        ("UPDATE dl_files SET remove_version = 3 WHERE add_version = 1", "I2"),
    ],
)
def test_damage_in_sql_is_found(catalog: Catalog, tmp_path: Path, statement: str, named: str) -> None:
    run(tmp_path, statement)
    with pytest.raises(AssertionError, match=named):
        check_table(catalog, "t")


def test_a_gap_in_the_log_is_found(catalog: Catalog, tmp_path: Path) -> None:
    log_file(tmp_path, 2).unlink()
    with pytest.raises(AssertionError, match="I6"):
        check_table(catalog, "t")


def test_other_bytes_in_the_log_are_found(catalog: Catalog, tmp_path: Path) -> None:
    path = log_file(tmp_path, 2)
    times = path.stat()
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(AssertionError, match="I2"):
        check_table(catalog, "t")


def test_a_log_beyond_the_head_is_found(catalog: Catalog, tmp_path: Path) -> None:
    log_file(tmp_path, 4).write_bytes(log_file(tmp_path, 3).read_bytes())
    with pytest.raises(AssertionError, match="I2"):
        check_table(catalog, "t")


def test_a_missing_data_file_is_found(catalog: Catalog, tmp_path: Path) -> None:
    next((tmp_path / "t").glob("*.parquet")).unlink()
    with pytest.raises(AssertionError, match="I7"):
        check_table(catalog, "t")


@pytest.mark.parametrize("told", [{"id": 77}, {"id": 2, "version": 1}])
def test_an_acknowledgement_that_is_not_true_is_found(catalog: Catalog, told: dict[str, int]) -> None:
    with pytest.raises(AssertionError, match="I3"):
        check_acknowledged(catalog, "t", [{"table": "t", **told}])
