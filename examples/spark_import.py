"""Import a plain Delta table by PySpark, verify it, and read it with delta-spark; `make demo-spark` runs it.

python examples/spark_import.py [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from urllib.parse import quote

import deltalake
import pyarrow as pa

from deltalakedb import DeltaTable, import_table, verify_table
from deltalakedb.spark import read, session


def main(folder: str = "demo-lake/spark") -> int:
    warnings.simplefilter("ignore")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = Path(folder).absolute()
    shutil.rmtree(home / "visits", ignore_errors=True)
    for suffix in ("", "-wal", "-shm"):
        (home / f"meta.db{suffix}").unlink(missing_ok=True)

    print("A plain Delta table, written by deltalake: 5 commits, a checkpoint after the fourth.")
    for day in range(5):
        rows = pa.table({"id": range(day * 50, day * 50 + 50), "day": [day] * 50})
        deltalake.write_deltalake(home / "visits", rows, mode="append")
        if day == 3:
            deltalake.DeltaTable(home / "visits").create_checkpoint()

    print("Starting Spark. Executors read and encode the checkpoint; the database gets the rows.")
    spark = session("local[2]", config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"})
    catalog = f"deltasql://sqlite/{quote(str(home))}/meta.db"
    visits = f"{catalog}?table=visits"
    report = import_table(home / "visits", visits, history="checkpoint", engine="spark", spark=spark)
    print(f"  imported by {report.engine}: version {report.version}, {report.num_files} files")
    print(f"  the catalog matches the log: {verify_table(visits).ok}")

    ours = sorted(row["id"] for row in read(spark, visits).select("id").collect())
    theirs = spark.read.format("delta").load(str(home / "visits"))
    same = ours == sorted(row["id"] for row in theirs.select("id").collect()) == list(range(250))
    print(f"  delta-spark reads the same {DeltaTable(visits).count()} rows from the folder: {same}")
    spark.stop()
    print(f"Look around:\n  export DELTASQL_CATALOG='{catalog}'\n  deltasql show visits")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
