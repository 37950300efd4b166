"""Import a plain Delta table by PySpark and read it back with delta-spark; the tour's last step runs it.

python examples/spark_import.py lake/visits 'deltasql://sqlite//lake/meta.db?table=visits'
"""

from __future__ import annotations

import json
import os
import sys
import warnings

from deltalakedb import import_table
from deltalakedb.spark import session


def main(path: str, uri: str) -> int:
    warnings.simplefilter("ignore")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = session("local[2]", config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"})
    report = import_table(path, uri, history="checkpoint", engine="spark", spark=spark)
    frame = spark.read.format("delta").load(path)
    ids = sorted(row["id"] for row in frame.select("id").collect())
    print(
        json.dumps({"engine": report.engine, "digest": report.digest, "version": report.version, "ids": ids})
    )
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
