"""delta-spark's own writers on tables of the catalog: every commit of theirs is decided in SQL."""

from __future__ import annotations

import http.server
import json
import runpy
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import deltalake
import pytest

from deltalakedb import Catalog
from deltalakedb.address import parse_address
from deltalakedb.exceptions import (
    CatalogNotFoundError,
    ConfigError,
    InvalidArgumentError,
    SparkSetupError,
    UnsupportedOperationError,
)
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server, write_token
from deltalakedb.spark import configure, merge, optimize
from deltalakedb.spark import read as read_table
from deltalakedb.spark import write as write_table
from deltalakedb.spark.logstore import JAR, SOURCE
from support.callers import TOKEN, ServiceProcess
from support.lake import child, finish, ids
from support.mirrors import append, commit_file, logged
from support.spark import committing, missing_reason, quick_settings, read, rows

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{quote(str(tmp_path))}/catalog.db"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def catalog(uri: str, root: Path) -> Iterator[Catalog]:
    with Catalog(uri) as made:
        made.set_root(root)
        yield made


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    write_token(tmp_path / "token", Secret(TOKEN))
    return tmp_path / "token"


@pytest.fixture
def configured(spark: Any, catalog: Catalog, uri: str, token_file: Path) -> Iterator[Any]:
    """The run's session, its commits ratified by a service of this process."""
    with (
        commit_server(parse_address(uri), Secret(TOKEN), port=0) as server,
        committing(spark, server.url, token_file),
    ):
        yield spark


def numbers(spark: Any, *values: int, part: str = "a") -> Any:
    return spark.createDataFrame([(value, part) for value in values], "id BIGINT, part STRING").coalesce(1)


