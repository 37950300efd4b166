"""What catches an error of stock's catches ours: predicates, streams that break, columns, versions."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import deltalakedb
from deltalakedb.exceptions import DeltaError, DeltaSqlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})


@pytest.fixture
def places(tmp_path: Path) -> tuple[tuple[Any, str], tuple[Any, str]]:
    """Stock with a plain table, and ours with the same one in SQL."""
    plain, sql = (
        str(tmp_path / "plain"),
        f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t",
    )
    for module, uri in ((deltalake, plain), (deltalakedb, sql)):
        module.write_deltalake(uri, ROWS)
    return (deltalake, plain), (deltalakedb, sql)


def _outcome(use: Callable[[], object]) -> object:
    try:
        return use()
    except Exception as error:
        return error


def _same(places: Any, use: Callable[[Any, str], object], *, typed: bool = True) -> None:
    stock, ours = (_outcome(lambda at=at: use(*at)) for at in places)
    if isinstance(stock, Exception):
        assert isinstance(ours, type(stock)), (stock, ours)
        assert isinstance(ours, DeltaSqlError) or not typed, ours
    else:
        assert ours == stock


def _rows(module: Any, uri: str) -> list[dict[str, Any]]:
    return module.DeltaTable(uri).to_pyarrow_table().sort_by("id").to_pylist()


def test_a_predicate_beside_each_mode(places: Any) -> None:
    for mode, predicate in product(
        ("append", "error", "ignore", "overwrite"), ("id = 2", "id = 1", "nope = 1")
    ):

        def use(module: Any, uri: str, mode: str = mode, predicate: str = predicate) -> object:
            module.write_deltalake(uri, ROWS.slice(1, 1), mode=mode, predicate=predicate)
            info = module.DeltaTable(uri).history(1)[0]
            return _rows(module, uri), info["operation"], info["operationParameters"]

        _same(places, use)
        assert _rows(*places[0]) == _rows(*places[1])


def test_modes_in_capitals_and_arguments_of_the_wrong_type(places: Any) -> None:
    for arguments in (
        {"mode": "APPEND"},
        {"mode": "Overwrite"},
        {"mode": "ERROR"},
        {"mode": None},
        {"mode": 5},
        {"target_file_size": 1.5},
        {"target_file_size": -1},
        {"target_file_size": 0},
        {"configuration": 5},
        {"commit_properties": deltalake.CommitProperties(max_commit_retries=-1)},
        {"commit_properties": deltalake.CommitProperties(max_commit_retries="x")},  # type: ignore[arg-type]
        {"commit_properties": deltalake.CommitProperties(app_transactions=[5])},  # type: ignore[list-item]
        {"post_commithook_properties": deltalake.PostCommitHookProperties("x")},  # type: ignore[arg-type]
    ):

        def use(module: Any, uri: str, more: dict[str, Any] = arguments) -> object:
            module.write_deltalake(uri, ROWS.slice(1, 1), **{"mode": "append", **more})
            return _rows(module, uri)

        _same(places, use, typed=False)
        assert _rows(*places[0]) == _rows(*places[1])
    _same(places, lambda m, u: m.write_deltalake(u, object(), mode="ignore"))
    _same(places, lambda m, u: m.write_deltalake(m.DeltaTable(u), object(), mode="ignore"))


def test_a_damaged_file_is_not_blamed_on_filters(places: Any) -> None:
    module, uri = places[1]
    table = module.DeltaTable(uri)
    Path(table.file_uris()[0]).write_bytes(b"no Parquet")
    with pytest.raises(pa.ArrowInvalid, match=r"(?s)\A((?!filters).)*\Z"):
        table.to_pyarrow_table()


def test_a_predicate_holds_for_the_first_rows_of_a_new_table(places: Any) -> None:
    for predicate in ("id < 10", "id = 2", "nope = 1"):

        def use(module: Any, uri: str, predicate: str = predicate) -> object:
            new = uri.replace("plain", f"plain {predicate}").replace("table=t", "table=n").replace("/t", "/n")
            module.write_deltalake(new, ROWS, mode="append", predicate=predicate)
            return _rows(module, new)

        _same(places, use)


class _SomebodysError(Exception):
    """Raised by whoever makes the data."""


def test_a_stream_that_breaks_is_the_error_that_stock_makes_of_it(places: Any, tmp_path: Path) -> None:
    def batches(error: Exception) -> Iterator[pa.RecordBatch]:
        yield ROWS.to_batches()[0]
        raise error

    files = sorted((tmp_path / "t").rglob("*.parquet"))
    errors = (_SomebodysError("x"), ValueError("v"), OSError("o"), KeyError("k"))
    for error, mode, (module, uri) in product(errors, ("append", "overwrite"), places):
        reader = pa.RecordBatchReader.from_batches(ROWS.schema, batches(error))
        with pytest.raises(DeltaError) as caught:
            module.write_deltalake(uri, reader, mode=mode)
        assert str(error.args[0]) in str(caught.value)
        assert "columns are" not in str(caught.value), "the data's maker is at fault, not its columns"
        assert module.DeltaTable(uri).version() == 0
    assert sorted((tmp_path / "t").rglob("*.parquet")) == files


def test_what_interrupts_a_stream_is_not_swallowed(places: Any) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS.to_batches()[0]
        raise KeyboardInterrupt

    module, uri = places[1]
    with pytest.raises(KeyboardInterrupt):
        module.write_deltalake(uri, pa.RecordBatchReader.from_batches(ROWS.schema, batches()), mode="append")


def test_columns_and_filters_that_do_not_fit(places: Any) -> None:
    for arguments in (
        {"columns": ["nope"]},
        {"filters": [("nope", "=", 1)]},
        {"filters": [("nope", "in", [1])]},
        {"filters": ds.field("nope") == 1},
        {"filters": [("id", "~", 1)]},
        {"filters": [("id", "=", "x")]},
    ):
        _same(places, lambda m, u, a=arguments: m.DeltaTable(u).to_pyarrow_table(**a))
        _same(places, lambda m, u, a=arguments: m.DeltaTable(u).to_pandas(**a))


def test_versions_that_no_table_has(places: Any) -> None:
    for version in (-1, 2**64, 7):
        _same(places, lambda m, u, v=version: m.DeltaTable(u, version=v))
        _same(places, lambda m, u, v=version: m.DeltaTable(u).load_as_version(v))
        _same(places, lambda m, u, v=version: m.DeltaTable(u).load_cdf(starting_version=v))
        _same(places, lambda m, u, v=version: m.DeltaTable(u).restore(v))
        if version != 7:
            _same(places, lambda m, u, v=version: m.DeltaTable(u).history(v))


def test_versions_beyond_what_a_database_counts_are_refused(places: Any) -> None:
    module, uri = places[1]
    for version in (2**63 - 1, 2**63):
        with pytest.raises(DeltaSqlError):
            module.DeltaTable(uri, version=version)
