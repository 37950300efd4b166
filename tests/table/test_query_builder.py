"""SQL by DataFusion: our QueryBuilder and stock's, over SQL-backed and plain tables."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import deltalake
import deltalake.query
import pyarrow as pa
import pytest

import deltalakedb
import deltalakedb.query
from deltalakedb import Catalog, DeltaTable, QueryBuilder, write_deltalake
from deltalakedb.exceptions import ArgumentTypeError, DeltaError
from support.feeds import hide_log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A SQL-backed table whose log is taken away."""
    made = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/a b"
    write_deltalake(made, pa.table({"id": [1, 2], "p": ["x y", None]}), partition_by=["p"])
    write_deltalake(made, pa.table({"id": [3], "p": ["z"]}), mode="append")
    hide_log(DeltaTable(made))
    return made


def rows(builder: deltalake.QueryBuilder, sql: str) -> list[Any]:
    return pa.table(builder.execute(sql).read_all()).to_pylist()


@pytest.mark.parametrize("builder", [QueryBuilder, deltalake.QueryBuilder], ids=["ours", "stock"])
def test_both_builders_take_both_kinds_of_tables(
    builder: type[deltalake.QueryBuilder], uri: str, tmp_path: Path
) -> None:
    if builder is deltalake.QueryBuilder:
        deltalakedb.register().close()  # stock's takes SQL-backed tables from then on
    deltalake.write_deltalake(tmp_path / "plain", pa.table({"id": [2, 3], "name": ["b", "c"]}))
    made = builder()
    made.register("t", DeltaTable(uri)).register("names", deltalake.DeltaTable(tmp_path / "plain"))
    made.register("same", DeltaTable(tmp_path / "plain"))
    gc.collect()  # nothing that is needed hangs on the objects that were registered
    assert rows(made, "SELECT count(*) AS n FROM t") == [{"n": 3}]
    joined = "SELECT t.id, n.name FROM t JOIN names n ON n.id = t.id JOIN same s ON s.id = t.id ORDER BY t.id"
    assert rows(made, joined) == [{"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert rows(made, "SELECT id FROM t WHERE p = 'x y'") == [{"id": 1}]


def test_a_builder_sees_the_version_that_was_open(uri: str) -> None:
    old = DeltaTable(uri, version=0)
    builder = QueryBuilder({"datafusion.execution.batch_size": "1"}).register("t", old)
    old.update_incremental()
    assert rows(builder, "SELECT count(*) AS n FROM t") == [{"n": 2}]
    assert rows(QueryBuilder().register("t", old), "SELECT count(*) AS n FROM t") == [{"n": 3}]


def test_a_builder_sees_the_work_of_a_transaction(uri: str) -> None:
    with Catalog(uri.partition("?")[0]) as catalog, catalog.snapshot() as seen:
        builder = QueryBuilder().register("t", seen.table("t"))
    assert rows(builder, "SELECT sum(id) AS n FROM t") == [{"n": 6}]


def test_what_is_no_table_is_refused(uri: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not str"):
        QueryBuilder().register("t", uri)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="name is a text"):
        QueryBuilder().register(5, DeltaTable(uri))  # type: ignore[arg-type]
    with pytest.raises(DeltaError, match="nope"):
        QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT nope FROM t")


def test_the_builder_is_found_where_stock_has_it() -> None:
    assert deltalakedb.query.QueryBuilder is deltalakedb.QueryBuilder
    assert issubclass(deltalakedb.QueryBuilder, deltalake.query.QueryBuilder)


def provider(table: deltalake.DeltaTable) -> str:
    """The provider's kind, or why there is none: it needs a datafusion package that fits."""
    try:
        return repr(table.__datafusion_table_provider__()).split(" at ")[0]
    except RuntimeError as error:
        return str(error)


def test_datafusion_gets_the_table_provider_that_stock_gives(uri: str, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "plain", pa.table({"id": [1]}))
    assert provider(DeltaTable(uri)) == provider(deltalake.DeltaTable(tmp_path / "plain"))
