"""Fixtures of the conformance suite: an open catalog on each engine, and nothing left open afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.metastore.database import close_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _leave_nothing_open() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def catalog(catalog_uri: str) -> Catalog:
    """An empty catalog, created by opening it."""
    return Catalog(catalog_uri, create=True)
