"""The same table twice, in the catalog and as delta-spark keeps it: what is done to both is the same."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pyarrow as pa

from support.lake import files_below
from support.spark import read, read_versions, rows

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog


@dataclass
class SparkTwins:
    """A table of the catalog, and its copy that delta-spark alone looks after."""

    spark: Any
    catalog: Catalog
    name: str
    root: Path
    plain: Path
    uri: str

    @classmethod
    def make(
        cls, spark: Any, catalog: Catalog, folder: Path, name: str, properties: dict[str, str]
    ) -> SparkTwins:
        """Thirty rows in three partitions, written by delta-spark."""
        root, plain = folder / f"the {name}", folder / f"{name}-plain"
        frame = spark.sql(
            "SELECT id, id * 2 AS v, concat('text ', id) AS s, CAST(id % 3 AS INT) AS p"
            " FROM range(0, 30, 1, 2)"
        )
        given = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        # column mapping and a change feed cannot both be had by writing a DataFrame
        spark.sql(
            f"CREATE TABLE delta.`{root}` (id BIGINT, v BIGINT, s STRING, p INT) USING delta"
            f" PARTITIONED BY (p) TBLPROPERTIES ({given})"
        )
        frame.write.format("delta").mode("append").save(str(root))
        shutil.copytree(root, plain)
        catalog.register(name, root)
        address = f"deltasql://sqlite/{quote(str(folder))}/catalog.db?table={name}"
        return cls(spark, catalog, name, root, plain, address)

    @property
    def version(self) -> int:
        return self.catalog.table(self.name).version()

    def by_sql(self, text: str) -> list[dict[str, Any]]:
        """What delta-spark answers on the plain table, called `{}` in the text."""
        return [
            r.asDict(recursive=True) for r in self.spark.sql(text.format(f"delta.`{self.plain}`")).collect()
        ]

    def check(self) -> pa.Table:
        """Find the same rows in both, whoever reads; the rows."""
        found = self.same_for_all()
        assert rows(found) == rows(read(self.spark, self.plain)), "the plain table has something else"
        return found

    def same_for_all(self, *versions: int) -> pa.Table:
        """The rows of the catalog's table, which all readers agree on, at some older versions too."""
        assert not (self.root / "_deltasql").exists(), "a scratch table is left"
        newest = self.version
        assert deltalake.DeltaTable(self.root).version() == newest
        for version, theirs in read_versions(self.spark, self.root, (*versions, newest)).items():
            ours = pa.table(self.catalog.table(self.name, version=version).scan().read_all())
            assert rows(theirs) == rows(ours), f"delta-spark reads something else at {version}"
            stock = deltalake.DeltaTable(self.root, version=version)
            assert rows(pa.table(stock.scan().read_all())) == rows(ours), f"and stock at {version}"
        return pa.table(self.catalog.table(self.name).scan().read_all())

    def row_ids(self) -> dict[int, int]:
        """The id of every row, by its number."""
        frame = self.spark.read.format("delta").load(str(self.root)).select("id", "_metadata.row_id")
        return {row["id"]: row["row_id"] for row in frame.collect()}

    def unknown_files(self) -> set[str]:
        """Data files under the root that no version knows."""
        log = self.catalog.log(self.name)
        known = {a.path for v in log.versions() for a in log.actions(v) if hasattr(a, "path")}
        found = files_below(self.root)
        return {
            f
            for f in found
            if f.endswith(".parquet") and "_delta_log" not in f and quote(f, "/=") not in known
        }
