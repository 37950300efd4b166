"""A local Spark session changes tables whose files lie in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa

from deltalakedb import Catalog
from deltalakedb.spark import delete, merge, update
from support.lake import ids

if TYPE_CHECKING:
    from pathlib import Path

    from support.places import Place


def test_spark_rewrites_rows_in_a_bucket(spark: Any, bucket: Place, tmp_path: Path) -> None:
    location = f"{bucket.base}/t"
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as catalog:
        vectors = {"delta.enableDeletionVectors": "true"}
        for numbers, part in ((range(4), "a"), (range(4, 8), "b")):
            catalog.write(
                "t",
                ids(*numbers, part=part),
                mode="append",
                location=location,
                partition_by=["part"],
                configuration=vectors,
                storage_options=bucket.options,
            )
        uri = f"deltasql://sqlite/{tmp_path}/catalog.db?table=t"
        # the second deletion meets the vector that the first has left
        for condition in ("id = 1", "part = 'a' AND id = 2"):
            assert delete(spark, uri, condition, storage_options=bucket.options) == {"num_affected_rows": 1}
        told = update(spark, uri, {"id": "id * 10"}, "id = 4", storage_options=bucket.options)
        assert told == {"num_affected_rows": 1}
        news = spark.createDataFrame([(5, "b"), (9, "c")], "id BIGINT, part STRING")
        merging = merge(spark, uri, news, "target.id = source.id", storage_options=bucket.options)
        told = merging.whenMatchedDelete().whenNotMatchedInsertAll().execute()
        assert (told["num_deleted_rows"], told["num_inserted_rows"]) == (1, 1)
        stock = deltalake.DeltaTable(location, storage_options=bucket.options)
        assert stock.version() == 5
        assert sorted(pa.table(stock.scan().read_all())["id"].to_pylist()) == [0, 3, 6, 7, 9, 40]
