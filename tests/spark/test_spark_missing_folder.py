"""Spark's writes to a published table whose folder is gone: refused before any row is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import TableFolderMissingError
from deltalakedb.spark import delete, merge, optimize, write
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path


def _in_a_transaction(catalog: Catalog, spark: Any, rows: Any) -> None:
    with catalog.transaction() as tx:
        tx.spark(spark).write("t", rows)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_nothing_is_written_to_a_table_whose_folder_is_gone(
    spark: Any, catalog_uri: str, tmp_path: Path
) -> None:
    catalog, root = Catalog(catalog_uri, create=True), tmp_path / "t"
    catalog.write("t", ids(0), location=root)
    uri, rows = catalog.table_uri("t"), spark.createDataFrame(ids(1).to_pandas())
    root.rename(tmp_path / "aside")
    for work in (
        lambda: write(rows, uri, mode="append"),
        lambda: write(rows, uri, mode="overwrite"),
        lambda: delete(spark, uri, "id = 0"),
        lambda: merge(spark, uri, rows, "target.id = source.id").whenNotMatchedInsertAll().execute(),
        lambda: optimize(spark, uri),
        lambda: _in_a_transaction(catalog, spark, rows),
    ):
        with pytest.raises(TableFolderMissingError, match="folder is missing"):
            work()
        assert not root.exists()
    with pytest.raises(Exception, match="folder is missing"):
        rows.write.format("deltasql").mode("append").save(uri)
    assert not root.exists()
    assert catalog.describe("t").head.version == 0
