"""A table's own URL is spelled as stock spells it, and leads both to the same table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import DeltaTable, import_table
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
