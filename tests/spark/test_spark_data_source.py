"""Options of ``format("deltasql")``: what would be ignored is refused. Without a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import CaseInsensitiveDict

from deltalakedb import Catalog, DeltaTable
from deltalakedb.exceptions import InvalidArgumentError, TableExistsError, UnsupportedOperationError
from deltalakedb.spark.data_source import DeltaSqlSource
from deltalakedb.spark.writer import WriteRequest
from deltalakedb.table.handle import require_handle
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    address = f"deltasql://sqlite/{tmp_path}/catalog.db"
    with Catalog(address) as catalog:
        catalog.write("t", ids(1, 2), location=tmp_path / "t")
    return f"{address}?table=t"


def source(uri: str, **options: str) -> Any:
    return DeltaSqlSource(CaseInsensitiveDict({"path": uri, **options}))


@pytest.mark.parametrize(
    "name",
    ["replaceWhere", "appVersion", "MERGESCHEMA", "overwriteSchema", "version"],
)
def test_a_write_refuses_options_that_it_would_ignore(uri: str, name: str) -> None:
    given = source(uri, **{name: "x"})
    for make in (given.writer, given.streamWriter):
        with pytest.raises(InvalidArgumentError, match=f"no option '{name.lower()}'") as caught:
            make(None, overwrite=True)
        assert "replace_where=" in (caught.value.suggestion or "")


def test_a_sink_takes_the_options_of_its_query(uri: str) -> None:
    query = {"checkpointLocation": "/x", "queryName": "q", "appId": "a"}
    assert source(uri, **query).streamWriter(None, overwrite=False).writer.options["appid"] == "a"
    assert source(uri).writer(None, overwrite=False).options == {"path": uri}
    with pytest.raises(InvalidArgumentError, match="no option 'appid'"):
        source(uri, appId="a").writer(None, overwrite=False)


def test_a_table_that_python_alone_does_not_write_is_refused_before_rows_are_read(
    uri: str, tmp_path: Path
) -> None:
    DeltaTable(uri).alter.add_constraint({"positive": "id > 0"})
    mapped = uri.replace("table=t", "table=mapped")
    with Catalog(uri.partition("?")[0]) as catalog:
        asked = {"delta.columnMapping.mode": "name"}
        catalog.create_table("mapped", ids(1).schema, location=tmp_path / "mapped", configuration=asked)
    for table, reason in ((uri, "rule delta.constraints.positive"), (mapped, "column mapping")):
        for make in (source(table).writer, source(table).streamWriter):
            with pytest.raises(UnsupportedOperationError, match=reason) as caught:
                make(None, overwrite=False)
            assert "deltalakedb.spark.write" in (caught.value.suggestion or "")


def test_a_write_replaces_partitions_and_knows_an_applications_version(uri: str, tmp_path: Path) -> None:
    with Catalog(uri.partition("?")[0]) as catalog:
        catalog.write("p", ids(1, 2, part="a"), location=tmp_path / "p", partition_by=["part"])
        catalog.write("p", ids(3, part="b"), mode="append")

        def write(rows: Any, *, overwrite: bool = False, **options: str) -> list[int]:
            writer = source(catalog.table_uri("p"), **options).writer(None, overwrite=overwrite)
            writer.commit([writer.write(iter(rows.to_batches())), writer.write(iter(()))])
            return ids_of(catalog.table("p"))

        assert write(ids(4, part="b"), overwrite=True, partitionOverwriteMode="dynamic") == [1, 2, 4]
        assert write(ids(5), txnAppId="job", txnVersion="7") == [1, 2, 4, 5]
        assert write(ids(5), txnAppId="job", txnVersion="7") == [1, 2, 4, 5]
        assert write(ids(6), txnAppId="job", txnVersion="8") == [1, 2, 4, 5, 6]
        assert catalog.table("p").transaction_version("job") == 8
        assert [commit.operation for commit in catalog.commits("p")[:3]] == ["WRITE"] * 3
        assert len(catalog.table("p").file_uris()) == len(list((tmp_path / "p").glob("*/*.parquet"))) - 1
        assert write(ids(9), overwrite=True, partitionOverwriteMode="static") == [9]
        for wrong in (
            {"txnAppId": "a"},
            {"txnAppId": "a", "txnVersion": "x"},
            {"partitionOverwriteMode": "x"},
        ):
            with pytest.raises(InvalidArgumentError):
                write(ids(1), **wrong)


@pytest.mark.parametrize("name", ["startingVersion", "maxFilesPerTrigger", "readChangeFeed", "ignoreDeletes"])
def test_a_batch_read_refuses_options_of_streams(uri: str, name: str) -> None:
    given = source(uri, **{name: "1"})
    with pytest.raises(InvalidArgumentError, match=name.lower()) as caught:
        given.reader(given.schema())
    assert "readStream" in (caught.value.suggestion or "")


def test_a_column_is_named_once(uri: str) -> None:
    assert source(uri, columns="part, id").schema().names == ["part", "id"]
    with pytest.raises(InvalidArgumentError, match="'id' twice"):
        source(uri, columns="id,part, id").schema()


def test_errorifexists_is_error(uri: str) -> None:
    table = require_handle(DeltaTable(uri))
    frame: Any = None
    with pytest.raises(TableExistsError):
        WriteRequest.of(frame, "errorifexists").apply(table)
