"""All golden tables go on after their import: SQL, stock deltalake and delta-spark read the same of each."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import VariantVal

from deltalakedb import Catalog
from support.golden import copy_of, go_on, golden_tables
from support.spark import plain, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.golden import GoldenTable

#: reads side by side: most of a small read is waiting for the driver
_AT_ONCE = 4
#: tables with more rows are compared as columns
_LARGE = 20_000
#: what stock says of tables that it cannot read, whoever wrote them
UNREAD_BY_STOCK = {
    "basic-with-vacuum-protocol-check-feature": "VacuumProtocolCheck",
    "type-widening": "TypeWideningPreview",
    "type-widening-nested": "TypeWideningPreview",
}


@dataclass(frozen=True)
class Continued:
    """A golden table that was imported, and went on where its features permit it.

    Attributes:
        name: Its name.
        root: Its folder.
        version: The version to compare: with all its rows and an appended one. Where data files are missing
            nobody can read these, and it is the one after, which has no rows.
    """

    name: str
    root: Path
    version: int


def continued(catalog: Catalog, table: GoldenTable, folder: Path) -> Continued:
    """Import a table and let it go on."""
    root = copy_of(table, folder)
    for checksum in (root / "_delta_log").glob(".*.crc"):
        checksum.unlink()  # Hadoop's own, of files that were made anew since
    catalog.register(table.name, root)
    imported = catalog.describe(table.name).head.version
    done, _ = go_on(catalog, table.name)
    if table.truth["versions"][str(imported)]["rows_unknown"] is None:
        return Continued(table.name, root, imported + ("append" in done))
    assert "delete" in done, f"no version of {table.name} can be read"
    return Continued(table.name, root, catalog.describe(table.name).head.version)


def comparable(table: pa.Table) -> Any:
    """The rows of a table in no order."""
    if table.num_rows <= _LARGE:
        return rows(table)
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def outcome(read: Callable[[Continued], Any], table: Continued) -> Any:
    """What a reader found, or the trouble it had."""
    try:
        return read(table)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def by_stock(table: Continued) -> Any:
    stock = deltalake.DeltaTable(table.root, version=table.version)
    return comparable(pa.table(stock.scan().read_all()))


def unpacked(value: Any) -> Any:
    """A row of Spark's as Arrow has it, with variants as their two parts."""
    if isinstance(value, VariantVal):
        return {"metadata": bytes(value.metadata), "value": bytes(value.value)}
    if isinstance(value, Row):
        return {name: unpacked(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return [(key, unpacked(value[key])) for key in sorted(value)]  # on their way maps lose their order
    return [unpacked(item) for item in value] if isinstance(value, list) else value


@pytest.mark.golden
def test_every_golden_table_that_goes_on_reads_the_same_to_all_three(
    spark: Any, golden: Path, tmp_path: Path
) -> None:
    def by_spark(table: Continued) -> Any:
        found = spark.read.format("delta").option("versionAsOf", table.version).load(str(table.root))
        if "variant" in found.schema.simpleString():
            # variants that are null do not survive Spark's way to Arrow
            return Counter(repr(plain(unpacked(row))) for row in found.collect())
        return comparable(found.toArrow())

    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as catalog:
        valid = [table for table in golden_tables() if table.truth["expect"] == "ok"]
        tables = [continued(catalog, table, tmp_path / "lake" / table.name) for table in valid]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            read_by_spark = list(pool.map(lambda table: outcome(by_spark, table), tables))
        wrong: dict[str, Any] = {}
        for table, theirs in zip(tables, read_by_spark, strict=True):
            scanned = catalog.table(table.name, version=table.version).scan().read_all()
            ours = comparable(pa.table(scanned))
            for reader, found in (("delta-spark", theirs), ("stock", outcome(by_stock, table))):
                if isinstance(found, str):
                    wrong[f"{table.name} by {reader}"] = found[:300]
                elif not same(found, ours):
                    small = isinstance(ours, Counter)
                    wrong[f"{table.name} by {reader}"] = (
                        (found - ours, ours - found) if small else "other rows"
                    )
    for name, feature in UNREAD_BY_STOCK.items():
        assert feature in wrong.pop(f"{name} by stock")
    assert wrong == {}
    assert len(tables) > 80


def same(theirs: Any, ours: Any) -> bool:
    """Whether two readers found the same, though they may spell a type in their own way."""
    if isinstance(ours, pa.Table):
        return isinstance(theirs, pa.Table) and bool(theirs.cast(ours.schema).equals(ours))
    return bool(theirs == ours)
