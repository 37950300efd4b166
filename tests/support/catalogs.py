"""Addresses of catalogs that do not exist yet, one for each engine."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.postgres import PostgresDatabase

ENGINES = ("sqlite", "duckdb", "postgres")


def fresh_catalog_uri(engine: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """The address of an empty catalog on an engine, for fixtures over more than engines."""
    if engine == "postgres":
        database: PostgresDatabase = request.getfixturevalue("pg_database")
        return database.catalog_uri(request.getfixturevalue("pg_schema"))
    ending = {"sqlite": "db", "duckdb": "duckdb"}[engine]
    return f"deltasql://{engine}/{quote(str(folder))}/catalog.{ending}"
