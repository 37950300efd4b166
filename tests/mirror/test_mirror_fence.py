"""The fence: writers that bypass the catalog refuse the table, readers go on, and it can be taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import TableFrozenError, UnsupportedOperationError
from deltalakedb.protocol.actions import Protocol
from deltalakedb.protocol.features import FENCE, with_writer_features, without_writer_feature
from deltalakedb.settings import Config
from support.lake import ids, ids_of
from support.mirrors import append, append_outside, outside_ids, same_everywhere

if TYPE_CHECKING:
    from pathlib import Path


def test_stock_refuses_to_write_a_fenced_table_and_goes_on_reading_it(catalog: Catalog, root: Path) -> None:
    assert catalog.mirror.fence("t") == 1
    assert catalog.mirror.fence("t") is None, "it stands already"
    found = deltalake.DeltaTable(root).protocol()
    assert (found.min_reader_version, found.min_writer_version) == (1, 7)
    assert set(found.writer_features or ()) == {"appendOnly", "invariants", FENCE}
    for write in (
        lambda: append_outside(root, 7),
        lambda: deltalake.DeltaTable(root).delete(),
        lambda: deltalake.write_deltalake(root, ids(7), mode="overwrite"),
        lambda: deltalake.DeltaTable(root).optimize.compact(),
    ):
        with pytest.raises(deltalake.exceptions.CommitFailedError, match=FENCE):
            write()
    append(catalog, 1, 2)
    catalog.table("t").delete("id = 1")
    catalog.write("t", ids(3), mode="append", schema_mode="merge")
    catalog.table("t").merge(
        ids(3, 4), "s.id = t.id", source_alias="s", target_alias="t"
    ).when_not_matched_insert_all().execute()
    assert outside_ids(root) == ids_of(catalog.table("t")) == [0, 2, 3, 4]
    same_everywhere(catalog, root)
    catalog.mirror.checkpoint("t")
    assert catalog.mirror.verify("t").ok

    assert catalog.mirror.unfence("t") == 7
    assert catalog.mirror.unfence("t") is None
    back = deltalake.DeltaTable(root).protocol()
    assert (back.min_reader_version, back.min_writer_version, back.writer_features) == (1, 2, None)
    append_outside(root, 9)
    assert catalog.mirror.recover("t").versions == (8,)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_new_tables_are_fenced_by_a_setting_and_stay_so_when_they_are_replaced(
    catalog_uri: str, tmp_path: Path
) -> None:
    with Catalog(catalog_uri, config=Config(catalog={"fence": True})) as catalog:
        catalog.write("w", ids(1), location=tmp_path / "w")
        catalog.create_table("c", ids(1).schema, location=tmp_path / "c")
        with catalog.transaction() as tx:
            tx.write("x", ids(1), location=tmp_path / "x")
    with Catalog(catalog_uri) as plain:
        plain.create_table("c", ids(1).schema, mode="overwrite")
        for name in "wcx":
            with pytest.raises(deltalake.exceptions.CommitFailedError, match=FENCE):
                append_outside(tmp_path / name, 2)
            append(plain, 2, name=name)
            assert outside_ids(tmp_path / name) == ([2] if name == "c" else [1, 2])


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_fenced_table_is_not_dropped_by_mistake(catalog: Catalog, root: Path) -> None:
    catalog.mirror.fence("t")
    with pytest.raises(UnsupportedOperationError, match="fenced"):
        catalog.drop_table("t")
    catalog.drop_table("t", force=True)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_fence_does_not_overtake_a_commit_of_others(catalog: Catalog, root: Path) -> None:
    append_outside(root, 7)
    with pytest.raises(TableFrozenError, match="frozen"):
        catalog.mirror.fence("t")
    assert outside_ids(root) == [0, 7]


def test_features_that_a_version_implied_are_named_and_unnamed_again() -> None:
    for reader, writer in ((1, 2), (1, 3), (1, 4), (2, 5), (2, 6)):
        before = Protocol(min_reader_version=reader, min_writer_version=writer)
        after = with_writer_features(before, [FENCE])
        assert (after.min_reader_version, after.min_writer_version) == (reader, 7)
        assert without_writer_feature(after, FENCE) == before
    named = Protocol(
        min_reader_version=3, min_writer_version=7, reader_features=("x",), writer_features=("x", "y")
    )
    fenced = with_writer_features(named, [FENCE, FENCE])
    assert fenced.writer_features == ("x", "y", FENCE)
    assert without_writer_feature(fenced, FENCE) == named
    assert without_writer_feature(before, FENCE) == before
