"""A table's own URL is spelled as stock spells it, and leads both to the same table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, import_table
from deltalakedb.exceptions import AddressError
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path


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
