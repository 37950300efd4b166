"""Streams: every row of a table once, whatever is restarted; and sinks that have every batch once."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict

from deltalakedb import Catalog, DeltaTable
from deltalakedb.exceptions import (
    InvalidArgumentError,
    NothingWrittenWarning,
    OperationError,
    SchemaError,
    UnsupportedOperationError,
    VersionMissingError,
)
from deltalakedb.spark import foreach_batch, merge, update, write
from deltalakedb.spark.data_source import DeltaSqlSource
from support.lake import ids
from support.processes import Child
from support.spark import rows, start


def uri_of(folder: Path, table: str) -> str:
    return f"deltasql://sqlite/{folder}/catalog.db?table={table}"


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as opened:
        yield opened


class Stream:
    """A stream as Spark asks for it, batch after batch, until there is nothing more; it may be restarted."""

    def __init__(self, folder: Path, table: str = "t") -> None:
        self._uri = uri_of(folder, table)
        self._offset: dict[str, Any] | None = None
        self.batches: list[list[Any]] = []

    def run(self, **options: str) -> list[Any]:
        """The rows of one query."""
        given = {"path": self._uri, **{name.lower(): value for name, value in options.items()}}
        source = DeltaSqlSource(CaseInsensitiveDict(given))
        schema = source.schema()
        reader = source.streamReader(schema)
        reader.prepareForTriggerAvailableNow()
        at = self._offset or reader.initialOffset()
        before = len(self.batches)
        while True:
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            if end == at:
                break
            parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(at, end)]
            self.batches.append([row for part in parts for b in reader.read(part) for row in b.to_pylist()])
            self._offset = at = json.loads(json.dumps(end))
        return [row for batch in self.batches[before:] for row in batch]


def found(rows_: list[Any]) -> list[int]:
    return sorted(row["id"] for row in rows_)


def test_a_stream_reads_every_row_once_and_stops_where_rows_changed(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", ids(0, 1, part="a"), location=tmp_path / "t", partition_by=["part"])
    catalog.write("t", ids(2, part="b"), mode="append")
    catalog.write("t", ids(3, part="a"), mode="append")
    stream = Stream(tmp_path)
    assert found(stream.run(maxFilesPerTrigger="2")) == [0, 1, 2, 3]
    assert [len(batch) for batch in stream.batches] == [3, 1]
    assert stream.run() == []
    catalog.write("t", ids(4, 5, part="b"), mode="append")
    catalog.table("t").optimize.compact()
    assert found(stream.run()) == [4, 5]
    catalog.table("t").delete("part = 'b'")
    with pytest.raises(UnsupportedOperationError, match="deleted rows") as caught:
        stream.run()
    assert "ignoreDeletes" in (caught.value.suggestion or "")
    catalog.write("t", ids(6, part="a"), mode="append")
    assert found(stream.run(ignoreDeletes="true")) == [6]
    catalog.table("t").update(predicate="id = 0", updates={"id": "100"})
    with pytest.raises(UnsupportedOperationError, match="changed existing rows") as caught:
        stream.run(ignoreDeletes="true")
    assert "ignoreChanges" in (caught.value.suggestion or "")
    assert 100 in found(stream.run(ignoreChanges="true"))
    catalog.table("t").update(predicate="id = 100", updates={"id": "101"})
    catalog.write("t", ids(7, part="c"), mode="append")
    assert found(stream.run(skipChangeCommits="true", columns="id")) == [7]


def test_a_stream_begins_where_it_is_told(catalog: Catalog, tmp_path: Path) -> None:
    for n in range(4):
        catalog.write("t", ids(n), mode="append", location=tmp_path / "t")
    moment = dt.datetime.fromtimestamp(catalog.table("t").history()[1]["timestamp"] / 1000, dt.UTC)
    assert found(Stream(tmp_path).run(startingVersion="2")) == [2, 3]
    assert found(Stream(tmp_path).run(startingTimestamp=moment.isoformat())) == [2, 3]
    late = Stream(tmp_path)
    assert late.run(startingVersion="latest") == []
    assert Stream(tmp_path).run(startingVersion="4") == []
    for wrong in (
        {"startingVersion": "soon"},
        {"maxFilesPerTrigger": "0"},
        {"ignoreDeletes": "perhaps"},
        {"where": "id > 1"},
        {"startingVersion": "1", "startingTimestamp": "2024-01-01"},
        {"startingTimestamp": "2999-01-01T00:00:00Z"},
        {"startingVersion": "5"},
    ):
        with pytest.raises(InvalidArgumentError):
            Stream(tmp_path).run(**wrong)
    # as for other reads: a text without its zone would mean another moment elsewhere
    for vague, clear in (
        ("2024-01-01", "2024-01-01T00:00:00Z"),
        ("2024-01-01 10:00", "2024-01-01T10:00:00Z"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"no time zone[^$]*write {clear}"):
            Stream(tmp_path).run(startingTimestamp=vague)
        with pytest.raises(InvalidArgumentError, match=f"no time zone[^$]*write {clear}"):
            catalog.table("t").load_as_version(vague)


def test_a_checkpoint_of_another_table_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    for n in range(3):
        catalog.write("t", ids(n), mode="append", location=tmp_path / "t")
    stream = Stream(tmp_path)
    stream.run()
    assert stream._offset is not None
    catalog.write("t", ids(3), mode="overwrite")
    catalog.write("t", ids(4).append_column("x", pa.array([1])), mode="overwrite", schema_mode="overwrite")
    assert found(stream.run(ignoreChanges="true")) == [3, 4], "it is the same table still"
    stream._offset, last = {**stream._offset, "table": "another"}, stream._offset
    with pytest.raises(UnsupportedOperationError, match="was recreated") as caught:
        stream.run()
    assert "new checkpoint" in (caught.value.suggestion or "")
    stream._offset = {**last, "version": last["version"] + 1, "index": 0, "initial": False}
    with pytest.raises(VersionMissingError, match="newest version is 4"):
        stream.run()


def test_older_schemas_are_read_with_that_of_the_stream(catalog: Catalog, tmp_path: Path) -> None:
    on = {"delta.enableChangeDataFeed": "true"}
    catalog.write("t", ids(0), location=tmp_path / "t", configuration=on)
    stream = Stream(tmp_path)
    assert found(stream.run()) == [0]
    catalog.write("t", ids(1), mode="append")
    wider = ids(2).append_column("x", pa.array(["x"]))
    catalog.write("t", wider, mode="append", schema_mode="merge")
    widest = wider.append_column("y", pa.array([5]))
    catalog.write("t", widest, mode="append", schema_mode="merge")

    def told(rows_: list[Any]) -> set[Any]:
        return {(r["id"], r["x"], r["y"]) for r in rows_}

    wanted = {(1, None, None), (2, "x", None), (2, "x", 5)}
    assert told(stream.run()) == wanted
    for more in ({"startingVersion": "1"}, {"startingVersion": "1", "maxFilesPerTrigger": "1"}):
        for feed in ("false", "true"):
            again = Stream(tmp_path).run(readChangeFeed=feed, **more)
            assert (told(again), len(again)) == (wanted, 3)


def test_a_schema_that_cannot_be_read_stops_a_stream(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", ids(0), location=tmp_path / "t")
    source = DeltaSqlSource(CaseInsensitiveDict({"path": uri_of(tmp_path, "t"), "ignorechanges": "true"}))
    reader: Any = source.streamReader(source.schema())
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    catalog.write("t", ids(1), mode="append")
    other = pa.table({"id": pa.array(["2"]), "part": pa.array(["a"])})
    catalog.write("t", other, mode="overwrite", schema_mode="overwrite")
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert end["version"] == 2, "what came before is read"
    batches = [b for part in reader.partitions(at, end) for b in reader.read(part)]
    assert found([row for b in batches for row in b.to_pylist()]) == [1]
    with pytest.raises(SchemaError, match="schema changed at version 2") as caught:
        reader.latestOffset(end, reader.getDefaultReadLimit())
    assert "restart the query" in (caught.value.suggestion or "")
    stream = Stream(tmp_path)
    stream._offset = end
    assert [row["id"] for row in stream.run(ignoreChanges="true")] == ["2"]
    for first in ("0", "1"):
        with pytest.raises(SchemaError, match="column 'id'") as caught:
            Stream(tmp_path).run(startingVersion=first, ignoreChanges="true")
        assert "new checkpoint" in (caught.value.suggestion or "")


def test_the_change_feed_streams_what_load_cdf_reads(catalog: Catalog, tmp_path: Path) -> None:
    on = {"delta.enableChangeDataFeed": "true"}
    catalog.write("t", ids(0, 1, 2), location=tmp_path / "t", configuration=on)
    stream = Stream(tmp_path)
    first = stream.run(readChangeFeed="true", startingVersion="0")
    catalog.table("t").update(predicate="id = 1", updates={"id": "10"})
    catalog.table("t").delete("id = 2")
    catalog.write("t", ids(3), mode="append")
    rest = stream.run(readChangeFeed="true")
    told = [(r["id"], r["_change_type"], r["_commit_version"]) for r in [*first, *rest]]
    feed = pa.table(DeltaTable(uri_of(tmp_path, "t")).load_cdf(starting_version=0))
    wanted = [(r["id"], r["_change_type"], r["_commit_version"]) for r in feed.to_pylist()]
    assert sorted(told) == sorted(wanted)
    assert {r["_commit_timestamp"].year for r in first} == {feed["_commit_timestamp"][0].as_py().year}


def test_a_changed_schema_stops_a_query_until_it_is_started_again(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def run(frame: Any) -> None:
        query = (
            frame.writeStream.foreachBatch(lambda df, _: seen.extend(df.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    catalog.write("t", ids(0), location=tmp_path / "t")
    reader = spark.readStream.format("deltasql")
    run(reader.load(uri_of(tmp_path, "t")))
    assert found(seen) == [0]
    frame = reader.load(uri_of(tmp_path, "t"))
    wider = ids(1).append_column("more", pa.array(["x"]))
    catalog.write("t", wider, mode="append", schema_mode="merge")
    with pytest.raises(StreamingQueryException) as caught:
        run(frame)
    assert "schema changed at version 1" in str(caught.value)
    run(reader.load(uri_of(tmp_path, "t")))
    assert [row["more"] for row in seen[1:]] == ["x"]


def copy(spark: Any, folder: Path) -> None:
    """Stream table ``a`` into table ``b``, what there is, one file a batch."""
    query = (
        spark.readStream.format("deltasql")
        .option("maxFilesPerTrigger", "1")
        .load(uri_of(folder, "a"))
        .writeStream.format("deltasql")
        .option("checkpointLocation", str(folder / "copy"))
        .trigger(availableNow=True)
        .start(uri_of(folder, "b"))
    )
    query.awaitTermination()


def _copy_and_die(folder: str) -> str:
    try:
        copy(start(Path(folder)), Path(folder))
    except Exception as error:
        return str(error)[:500]
    return ""


def test_a_sink_killed_after_its_commit_has_no_batch_twice(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    for n in range(3):
        catalog.write("a", ids(n, 100 + n), mode="append", location=tmp_path / "a")
    catalog.write("b", ids(-1), location=tmp_path / "b")
    # the process that commits is killed when the database has the batch and Spark has not
    died = Child(_copy_and_die, str(tmp_path), folder=tmp_path, points="commit.after=kill")
    assert died.result()
    table = DeltaTable(uri_of(tmp_path, "b"))
    assert table.version() == 1
    copy(spark, tmp_path)
    table.update_incremental()
    assert found(table.to_pyarrow_table().to_pylist()) == [-1, 0, 1, 2, 100, 101, 102]
    assert table.version() == 3  # the batch that was there was not committed again
    assert [h["operation"] for h in table.history(3)] == ["STREAMING UPDATE"] * 3
    files = {Path(f).name for f in table.file_uris()}
    assert {f.name for f in (tmp_path / "b").glob("*.parquet")} == files
    catalog.write("a", ids(50), mode="append")
    copy(spark, tmp_path)
    assert rows(pa.table(DeltaTable(uri_of(tmp_path, "b")).to_pyarrow_table())) == rows(
        pa.concat_tables([catalog.table("a").to_pyarrow_table(), ids(-1)])
    )


def test_several_tables_take_a_batch_together_and_once(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("a", ids(1, 2, 3, part="x"), location=tmp_path / "a")
    catalog.write("odd", ids(0), location=tmp_path / "odd")
    address = f"deltasql://sqlite/{tmp_path}/catalog.db"
    failing = [True]

    def split(sinks: Any, df: Any, batch_id: int) -> None:
        sinks.write("odd", df.where("id % 2 = 1"))
        if failing.pop() if failing else False:
            raise RuntimeError("between two tables")
        sinks.write("even", df.where("id % 2 = 0"), location=tmp_path / "even")

    batch = foreach_batch(address, "splitter", split)
    frame = spark.createDataFrame(ids(1, 2, 3, part="x"))
    with pytest.raises(RuntimeError):
        batch(frame, 0)
    assert catalog.table("odd").version() == 0
    for again in (False, True):  # as after a crash between the commit and Spark's note of it
        with pytest.warns(NothingWrittenWarning, match="new app_id") if again else nullcontext():
            batch(frame, 0)
        found_ = {n: sorted(catalog.table(n).to_pyarrow_table()["id"].to_pylist()) for n in ("odd", "even")}
        assert found_ == {"odd": [0, 1, 3], "even": [2]}
    assert catalog.table("even").transaction_version("splitter") == 0
    batch(spark.createDataFrame(ids(4, 5)), 1)
    assert [catalog.table(n).version() for n in ("odd", "even")] == [2, 1]
    # without a query that Spark knows only the last batch can be a repetition
    with pytest.raises(InvalidArgumentError, match="another query has committed batch 1"):
        batch(frame, 0)


def test_a_replayed_batch_has_one_effect_whatever_it_does(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    catalog.write("a", ids(1), location=tmp_path / "a")
    catalog.write("rows", ids(0), location=tmp_path / "rows")
    catalog.write("sums", ids(0), location=tmp_path / "sums")
    catalog.write("ours", ids(0, 1, 2), location=tmp_path / "ours")
    calls: list[int] = []

    def work(sinks: Any, df: Any, batch_id: int) -> None:
        calls.append(batch_id)
        on = sinks.transaction.spark(df.sparkSession)
        if batch_id < 2:
            sinks.write("rows", df)
        on.update("sums", {"id": "id + 1"})
        on.merge("sums", df, "target.id = source.id - 1000").whenNotMatchedInsert(
            values={"id": "source.id + 100", "part": "'merged'"}
        ).execute()
        on.delete("ours", f"id = {batch_id}")
        sinks.transaction.write("ours", ids(10 + batch_id))
        sinks.transaction.table("ours").update(predicate="id >= 10", updates={"id": "id + 10"})

    def run(app_id: str, checkpoint: str, *more: str) -> None:
        batches = [foreach_batch(catalog.uri, name, work) for name in (app_id, *more)]
        failed = set[int]()

        def dies_once(df: Any, number: int) -> None:
            for batch in batches:
                batch(df, number)
            if number not in failed:
                failed.add(number)
                raise RuntimeError("after the commit")

        while True:
            query = (
                spark.readStream.format("deltasql")
                .load(uri_of(tmp_path, "a"))
                .writeStream.foreachBatch(dies_once)
                .option("checkpointLocation", str(tmp_path / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                return query.awaitTermination()
            except StreamingQueryException as error:
                if "after the commit" not in str(error):
                    raise

    def states() -> dict[str, list[int]]:
        return {n: sorted(catalog.table(n).to_pyarrow_table()["id"].to_pylist()) for n in seen}

    seen = ("rows", "sums", "ours")
    run("app", "one")
    assert states() == {"rows": [0, 1], "sums": [1, 101], "ours": [1, 2, 20]}
    catalog.write("a", ids(2), mode="append")
    run("app", "one")
    after = {"rows": [0, 1, 2], "sums": [2, 102, 102], "ours": [2, 21, 30]}
    assert states() == after
    assert calls == [0, 1]
    versions = {name: catalog.table(name).version() for name in seen}
    with pytest.raises(StreamingQueryException, match="needs a new application id"):
        run("app", "two")
    assert (states(), {name: catalog.table(name).version() for name in seen}) == (after, versions)
    with pytest.raises(
        StreamingQueryException, match="two functions of foreach_batch use application 'twice'"
    ):
        run("twice", "three", "twice")


@pytest.mark.parametrize("readable", [True, False])
def test_a_sink_with_a_new_checkpoint_needs_a_new_application_id(
    catalog_uri: str, tmp_path: Path, readable: bool
) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(0), location=tmp_path / "t")

        def batch(query: str, number: int, value: int, app_id: str = "app") -> None:
            place = tmp_path / query
            if readable:
                place.mkdir(exist_ok=True)
                (place / "metadata").write_text(json.dumps({"id": query}))
            given = {"path": f"{catalog_uri}?table=t", "appId": app_id, "checkpointLocation": str(place)}
            writer: Any = DeltaSqlSource(CaseInsensitiveDict(given)).streamWriter(None, overwrite=False)  # type: ignore[arg-type]
            writer.commit([writer.write(iter(ids(value).to_batches()))], number)

        for number in range(2):
            batch("first", number, number + 1)
        with nullcontext() if readable else pytest.warns(NothingWrittenWarning, match="new appId"):
            batch("first", 1, 2)  # a replay
        before = {f.name for f in (tmp_path / "t").glob("*.parquet")}
        for number in (0, 1) if readable else (0,):
            with pytest.raises(InvalidArgumentError, match="another query has committed batch 1") as caught:
                batch("second", number, 7)
            assert "new application id" in (caught.value.suggestion or "")
        assert {f.name for f in (tmp_path / "t").glob("*.parquet")} == before
        batch("second", 0, 3, "other")
        assert sorted(catalog.table("t").to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]


def test_rows_that_break_a_rule_are_typed_errors(spark: Any, catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", ids(1, 2), location=tmp_path / "t")
    catalog.table("t").alter.add_constraint({"positive": "id > 0"})
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    catalog.write("n", pa.table({"id": [1]}, schema=schema), location=tmp_path / "n")
    t, bad = uri_of(tmp_path, "t"), spark.createDataFrame(ids(-1))

    def in_a_batch() -> None:
        foreach_batch(catalog.uri, "app", lambda sinks, df, _: sinks.write("t", df))(bad, 0)

    for broken in (
        lambda: write(bad, t, mode="append"),
        lambda: update(spark, t, {"id": "-id"}),
        lambda: merge(spark, t, bad, "target.id = source.id").whenNotMatchedInsertAll().execute(),
        in_a_batch,
    ):
        with pytest.raises(OperationError, match=r"CHECK constraint positive \(id > 0\) violated") as caught:
            broken()
        assert (caught.value.table, "\n" in caught.value.message) == ("t", False)
        assert "every row must meet positive: id > 0" in (caught.value.suggestion or "")
    with pytest.raises(OperationError, match="NOT NULL constraint violated for column: id"):
        write(spark.sql("SELECT CAST(NULL AS BIGINT) AS id"), uri_of(tmp_path, "n"), mode="append")
    # what fails inside of a task is told by its own words too, without a scratch folder or a stack
    wrong = spark.sql("SELECT CAST(raise_error('no such day') AS BIGINT) AS id, 'a' AS part")
    with pytest.raises(OperationError, match="no such day") as caught:
        write(wrong, t, mode="append")
    assert "_deltasql" not in str(caught.value)
    assert catalog.table("t").version() == 1
