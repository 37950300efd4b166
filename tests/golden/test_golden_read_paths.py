"""The golden tables through every way to read rows, with their log hidden: equal rows."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import deltalake.exceptions
import polars as pl
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, QueryBuilder, import_table
from support.golden import golden_params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.golden import GoldenTable

#: beyond this a table says nothing that a smaller one does not
MOST_ROWS = 20_000
#: what polars itself does not read, and says so
POLARS_REFUSES = {
    "columnMapping",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def by_query(table: DeltaTable) -> Any:
    return QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()


PATHS: dict[str, Callable[[DeltaTable], Any]] = {
    "table": lambda t: t.to_pyarrow_table(),
    "dataset": lambda t: t.to_pyarrow_dataset().to_table(),
    "scan": lambda t: t.scan().read_all(),
    "query": by_query,
    "polars": lambda t: pl.scan_delta(t).collect(),
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("read_paths")
    with Catalog(f"deltasql://sqlite/{folder}/meta.db") as made:
        yield made


def rows(found: Any) -> list[str]:
    return sorted(str(row) for row in pa.table(found).to_pylist())


def polars_refuses(table: DeltaTable) -> bool:
    protocol = table.protocol()
    return protocol.min_reader_version == 2 or bool(POLARS_REFUSES & set(protocol.reader_features or ()))


def latest_rows(table: GoldenTable) -> int:
    """The rows of the newest version; -1 where nobody could count them."""
    truth = table.truth
    if truth["expect"] != "ok":
        return -1
    found = truth["versions"].get(str(truth["latest"]), {}).get("rows")
    return -1 if found is None else int(found)


def readable() -> list[Any]:
    """The golden tables whose rows are known, and few enough."""
    return [
        param
        for param in golden_params()
        if param.values[0] is None or 0 <= latest_rows(param.values[0]) <= MOST_ROWS
    ]


@pytest.mark.parametrize("table", readable())
def test_every_read_path_gives_the_same_rows(table: GoldenTable, catalog: Catalog, tmp_path: Path) -> None:
    wanted = latest_rows(table)
    root = tmp_path / table.path.name
    shutil.copytree(table.path, root, copy_function=os.symlink)
    name = table.name.replace(".", "_")
    import_table(str(root), catalog.table_uri(name))
    (root / "_delta_log").rename(tmp_path / "hidden_log")
    opened = catalog.table(name)
    found = {}
    for path, read in PATHS.items():
        if path == "polars" and polars_refuses(opened):
            with pytest.raises(deltalake.exceptions.DeltaProtocolError):
                read(opened)
            continue
        found[path] = rows(read(opened))
    assert {path: len(answer) for path, answer in found.items()} == dict.fromkeys(found, wanted)
    for path, answer in found.items():
        assert answer == found["scan"], path
