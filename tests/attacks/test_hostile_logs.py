"""Attacks by a log, a checkpoint, a commit over HTTP or a catalog: each ends in a typed error."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb import Catalog, DeltaTable, export_table, follow_table, import_table, plan_import
from deltalakedb.address import parse_address
from deltalakedb.exceptions import (
    DeltaSqlError,
    InvalidArgumentError,
    LogCorruptError,
    OutsidePathError,
    ProtocolError,
    TableExistsError,
)
from deltalakedb.protocol.dv import z85_encode
from deltalakedb.redaction import Secret
from deltalakedb.service.server import commit_server
from deltalakedb.settings import Config, use_config
from support.callers import TOKEN, Caller
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import TableUri

one_engine = pytest.mark.parametrize("engine_name", ["sqlite"])
NOW = time.time_ns() // 1_000_000  # a checkpoint leaves old tombstones out
ALLOWED = Config(catalog={"allow_outside_paths": True})

#: spellings of a file that is not the table's; {secret} is a readable Parquet file beside the table
OUTSIDE = {
    "absolute": "{secret}",
    "file, one slash": "file:{secret}",
    "file, three slashes": "file://{secret}",
    "file in capitals": "FILE://{secret}",
    "encoded slashes": "%2Fetc%2Fpasswd",
    "encoded scheme": "file%3A%2F%2F{secret}",
    "another bucket": "s3://other-bucket/secret.parquet",
    "http": "http://169.254.169.254/latest/meta-data",
    "scheme without slashes": "http:169.254.169.254/latest",
    "host": "//host/share/secret.parquet",
    "climbing": "../secret.parquet",
    "climbing inside": "part=a/../../secret.parquet",
    "encoded climbing": "%2e%2e/secret.parquet",
    "encoded climbing with slashes": "a%2F..%2F..%2Fsecret.parquet",
    "backslashes": "..\\secret.parquet",
    "leading backslash": "\\etc\\passwd",
    "drive": "C:\\secret.parquet",
}
outside_paths = pytest.mark.parametrize("spelling", OUTSIDE.values(), ids=list(OUTSIDE))


def vector(kind: str, text: str) -> dict[str, Any]:
    return {"storageType": kind, "pathOrInlineDv": text, "offset": 1, "sizeInBytes": 40, "cardinality": 1}


def named(path: str) -> dict[str, dict[str, Any]]:
    """Every action that names a file at a path."""
    file = {"partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    prefix = f"{path}/" + z85_encode(bytes(range(16)))
    return {
        "add": {"add": {**file, "path": path}},
        "remove": {"remove": {"path": path, "deletionTimestamp": NOW, "dataChange": True}},
        "cdc": {"cdc": {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}},
        "vector at a path": {"add": {**file, "path": "a.parquet", "deletionVector": vector("p", path)}},
        "vector with a prefix": {"add": {**file, "path": "a.parquet", "deletionVector": vector("u", prefix)}},
        "removed vector": {
            "remove": {
                "path": "a.parquet",
                "deletionTimestamp": NOW,
                "dataChange": True,
                "deletionVector": vector("p", path),
            }
        },
    }


KINDS = tuple(named(""))


#: a table whose protocol names deletion vectors, so that a commit with one is judged by its path
WITH_VECTORS = {"delta.enableDeletionVectors": "true"}


def secret_beside(folder: Path) -> Path:
    """A file that a table at ``folder/…/t`` has no business with."""
    place = folder / "secret.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ids(42), place)
    return place


def put(root: Path, version: int, *actions: dict[str, Any]) -> Path:
    """Write a commit past the catalog."""
    file = root / "_delta_log" / f"{version:020}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return file


def plain(root: Path) -> Path:
    deltalake.write_deltalake(root, ids(1, 2))
    return root


def name_of_file(root: Path) -> str:
    return next(file.name for file in root.glob("*.parquet"))


def refused(do: Callable[[], Any], path: str) -> None:
    with pytest.raises(OutsidePathError) as caught:
        do()
    assert caught.value.table == "t"
    assert caught.value.suggestion
    if ".." not in path.replace("%2e", "."):
        assert "catalog.allow_outside_paths" in caught.value.suggestion


# ---- paths: on the way in ----


@one_engine
@outside_paths
@pytest.mark.parametrize("kind", KINDS)
def test_an_import_takes_no_file_of_others(
    kind: str, spelling: str, tmp_path: Path, catalog_uri: str
) -> None:
    path = spelling.format(secret=secret_beside(tmp_path))
    root = plain(tmp_path / "t")
    put(root, 1, named(path)[kind])
    refused(lambda: import_table(str(root), f"{catalog_uri}?table=t"), path)
    with Catalog(catalog_uri) as catalog:
        assert catalog.tables() == []


@pytest.mark.parametrize("kind", ["add", "remove", "vector at a path"])
def test_an_import_from_a_checkpoint_takes_no_file_of_others(
    kind: str, tmp_path: Path, catalog_uri: str
) -> None:
    secret, root = secret_beside(tmp_path), plain(tmp_path / "t")
    protocol = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
    }
    put(root, 1, protocol, named(secret.as_uri())[kind])
    deltalake.DeltaTable(root).create_checkpoint()
    for commit in (root / "_delta_log").glob("*.json"):
        if commit.name[:20].isdigit():
            commit.unlink()
    uri = f"{catalog_uri}?table=t"
    refused(lambda: import_table(str(root), uri, history="checkpoint"), str(secret))


@one_engine
def test_a_plan_says_that_files_are_outside(tmp_path: Path, catalog_uri: str) -> None:
    secret, root = secret_beside(tmp_path), plain(tmp_path / "t")
    put(root, 1, named(str(secret))["add"])
    refused(lambda: plan_import(str(root), f"{catalog_uri}?table=t"), str(secret))


@one_engine
@outside_paths
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_of_another_writer_that_names_files_of_others_is_not_adopted(
    kind: str, spelling: str, tmp_path: Path, catalog_uri: str
) -> None:
    path = spelling.format(secret=secret_beside(tmp_path))
    root = tmp_path / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=root)
        catalog.mirror.set_policy("t", "adopt")
        put(root, 1, named(path)[kind])
        refused(lambda: catalog.write("t", ids(2), mode="append"), path)
        assert ids_of(catalog.table("t")) == [1]
        assert catalog.table("t").version() == 0


@one_engine
def test_a_followed_table_takes_no_file_of_others(tmp_path: Path, catalog_uri: str) -> None:
    secret, root = secret_beside(tmp_path), plain(tmp_path / "t")
    uri = f"{catalog_uri}?table=t"
    follow_table(str(root), uri, once=True)
    put(root, 1, named(secret.as_uri())["add"])
    refused(lambda: follow_table(str(root), uri, once=True), str(secret))
    assert ids_of(DeltaTable(uri)) == [1, 2]


def test_the_service_takes_no_commit_that_names_files_of_others(tmp_path: Path, catalog_uri: str) -> None:
    secret, root = secret_beside(tmp_path), tmp_path / "t"
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1), location=root, configuration=WITH_VECTORS)
        with commit_server(parse_address(catalog_uri), Secret(TOKEN), port=0) as server:
            for spelling in OUTSIDE.values():
                path = spelling.format(secret=secret)
                for action in named(path).values():
                    said = Caller(server.url).commit(root, 1, json.dumps(action).encode() + b"\n")
                    assert (said.status, said.word) == (422, "refused"), action
                    assert "root" in said.text
        assert [f.name for f in sorted((root / "_delta_log").glob("*.json"))] == [f"{0:020}.json"]


PLAIN = ("absolute", "file, one slash", "another bucket", "http", "climbing")


@pytest.mark.parametrize("spelling", [OUTSIDE[name] for name in PLAIN], ids=PLAIN)
def test_a_write_transaction_takes_no_file_of_others(
    spelling: str, tmp_path: Path, table_uri: TableUri
) -> None:
    path = spelling.format(secret=secret_beside(tmp_path / "lake"))
    uri = table_uri("t")
    with Catalog(uri.partition("?")[0]) as catalog:
        catalog.write("t", ids(1), location=tmp_path / "lake" / "t")
        table = catalog.table("t")
        action = deltalake.transaction.AddAction(path, 1, {}, 1, True, "{}")
        refused(lambda: table.create_write_transaction([action], "append", table.schema()), path)
        assert catalog.table("t").version() == 0


# ---- paths: a catalog that names them already ----


def readers(table: DeltaTable) -> dict[str, Callable[[], Any]]:
    """Everything that opens a table's files, or hands their places to those who do."""
    return {
        "rows": table.to_pyarrow_table,
        "a dataset": lambda: table.to_pyarrow_dataset().to_table(),
        "a scan": lambda: table._table.scan(columns=None, predicate=None),
        "places of files": table.file_uris,
        "partitions of a dataset": lambda: table._table.dataset_partitions(table.schema().to_arrow()),
        "deletion vectors": lambda: table.deletion_vectors().read_all(),
        "the change feed": lambda: table.load_cdf(starting_version=0).read_all(),
        "a delete": lambda: table.delete("id = 42"),
        "an update": lambda: table.update({"id": "id + 1"}),
        "compaction": table.optimize.compact,
        "missing files": lambda: table.repair(dry_run=True),
        "manifests": table.generate,
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A catalog whose tables name a file beside them, and a deletion vector there."""
    folder = tmp_path_factory.mktemp("hostile")
    secret = secret_beside(folder)
    size = secret.stat().st_size
    for name, more in (("t", {}), ("v", {"deletionVector": vector("p", secret.as_uri())})):
        root = folder / name
        deltalake.write_deltalake(root, ids(1, 2), configuration={"delta.enableChangeDataFeed": "true"})
        path = secret.as_uri() if not more else name_of_file(root)
        add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
        features = ["deletionVectors", "changeDataFeed"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features[:1],
            "writerFeatures": features,
        }
        removed = {"remove": {"path": path, "dataChange": True, "deletionTimestamp": NOW}}
        put(root, 1, {"protocol": protocol}, *([removed] if more else []), {"add": {**add, **more}})
        with use_config(ALLOWED):
            import_table(str(root), f"deltasql://sqlite/{folder}/catalog.db?table={name}")
    return f"deltasql://sqlite/{folder}/catalog.db"


READERS = ("rows", "a dataset", "a scan", "places of files", "partitions of a dataset", "deletion vectors")
READERS += ("the change feed", "a delete", "an update", "compaction", "missing files", "manifests")


@pytest.mark.parametrize("reader", READERS)
def test_a_catalog_cannot_make_a_reader_open_files_of_others(hostile: str, reader: str) -> None:
    with Catalog(hostile) as catalog:
        before = catalog.table("t").version()
        if reader == "deletion vectors":
            with pytest.raises(OutsidePathError):
                readers(catalog.table("v"))[reader]()
        else:
            refused(readers(catalog.table("t"))[reader], "")
        assert catalog.table("t").version() == before


def test_a_deletion_vector_elsewhere_is_not_opened(hostile: str) -> None:
    with Catalog(hostile) as catalog:
        for reader in ("rows", "a delete", "a scan", "the change feed"):
            with pytest.raises(OutsidePathError):
                readers(catalog.table("v"))[reader]()


def test_the_setting_lets_a_shallow_clone_be_read(hostile: str) -> None:
    with Catalog(hostile, config=ALLOWED) as catalog:
        table = catalog.table("t")
        assert ids_of(table) == [1, 2, 42]
        assert len(table.file_uris()) == 2


def test_spark_does_not_open_files_of_others(spark: Any, hostile: str) -> None:
    from deltalakedb.spark import read

    with pytest.raises(OutsidePathError):
        read(spark, f"{hostile}?table=t").count()
    with pytest.raises(Exception, match="OutsidePathError"):
        spark.read.format("deltasql").load(f"{hostile}?table=t").count()
    with use_config(ALLOWED):
        assert read(spark, f"{hostile}?table=t").count() == 3


# ---- paths: what must not be refused ----


def test_absolute_paths_below_the_root_are_fine(tmp_path: Path, catalog_uri: str) -> None:
    real = tmp_path / "real place"
    plain(real / "t")
    link = tmp_path / "link"
    link.symlink_to(real)
    file = name_of_file(real / "t")
    log = real / "t" / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    spellings = [
        (real, real.as_uri()),
        (real, str(real)),
        (real, link.as_uri()),
        (link, real.as_uri()),
        (real, f"file:{real}".replace(" ", "%20")),
    ]
    for n, (root, above) in enumerate(spellings):
        log.write_text(text.replace(f'"path":"{file}"', f'"path":"{above}/t/{file}"'))
        assert text != log.read_text()
        uri = f"{catalog_uri}?table=t{n}"
        import_table(str(root / "t"), uri)
        assert ids_of(DeltaTable(uri)) == [1, 2]
        assert DeltaTable(uri).delete("id = 1")["num_deleted_rows"] == 1
        assert ids_of(DeltaTable(uri)) == [2]
        with Catalog(catalog_uri) as catalog:
            catalog.drop_table(f"t{n}")
        for later in (real / "t" / "_delta_log").glob(f"{1:020}*"):
            later.unlink()


# ---- contradictions ----


def twice_with_vectors() -> list[dict[str, Any]]:
    """One data file added with two deletion vectors: its rows would count twice."""
    first, second = (
        {**named("x")["add"]["add"], "deletionVector": {**vector("u", z85_encode(bytes(16))), "offset": at}}
        for at in (1, 60)
    )
    return [{"add": first}, {"add": second}]


def test_a_file_is_not_added_under_two_deletion_vectors(tmp_path: Path, catalog_uri: str) -> None:
    source = plain(tmp_path / "plain")
    put(source, 1, *twice_with_vectors())
    with pytest.raises(ProtocolError, match="different deletion vectors"):
        import_table(str(source), f"{catalog_uri}?table=t")
    root = tmp_path / "u"
    with Catalog(catalog_uri) as catalog:
        catalog.write("u", ids(1), location=root, configuration=WITH_VECTORS)
        with commit_server(parse_address(catalog_uri), Secret(TOKEN), port=0) as server:
            data = "".join(json.dumps(action) + "\n" for action in twice_with_vectors())
            said = Caller(server.url).commit(root, 1, data.encode())
        assert (said.status, said.word) == (422, "refused")
        assert "different deletion vectors" in said.text
        assert catalog.table("u").version() == 0


# ---- targets of an export ----


def files_below(folder: Path) -> set[Path]:
    """Everything but the catalog's own files."""
    return {path for path in folder.rglob("*") if not path.name.startswith("catalog.")}


def test_an_export_takes_no_folder_that_others_use(tmp_path: Path, catalog_uri: str) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1, 2), location=tmp_path / "t")
        catalog.write("u", ids(3), location=tmp_path / "tables" / "u")
    foreign = plain(tmp_path / "foreign")
    full = tmp_path / "full"
    full.mkdir()
    (full / "passwd").write_text("root")
    uri = f"{catalog_uri}?table=t"
    before = files_below(tmp_path)
    targets = [Path("/"), Path("/etc"), tmp_path, full, full / "passwd", foreign, foreign / "below"]
    targets += [foreign / "_delta_log", tmp_path / "tables", tmp_path / "tables" / "u"]
    targets += [tmp_path / "tables" / "u" / "below", tmp_path / "t", tmp_path / "t" / "below"]
    for target in targets:
        for dry_run in (True, False):
            with pytest.raises((InvalidArgumentError, TableExistsError)) as caught:
                export_table(uri, str(target), dry_run=dry_run)
            assert caught.value.suggestion, target
    assert files_below(tmp_path) == before
    assert export_table(uri, str(tmp_path / "copy")).num_files == 1
    # what an earlier attempt left is fine
    assert export_table(uri, str(tmp_path / "copy")).num_files == 1


