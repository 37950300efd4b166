"""Relative addresses mean one place for good, and looking creates nothing."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, open_log, write_deltalake
from deltalakedb.address import parse_address
from deltalakedb.doctor import examine
from deltalakedb.exceptions import AddressError, CatalogNotFoundError, TableNotFoundError
from deltalakedb.settings import get_config

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
        assert "deltasql migrate" in (caught.value.suggestion or "")
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
