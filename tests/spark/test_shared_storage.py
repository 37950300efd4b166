"""Executors that do not see the driver's files are detected before rows are read or written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import Catalog
from deltalakedb.exceptions import UnsupportedOperationError
from deltalakedb.spark import read, scratch, write
from deltalakedb.spark.data_source import DeltaSqlSource, Written
from support.lake import files_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as made:
        yield made


def test_a_cluster_is_asked_once_whether_it_sees_a_table(
    spark: Any, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, root = f"{catalog.table_uri('t')}&location={tmp_path}/t", tmp_path / "t"
    write(spark.range(3), uri)
    asked: list[Path] = []
    truly = scratch._is_readable

    def look(session: Any, file: Path) -> bool:
        asked.append(file)
        return truly(session, file)

    # the session's executors are threads, which see everything, a missing file is missing for them too
    assert truly(spark, root / "_delta_log" / f"{0:020}.json")
    assert not truly(spark, tmp_path / "nowhere.txt")
    monkeypatch.setattr(scratch, "runs_here", lambda session: False)
    monkeypatch.setattr(scratch, "_shared", {})
    monkeypatch.setattr(scratch, "_is_readable", look)
    assert read(spark, uri).count() == 3
    write(spark.range(3, 4), uri, mode="append")
    assert read(spark, uri).count() == 4
    assert len(asked) == 1
    write(spark.range(1), f"{catalog.table_uri('new')}&location={tmp_path}/new")
    assert len(asked) == 2
    assert not any("seen-" in name for name in files_below(tmp_path))

    monkeypatch.setattr(scratch, "_shared", {})
    monkeypatch.setattr(scratch, "_is_readable", lambda session, file: False)
    before = files_below(tmp_path)
    for act in (
        lambda: read(spark, uri),
        lambda: write(spark.range(9), uri, mode="append"),
        lambda: write(spark.range(9), f"{catalog.table_uri('other')}&location={tmp_path}/other"),
    ):
        with pytest.raises(
            UnsupportedOperationError, match=r"executors cannot read .*\n.*mount it on every node"
        ):
            act()
    assert files_below(tmp_path) == before
    assert catalog.table("t").version() == 1


def test_tasks_of_the_data_source_look_before_they_read_or_write(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write("t", pa.table({"id": [1]}), location=tmp_path / "t")
    source = DeltaSqlSource({"path": catalog.table_uri("t")})
    reader, writer = source.reader(source.schema()), source.writer(source.schema(), overwrite=False)
    (partition,) = reader.partitions()
    batch = pa.record_batch({"id": [2]})
    written = writer.write(iter([batch]))  # type: ignore[arg-type]
    assert isinstance(written, Written)
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    for act in (lambda: list(reader.read(partition)), lambda: writer.write(iter([batch]))):  # type: ignore[arg-type]
        with pytest.raises(UnsupportedOperationError, match="executors cannot read"):
            act()
    (tmp_path / "elsewhere").rename(tmp_path / "t")
    # the same path on another machine's disk: the driver does not find the file there
    (tmp_path / "t" / written.adds[0].path).unlink()
    with pytest.raises(UnsupportedOperationError, match="executors cannot read"):
        writer.commit([written])
    assert catalog.table("t").version() == 0