# ---- bombs: small files that unpack to anything ----

STRINGS = pa.map_(pa.string(), pa.string())
PROTOCOL = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", STRINGS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", STRINGS),
        ("createdTime", pa.int64()),
    ]
)


def bomb(root: Path, text: str, *, rows: int, dictionary: bool) -> Path:
    """A table whose small checkpoint unpacks to many copies of a text, as statistics of its files."""
    words = pa.dictionary(pa.int32(), pa.string()) if dictionary else pa.string()
    kinds = [("path", pa.string()), ("partitionValues", STRINGS), ("size", pa.int64())]
    kinds += [("modificationTime", pa.int64()), ("dataChange", pa.bool_()), ("stats", words)]
    schema = pa.schema([("protocol", PROTOCOL), ("metaData", METADATA), ("add", pa.struct(kinds))])
    about = {
        "id": "5f1c3c5e-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": []},
        "schemaString": schema_of("long"),
        "partitionColumns": [],
        "configuration": [],
        "createdTime": 1,
    }
    place = root / "_delta_log" / f"{0:020}.checkpoint.parquet"
    place.parent.mkdir(parents=True)
    state: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": about},
    ]
    with pq.ParquetWriter(place, schema, compression="zstd", use_dictionary=dictionary) as writer:
        first = [{"protocol": None, "metaData": None, "add": None, **row} for row in state]
        writer.write_table(pa.Table.from_pylist(first, schema))
        for start in range(0, rows, 128):
            some = range(start, min(rows, start + 128))
            columns = [
                pa.array([f"{n}.parquet" for n in some]),
                pa.array([[]] * len(some), STRINGS),
                pa.array([1] * len(some), pa.int64()),
                pa.array([1] * len(some), pa.int64()),
                pa.array([False] * len(some)),
                pa.array([text] * len(some), words),
            ]
            adds = pa.StructArray.from_arrays(columns, fields=[pa.field(*kind) for kind in kinds])
            empty = [pa.nulls(len(some), kind) for kind in (PROTOCOL, METADATA)]
            batch = pa.RecordBatch.from_arrays([*empty, adds], schema=schema)
            writer.write_batch(batch, row_group_size=rows)
    return root