def save(frame: Any, root: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("delta").mode(mode).options(**options).save(str(root))


def agreed(spark: Any, catalog: Catalog, name: str) -> list[int]:
    """The ids in a table; the catalog, its log and all readers have to agree on everything."""
    table = catalog.describe(name)
    root = Path(table.location)
    assert logged(root) == list(range(table.head.version + 1))
    for version in range(table.head.version + 1):
        assert commit_file(root, version).read_bytes() == catalog.log(name).commit_bytes(version)
    assert catalog.mirror.verify(name).ok
    ours = read_table(spark, catalog.table_uri(name)).toArrow()
    assert rows(ours) == rows(read(spark, root)) == rows(catalog.table(name).to_pyarrow_table())
    return sorted(ours["id"].to_pylist())


def test_everything_that_delta_spark_writes_is_committed_in_sql(
    configured: Any, catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    spark, table = configured, root / "sales" / "orders"
    here = f"delta.`{table}`"
    save(numbers(spark, 1, 2, 3, 4), table, "error", **{"delta.enableDeletionVectors": "true"})
    save(numbers(spark, 5), table)
    name = "sales.orders"
    assert agreed(spark, catalog, name) == [1, 2, 3, 4, 5]
    spark.sql(f"DELETE FROM {here} WHERE id = 2")
    spark.sql(f"UPDATE {here} SET part = 'b' WHERE id = 3")
    numbers(spark, 4, 6, part="m").createOrReplaceTempView("arriving")
    spark.sql(
        f"MERGE INTO {here} t USING arriving s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert agreed(spark, catalog, name) == [1, 3, 4, 5, 6]
    spark.sql(f"OPTIMIZE {here}")
    spark.sql(f"ALTER TABLE {here} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    spark.sql(f"VACUUM {here} RETAIN 200 HOURS")
    operations = [commit.operation for commit in reversed(catalog.commits(name))]
    assert operations == [
        *("WRITE", "WRITE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE"),
        *("SET TBLPROPERTIES", "VACUUM START", "VACUUM END"),
    ]
    assert agreed(spark, catalog, name) == [1, 3, 4, 5, 6]

    # our own writers and theirs take turns; what we have not published yet, Spark sees all the same
    catalog.mirror.pause(name)
    append(catalog, 7, name=name)
    assert not commit_file(table, 9).exists()
    catalog.mirror._pause(name, paused=False)
    assert sorted(row["id"] for row in spark.read.format("delta").load(str(table)).collect())[-1] == 7
    save(numbers(spark, 8), table)
    write_table(numbers(spark, 9), catalog.table_uri(name), mode="append")
    save(numbers(spark, 1), table, "overwrite")
    assert agreed(spark, catalog, name) == [1]
    spark.sql(f"RESTORE {here} TO VERSION AS OF 11")
    assert agreed(spark, catalog, name) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))  # Spark's own

    # tables made by SQL, a stream into one of them, a plain table that stays one
    made = root / "made"
    spark.sql(f"CREATE TABLE delta.`{made}` USING delta AS SELECT * FROM {here}")
    stream = spark.readStream.format("delta").load(str(table)).writeStream.format("delta")
    stream = stream.option("checkpointLocation", str(tmp_path / "progress")).trigger(availableNow=True)
    for _ in range(2):  # the second run finds nothing to do
        stream.start(str(root / "streamed")).awaitTermination()
    assert agreed(spark, catalog, "made") == agreed(spark, catalog, "streamed")
    plain = tmp_path / "plain"
    save(numbers(spark, 1), plain)
    save(numbers(spark, 2), plain)
    assert deltalake.DeltaTable(plain).version() == 1
    assert sorted(t.name for t in catalog.tables()) == ["made", "sales.orders", "streamed"]


def reason(caught: pytest.ExceptionInfo[Exception]) -> str:
    """The line of Java's many that the log store said."""
    said = ("The commit", "The log of", "What answers")
    return next(line for line in str(caught.value).splitlines() if any(begin in line for begin in said))


def test_what_stops_a_commit_is_told_in_one_line_with_what_to_do(
    configured: Any, catalog: Catalog, root: Path, tmp_path: Path, token_file: Path, uri: str
) -> None:
    spark, table = configured, root / "t"
    save(numbers(spark, 1), table)
    catalog.mirror.pause("t")
    append(catalog, 2)
    assert read(spark, table)["id"].to_pylist() == [1]  # listed as it is: nothing is published
    with pytest.raises(Exception, match="deltasql mirror resume t"):
        save(numbers(spark, 3), table)
    catalog.mirror.resume("t")
    save(numbers(spark, 3), table)
    assert agreed(spark, catalog, "t") == [1, 2, 3]
    deltalake.write_deltalake(table, ids(4), mode="append")
    with pytest.raises(Exception, match="deltasql mirror recover"):
        save(numbers(spark, 5), table)
    catalog.mirror.recover("t")
    assert agreed(spark, catalog, "t") == [1, 2, 3, 4]

    # a table around others would be cleaned together with them; inside of one, Spark itself refuses
    for place in (root, tmp_path):
        with pytest.raises(Exception) as caught:
            save(numbers(spark, 9), place)
        assert "did not go through" in reason(caught)
        assert "write to a folder" in reason(caught)
        assert not (place / "_delta_log").exists()
    save(numbers(spark, 9), root / "below")  # what was refused is in nobody's way

    (tmp_path / "other").write_text("x" * 20)
    with committing(spark, "http://127.0.0.1:9", token_file, patience=0), pytest.raises(Exception) as caught:
        save(numbers(spark, 9), table)
    assert "does not answer" in reason(caught)
    assert "deltasql serve --commits" in reason(caught)
    with commit_server(parse_address(uri), Secret(TOKEN), port=0, max_bytes=100) as server:
        with committing(spark, server.url, tmp_path / "other"), pytest.raises(Exception) as caught:
            save(numbers(spark, 9), table)
        assert "the token is missing or wrong" in reason(caught)
        with committing(spark, server.url, token_file), pytest.raises(Exception) as caught:
            save(numbers(spark, 9), table)
        assert "--max-bytes" in reason(caught)
    # a server that is not ours says 404 too: nobody may take that for "write it plainly"
    stranger = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=stranger.serve_forever, args=(0.05,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{stranger.server_port}"
        with committing(spark, url, token_file, patience=0), pytest.raises(Exception) as caught:
            save(numbers(spark, 9), tmp_path / "plain")
        assert "is not a service of deltalakedb" in reason(caught)
    finally:
        stranger.shutdown()
        stranger.server_close()
    assert not (tmp_path / "plain" / "_delta_log").exists()
    assert agreed(spark, catalog, "t") == [1, 2, 3, 4]


def test_our_own_operations_need_no_service(
    spark: Any, catalog: Catalog, root: Path, token_file: Path
) -> None:
    table, uri = root / "t", f"{catalog.table_uri('t')}&location={root}/t"
    with committing(spark, "http://127.0.0.1:9", token_file, patience=0):
        write_table(numbers(spark, 1, 2, 3), uri)
        write_table(numbers(spark, 4), uri, mode="append")
        news = numbers(spark, 2, 5, part="b")
        merge(
            spark, uri, news, "target.id = source.id"
        ).whenMatchedDelete().whenNotMatchedInsertAll().execute()
        optimize(spark, uri)
        assert sorted(row["id"] for row in read_table(spark, uri).collect()) == [1, 3, 4, 5]
        catalog.mirror.pause("t")
        append(catalog, 6)
        assert sorted(row["id"] for row in read_table(spark, uri).collect()) == [1, 3, 4, 5, 6]
        catalog.mirror.resume("t")
        with pytest.raises(Exception) as caught:  # what is not ours cannot know that a log is whole
            spark.read.format("delta").load(str(table)).collect()
        assert "does not answer" in str(caught.value)
    assert agreed(spark, catalog, "t") == [1, 3, 4, 5, 6]


def test_a_service_that_dies_and_comes_back_loses_and_doubles_nothing(
    spark: Any, catalog: Catalog, uri: str, root: Path, tmp_path: Path, token_file: Path
) -> None:
    table, port = root / "t", 0
    with ServiceProcess(uri, tmp_path) as service, committing(spark, service.url, token_file):
        save(numbers(spark, 0), table)
        port = service.port
    for number, point in enumerate(("commit.before_commit", "commit.after", "publish.after_put"), start=1):
        with (
            ServiceProcess(uri, tmp_path, port=port, points=f"{point}=kill") as dying,
            committing(spark, dying.url, token_file),
        ):
            append_ = threading.Thread(target=save, args=(numbers(spark, number), table))
            append_.start()
            dying.died()
            with ServiceProcess(uri, tmp_path, port=port):
                append_.join(120)
                assert not append_.is_alive()
    assert agreed(spark, catalog, "t") == [0, 1, 2, 3]
    assert catalog.describe("t").head.version == 3


#: a driver of its own, configured with a service of its own for the same catalog
DRIVER = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from deltalakedb.exceptions import SparkSetupError
from deltalakedb.spark import configure, session

uri, table, folder, settings = sys.argv[1:]
builder = SparkSession.builder.config(map=json.loads(settings))
builder = builder.config("spark.sql.warehouse.dir", folder + "/lake")
builder = configure(builder, catalog=uri)
spark = session("local[1]", builder=builder)
try:
    configure(SparkSession.builder, catalog=uri)
    refused = ""
except SparkSetupError as error:
    refused = str(error)
token = Path(spark.sparkContext._jsc.hadoopConfiguration().get("deltalakedb.service.token.file"))
secret = token.read_text().strip().encode()
seen = [p for p in Path("/proc").glob("[0-9]*/cmdline") if secret in p.read_bytes()]
print("ready", flush=True)
sys.stdin.readline()
for number in range(100, 104):
    rows = spark.range(number, number + 1).selectExpr("id", "'two' part").coalesce(1)
    rows.write.format("delta").mode("append").save(table)
spark.sql("CREATE TABLE managed USING delta AS SELECT 1L id, 'x' part")
print(json.dumps({"refused": refused, "seen": len(seen), "token": str(token)}), flush=True)
spark.stop()
"""


def test_two_drivers_and_a_python_writer_lose_no_row(
    configured: Any, catalog: Catalog, uri: str, root: Path, tmp_path: Path
) -> None:
    spark, table = configured, root / "t"
    save(numbers(spark, 0), table)
    settings = json.dumps(quick_settings(tmp_path))
    driver = child(DRIVER, uri, str(table), str(tmp_path), settings, cwd=tmp_path)
    assert driver.stdout is not None
    assert driver.stdin is not None
    assert driver.stdout.readline() == "ready\n", driver.communicate()[1]
    driver.stdin.write("go\n")
    driver.stdin.flush()
    ours = threading.Thread(target=append, args=(catalog, *range(200, 212)))
    ours.start()
    for number in range(1, 5):
        save(numbers(spark, number), table)
    ours.join()
    told = json.loads(finish(driver))
    assert "session is running" in told["refused"]
    assert told["seen"] == 0  # the token is in nobody's command line
    assert not Path(told["token"]).exists()  # and gone with its service
    assert agreed(spark, catalog, "t") == [0, 1, 2, 3, 4, *range(100, 104), *range(200, 212)]
    assert catalog.describe("t").head.version == 20
    assert agreed(spark, catalog, "managed") == [1]


@pytest.mark.skipif(missing_reason() is not None, reason="Java, PySpark or Delta's jars are missing")
def test_the_jar_in_the_package_is_made_of_its_source() -> None:
    build = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "build_logstore.py"))
    classes = build["compile_classes"](SOURCE.read_text("utf-8"))
    with zipfile.ZipFile(JAR) as jar:
        packed = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert packed == {f"{name.replace('.', '/')}.class": code for name, code in classes.items()}, (
        "run: make logstore"
    )
    assert build["build_jar"](classes) == JAR.read_bytes()


class Builder:
    """As much of a session's builder as configuring needs."""

    def __init__(self, **options: str) -> None:
        self._options = options

    def config(self, key: str, value: str) -> Builder:
        self._options[key] = value
        return self


@pytest.mark.skipif(missing_reason() is not None, reason="Java, PySpark or Delta's jars are missing")
def test_wrong_configurations_are_refused_before_spark_starts(
    uri: str, tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    def refused(kind: type[Exception], *, options: dict[str, str] | None = None, **arguments: Any) -> str:
        with pytest.raises(kind) as caught:
            configure(Builder(**(options or {})), **arguments)  # type: ignore[arg-type]
        return str(caught.value)

    assert "catalog= and service=" in refused(InvalidArgumentError)
    assert "catalog= and service=" in refused(InvalidArgumentError, catalog=uri, service="http://127.0.0.1:1")
    assert "--table" in refused(InvalidArgumentError, service="http://127.0.0.1:1", tables={"a": "/a"})
    assert "table's address" in refused(InvalidArgumentError, catalog=f"{uri}?table=t")
    missing = f"deltasql://sqlite/{quote(str(tmp_path))}/typo/catalog.db"
    assert "no catalog" in refused(CatalogNotFoundError, catalog=missing)
    assert not (tmp_path / "typo").exists()
    store = {"spark.delta.logStore.s3a.impl": "x.Y"}
    assert "log store already" in refused(InvalidArgumentError, options=store, catalog=uri)
    remote = {"spark.remote": "sc://host"}
    assert "Spark Connect server" in refused(UnsupportedOperationError, options=remote, catalog=uri)
    assert "no token" in refused(ConfigError, service="http://127.0.0.1:1")
    away = refused(SparkSetupError, service="http://127.0.0.1:1", token_file=token_file)
    assert "does not answer" in away
    assert "deltasql serve --commits" in away
    for wrong in ("127.0.0.1:1", "http://127.0.0.1:port", "http://127.0.0.1:99999", "http://[::1"):
        assert "not the URL" in refused(InvalidArgumentError, service=wrong, token_file=token_file)
    with commit_server(parse_address(uri), Secret(TOKEN), port=0) as server:
        (tmp_path / "other").write_text("x" * 20)
        (tmp_path / "other").chmod(0o600)
        assert "rejected the token" in refused(
            SparkSetupError, service=server.url, token_file=tmp_path / "other"
        )
        builder = Builder()
        configure(builder, service=f"{server.url}/", token_file=token_file, patience=5)  # type: ignore[arg-type]
        assert builder._options["spark.hadoop.deltalakedb.service"] == server.url
        assert builder._options["spark.hadoop.deltalakedb.service.token.file"] == str(token_file)
        assert str(JAR) in builder._options["spark.jars"]
        assert TOKEN not in str(builder._options)
