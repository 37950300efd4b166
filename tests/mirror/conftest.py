"""Fixtures of the mirror's tests: a catalog on each engine, a table `t` in it, and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.settings import Config, use_config

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb.metastore.database import Database


@pytest.fixture
def silent(catalog_uri: str, catalog: Catalog) -> Catalog:
    """The same catalog for a writer that publishes nothing."""
    with use_config(Config(publish={"mode": "off"})) as config:
        return Catalog(catalog_uri, config=config)


@pytest.fixture
def database(catalog: Catalog, root: Path) -> Database:
    """The catalog's database, for what lies below the face."""
    return catalog.log("t").database