def peak_of(code: str, *arguments: object) -> int:
    """The most bytes that Arrow held while code ran in a process of its own."""
    whole = f"import sys, pyarrow as pa\n{code}\nprint(pa.default_memory_pool().max_memory())"
    done = subprocess.run(
        [sys.executable, "-c", whole, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1])


READ_ALL = """
from deltalakedb.delta_log.checkpoint import CheckpointScan, iter_checkpoint
from deltalakedb.delta_log.listing import list_log
from deltalakedb.storage.store import open_store
store = open_store(sys.argv[1])
((checkpoint,),) = list_log(store).checkpoints.values()
assert sum(len(batch) for batch in iter_checkpoint(store, checkpoint)) == 4098
assert sum(part.batch.num_rows for part in CheckpointScan(store, checkpoint).parts()) == 4098
"""
IMPORT = """
from deltalakedb import Catalog, import_table, plan_import, verify_table
plan = plan_import(sys.argv[1], sys.argv[2])
assert plan.num_files == 1000
assert import_table(sys.argv[1], sys.argv[2]).num_files == 1000
assert verify_table(sys.argv[2], "full").ok
with Catalog(sys.argv[2].partition("?")[0]) as catalog:
    assert catalog.mirror.verify("t").ok
"""


@pytest.mark.parametrize("dictionary", [True, False], ids=["dictionary", "compression"])
def test_a_checkpoint_is_read_in_small_pieces_whatever_it_unpacks_to(
    tmp_path: Path, dictionary: bool
) -> None:
    length, rows = 100_000, 4096
    text = json.dumps({"numRecords": 1, "minValues": {"id": 1}, "padding": "x" * length})
    root = bomb(tmp_path / "t", text, rows=rows, dictionary=dictionary)
    checkpoint = next((root / "_delta_log").iterdir())
    assert checkpoint.stat().st_size < 200_000
    assert peak_of(READ_ALL, root) < rows * length // 3


