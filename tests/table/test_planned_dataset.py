"""Scans that plan in the database by their own filter, as DuckDB asks for them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltalakedb.table.handle import TableHandle
from deltalakedb.table.read import dataset as datasets
from deltalakedb.table.read.dataset import PlannedDataset, pushed_down

if TYPE_CHECKING:
    from pathlib import Path

    from deltalakedb import Catalog

NUMBER, TEXT, DAY, MOMENT = (pc.field(n) for n in ("id", "city", "day", "moment"))


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (NUMBER == 3, '"id" = 3'),
        (NUMBER != -3, '"id" != -3'),
        ((NUMBER >= 3) & (NUMBER < 9), '("id" >= 3) AND ("id" < 9)'),
        ((NUMBER == 3) | (TEXT == "x"), '("id" = 3) OR ("city" = \'x\')'),
        (TEXT == "a\"b'c\n(x) and (y", "\"city\" = 'a\"b''c\n(x) and (y'"),
        (TEXT == "a\\nb", "\"city\" = 'a\\nb'"),
        (date(2024, 1, 2) < DAY, "\"day\" > '2024-01-02'"),
        (pc.field("p") == Decimal("1.25"), '"p" = 1.25'),
        (NUMBER.is_valid(), '"id" IS NOT NULL'),
        (NUMBER.is_null(), '"id" IS NULL'),
        # what is not understood is left out, if the rest still holds for every row
        ((NUMBER == 3) & pc.starts_with(TEXT, "x"), '("id" = 3)'),
        ((NUMBER == 3) | pc.starts_with(TEXT, "x"), None),
        (~(NUMBER == 3), None),
        (pc.starts_with(TEXT, "x"), None),
        (pc.field("flag") == True, None),  # noqa: E712 - an expression
        (pc.scalar(True), None),
    ],
    ids=str,
)
def test_a_filter_becomes_a_predicate(expression: Any, sql: str | None) -> None:
    assert pushed_down(str(expression)) == sql


def duckdb_filter(table: pa.Schema, where: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What DuckDB pushes into a scan for a condition, as a predicate."""
    duckdb = pytest.importorskip("duckdb")
    seen: list[Any] = []

    def scanner(_: Any, columns: Any = None, filter: Any = None, **options: Any) -> Any:  # noqa: A002
        seen.append(filter)
        rows = pa.RecordBatchReader.from_batches(table, [])
        return datasets.ds.Scanner.from_batches(rows, columns=columns, filter=filter, **options)

    monkeypatch.setattr(PlannedDataset, "scanner", scanner)
    made = PlannedDataset([], table, datasets.ds.ParquetFileFormat(), datasets.pafs.LocalFileSystem())
    with duckdb.connect(":memory:") as connection:
        connection.register("t", made)
        connection.execute(f"SELECT * FROM t WHERE {where}").fetchall()
    return pushed_down(str(seen[-1]))


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ("id BETWEEN 3 AND 9", '("id" >= 3) AND ("id" <= 9)'),
        ("id IN (1, 2, 3, 9)", '"id" IN (1, 2, 3, 9)'),
        ("day IN ('2024-01-02', '2024-01-05', '2024-02-05')", "'2024-01-02', '2024-01-05', '2024-02-05')"),
        ("moment < '2024-01-02 03:04:05.678Z'", "\"moment\" < '2024-01-02 03:04:05.678000Z'"),
        ("city IN ('a', 'b', 'd')", None),
    ],
)
def test_what_duckdb_pushes_down_is_understood(
    where: str, sql: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [("id", pa.int64()), ("city", pa.string()), ("day", pa.date32())]
    found = duckdb_filter(pa.schema([*columns, ("moment", pa.timestamp("us", "UTC"))]), where, monkeypatch)
    assert found == sql if sql is None else sql in (found or "")


def test_only_files_that_may_match_are_listed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        moment = datetime(2024, 1, 1 + number, tzinfo=UTC)
        rows = {"id": [number * 10, number * 10 + 9], "moment": [moment] * 2}
        catalog.write("t", pa.table(rows), mode="append", location=tmp_path / "t")
    handle = TableHandle.open(catalog.table_uri("t"))
    planned = PlannedDataset.of(handle.source, handle.root)
    listed: list[int] = []
    whole = datasets._guarantees

    def counted(found: pa.Table, *others: Any) -> Any:
        listed.append(found.num_rows)
        return whole(found, *others)

    monkeypatch.setattr(datasets, "_guarantees", counted)
    assert planned.scanner(filter=NUMBER == 20).to_table().num_rows == 1
    assert planned.scanner(filter=(NUMBER >= 18) & (NUMBER < 31)).to_table().num_rows == 4
    assert planned.scanner(filter=datetime(2024, 1, 5, tzinfo=UTC) < MOMENT).to_table().num_rows == 2
    assert planned.scanner(columns=["id"]).to_table().num_rows == 12
    # times are compared with a margin
    assert (listed[:2], listed[2] < 6, listed[3]) == ([1, 3], True, 6)


def test_deletion_vectors_are_applied(catalog: Catalog, tmp_path: Path) -> None:
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    try:
        catalog.create_table("dv", schema, location=tmp_path / "dv", configuration=properties)
        catalog.write("dv", pa.table({"id": [1, 2, 3], "city": ["a", "b", "c"]}), mode="append")
    except Exception as error:
        pytest.skip(f"delta-rs cannot write such a table: {error}")
    catalog.table("dv").delete("id = 2")
    handle = TableHandle.open(catalog.table_uri("dv"))
    planned = PlannedDataset.of(handle.source, handle.root)
    assert planned.scanner(columns=["city"], filter=NUMBER > 1).to_table().to_pydict() == {"city": ["c"]}
    assert catalog.sql("SELECT city FROM dv WHERE id > 1").read_all().to_pydict() == {"city": ["c"]}
