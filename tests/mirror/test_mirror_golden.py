"""Golden tables go on after their import: appends and deletes reach their log, or a feature forbids them."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable
from deltalakedb.exceptions import DeltaSqlError, UnsupportedFeatureError
from deltalakedb.protocol.paths import canonical_path
from support.catalogs import ENGINES
from support.golden import copy_of, go_on, golden_params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.golden import GoldenTable
    from support.postgres import PostgresDatabase

#: tables with more rows are compared by their files
LIMIT = 20_000


def on_engines() -> list[Any]:
    """Every golden table on SQLite; on the others one for each trait, all with DELTASQL_TEST_GOLDEN=all."""
    params, seen = [], set[str]()
    for param in golden_params():
        table = param.values[0]
        is_table = table is not None and table.truth["expect"] != "must_fail"
        traits = set(table.truth["tags"]) if is_table else set()
        chosen = bool(traits - seen) or os.environ.get("DELTASQL_TEST_GOLDEN") == "all"
        for engine in ENGINES if chosen else ("sqlite",):
            params.append(pytest.param(engine, table, id=f"{engine}-{param.id}", marks=param.marks))
        seen |= traits
    return params


@pytest.fixture(scope="module")
def lakes(
    tmp_path_factory: pytest.TempPathFactory, pg_database: PostgresDatabase
) -> Iterator[Callable[[str], Catalog]]:
    """A function from an engine to the one catalog on it that holds all golden tables."""
    made: dict[str, Catalog] = {}
    schema = f"golden_{uuid.uuid4().hex[:8]}"

    def lake(engine: str) -> Catalog:
        if engine not in made:
            uri = f"deltasql://{engine}/{tmp_path_factory.mktemp('golden')}/catalog.{engine}"
            made[engine] = Catalog(pg_database.catalog_uri(schema) if engine == "postgres" else uri)
        return made[engine]

    yield lake
    for catalog in made.values():
        catalog.close()
    pg_database.drop_schema(schema)


def files_of(table: deltalake.DeltaTable) -> list[tuple[str, int]]:
    adds = pa.table(table.get_add_actions(flatten=True))
    paths = [canonical_path(p) for p in adds["path"].to_pylist()]
    return sorted(zip(paths, adds["size_bytes"].to_pylist(), strict=True))


def rows_of(table: deltalake.DeltaTable) -> Counter[str] | None:
    """Rows by a scan, which knows deletion vectors and column mapping; None where stock cannot read them."""
    try:
        batches = pa.table(table.scan().read_all())
    except Exception:
        if isinstance(table, DeltaTable):
            raise
        return None
    return Counter(repr(sorted(row.items())) for row in batches.to_pylist())


@pytest.mark.parametrize(("engine", "table"), on_engines())
def test_a_golden_table_goes_on_and_its_log_follows(
    engine: str, table: GoldenTable, lakes: Callable[[str], Catalog], tmp_path: Path
) -> None:
    lake = lakes(engine)
    truth: dict[str, Any] = table.truth
    if truth["expect"] == "must_fail":
        pytest.skip("it is not a table")
    root = copy_of(table, tmp_path)
    name = table.name.replace(".", "_")
    try:
        lake.register(name, root)
    except DeltaSqlError:
        if truth["expect"] != "may_refuse":
            raise
        pytest.skip("refused at import")
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
