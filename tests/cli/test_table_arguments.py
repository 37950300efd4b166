"""A TABLE is a name, an address, a name in a configured catalog, or a location; and which version is read."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.cli.output import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"], indirect=True)


@pytest.fixture
def orders(catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The location of sales.orders, in a catalog that is also called prod."""
    monkeypatch.setenv(
        "DELTASQL_CATALOGS", json.dumps({"prod": catalog_uri, "other": "deltasql://sqlite/o.db"})
    )
    location = tmp_path / "lake" / "orders"
    with Catalog(catalog_uri) as catalog:
        catalog.write("sales.orders", pa.table({"id": [1, 2]}), location=location)
        time.sleep(0.005)
        catalog.write("sales.orders", pa.table({"id": [3]}), mode="append")
    return location


def test_a_table_can_be_named_in_every_way(
    deltasql_json: DeltasqlJson, orders: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ["sales.orders", "prod:sales.orders", f"{catalog_uri}?table=sales.orders", str(orders)]
    ways += [f"{orders}/", f"file://{orders}", "./lake/orders", "lake/orders", f"prod:{orders}"]
    for target in ways:
        assert deltasql_json("show", target)["name"] == "sales.orders", target
    monkeypatch.chdir(orders)
    assert deltasql_json("show", ".")["name"] == "sales.orders"
    for words in ("schema", "history", "files", "packs", "vacuum --dry-run", "mirror status", "doctor"):
        assert deltasql_json(*words.split(), ".") == deltasql_json(*words.split(), "prod:sales.orders")
    for words in ("verify", "mirror verify"):
        (report,) = deltasql_json(*words.split(), ".")["tables"]
        assert report["table"] == "sales.orders"


def test_a_catalog_has_a_name_in_the_configuration(
    deltasql_json: DeltasqlJson, orders: Path, catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELTASQL_CATALOG")
    assert [t["name"] for t in deltasql_json("list", "--catalog", "prod")["tables"]] == ["sales.orders"]
    assert deltasql_json("show", "prod:sales.orders")["version"] == 1
    monkeypatch.setenv("DELTASQL_CATALOG", "prod")
    assert deltasql_json("list")["catalog"] == catalog_uri
    assert deltasql_json("list", "--catalog", "other", code=ExitCode.ERROR)["error"] == "CatalogNotFoundError"


def test_a_wrong_table_is_explained(
    deltasql: Deltasql, orders: Path, catalog_uri: str, tmp_path: Path
) -> None:
    text = deltasql("show", "pord:sales.orders", code=2).stderr
    assert "no catalog is named 'pord'" in text
    assert "other, prod" in text
    assert "needs its address" in text
    assert "no catalog is named 'pord'" in deltasql("list", "--catalog", "pord", code=2).stderr
    assert "not both" in deltasql("show", "prod:sales.orders", "--catalog", "prod", code=2).stderr
    missing = deltasql("show", str(tmp_path / "lake"), code=1).stderr
    assert f"no table of {catalog_uri} is at {tmp_path / 'lake'}" in missing
    assert "deltasql import" in missing
    assert "several catalogs" in deltasql("verify", "sales.orders", "other:x", code=2).stderr


def test_a_new_table_is_not_looked_for_at_a_location(deltasql: Deltasql, orders: Path) -> None:
    words = ("--schema", "id:long", "--location", "x")
    assert "path separator" in deltasql("create", str(orders), *words, code=2).stderr
    deltasql("create", "prod:sales.lines", *words)
    assert "sales.lines" in deltasql("list").stdout


@pytest.mark.parametrize("command", ["show", "schema", "files"])
def test_a_snapshot_is_read_by_version_or_time(
    command: str, deltasql: Deltasql, deltasql_json: DeltasqlJson, orders: Path
) -> None:
    newest, first = (c["committed_at"] for c in deltasql_json("history", "sales.orders")["commits"])
    old = deltasql_json(command, "sales.orders", "--version", "0")
    assert deltasql_json(command, str(orders), "--at", first) == old
    assert deltasql_json(command, "sales.orders", "--at", first.replace("Z", "")) == old
    assert deltasql_json(command, "sales.orders", "--at", newest) == deltasql_json(command, "sales.orders")
    if command == "show":
        assert (old["version"], old["num_files"], old["num_records"], old["committed_at"]) == (0, 1, 2, first)
    error = deltasql_json(command, "sales.orders", "--at", "2001-01-01", code=1)
    assert error["error"] == "VersionMissingError"
    assert "not both" in deltasql(command, "sales.orders", "--at", first, "--version", "0", code=2).stderr
    assert "2026-11-15T12:00:00Z" in deltasql(command, "sales.orders", "--at", "yesterday", code=2).stderr
