"""Tables that were imported, written and given back: delta-spark reads what stock reads, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import (
    DeltaTable,
    export_table,
    import_table,
    rollback_import,
    verify_table,
    write_deltalake,
)
from support.lake import every_type, ids, ids_of
from support.sources import plain_table
from support.spark import read_versions, rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])


def test_what_is_given_back_or_away_is_read_and_written_by_delta_spark(
    spark: Any, tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = plain_table(tmp_path / "plain"), f"{catalog_uri}?table=t"
    import_table(str(root), uri)
    write_deltalake(uri, ids(100, 101, part="z"), mode="append")
    DeltaTable(uri).delete("id = 3")
    # a version before the import, its newest one, and one that was made here
    wanted = {v: rows(DeltaTable(uri, version=v).to_pyarrow_table()) for v in (3, 8, 10)}
    export_table(uri, str(tmp_path / "whole"), verify="full")
    export_table(uri, str(tmp_path / "newest"), history="newest", verify="data")
    assert rollback_import(uri, verify="full").action == "released"
    for place, versions in {"plain": (3, 8, 10), "whole": (3, 8, 10), "newest": (10,)}.items():
        for version, found in read_versions(spark, tmp_path / place, versions).items():
            assert rows(found) == wanted[version], (place, version)
    for place in ("plain", "whole", "newest"):
        more = spark.createDataFrame([(900, "z")], ["id", "part"])
        more.write.format("delta").mode("append").save(str(tmp_path / place))
        stock = deltalake.DeltaTable(tmp_path / place)
        assert (stock.version(), 900 in ids_of(stock)) == (11, True), place
    # and back again, with what Spark wrote
    assert import_table(str(tmp_path / "newest"), uri, verify="data").version == 11


def test_rows_are_compared_with_those_that_delta_spark_reads(
    spark: Any, tmp_path: Path, catalog_uri: str
) -> None:
    root, uri = tmp_path / "typed", f"{catalog_uri}?table=t"
    deltalake.write_deltalake(root, every_type(count=6), partition_by=["part", "day"])
    report = import_table(str(root), uri, verify="data", engine="spark", spark=spark)
    assert report.verification is not None
    assert report.verification.rows_checked == 6
    checked = verify_table(uri, "data", engine="spark", spark=spark)
    assert (checked.ok, checked.rows_checked) == (True, 6), checked.differences
    next(root.rglob("part-*.parquet")).unlink()
    (found,) = verify_table(uri, "data", engine="spark", spark=spark).differences
    assert found.kind == "rows"
