"""Fixtures of the commit suite: a catalog, its database, tables made of actions, and losers of races."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.address import parse_address
from deltalakedb.metastore.database import Database
from support.commits import Bench
from support.lake import ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalakedb import Catalog


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Catalog:
    """A catalog with the tables a, b and c of one row each, and a place for more."""
    catalog.set_root(tmp_path / "lake")
    for number, name in enumerate("abc"):
        catalog.write(name, ids(number))
    return catalog


@pytest.fixture
def database(catalog_uri: str) -> Database:
    """The same catalog at the low level."""
    return Database.open(parse_address(catalog_uri))


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Bench:
    """A table ``t`` of five files in three days, made of actions alone."""
    return Bench.make(database, "t", str(tmp_path / "lake" / "t"))


@pytest.fixture
def make_bench(database: Database, tmp_path: Path) -> Callable[..., Bench]:
    """A function that makes such a table with other metadata, protocol or files."""

    def make(name: str = "t", **options: Any) -> Bench:
        return Bench.make(database, name, str(tmp_path / "lake" / name), **options)

    return make
