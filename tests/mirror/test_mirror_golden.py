"""Golden tables go on after their import: appends and deletes reach their log, or a feature forbids them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable
from deltalakedb.exceptions import DeltaSqlError, UnsupportedFeatureError
from deltalakedb.protocol.paths import canonical_path
from support.golden import copy_of, go_on, golden_params_on_engines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.golden import GoldenTable

#: tables with more rows are compared by their files
LIMIT = 20_000


def files_of(table: deltalake.DeltaTable) -> list[tuple[str, int]]:
    adds = pa.table(table.get_add_actions(flatten=True))
    paths = [canonical_path(p) for p in adds["path"].to_pylist()]
    return sorted(zip(paths, adds["size_bytes"].to_pylist(), strict=True))


def log_of(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (root / "_delta_log").iterdir() if p.is_file()}


def rows_of(table: deltalake.DeltaTable) -> Counter[str] | None:
    """Rows by a scan, which knows deletion vectors and column mapping; None where stock cannot read them."""
    try:
        batches = pa.table(table.scan().read_all())
    except Exception:
        if isinstance(table, DeltaTable):
            raise
        return None
    return Counter(repr(sorted(row.items())) for row in batches.to_pylist())


def tables_on_engines() -> list[Any]:
    """The golden tables on their engines, without those that must fail: they are no tables."""
    params = golden_params_on_engines()
    return [p for p in params if p.values[1] is None or p.values[1].truth["expect"] != "must_fail"]


@pytest.mark.parametrize(("engine", "table"), tables_on_engines())
def test_a_golden_table_goes_on_and_its_log_follows(
    engine: str, table: GoldenTable, shared_catalog: Callable[[str], Catalog], tmp_path: Path
) -> None:
    lake = shared_catalog(engine)
    truth: dict[str, Any] = table.truth
    root = copy_of(table, tmp_path)
    name = table.name.replace(".", "_")
    try:
        lake.register(name, root)
    except DeltaSqlError:
        if truth["expect"] != "may_refuse":
            raise
        assert name not in [entry.name for entry in lake.tables()], "a refused import leaves no table"
        assert log_of(root) == log_of(table.path), "a refused import leaves the log as it was"
        return
    before = lake.describe(name).head.version
    untouched = {p.name: p.read_bytes() for p in (root / "_delta_log").glob("*.json")}
    done, refused = go_on(lake, name)
    features = lake.log(name).snapshot().protocol.writer_features or ()
    for error in refused:
        assert isinstance(error, UnsupportedFeatureError), f"{type(error)}: {error}"
        assert any(f in error.message for f in features), error.message
        assert done == [], "a table that refuses one write refuses the other"
    if not refused:
        assert done == ["append", "delete"]
    after = lake.describe(name).head.version
    assert after <= before + len(done)
    assert after > before or refused, "an append or a delete changes something"
    assert lake.mirror.status(name)[0].versions_behind == 0
    for file, data in untouched.items():
        assert (root / "_delta_log" / file).read_bytes() == data, "what was there stays as it was"
    hint = ["_last_checkpoint cannot be read"] if name == "corrupted-last-checkpoint-kernel" else []
    assert [d.detail for d in lake.mirror.verify(name).differences] == hint
    for version in range(before, after + 1):
        ours = lake.table(name, version=version)
        stock = deltalake.DeltaTable(root, version=version)
        assert files_of(ours) == files_of(stock), f"version {version}"
        if (truth["versions"][str(before)]["rows"] or 0) <= LIMIT and (wanted := rows_of(stock)) is not None:
            assert rows_of(ours) == wanted, f"version {version}"
    lake.drop_table(name)
