"""Every operation on a table of more files than a database is told of one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa

from deltalakedb import Catalog, DeltaTable, write_deltalake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANY = 80  # engines change their way at 64 rows


def rows(first: int, last: int) -> pa.Table:
    numbers = range(first, last)
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "p": [f"p{n}" for n in numbers], "v": [1.0] * len(numbers)}
    )


def test_operations_on_many_files_are_read_by_stock_as_by_us(
    catalog_uri: str, table_uri: Callable[..., str], tmp_path: Path
) -> None:
    where = tmp_path / "t"
    uri = table_uri("t", location=str(where))

    def found() -> tuple[int, int, int]:
        """Version, rows and files, which both sides have to agree on."""
        ours, stock = DeltaTable(uri), deltalake.DeltaTable(where)
        assert ours.version() == stock.version()
        assert sorted(ours.file_uris()) == sorted(stock.file_uris())
        read = [sorted(t.to_pyarrow_table().to_pylist(), key=lambda r: r["id"]) for t in (ours, stock)]
        assert read[0] == read[1]
        return ours.version(), len(read[0]), len(ours.file_uris())

    write_deltalake(uri, rows(0, MANY), partition_by=["p"])
    write_deltalake(uri, rows(0, MANY), mode="overwrite")
    write_deltalake(uri, rows(MANY, 2 * MANY), mode="append")
    assert found() == (2, 2 * MANY, 2 * MANY)
    DeltaTable(uri).delete(f"id >= {MANY} AND id < {2 * MANY - 10}")
    assert found() == (3, MANY + 10, MANY + 10)
    DeltaTable(uri).update({"v": "v + 1"}, predicate=f"id < {MANY}")
    assert found() == (4, MANY + 10, MANY + 10)
    (
        DeltaTable(uri)
        .merge(rows(0, 2 * MANY), "s.id = t.id AND s.p = t.p", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    assert found() == (5, 2 * MANY, 2 * MANY)
    write_deltalake(uri, rows(0, MANY), mode="overwrite", predicate=f"id < {MANY}")
    assert found() == (6, 2 * MANY, 2 * MANY)
    DeltaTable(uri).restore(3)
    assert found() == (7, MANY + 10, MANY + 10)
    write_deltalake(uri, rows(0, MANY), mode="append")
    DeltaTable(uri).optimize.compact()
    assert found() == (9, 2 * MANY + 10, MANY + 10)
    with Catalog(catalog_uri) as catalog, catalog.transaction() as tx:
        tx.table("t").delete()
        tx.write("other", rows(0, MANY), partition_by=["p"], location=str(tmp_path / "other"))
    assert found() == (10, 0, 0)
    with Catalog(catalog_uri) as catalog:
        assert catalog.mirror.verify("t").differences == ()
