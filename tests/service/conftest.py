"""A catalog with a service for commits to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.address import parse_uri
from deltalakedb.redaction import Secret
from deltalakedb.service.running import commit_server
from support.callers import TOKEN, Caller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The catalog's root: tables that are created below it are the catalog's."""
    return tmp_path / "lake"


@pytest.fixture
def catalog(catalog_uri: str, root: Path) -> Iterator[Catalog]:
    with Catalog(catalog_uri) as made:
        made.set_root(root)
        yield made


@pytest.fixture
def caller(catalog: Catalog, catalog_uri: str, tmp_path: Path) -> Iterator[Caller]:
    """Somebody who may ask the service."""
    named = {"apart": str(tmp_path / "somewhere" / "else")}
    server = commit_server(parse_uri(catalog_uri), Secret(TOKEN), tables=named, port=0, max_bytes=100_000)
    with server:
        yield Caller(server.url)