@one_engine
def test_an_import_of_a_bomb_keeps_to_little_memory(tmp_path: Path, catalog_uri: str) -> None:
    length, rows = 200_000, 1000
    text = json.dumps({"numRecords": 1, "padding": "x" * length})
    root = bomb(tmp_path / "t", text, rows=rows, dictionary=True)
    assert peak_of(IMPORT, root, f"{catalog_uri}?table=t") < rows * length


@one_engine
def test_a_text_of_an_absurd_length_is_refused(tmp_path: Path, catalog_uri: str) -> None:
    root = bomb(tmp_path / "t", "x" * (65 << 20), rows=2, dictionary=True)
    with pytest.raises(LogCorruptError, match="unpacks to"):
        import_table(str(root), f"{catalog_uri}?table=t")


# ---- numbers and nesting ----

LONG = "9" * 5000
HUGE = "1e999999999"
DEEP = "[" * 100_000 + "]" * 100_000


def schema_of(kind: str) -> str:
    field = {"name": "id", "type": kind, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [field]})


def table_of(kind: str = "long", *, partitioned: bool = False, **properties: str) -> list[dict[str, Any]]:
    about = {
        "id": "5f1c3c5e-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_of(kind),
        "partitionColumns": ["id"] if partitioned else [],
        "configuration": properties,
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": about}]


def added(**fields: Any) -> dict[str, Any]:
    return {"add": {**named("a.parquet")["add"]["add"], **fields}}


def stats_with(value: str) -> str:
    return f'{{"numRecords":1,"minValues":{{"id":{value}}},"maxValues":{{"id":{value}}}}}'


KINDS_OF_COLUMNS = (
    "long",
    "byte",
    "double",
    "decimal(38,10)",
    "date",
    "timestamp",
    "timestamp_ntz",
    "boolean",
)
ROWS_DOMAIN = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": ["rowTracking", "domainMetadata"],
}
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "size": [*table_of(), added(size="@long")],
    "size with an exponent": [*table_of(), added(size="@huge")],
    "unknown field": [*table_of(), added(unknown="@long")],
    "time of a commit": [*table_of(), {"commitInfo": {"timestamp": "@long"}}],
    "nested commit": [*table_of(), {"commitInfo": {"deep": "@deep"}}],
    "version of an application": [*table_of(), {"txn": {"appId": "a", "version": "@long"}}],
    "version of a protocol": [
        {"protocol": {"minReaderVersion": "@long", "minWriterVersion": 2}},
        table_of()[1],
    ],
    "number of rows": [*table_of(), added(stats=f'{{"numRecords":{LONG}}}')],
    "nested statistics": [*table_of(), added(stats=DEEP)],
    "precision": [*table_of(f"decimal({LONG},{LONG})"), added()],
    "mark of row ids": [
        {"protocol": ROWS_DOMAIN},
        table_of()[1],
        {"domainMetadata": {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":"x"}'}},
        added(),
    ],
    **{
        f"{what} of {kind}": [*table_of(kind), added(stats=stats_with(value))]
        for kind in KINDS_OF_COLUMNS
        for what, value in (("bounds", LONG), ("exponents", HUGE), ("texts", f'"{HUGE}"'), ("nesting", DEEP))
    },
    **{
        f"{what} as partition of {kind}": [
            *table_of(kind, partitioned=True),
            added(partitionValues={"id": value}),
        ]
        for kind in KINDS_OF_COLUMNS
        for what, value in (("digits", LONG), ("exponent", HUGE))
    },
    **{
        name: [*table_of(**{name: value}), added()]
        for name, value in (
            ("delta.checkpointInterval", LONG),
            ("delta.dataSkippingNumIndexedCols", LONG),
            ("delta.targetFileSize", LONG),
            ("delta.columnMapping.maxColumnId", LONG),
            ("delta.logRetentionDuration", f"interval {LONG} days"),
            ("delta.deletedFileRetentionDuration", f"interval {'9' * 400} days"),
        )
    },
}


@one_engine
@pytest.mark.parametrize("case", NUMBERS)
def test_no_number_and_no_depth_ends_in_an_untyped_error(case: str, tmp_path: Path, catalog_uri: str) -> None:
    root, uri = tmp_path / "t", f"{catalog_uri}?table=t"
    file = put(root, 0, *NUMBERS[case])
    text = file.read_text()
    for mark, value in (("@long", LONG), ("@huge", HUGE), ("@deep", DEEP)):
        text = text.replace(f'"{mark}"', value)
    file.write_text(text)
    try:
        import_table(str(root), uri, verify="full")
    except DeltaSqlError:
        return
    more = deltalake.transaction.AddAction("b.parquet", 1, {}, 1, True, "{}")
    with Catalog(catalog_uri) as catalog:

        def table() -> DeltaTable:
            return catalog.table("t")

        for do in (
            lambda: table().create_checkpoint(),
            lambda: table().get_add_actions(flatten=True),
            lambda: table().to_pyarrow_dataset(),
            lambda: table().file_uris(file_pruning_predicate="id = 1"),
            lambda: table().create_write_transaction([more], "append", table().schema()),
            lambda: table().vacuum(dry_run=True),
            lambda: table().cleanup_metadata(),
            lambda: catalog.mirror.verify("t"),
        ):
            with contextlib.suppress(DeltaSqlError):
                do()


@one_engine
@pytest.mark.parametrize("number", [LONG, HUGE, f"-{LONG}", "1e-999999999", f"CAST('{HUGE}' AS BIGINT)"])
def test_numbers_of_a_condition_do_not_hold_it_up(number: str, tmp_path: Path, catalog_uri: str) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.write("t", ids(1, 2), location=tmp_path / "t")
        assert len(catalog.table("t").file_uris(file_pruning_predicate=f"id < {number}")) == 1
