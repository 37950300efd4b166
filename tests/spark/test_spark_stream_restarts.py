"""Streams that stop in any batch, the first one too: a restart has every row, as with format("delta")."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict

from deltalakedb import Catalog
from deltalakedb.exceptions import (
    DataFileCorruptError,
    OperationError,
    StorageMissingError,
    VersionMissingError,
)
from deltalakedb.spark.data_source import DeltaSqlSource
from support.lake import ids

if TYPE_CHECKING:
    from collections.abc import Iterator

FEED = {"delta.enableChangeDataFeed": "true"}
#: every way to begin, with the rows of versions 0 to 3 that it reads
STARTS = {
    "snapshot": ({}, [0, 1, 2, 3]),
    "version": ({"startingVersion": "1"}, [1, 2, 3]),
    "timestamp": ({"startingTimestamp": "the time of version 2"}, [2, 3]),
    "latest": ({"startingVersion": "latest"}, []),
}


@pytest.fixture
def catalog(catalog_uri: str) -> Iterator[Catalog]:
    with Catalog(catalog_uri) as opened:
        yield opened


def begun(catalog: Catalog, folder: Path) -> None:
    """A table whose versions 0 to 3 have a row each."""
    for n in range(4):
        catalog.write("t", ids(n), mode="append", location=folder / "t", configuration=FEED)


def options_of(catalog: Catalog, how: str) -> tuple[dict[str, str], list[int]]:
    options, wanted = STARTS[how]
    if how == "timestamp":
        at = next(h["timestamp"] for h in catalog.table("t").history() if h["version"] == 2)
        moment = dt.datetime.fromtimestamp(at / 1000, dt.UTC)
        options = {"startingTimestamp": moment.isoformat(timespec="milliseconds")}
    return options, wanted


class Checkpoint:
    """Spark's part of a query: it logs the end of a batch, runs it, and notes that it is done."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.logged: list[str] = []
        self.done = 0

    def run(self, *, dies: bool, stops: int = 99, **options: str) -> list[Any]:
        """The rows of the batches of one start, which dies in its first batch or stops after some."""
        given = {"path": self._uri, **{name.lower(): value for name, value in options.items()}}
        source = DeltaSqlSource(CaseInsensitiveDict(given))
        reader: Any = source.streamReader(source.schema())
        rows: list[Any] = []
        while self.done < stops:
            start = json.loads(self.logged[self.done - 1]) if self.done else reader.initialOffset()
            if self.done == len(self.logged):
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if self.logged and end == start:
                    return rows
                self.logged.append(json.dumps(end))
            end = json.loads(self.logged[self.done])
            found = [b for part in reader.partitions(start, end) for b in reader.read(part)]
            if dies:
                return rows
            self.done += 1
            rows += [row for batch in found for row in batch.to_pylist()]
        return rows


@pytest.mark.parametrize("feed", ["false", "true"])
@pytest.mark.parametrize("how", STARTS)
def test_a_restart_after_any_batch_has_every_row_once(
    catalog: Catalog, catalog_uri: str, tmp_path: Path, how: str, feed: str
) -> None:
    begun(catalog, tmp_path)
    options, wanted = options_of(catalog, how)
    options = {**options, "readChangeFeed": feed, "maxFilesPerTrigger": "2"}
    query = Checkpoint(f"{catalog_uri}?table=t")
    rows: list[Any] = []
    for n in range(4, 8):
        # it dies in a batch, which is logged and not done; then others commit
        rows += query.run(dies=True, **options)
        first = query.logged[0]
        catalog.write("t", ids(n), mode="append")
        rows += query.run(dies=n % 2 == 0, **options)
        assert query.logged[0] == first
    rows += query.run(dies=False, **options)
    assert sorted(row["id"] for row in rows) == [*wanted, 4, 5, 6, 7]


def test_rows_of_the_first_batch_are_those_that_the_query_began_with(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    begun(catalog, tmp_path)
    query = Checkpoint(f"{catalog_uri}?table=t")
    assert query.run(dies=True, skipChangeCommits="true") == []
    # the rows that the query has promised are gone, and another start is asked for: neither matters
    catalog.table("t").delete("id < 2")
    catalog.write("t", ids(4), mode="append")
    rows = query.run(dies=False, skipChangeCommits="true", startingVersion="5")
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 4]


