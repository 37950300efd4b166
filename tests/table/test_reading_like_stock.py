"""Every way to read, asked of a plain table and of the same table in SQL: equal answers and errors."""

from __future__ import annotations

import copy
import inspect
import pickle
import shutil
import warnings
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

import deltalakedb
from deltalakedb import Catalog, DeltaTable, import_table
from deltalakedb.exceptions import DeltaSqlError, UnsupportedOperationError
from deltalakedb.table.sql_table import SqlDeltaTable
from support.feeds import hide_log

if TYPE_CHECKING:
    from collections.abc import Callable

Twins = tuple[deltalake.DeltaTable, DeltaTable]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """A plain table, and a copy of it in a catalog with its log taken away."""
    folder = tmp_path_factory.mktemp("twins")
    data = pa.table(
        {
            "id": [1, 2, 3, 4],
            "s": ["a", "b", "c", "d"],
            "year": ["2020", "2021", "2021", None],
            "m": pa.array([1, 2, 3, 4], pa.int32()),
            "day": [date(2020, 1, d) for d in (1, 2, 3, 4)],
        }
    )
    deltalake.write_deltalake(folder / "plain", data, partition_by=["year", "m"])
    deltalake.write_deltalake(folder / "plain", data.slice(0, 1), mode="append")
    shutil.copytree(folder / "plain", folder / "ours")
    uri = f"deltasql://sqlite/{folder}/meta.db?table=t"
    import_table(str(folder / "ours"), uri)
    ours = DeltaTable(uri)
    hide_log(ours)
    return deltalake.DeltaTable(folder / "plain"), ours


def shaped(answer: Any) -> Any:
    """An answer in a form that can be compared: without order, roots and file names."""
    if hasattr(answer, "__arrow_c_stream__") or isinstance(answer, ds.Dataset):
        table = answer.to_table() if isinstance(answer, ds.Dataset) else pa.table(answer)
        return table.schema, sorted(map(str, table.to_pylist()))
    if isinstance(answer, pd.DataFrame):
        return answer.dtypes.to_dict(), sorted(map(str, answer.to_dict("records")))
    if isinstance(answer, list):
        return sorted(
            Path(a).parent.name if isinstance(a, str) else str(sorted(map(str, a.items()))) for a in answer
        )
    return answer


