"""Polars on tables with special features: the right rows, or an error that names the feature."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from deltalakedb import DeltaTable, import_table
from deltalakedb.exceptions import DeltaProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAYS: tuple[Callable[[Any], pl.DataFrame], ...] = (
    pl.read_delta,
    lambda table: pl.scan_delta(table).collect(),
    lambda table: pl.read_delta(table, use_pyarrow=True),
)


@pytest.mark.golden
@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("dv-partitioned-with-checkpoint", None),
        ("log-replay-dv-key-cases", None),
        ("dv-with-columnmapping", "columnMapping"),
        ("table-with-columnmapping-mode-id", "column mapping"),
        ("table-with-columnmapping-mode-name", "column mapping"),
        ("type-widening", "typeWidening"),
    ],
)
def test_polars_reads_the_rows_or_names_the_feature(
    golden: Path, tmp_path: Path, name: str, refused: str | None
) -> None:
    root = tmp_path / "t"
    shutil.copytree(golden / "tables" / "delta" / name, root)
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    import_table(str(root), uri)
    table = DeltaTable(uri)
    rows = pl.from_arrow(pa.table(table.scan()))
    assert isinstance(rows, pl.DataFrame)
    assert rows.height == table.to_pyarrow_table().num_rows > 0
    for read in WAYS:
        if refused is None:
            assert sorted(map(str, read(table).rows())) == sorted(map(str, rows.rows()))
        else:
            with pytest.raises(DeltaProtocolError, match=refused):
                read(table)
