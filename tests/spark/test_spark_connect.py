"""Spark Connect: the same calls without a driver in this process."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, verify_table
from deltalakedb.exceptions import (
    InvalidArgumentError,
    MissingExtraError,
    OperationError,
    UnsupportedOperationError,
)
from deltalakedb.extras import available
from deltalakedb.settings import Config
from deltalakedb.spark import (
    checkpoint,
    delete,
    merge,
    optimize,
    read,
    restore,
    session,
    sessions,
    update,
    write,
)
from support.processes import Child
from support.sources import many_files
from support.spark import missing_reason, quick_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


def _on_connect(folder: str) -> Mapping[str, Any]:
    """Everything in one process, which has a server of its own."""
    from pyspark.sql import functions

    root = Path(folder)
    spark = session(remote="local[2]", config=quick_settings(root))
    told: dict[str, Any] = {"module": type(spark).__module__, "context": hasattr(spark, "_jsc")}
    catalog = f"deltasql://sqlite/{root}/catalog.db"
    uri = f"{catalog}?table=t"

    def found(frame: Any) -> list[int]:
        return sorted(row["id"] for row in frame.collect())

    told["read"] = found(read(spark, uri))
    with Catalog(catalog, config=Config(publish={"mode": "off"})) as silent:
        silent.write("t", pa.table({"id": [5]}), mode="append")
    told["ahead of the log"] = found(read(spark, uri, where="id >= 1"))
    told["wrote"] = write(spark.range(20, 22), uri, mode="append")
    told["by format"] = found(spark.read.format("deltasql").load(uri))
    spark.range(30, 31).write.format("deltasql").mode("append").save(uri)
    news = spark.range(30, 33)
    merging = merge(spark, uri, news, "target.id = source.id")
    told["merge"] = merging.whenMatchedDelete().whenNotMatchedInsertAll().execute()
    told["update"] = update(spark, uri, {"id": "id + 100"}, "id = 31")
    told["delete"] = delete(spark, uri, "id = 131")
    told["optimize"] = optimize(spark, uri)["numFilesAdded"]
    told["restore"] = restore(spark, uri, version=5)["num_restored_files"]
    with Catalog(catalog) as opened, opened.transaction() as tx:
        tx.spark(spark).write("t", spark.range(40, 41))
        tx.spark(spark).write("u", tx.spark(spark).read("t", where="id = 40"), location=root / "u")
    told["both"] = found(read(spark, f"{catalog}?table=u"))
    copying = spark.readStream.format("deltasql").option("startingVersion", "9").load(uri)
    sink = copying.writeStream.format("deltasql").option("checkpointLocation", str(root / "progress"))
    sink.trigger(availableNow=True).start(f"{catalog}?table=u").awaitTermination()
    told["streamed"] = found(read(spark, f"{catalog}?table=u"))
    # what needs more than a server with Delta says so
    try:
        delete(spark, uri, functions.col("id") == 40)
    except UnsupportedOperationError as error:
        told["column"] = str(error)
    try:
        delete(spark, uri, "id = 40) OR (1 = 1")
    except InvalidArgumentError as error:
        told["two texts"] = str(error)
    try:
        write(spark.range(-1, 0), f"{catalog}?table=ruled", mode="append")
    except OperationError as error:
        told["broken rule"] = str(error)
    source = f"{catalog}?table=source"
    told["import"] = import_table(
        str(root / "source"), source, history="checkpoint", batch_size=10, engine="spark", spark=spark
    ).to_dict()
    told["verify"] = verify_table(source, engine="spark", spark=spark).ok
    told["checkpoint"] = checkpoint(spark, uri, rows_per_part=2).num_add_files
    spark.stop()
    return told


def test_a_server_is_as_good_as_a_driver(tmp_path: Path) -> None:
    if (reason := missing_reason()) is not None:
        pytest.skip(reason)
    if not available("grpc"):
        pytest.skip("Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    with Catalog(f"deltasql://sqlite/{tmp_path}/catalog.db") as catalog:
        catalog.write("t", pa.table({"id": [0, 1]}), location=tmp_path / "t")
        catalog.write("ruled", pa.table({"id": [1]}), location=tmp_path / "ruled")
        catalog.table("ruled").alter.add_constraint({"positive": "id > 0"})
    many_files(tmp_path / "source")
    with socket.socket() as other:
        with suppress(OSError):  # where that fails, somebody has Spark's usual port already
            other.bind(("127.0.0.1", 15002))
            other.listen()
        told = Child(
            _on_connect, str(tmp_path), folder=tmp_path, patience=600, SPARK_LOCAL_IP="127.0.0.1"
        ).result()
    assert told["module"] == "pyspark.sql.connect.session"
    assert told["read"] == [0, 1]
    assert told["ahead of the log"] == [1, 5]
    assert told["wrote"] == 2
    assert told["by format"] == [0, 1, 5, 20, 21]
    table = DeltaTable(f"deltasql://sqlite/{tmp_path}/catalog.db?table=t")
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [0, 1, 5, 20, 21, 32, 40, 131]
    assert (told["merge"]["num_deleted_rows"], told["merge"]["num_inserted_rows"]) == (1, 2)
    assert told["update"] == told["delete"] == {"num_affected_rows": 1}
    assert told["optimize"] == 1
    assert told["restore"] > 0
    assert told["both"] == [40]
    assert told["streamed"] == [40, 40]
    assert "Delta's own plugin" in told["column"]
    assert "SQL" in told["column"]
    assert "not one expression" in told["two texts"]
    assert "CHECK constraint positive (id > 0) violated" in told["broken rule"]
    assert "every row must meet positive: id > 0" in told["broken rule"]
    assert (told["import"]["engine"], told["import"]["num_files"]) == ("spark", 40)
    assert told["verify"]
    assert told["checkpoint"] == len(table.file_uris())


def test_a_missing_client_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "available", lambda module: module != "grpc")
    with pytest.raises(MissingExtraError) as caught:
        session(remote="sc://nowhere:1")
    assert "pyspark[connect]" in (caught.value.suggestion or "")
