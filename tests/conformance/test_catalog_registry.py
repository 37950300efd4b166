"""The registry: names, locations, comments, tags and namespaces, and names that try to be SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, write_deltalake
from deltalakedb.exceptions import (
    AddressError,
    ArgumentTypeError,
    DeltaSqlError,
    InvalidArgumentError,
    TableExistsError,
    TableMissingError,
    TableNotFoundError,
)
from deltalakedb.settings import Config
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from conftest import TableUri

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])


def test_a_created_table_is_found_by_name_and_location(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table(
        "sales.orders", SCHEMA, location=tmp_path / "orders", comment="all of them", tags={"team": "x"}
    )
    assert table.version() == 0
    row = catalog.find("sales.orders")
    assert row is not None
    assert (row.name, row.namespace, row.location) == ("sales.orders", "sales", str(tmp_path / "orders"))
    assert (row.comment, dict(row.tags), row.state) == ("all of them", {"team": "x"}, "active")
    assert catalog.find(location=tmp_path / "orders") == row
    assert catalog.find(location=f"file://{tmp_path}/orders/") == row
    assert catalog.describe("sales.orders") == row
    assert catalog.find("nope") is None
    assert catalog.find(location=tmp_path / "nope") is None
    assert [f.name for f in catalog.table("sales.orders").schema().fields] == ["id", "part"]


def test_finding_wants_either_a_name_or_a_location(catalog: Catalog) -> None:
    for wrong in ({}, {"name": "a", "location": "/b"}):
        with pytest.raises(InvalidArgumentError):
            catalog.find(**wrong)


def test_tables_are_listed_by_name_and_namespace(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("b", "a.x", "a.b.c", "ab.x"):
        catalog.create_table(name, SCHEMA, location=tmp_path / name)
    assert [t.name for t in catalog.tables()] == ["a.b.c", "a.x", "ab.x", "b"]
    assert [t.name for t in catalog.tables(namespace="a")] == ["a.b.c", "a.x"]
    assert catalog.tables(namespace="none") == []


def test_a_renamed_table_keeps_location_rows_and_history(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("old"), ids(1))
    row = catalog.rename_table("old", "new.name")
    assert catalog.find("old") is None
    renamed = catalog.table("new.name")
    assert ids_of(renamed) == [1]
    assert str(root_of(renamed)) == row.location
    catalog.write("new.name", ids(2), mode="append")
    assert ids_of(catalog.table("new.name")) == [1, 2]
    with pytest.raises(TableMissingError):
        catalog.rename_table("old", "x")


def test_a_rename_to_a_taken_name_changes_nothing(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("a"), ids(1))
    write_deltalake(table_uri("b"), ids(2))
    with pytest.raises(TableExistsError):
        catalog.rename_table("a", "b")
    assert ids_of(catalog.table("a")) == [1]
    assert ids_of(catalog.table("b")) == [2]
    assert catalog.rename_table("a", "a").name == "a"


def test_a_dropped_table_leaves_a_plain_delta_table(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1), partition_by=["part"])
    write_deltalake(table_uri("t"), ids(2), mode="append")
    root = catalog.describe("t").location
    before = files_below(root)
    catalog.drop_table("t")
    assert files_below(root) == before
    assert ids_of(deltalake.DeltaTable(root)) == [1, 2]
    assert catalog.tables() == []
    with pytest.raises(TableMissingError):
        catalog.table("t")
    left = [
        name
        for name in ("tables", "heads", "mirror", "commits", "commit_bytes", "outbox", "files", "metadata")
        if catalog.query(f"SELECT count(*) AS n FROM dl_{name}").to_pylist() != [{"n": 0}]
    ]
    assert left == []
    catalog.register("t", root)
    assert ids_of(catalog.table("t")) == [1, 2]


def test_dropping_one_table_leaves_its_neighbours(catalog: Catalog, table_uri: TableUri) -> None:
    for name in ("a", "b"):
        write_deltalake(table_uri(name), ids(1, 2), partition_by=["part"])
    catalog.drop_table("a")
    assert ids_of(catalog.table("b")) == [1, 2]
    assert catalog.table("b").history()[0]["version"] == 0


def test_unpublished_commits_are_not_dropped_by_accident(
    catalog_uri: str, table_uri: TableUri, tmp_path: Path
) -> None:
    catalog = Catalog(catalog_uri, config=Config(publish={"mode": "off"}))
    catalog.write("t", ids(1), location=tmp_path / "t")
    assert not (tmp_path / "t" / "_delta_log").exists()
    with pytest.raises(DeltaSqlError) as caught:
        catalog.drop_table("t")
    assert "force" in (caught.value.suggestion or "")
    assert ids_of(catalog.table("t")) == [1]
    catalog.drop_table("t", force=True)
    assert catalog.tables() == []


def test_comment_and_tags_are_replaced_and_cleared(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1))
    catalog.set_comment("t", 'it\'s "mine"')
    catalog.set_tags("t", {"a": "1", "ü": ""})
    assert catalog.describe("t").comment == 'it\'s "mine"'
    assert dict(catalog.describe("t").tags) == {"a": "1", "ü": ""}
    catalog.set_comment("t", None)
    catalog.set_tags("t", {})
    assert catalog.describe("t").comment is None
    assert dict(catalog.describe("t").tags) == {}
    with pytest.raises(TableMissingError):
        catalog.set_comment("no", "x")
    with pytest.raises(TableMissingError):
        catalog.set_tags("no", {})


def test_tags_are_changed_one_by_one(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1))
    assert catalog.update_tags("t", {"team": "web", "tier": "gold"}) == {"team": "web", "tier": "gold"}
    assert catalog.update_tags("t", {"tier": None, "gone": None, "size": ""}) == {"team": "web", "size": ""}
    assert catalog.update_tags("t", {}) == dict(catalog.describe("t").tags) == {"team": "web", "size": ""}
    for wrong in ({1: "x"}, {"x": 1}):
        with pytest.raises(ArgumentTypeError):
            catalog.update_tags("t", wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentTypeError):
            catalog.set_tags("t", wrong)  # type: ignore[arg-type]
    with pytest.raises(TableMissingError):
        catalog.update_tags("nope", {"a": "b"})


def test_a_namespace_that_is_missing_or_full_is_not_dropped(catalog: Catalog, table_uri: TableUri) -> None:
    catalog.create_namespace("empty")
    with pytest.raises(InvalidArgumentError, match="there is no namespace 'emptyy'") as caught:
        catalog.drop_namespace("emptyy")
    assert caught.value.suggestion == "did you mean empty?"
    write_deltalake(table_uri("full.t"), ids(1))
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"still has 1 table, for example full\.t"):
            catalog.drop_namespace("full", dry_run=dry_run)
    catalog.drop_namespace("empty", dry_run=True)
    assert [n.name for n in catalog.namespaces()] == ["empty", "full"]
    catalog.drop_namespace("empty")
    assert [n.name for n in catalog.namespaces()] == ["full"]


def test_namespaces_are_made_implied_and_dropped_when_empty(catalog: Catalog, table_uri: TableUri) -> None:
    catalog.create_namespace("empty", comment="nothing yet", properties={"k": "v"})
    write_deltalake(table_uri("sales.eu.orders"), ids(1))
    found = {n.name: n for n in catalog.namespaces()}
    assert found["empty"].comment == "nothing yet"
    assert dict(found["empty"].properties) == {"k": "v"}
    assert "sales.eu" in found
    with pytest.raises(TableExistsError):
        catalog.create_namespace("empty")
    with pytest.raises(InvalidArgumentError) as caught:
        catalog.drop_namespace("sales")
    assert "sales.eu.orders" in caught.value.message
    catalog.drop_namespace("empty")
    assert "empty" not in {n.name for n in catalog.namespaces()}


def test_a_new_table_without_a_location_lies_below_the_root(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(AddressError) as caught:
        catalog.write("sales.orders", ids(1))
    assert "location" in (caught.value.suggestion or "")
    catalog.set_root(tmp_path / "lake")
    assert catalog.root == str(tmp_path / "lake")
    catalog.write("sales.orders", ids(1))
    catalog.write("sales.orders", ids(2), mode="append")
    place = Path(catalog.describe("sales.orders").location)
    assert place.parent == tmp_path / "lake" / "sales"
    assert place.name.startswith("orders-")
    assert ids_of(deltalake.DeltaTable(place)) == [1, 2]
    catalog.set_root(None)
    assert catalog.root is None


def test_the_root_of_the_settings_holds_where_the_catalog_has_none(catalog_uri: str, tmp_path: Path) -> None:
    catalog = Catalog(catalog_uri, config=Config(catalog={"root": str(tmp_path / "lake")}))
    catalog.write("t", ids(1))
    assert Path(catalog.describe("t").location).parent == tmp_path / "lake"


def test_a_taken_name_or_location_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table("a", SCHEMA, location=tmp_path / "a")
    with pytest.raises(TableExistsError):
        catalog.create_table("a", SCHEMA, location=tmp_path / "other")
    with pytest.raises(TableExistsError):
        catalog.create_table("b", SCHEMA, location=tmp_path / "a")
    with pytest.raises(TableExistsError):
        catalog.write("b", ids(1), location=str(tmp_path / "x" / ".." / "a"))
    assert [t.name for t in catalog.tables()] == ["a"]
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "a" / "_deltasql").exists()


def test_a_location_that_holds_a_plain_table_is_not_taken_over(catalog: Catalog, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "plain", ids(1))
    with pytest.raises(TableExistsError) as caught:
        catalog.write("t", ids(2), location=tmp_path / "plain")
    assert "import_table" in (caught.value.suggestion or "")
    assert ids_of(deltalake.DeltaTable(tmp_path / "plain")) == [1]


def test_a_missing_table_is_answered_with_near_names(catalog: Catalog, table_uri: TableUri) -> None:
    with pytest.raises(TableNotFoundError) as empty:
        catalog.table("orders")
    assert "empty" in str(empty.value)
    write_deltalake(table_uri("sales.orders"), ids(1))
    with pytest.raises(TableMissingError) as caught:
        catalog.table("sales.ordesr")
    assert "sales.orders" in (caught.value.suggestion or "")
    assert caught.value.table == "sales.ordesr"


HOSTILE = [
    "x'; DROP TABLE dl_tables; --",
    'quo"te',
    "back\\slash",
    "semi;colon",
    "percent%s%20",
    "question?mark&and=more#hash",
    "ünï ©ødé 表",
    "n" * 255,
    "new\u2028line",
    "NULL",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(catalog: Catalog, tmp_path: Path, name: str) -> None:
    try:
        catalog.write(name, ids(1), location=tmp_path / "t")
    except AddressError:
        assert catalog.tables() == []
        return
    assert [t.name for t in catalog.tables()] == [name]
    uri = catalog.table_uri(name)
    assert ids_of(DeltaTable(uri)) == [1]
    write_deltalake(uri, ids(2), mode="append")
    catalog.set_comment(name, name)
    assert catalog.describe(name).comment == name
    catalog.rename_table(name, "plain")
    catalog.rename_table("plain", name)
    assert ids_of(catalog.table(name)) == [1, 2]
    assert catalog.query("SELECT name FROM dl_v_tables WHERE name = ?", (name,)).to_pylist() == [
        {"name": name}
    ]
    catalog.drop_table(name)
    assert catalog.tables() == []


@pytest.mark.parametrize("name", ["", ".", "a..b", ".a", "a.", "a\0b"])
def test_a_name_that_cannot_be_is_refused(catalog: Catalog, tmp_path: Path, name: str) -> None:
    refusals: tuple[type[Exception], ...] = (AddressError, InvalidArgumentError)
    with pytest.raises(refusals):
        catalog.write(name, ids(1), location=tmp_path / "t")
    with pytest.raises(refusals):
        catalog.create_namespace(name)
    assert catalog.tables() == []
    assert not (tmp_path / "t").exists()


def test_a_catalog_does_not_open_a_tables_address(catalog_uri: str, table_uri: TableUri) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Catalog(table_uri("t"))
    assert "DeltaTable" in (caught.value.suggestion or "")
    refused: list[Any] = [lambda: DeltaTable(catalog_uri), lambda: write_deltalake(catalog_uri, ids(1))]
    for attempt in refused:
        with pytest.raises((InvalidArgumentError, AddressError)) as missing:
            attempt()
        assert missing.value.suggestion == (
            "add /NAME" if catalog_uri.startswith("deltasql://postgres") else "add ?table=NAME"
        )
