"""Where tables lie: relative addresses, the table's own URL, and names as long as they may be."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, open_log, write_deltalake
from deltalakedb.address import MAX_NAME, parse_address
from deltalakedb.doctor import examine
from deltalakedb.exceptions import AddressError, CatalogNotFoundError, TableNotFoundError
from deltalakedb.settings import get_config
from support.invariants import check_table
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ROWS = pa.table({"id": [1, 2]})


def test_a_table_at_a_relative_address_survives_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    uri = "deltasql://sqlite/lake/meta.db?table=t&location=lake/t"
    write_deltalake(uri, ROWS)
    table, catalog = DeltaTable(uri), Catalog("deltasql://sqlite/lake/meta.db")
    pickled = pickle.dumps(table)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for found in (pickle.loads(pickled), copy.copy(table), copy.deepcopy(table), DeltaTable(table.address)):
        assert found.to_pyarrow_table().num_rows == 2
        assert found.table_uri == f"file://{tmp_path}/lake/t/"
    write_deltalake(table, ROWS, mode="append")
    assert catalog.table("t").count() == 4
    with catalog.transaction() as tx:
        tx.write("t", ROWS)
    assert catalog.table("t").version() == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_looking_at_a_catalog_that_is_not_there_creates_nothing(
    catalog_uri: str, table_uri: Callable[..., str], tmp_path: Path
) -> None:
    uri = table_uri("t")
    before = sorted(tmp_path.rglob("*"))
    assert not DeltaTable.is_deltatable(uri)
    catalog = Catalog(catalog_uri)
    looks: list[Callable[[], object]] = [
        lambda: DeltaTable(uri),
        lambda: DeltaTable(uri, version=3),
        lambda: open_log(uri),
        catalog.tables,
        catalog.namespaces,
        lambda: catalog.table("t"),
        lambda: catalog.describe("t"),
        lambda: catalog.query("SELECT 1"),
        lambda: catalog.mirror.status(),
        lambda: catalog.snapshot().__enter__(),
    ]
    for look in looks:
        with pytest.raises(CatalogNotFoundError, match="there is no catalog") as caught:
            look()
        assert isinstance(caught.value, TableNotFoundError)
        assert f"deltasql init '{catalog_uri}'" in (caught.value.suggestion or "")
    checks = list(examine(parse_address(catalog_uri), get_config()))
    assert isinstance(checks[-1].error, CatalogNotFoundError)
    assert sorted(tmp_path.rglob("*")) == before
    write_deltalake(uri, ROWS, mode="append")
    assert [t.name for t in catalog.tables()] == ["t"]


def test_the_first_transaction_creates_the_catalog(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog, catalog.transaction() as tx:
        tx.write("t", ROWS, location=tmp_path / "t")
    assert Catalog(catalog_uri).table("t").count() == 2


def test_a_path_that_was_an_address_says_what_is_wrong(tmp_path: Path) -> None:
    where = type(tmp_path)("deltasql://sqlite//lake/meta.db?table=t")
    for use in (DeltaTable, DeltaTable.is_deltatable, lambda a: write_deltalake(a, ROWS)):
        with pytest.raises(AddressError, match="lost a slash") as caught:
            use(where)
        assert "pass a str" in caught.value.message


# A table's own URL is spelled as stock spells it, and leads both to the same table.


@pytest.mark.parametrize("name", ["plain", "a b", "ü", "x=1,(y)[z]|^~+&;:@'!$", "a#b?c{d}<e>`"])
def test_a_table_uri_is_spelled_as_stock_spells_it(name: str, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / name, ids(1))
    address = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    import_table(str(tmp_path / name), address)
    ours, stock = DeltaTable(address), deltalake.DeltaTable(tmp_path / name)
    assert ours.table_uri == ours._table.table_uri() == stock.table_uri
    assert ids_of(deltalake.DeltaTable(ours.table_uri)) == ids_of(ours) == [1]


def test_a_percent_sign_in_a_location_is_fine_unless_readers_would_decode_it(tmp_path: Path) -> None:
    catalog = Catalog(f"deltasql://sqlite/{tmp_path}/meta.db", create=True)
    for number, name in enumerate(("a%b", "100%", "x%zz")):
        catalog.write(f"t{number}", ids(1), location=tmp_path / name)
        catalog.write(f"t{number}", ids(2), mode="append")
        catalog.table(f"t{number}").delete("id = 1")
        assert ids_of(catalog.table(f"t{number}")) == ids_of(deltalake.DeltaTable(tmp_path / name)) == [2]
    for name in ("a%20b", "%2F", "ü%c3%BC"):
        with pytest.raises(AddressError, match=r"holds %[0-9a-fA-F]{2}, which readers"):
            catalog.write("bad", ids(1), location=tmp_path / name)
        assert not (tmp_path / name).exists()
    assert len(catalog.tables()) == 3


def test_what_history_says_of_a_place_is_the_tables_own(tmp_path: Path) -> None:
    place, plain = tmp_path / "a b", tmp_path / "plain"
    address = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={place}"
    for mode in ("error", "overwrite"):
        DeltaTable.create(address, ids(1).schema, mode=mode)
        deltalake.DeltaTable.create(plain, ids(1).schema, mode=mode)
        ours, stock = DeltaTable(address), deltalake.DeltaTable(plain)
        told, theirs = (t.history(1)[0]["operationParameters"] for t in (ours, stock))
        assert told.keys() == theirs.keys()
        assert (told["location"], theirs["location"]) == (ours.table_uri, stock.table_uri)
    with Catalog(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog, catalog.transaction() as tx:
        tx.create_table("n", ids(1).schema, location=tmp_path / "n")
    log = (tmp_path / "n" / "_delta_log" / f"{0:020}.json").read_text()
    assert "_deltasql" not in log
    assert f"file://{tmp_path}/n/" in log


# Tables with names as long as they may be, placed under the catalog's root.


NAMES = {
    "letters": "t" * MAX_NAME,
    "almost": "t" * 247,
    "many bytes": "\U0001f600" * MAX_NAME,
    "accents": "é" * 200,
    "long namespace": "n" * 253 + ".t",
    "wide namespace": "表" * 200 + "." + "ä" * 54,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_a_name_as_long_as_allowed_makes_a_table_under_the_root(
    name: str, catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri, create=True) as catalog:
        catalog.set_root(tmp_path / "lake")
        catalog.write(name, ids(1))
        catalog.write(name, ids(2), mode="append")
        catalog.table(name).delete("id = 1")
        assert check_table(catalog, name, published=True).ids == [2]
        assert [t.name for t in catalog.tables()] == [name]
        # two such names that begin alike do not meet
        other = name[:-1] + "x"
        catalog.write(other, ids(3))
        assert catalog.describe(other).location != catalog.describe(name).location