def outcome(table: Any, ask: Callable[[Any], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = shaped(ask(table))
    return answer, [str(w.message) for w in caught if issubclass(w.category, DeprecationWarning)]


SAME: dict[str, Callable[[Any], Any]] = {
    "every file": lambda t: t.file_uris(),
    "files by SQL": lambda t: t.file_uris(file_pruning_predicate="year = '2021' AND m > 2"),
    "files by null": lambda t: t.file_uris(file_pruning_predicate="year IS NULL"),
    "files by tuples": lambda t: t.file_uris(file_pruning_predicate=[("year", "=", "2021")]),
    "files by a number for a text": lambda t: t.file_uris(file_pruning_predicate=[("year", "=", 2020)]),
    "files by numbers for texts": lambda t: t.file_uris(file_pruning_predicate=[("year", "in", [2020, 1])]),
    "files by a text for a number": lambda t: t.file_uris(file_pruning_predicate=[("m", ">=", "2")]),
    "files by a number for a text in SQL": lambda t: t.file_uris(file_pruning_predicate="year >= 2021"),
    "files by numbers for texts in SQL": lambda t: t.file_uris(file_pruning_predicate="year NOT IN (2020)"),
    "files by a text for a number in SQL": lambda t: t.file_uris(file_pruning_predicate="m = '2'"),
    "files by a date": lambda t: t.file_uris(file_pruning_predicate=[("day", "=", date(2020, 1, 2))]),
    "files by an empty text": lambda t: t.file_uris(file_pruning_predicate=[("year", "=", "")]),
    "files by alternatives": lambda t: t.file_uris(
        file_pruning_predicate=[[("year", "=", "2020")], [("m", ">", 3)]]
    ),
    "files by the older name": lambda t: t.file_uris([("m", "=", "2")]),
    "partitions": lambda t: t.partitions(),
    "partitions by SQL": lambda t: t.partitions(file_pruning_predicate="m < 3"),
    "partitions by the older name": lambda t: t.partitions([("m", "=", "2")]),
    "a table": lambda t: t.to_pyarrow_table(),
    "columns in an order": lambda t: t.to_pyarrow_table(columns=["m", "id"]),
    "a column twice": lambda t: t.to_pyarrow_table(columns=["id", "id"]),
    "no columns": lambda t: t.to_pyarrow_table(columns=[]),
    "computed columns": lambda t: t.to_pyarrow_table(columns={"x": ds.field("id")}),
    "filters": lambda t: t.to_pyarrow_table(filters=[("id", ">", 2)]),
    "alternative filters": lambda t: t.to_pyarrow_table(filters=[[("id", "=", 1)], [("s", "=", "d")]]),
    "an expression": lambda t: t.to_pyarrow_table(filters=ds.field("year") == "2021"),
    "the older name of filters": lambda t: t.to_pyarrow_table(partitions=[("m", "=", "2")]),
    "pandas": lambda t: t.to_pandas(),
    "pandas with its own types": lambda t: t.to_pandas(
        columns=["id", "s"], types_mapper={pa.int64(): pd.Int64Dtype()}.get
    ),
    "a dataset": lambda t: t.to_pyarrow_dataset(),
    "a dataset of some files": lambda t: t.to_pyarrow_dataset(file_pruning_predicate="m = 2"),
    "a dataset by the older name": lambda t: t.to_pyarrow_dataset(partitions=[("m", "=", "2")]),
    "a dataset of large types": lambda t: t.to_pyarrow_dataset(as_large_types=True),
    "a dataset of dictionaries": lambda t: t.to_pyarrow_dataset(
        parquet_read_options=ds.ParquetReadOptions(dictionary_columns={"s"})
    ),
    "a dataset with options in a dict": lambda t: t.to_pyarrow_dataset(
        parquet_read_options={"coerce_int96_timestamp_unit": "ms"}
    ),
    "a dataset of another schema": lambda t: t.to_pyarrow_dataset(
        schema=pa.schema([("id", pa.int64()), ("m", pa.int64()), ("year", pa.large_string())])
    ),
    "a dataset on a file system": lambda t: t.to_pyarrow_dataset(
        filesystem=pafs.SubTreeFileSystem(t.table_uri.removeprefix("file://"), pafs.LocalFileSystem())
    ),
    "rows of a scan": lambda t: sorted(map(str, pa.table(t.scan().read_all()).to_pylist())),
    "a scan of no columns": lambda t: pa.table(t.scan(columns=[]).read_all()).num_rows,
    "a scan with both": lambda t: pa.table(t.scan(columns=["s"], predicate="m > 2").read_all()).num_rows,
    "the number of rows": lambda t: t.count(),
    "adds": lambda t: pa.table(t.get_add_actions()).schema,
    "flat adds": lambda t: pa.table(t.get_add_actions(flatten=True)).schema,
    "history": lambda t: [{k: v for k, v in h.items() if k == "version"} for h in t.history()],
    "no history": lambda t: t.history(0),
    "an unknown application": lambda t: t.transaction_version("nobody"),
    "deletion vectors": lambda t: pa.table(t.deletion_vectors().read_all()),
    "settings of opening": lambda t: tuple(t.table_config),
    "sizes": lambda t: tuple(sorted(t._table.get_add_file_sizes().values())),
    "raw files": lambda t: t._table.files("m = 2"),
    "raw partitions": lambda t: len(t._table.get_active_partitions("m = 2")),
    "the newest version": lambda t: t._table.get_latest_version(),
    "raw adds": lambda t: pa.table(t._table.get_add_actions(True)).schema,
    "raw history": lambda t: (t._table.history(1)[0], len(t._table.history(1)[1])),
    "raw facts": lambda t: (t._table.version(), t._table.protocol_versions()[:2], t._table.schema),
    "raw statistics": lambda t: (t._table.get_num_index_cols(), t._table.get_stats_columns()),
    "raw expressions": lambda t: len(t._table.dataset_partitions(pa.schema(t.schema()), "m = 2")),
}


@pytest.mark.parametrize("name", SAME)
def test_answers_are_those_of_a_plain_table(twins: Twins, name: str) -> None:
    theirs, mine = (outcome(t, SAME[name]) for t in twins)
    assert mine == theirs


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a number for filters of files": lambda t: t.file_uris(file_pruning_predicate=5),
    "a mapping for filters of files": lambda t: t.file_uris(file_pruning_predicate={"a": 1}),
    "an empty predicate": lambda t: t.file_uris(file_pruning_predicate=""),
    "a cut predicate": lambda t: t.file_uris(file_pruning_predicate="m ="),
    "an unknown column in SQL": lambda t: t.file_uris(file_pruning_predicate="nope = 1"),
    "an unknown column in tuples": lambda t: t.file_uris(file_pruning_predicate=[("nope", "=", 1)]),
    "an unknown operator": lambda t: t.file_uris(file_pruning_predicate=[("m", "~", 1)]),
    "half a tuple": lambda t: t.file_uris(file_pruning_predicate=[("m", "=")]),
    "one value for in": lambda t: t.file_uris(file_pruning_predicate=[("m", "in", 1)]),
    "an empty alternative": lambda t: t.file_uris(file_pruning_predicate=[[]]),
    "tuples beside lists": lambda t: t.file_uris(file_pruning_predicate=[("m", "=", 1), [("m", "=", 2)]]),
    "a value of another type": lambda t: t.file_uris(file_pruning_predicate=[("m", ">", "x")]),
    "a mapping for a value": lambda t: t.file_uris(file_pruning_predicate=[("s", "=", {"a": 1})]),
    "a truth for a number": lambda t: t.file_uris(file_pruning_predicate=[("m", "=", True)]),
    "both names": lambda t: t.file_uris([("m", "=", "1")], file_pruning_predicate="m = 1"),
    "a number for filters": lambda t: t.to_pyarrow_table(filters=5),
    "filters of another type": lambda t: t.to_pyarrow_table(filters=[("id", ">", "x")]),
    "filters of an unknown column": lambda t: t.to_pyarrow_table(filters=ds.field("nope") > 2),
    "a wrong operator in filters": lambda t: t.to_pyarrow_table(filters=[("id", "~", 1)]),
    "an unknown column": lambda t: t.to_pyarrow_table(columns=["nope"]),
    "a schema without a partition column": lambda t: t.to_pyarrow_dataset(
        schema=pa.schema([("id", pa.int64())])
    ),
    "an unknown column of a scan": lambda t: t.scan(columns=["nope"]),
    "a text for columns of a scan": lambda t: t.scan(columns="id"),
    "a column of a scan twice": lambda t: t.scan(columns=["id", "id"]),
    "a number for the predicate of a scan": lambda t: t.scan(predicate=5),
    "a cut predicate of a scan": lambda t: t.scan(predicate="id >"),
    "a column in another case": lambda t: t.scan(predicate="ID > 2"),
    "a text for a limit": lambda t: t.history("x"),
    "a number for an application": lambda t: t.transaction_version(5),
    "a version to come": lambda t: t.load_as_version(9),
    "no version": lambda t: t.load_as_version(None),
    "a part of a version": lambda t: t.load_as_version(1.5),
    "no file system": lambda t: t.to_pyarrow_dataset(filesystem=5),
    "no time": lambda t: t.load_as_version("soon"),
    "a time without a zone": lambda t: t.load_as_version("2020-05-01T00:47:31"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_caught_by_what_catches_those_of_stock(twins: Twins, name: str) -> None:
    plain, ours = twins
    with pytest.raises(Exception) as theirs:
        REFUSED[name](plain)
    wanted = (theirs.type, ValueError) if issubclass(theirs.type, ValueError) else theirs.type
    with pytest.raises(wanted) as mine:
        REFUSED[name](ours)
    assert len(str(mine.value)) > 10


def test_errors_of_ours_say_what_to_do(twins: Twins) -> None:
    for name in ("a number for filters of files", "filters of another type", "a text for columns of a scan"):
        with pytest.raises(DeltaSqlError) as caught:
            REFUSED[name](twins[1])
        assert caught.value.suggestion, name


def test_fragments_know_which_columns_hold_nulls(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    parts = pa.table({"p": ["a", "b", "c", "c"], "v": [1, None, 2, None]})
    for write, where in ((deltalake.write_deltalake, tmp_path / "plain"), (deltalakedb.write_deltalake, uri)):
        write(where, parts, partition_by=["p"])
    for wanted in (
        ds.field("v").is_valid(),
        ds.field("v").is_null(),
        ds.field("v") > 1,
        ds.field("p") == "a",
    ):
        theirs, mine = (
            len(list(t.to_pyarrow_dataset().get_fragments(filter=wanted)))
            for t in (deltalake.DeltaTable(tmp_path / "plain"), DeltaTable(uri))
        )
        assert mine == theirs, wanted


def test_every_public_name_of_stock_takes_the_same_arguments() -> None:
    for name, theirs in inspect.getmembers(deltalake.DeltaTable):
        if name.startswith("_") or not callable(theirs):
            continue
        mine = getattr(SqlDeltaTable, name)
        wanted, given = (inspect.signature(f).parameters for f in (theirs, mine))
        if name == "create":
            continue  # the rest of its arguments is handed on
        assert list(given) == list(wanted), name
        for key, parameter in wanted.items():
            assert (given[key].kind, given[key].default) == (parameter.kind, parameter.default), (name, key)


def test_a_predicate_that_stock_refuses_keeps_every_candidate(twins: Twins) -> None:
    ours = twins[1]
    every = shaped(ours.file_uris())
    assert shaped(ours.file_uris(file_pruning_predicate="length(s) > 0")) == every
    assert shaped(ours.file_uris(file_pruning_predicate=ds.field("m") > 3)) == every
    assert ours.to_pyarrow_table(filters=ds.field("m") > 3)["m"].to_pylist() == [4]
    assert ours.to_pyarrow_table(filters=[]).num_rows == 5


def test_two_objects_at_one_version_are_equal_and_survive_copies(twins: Twins) -> None:
    ours = twins[1]
    for other in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert isinstance(other, deltalakedb.DeltaTable)
        assert other == ours
        assert other.to_pyarrow_table().num_rows == 5
    older = copy.copy(ours)
    older.load_as_version(0)
    assert older != ours
    assert ours != twins[0]
    assert "version=1" in repr(ours)


def test_a_table_inside_a_transaction_is_not_copied(twins: Twins) -> None:
    with Catalog(twins[1].address.partition("?")[0]) as catalog, catalog.snapshot() as seen:
        table = seen.table("t")
        with pytest.raises(UnsupportedOperationError, match="pickled"):
            pickle.dumps(table)
        assert table.count() == 5
