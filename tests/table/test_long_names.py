"""Tables with names as long as they may be, placed under the catalog's root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb import Catalog
from deltalakedb.address import MAX_NAME
from support.invariants import check_table
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path

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