def stream(spark: Any, catalog: Catalog, form: str, folder: Path, options: dict[str, str]) -> list[Any]:
    """A query that fails once in each of its batches; others commit before it is started again."""
    failed: set[int] = set()
    done: dict[int, list[Any]] = {}
    place = str(folder / form) if form == "delta" else f"{catalog.uri}?table={form}"
    columns = ["id", "_change_type", "_commit_version"] if "readChangeFeed" in options else ["id"]

    def batch(df: Any, number: int) -> None:
        rows = sorted(tuple(row) for row in df.collect())
        if number not in failed:
            failed.add(number)
            raise RuntimeError("this batch fails once")
        done[number] = rows

    more = iter((4, 5))
    while True:
        query = (
            spark.readStream.format(form)
            .options(maxFilesPerTrigger="2", **options)
            .load(place)
            .select(*columns)
            .writeStream.foreachBatch(batch)
            .option("checkpointLocation", str(folder / f"checkpoint {form} {sorted(options)}"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "fails once" not in str(error):
                raise
            if (number := next(more, None)) is not None:
                catalog.write(form, ids(number), mode="append")
            continue
        return [row for number in sorted(done) for row in done[number]]


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize(
    "options",
    [{}, {"readChangeFeed": "true", "startingVersion": "1"}],
    ids=str,
)
def test_spark_reads_the_same_as_with_delta(
    spark: Any, catalog: Catalog, tmp_path: Path, options: dict[str, str]
) -> None:
    for form in ("delta", "deltasql"):
        for n in range(4):
            catalog.write(form, ids(n), mode="append", location=tmp_path / form, configuration=FEED)
    assert stream(spark, catalog, "deltasql", tmp_path, options) == stream(
        spark, catalog, "delta", tmp_path, options
    )


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_spark_keeps_what_latest_meant_when_the_query_began(
    spark: Any, catalog: Catalog, tmp_path: Path
) -> None:
    catalog.write("deltasql", ids(0), location=tmp_path / "deltasql")
    # its first batch is empty and fails: what is committed then comes after it
    rows = stream(spark, catalog, "deltasql", tmp_path, {"startingVersion": "latest"})
    assert rows == [(4,), (5,)]


def test_the_changes_of_a_commit_are_in_one_batch(catalog: Catalog, catalog_uri: str, tmp_path: Path) -> None:
    for part in "abc":
        catalog.write(
            "t",
            ids(1, 2, part=part),
            mode="append",
            location=tmp_path / "t",
            partition_by=["part"],
            configuration=FEED,
        )
    query = Checkpoint(f"{catalog_uri}?table=t")
    options = {"readChangeFeed": "true", "maxFilesPerTrigger": "1"}
    assert len(query.run(dies=False, **options)) == 6
    assert query.done == 3, "rows that the query begins with have no images to keep together"
    catalog.table("t").update(predicate="id = 1", updates={"id": "10"})
    files = [json.loads(line) for line in catalog.log("t").commit_bytes(3).splitlines()]
    assert sum("cdc" in line for line in files) > 1
    catalog.table("t").delete()
    for wanted in (["update_postimage"] * 3 + ["update_preimage"] * 3, ["delete"] * 6):
        before = query.done
        rows = query.run(dies=False, stops=before + 1, **options)
        assert sorted(row["_change_type"] for row in rows) == wanted
        assert query.done == before + 1
    assert query.run(dies=False, **options) == []


@pytest.mark.parametrize("feed", ["false", "true"])
def test_a_stream_whose_files_were_vacuumed_says_what_to_do(
    catalog: Catalog, catalog_uri: str, tmp_path: Path, feed: str
) -> None:
    begun(catalog, tmp_path)
    query = Checkpoint(f"{catalog_uri}?table=t")
    assert query.run(dies=True, readChangeFeed=feed) == []
    table = catalog.table("t")
    table.optimize.compact()
    gone = table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(StorageMissingError, match=f"most likely by a vacuum: ({'|'.join(gone)})") as caught:
        query.run(dies=False, readChangeFeed=feed)
    assert "new checkpoint location" in (caught.value.suggestion or "")
    assert len(Checkpoint(f"{catalog_uri}?table=t").run(dies=False, readChangeFeed=feed)) == 4


@pytest.mark.parametrize("feed", ["false", "true"])
def test_a_stream_with_a_truncated_file_names_it(
    catalog: Catalog, catalog_uri: str, tmp_path: Path, feed: str
) -> None:
    begun(catalog, tmp_path)
    file = Path(catalog.table("t").file_uris()[0])
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(DataFileCorruptError, match=file.name):
        Checkpoint(f"{catalog_uri}?table=t").run(dies=False, readChangeFeed=feed)


def test_a_batch_read_reports_damaged_files_and_refused_conditions_as_typed_errors(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    begun(catalog, tmp_path)
    uri = f"{catalog_uri}?table=t"

    def rows(**options: str) -> int:
        source = DeltaSqlSource({"path": uri, **options})
        reader = source.reader(source.schema())
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

    with pytest.raises(OperationError, match="ID"):
        rows(where="ID >= 0")
    file = Path(catalog.table("t").file_uris()[0])
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(DataFileCorruptError, match=file.name):
        rows()


def test_a_stream_whose_commits_were_cleaned_up_says_where_to_begin(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    begun(catalog, tmp_path)
    table = catalog.table("t")
    table.create_checkpoint()
    for n in range(4, 8):
        catalog.write("t", ids(n), mode="append")
    catalog.mirror.prune("t")
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    query = Checkpoint(f"{catalog_uri}?table=t")
    with pytest.raises(VersionMissingError) as caught:
        query.run(dies=False, startingVersion="1")
    assert "the changes of version 1 are no longer kept" in caught.value.message
    assert "begin at version 3 or later" in (caught.value.suggestion or "")
    rows = Checkpoint(f"{catalog_uri}?table=t").run(dies=False, startingVersion="3")
    assert sorted(row["id"] for row in rows) == [3, 4, 5, 6, 7]
