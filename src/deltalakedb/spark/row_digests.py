"""Rows of a plain table as delta-spark reads them, summed up by executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from deltalakedb.config import get_config
from deltalakedb.spark.scratch import spark_path
from deltalakedb.spark.sessions import check_delta
from deltalakedb.transfer.verifying.data_rows import RowDigest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def plain_rows(spark: SparkSession, location: str, version: int) -> RowDigest:
    """The digest of the rows of a plain table at a version.

    Raises:
        SparkSetupError: The session has no Delta.
    """
    check_delta(spark)
    place = spark_path(location, get_config().storage_options_for(location))
    frame = spark.read.format("delta").option("versionAsOf", version).load(place)
    whole = RowDigest()
    for row in frame.mapInArrow(_summed, "count bigint, lane binary").collect():
        whole.join(row["count"], int.from_bytes(row["lane"], "big"))
    return whole


def _summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    made = RowDigest().add(batches)
    yield pa.RecordBatch.from_pydict({"count": [made.count], "lane": [made.lane.to_bytes(8, "big")]})
