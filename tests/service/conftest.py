"""A catalog with a service for commits to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server
from deltalakedb.settings import Config
from support.callers import TOKEN, Caller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltalakedb.service.server import CommitServer


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
def settings() -> dict[str, Any]:
    """The section ``service`` of the settings."""
    return {}


@pytest.fixture
def server(
    catalog: Catalog, catalog_uri: str, settings: dict[str, Any], tmp_path: Path
) -> Iterator[CommitServer]:
    tables = {"apart": str(tmp_path / "somewhere" / "else")}
    config = Config(service=settings)
    with commit_server(
        parse_address(catalog_uri), Secret(TOKEN), config=config, tables=tables, port=0
    ) as running:
        yield running


@pytest.fixture
def caller(server: CommitServer) -> Caller:
    """A client with the token of the service."""
    return Caller(server.url)
