"""The commands about names, tags, comments, namespaces and locations: what they show, ask and change."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from cli.conftest import Deltasql, DeltasqlJson, Program


@pytest.fixture
def engine_name() -> str:
    return "sqlite"


@pytest.fixture
def lake(catalog_uri: str, tmp_path: Path) -> Path:
    """The folder of the tables `sales.orders` and `sales.eu.items`."""
    with Catalog(catalog_uri) as catalog:
        for name in ("sales.orders", "sales.eu.items"):
            catalog.write(name, ids(1), location=tmp_path / "lake" / name)
    return tmp_path / "lake"


def test_a_table_is_renamed(deltasql: Deltasql, deltasql_json: DeltasqlJson, lake: Path) -> None:
    text = deltasql("rename", "sales.orders", "archive.orders").stdout
    assert text == f"Renamed sales.orders to archive.orders; its files stay at {lake / 'sales.orders'}.\n"
    back = deltasql_json("rename", "archive.orders", "sales.orders")
    assert back == {
        "table": "sales.orders", "old_name": "archive.orders", "location": str(lake / "sales.orders"),
    }  # fmt: skip
    assert deltasql("rename", str(lake / "sales.orders"), "o", "--quiet").stdout == "o\n"
    assert deltasql_json("rename", "o", "sales.eu.items", code=1)["error"] == "TableExistsError"
    assert deltasql_json("rename", "o", "a..b", code=2)["error"] == "AddressError"
    assert "did you mean" in deltasql("rename", "sales.eu.item", "x", code=1).stderr
    deltasql("rename", "o", code=2)


def test_tags_are_shown_set_and_removed(deltasql: Deltasql, deltasql_json: DeltasqlJson, lake: Path) -> None:
    assert deltasql("tag", "sales.orders").stdout == "sales.orders has no tags.\n"
    assert deltasql("tag", "sales.orders", "tier=gold", "team=web").stdout.splitlines() == [
        "sales.orders:", "team  web", "tier  gold",
    ]  # fmt: skip
    assert deltasql_json("tag", "sales.orders", "url=a=b")["tags"]["url"] == "a=b"
    assert deltasql("tag", "sales.orders", "--remove", "url", "--quiet").stdout == "team=web\ntier=gold\n"
    assert deltasql_json("show", "sales.orders")["tags"] == {"team": "web", "tier": "gold"}
    assert (
        "has no tag url: it has team, tier"
        in deltasql("tag", "sales.orders", "--remove", "url", code=2).stderr
    )
    assert (
        "both set and removed" in deltasql("tag", "sales.orders", "team=x", "--remove", "team", code=2).stderr
    )
    assert "key=value" in deltasql("tag", "sales.orders", "team", code=2).stderr
    assert deltasql_json("tag", "nope", "a=b", code=1)["error"] == "TableMissingError"


def test_a_comment_is_shown_set_and_removed(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, lake: Path
) -> None:
    assert deltasql("comment", "sales.orders").stdout == "sales.orders has no comment.\n"
    assert deltasql("comment", "sales.orders", "one row each").stdout == "sales.orders: one row each\n"
    assert deltasql("comment", "sales.orders", "--quiet").stdout == "one row each\n"
    assert deltasql_json("show", "sales.orders")["comment"] == "one row each"
    assert deltasql_json("comment", "sales.orders", "--remove") == {"table": "sales.orders", "comment": None}
    assert "not both" in deltasql("comment", "sales.orders", "x", "--remove", code=2).stderr
    deltasql("comment", "nope", "x", code=1)


def test_namespaces_are_listed_created_and_dropped(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, lake: Path
) -> None:
    assert deltasql("namespace", "list").stdout.splitlines() == [
        "NAME      TABLES  COMMENT", "sales          1  -", "sales.eu       1  -",
    ]  # fmt: skip
    made = deltasql_json("namespace", "create", "raw", "--comment", "as it came", "--property", "owner=ada")
    assert made == {"namespace": "raw", "comment": "as it came", "properties": {"owner": "ada"}}
    listed = deltasql_json("namespace", "list")["namespaces"]
    assert [(n["name"], n["tables"], n["comment"]) for n in listed] == [
        ("raw", 0, "as it came"), ("sales", 1, None), ("sales.eu", 1, None),
    ]  # fmt: skip
    assert deltasql("namespace", "list", "--quiet").stdout.split() == ["raw", "sales", "sales.eu"]
    assert "exists" in deltasql("namespace", "create", "raw", code=1).stderr
    assert "still has 2 tables" in deltasql("namespace", "drop", "sales", "--yes", code=2).stderr
    assert "did you mean raw" in deltasql("namespace", "drop", "ray", "--yes", code=2).stderr
    assert deltasql("namespace", "drop", "raw", "--dry-run").stdout == "Would drop the namespace raw.\n"
    assert "pass --yes" in deltasql("namespace", "drop", "raw", code=2).stderr
    dropped = deltasql_json("namespace", "drop", "raw", "--yes")
    assert dropped == {"namespace": "raw", "dropped": True, "dry_run": False}
    assert len(deltasql_json("namespace", "list")["namespaces"]) == 2


def test_a_moved_table_and_a_moved_lake_are_relocated(
    deltasql: Deltasql, deltasql_json: DeltasqlJson, lake: Path, tmp_path: Path, catalog_uri: str
) -> None:
    new = tmp_path / "new"
    missing = deltasql("relocate", "sales.orders", str(new), "--yes", code=1).stderr
    assert "move the table's folder there first" in missing
    shutil.copytree(lake / "sales.eu.items", new)
    assert (
        deltasql_json("relocate", "sales.orders", str(new), "--yes", code=3)["error"] == "VerificationError"
    )
    shutil.rmtree(new)
    shutil.move(lake / "sales.orders", new)
    would = deltasql_json("relocate", "sales.orders", str(new), "--dry-run")
    assert "pass --yes" in deltasql("relocate", "sales.orders", str(new), code=2).stderr
    done = deltasql_json("relocate", "sales.orders", str(new), "--yes")
    assert (would.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert would == done
    shutil.move(new, lake / "sales.orders")
    deltasql("relocate", str(new), str(lake / "sales.orders"), "--yes")
    deltasql("init", "--root", str(lake))
    lake.rename(tmp_path / "moved")
    words = ("relocate", str(lake), str(tmp_path / "moved"))
    shown = deltasql(*words, "--dry-run").stdout
    text = deltasql(*words, "--yes").stdout
    assert shown.replace("Would change", "Changed").replace("would be", "are") == text
    assert "Changed the location of 2 tables:" in text
    assert f"New tables are created below {tmp_path / 'moved'}." in text
    with Catalog(catalog_uri) as catalog:
        assert ids_of(catalog.table("sales.orders")) == [1]
    assert "no table of the catalog" in deltasql(*words, code=2).stderr
    assert "./lake" in deltasql("relocate", "lake", "moved", code=1).stderr


def test_they_run_as_a_program(program: Program, lake: Path, tmp_path: Path) -> None:
    assert program("rename", "sales.orders", "sales.o").returncode == 0
    assert program("tag", "sales.o", "team=web").stdout == "sales.o:\nteam  web\n"
    assert program("comment", "sales.o", "each once").stdout == "sales.o: each once\n"
    assert program("namespace", "list", "--quiet").stdout == "sales\nsales.eu\n"
    lake.rename(tmp_path / "moved")
    assert program("relocate", str(lake), str(tmp_path / "moved"), "--yes", "-q").stdout.split() == [
        "sales.eu.items", "sales.o",
    ]  # fmt: skip
    assert program("relocate", "sales.o", str(tmp_path), "--json").returncode == 1
