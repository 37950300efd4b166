"""Checkpoints that we write hold what the commits hold, for us and for stock readers, or are not there."""

from __future__ import annotations

import decimal
import json
import shutil
import tempfile
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltalakedb.delta_log import FileTxnLogReader, FileTxnLogWriter, checkpoint_writer
from deltalakedb.delta_log.checkpoint_writer import CheckpointContent, WrittenCheckpoint, write_checkpoint
from deltalakedb.delta_log.names import checkpoint_path, commit_path
from deltalakedb.delta_log.optional_files import write_last_checkpoint
from deltalakedb.exceptions import InvalidArgumentError, ProtocolError, StorageError
from deltalakedb.protocol.actions import DeletionVector, DomainMetadata, Txn
from deltalakedb.protocol.json_text import decode_json
from deltalakedb.storage import Store, open_store
from support.actions import add, info, metadata, protocol, remove
from support.checkpoints import checkpoint_version, content, state, with_stats
from support.golden import golden_root, missing_reason
from support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FEATURES = {
    "min_reader_version": 3,
    "min_writer_version": 7,
    "reader_features": ("v2Checkpoint", "deletionVectors"),
    "writer_features": ("v2Checkpoint", "deletionVectors", "domainMetadata"),
}
WAYS: list[dict[str, Any]] = [
    {"kind": "classic"},
    {"kind": "classic", "stats_as_struct": True},
    {"kind": "v2"},
    {"kind": "v2", "stats_as_struct": True},
]


def write(
    store: Store, made: CheckpointContent, *, kind: Any = "classic", **stats: bool
) -> WrittenCheckpoint:
    """Write a checkpoint with statistics of some form."""
    return write_checkpoint(store, with_stats(made, **stats), kind=kind)


@pytest.fixture
def small_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of two rows and sidecars of three or four."""
    monkeypatch.setattr(checkpoint_writer, "GROUP_ROWS", 2)
    monkeypatch.setattr(checkpoint_writer, "SIDECAR_ROWS", 3)


def drop_commits(store: Store, version: int) -> None:
    """Leave the log with the checkpoint alone."""
    for old in range(version + 1):
        store.delete(commit_path(old))


def make_log(folder: Path, *, v2: bool) -> Store:
    writer = FileTxnLogWriter(folder)
    vector = DeletionVector(
        storage_type="u",
        path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^",
        offset=4,
        size_in_bytes=40,
        cardinality=6,
    )
    writer.commit(
        0,
        [
            info("CREATE TABLE"),
            protocol(**FEATURES) if v2 else protocol(),
            metadata(configuration={"k": "v", "delta.appendOnly": "false"}, name="t", description="ünï"),
        ],
    )
    writer.commit(
        1,
        [
            info("WRITE"),
            add("day=2024-01-01/a%20b"),
            add("ä/ö", partition_values={"day": None}, tags={"x": "y", "n": None}),
            add("plain", partition_values={"day": 'a"b\\é\n'}, base_row_id=5, default_row_commit_version=1),
        ],
    )
    writer.commit(
        2,
        [
            Txn(app_id="app", version=3, last_updated=9),
            Txn(app_id="bpp", version=1),
            DomainMetadata(domain="d", configuration='{"a":1}'),
            DomainMetadata(domain="gone", configuration="1"),
        ],
    )
    writer.commit(
        3,
        [
            info("DELETE"),
            remove("day=2024-01-01/a%20b", stats='{"numRecords":7}'),
            remove("plain", partition_values=None, size=None, extended_file_metadata=None),
            add("e", deletion_vector=vector if v2 else None, clustering_provider="liquid", tags={}),
            DomainMetadata(domain="gone", configuration="1", removed=True),
        ],
    )
    writer.commit(4, [info("WRITE"), add("f", stats=None), *(add(f"g{i}", size=i) for i in range(5))])
    return open_store(folder)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("small", [False, True])
def test_a_checkpoint_holds_what_its_commits_hold(
    tmp_path: Path, way: dict[str, Any], small: bool, request: pytest.FixtureRequest
) -> None:
    if small:
        request.getfixturevalue("small_sidecars")
    store = make_log(tmp_path, v2=way["kind"] == "v2")
    reader = FileTxnLogReader(tmp_path)
    expected = state(reader, 4)
    written = write(store, content(reader, 4), **way)
    assert written.created
    assert written.num_add_files == 8
    # protocol, metaData, 2 txns, a domain, 2 removes; V2 has a header and its sidecars on top
    sidecars = sum("_sidecars" in path for path in written.paths)
    assert sidecars == (0 if way["kind"] != "v2" else 3 if small else 1)
    assert written.size == 8 + 7 + (0 if way["kind"] != "v2" else 1 + sidecars)
    assert written.size_in_bytes == sum(store.head(path).size for path in written.paths)
    assert write_last_checkpoint(store, written)
    drop_commits(store, 4)
    assert state(FileTxnLogReader(tmp_path), 4) == expected
    for path in written.paths:
        for row in pq.read_table(store.open(path)).to_pylist():
            for kind in ("add", "remove"):
                assert row.get(kind) is None or row[kind]["dataChange"] is False


def test_statistics_as_columns_alone_still_bound_the_same(tmp_path: Path) -> None:
    store = make_log(tmp_path, v2=False)
    reader = FileTxnLogReader(tmp_path)
    expected = {a.path: decode_json(a.stats or "null") for a in reader.files(4)}
    write_checkpoint(store, content(reader, 4, stats_as_json=False, stats_as_struct=True))
    schema = pq.read_schema(store.open(checkpoint_path(4)))
    assert schema.field("add").type.get_field_index("stats") == -1
    drop_commits(store, 4)
    assert {a.path: decode_json(a.stats or "null") for a in FileTxnLogReader(tmp_path).files(4)} == expected


def test_a_table_without_files_has_a_checkpoint_of_every_kind(tmp_path: Path) -> None:
    for kind in ("classic", "v2"):
        folder = tmp_path / kind
        FileTxnLogWriter(folder).commit(0, [protocol(**(FEATURES if kind == "v2" else {})), metadata()])
        store = open_store(folder)
        written = write_checkpoint(
            store, content(FileTxnLogReader(folder), 0, stats_as_struct=True), kind=kind
        )
        assert written.kind == kind
        drop_commits(store, 0)
        assert list(FileTxnLogReader(folder).files(0)) == []


def test_a_kind_that_the_protocol_forbids_is_refused(tmp_path: Path) -> None:
    plain = make_log(tmp_path, v2=False)
    reader = FileTxnLogReader(tmp_path)
    with pytest.raises(ProtocolError, match="v2Checkpoint"):
        write_checkpoint(plain, content(reader, 4), kind="v2")
    with pytest.raises(InvalidArgumentError, match="multipart"):
        write_checkpoint(plain, content(reader, 4), kind="multipart")  # type: ignore[arg-type]


def test_a_partition_value_that_is_none_of_its_type_is_refused(tmp_path: Path) -> None:
    schema = json.dumps(
        {"type": "struct", "fields": [{"name": "day", "type": "date", "nullable": True, "metadata": {}}]}
    )
    writer = FileTxnLogWriter(tmp_path)
    writer.commit(0, [protocol(), metadata(schema_string=schema), add("x", partition_values={"day": "soon"})])
    reader = FileTxnLogReader(tmp_path)
    with pytest.raises(ProtocolError, match="soon"):
        write_checkpoint(open_store(tmp_path), content(reader, 0, stats_as_struct=True))
    assert write_checkpoint(open_store(tmp_path), content(reader, 0)).created


def test_a_whole_checkpoint_stays_and_a_torn_one_is_replaced(tmp_path: Path) -> None:
    store = make_log(tmp_path, v2=False)
    reader = FileTxnLogReader(tmp_path)
    expected = state(reader, 4)
    write_checkpoint(store, content(reader, 4))
    before = store.get(checkpoint_path(4))
    assert not write_checkpoint(store, content(reader, 4, files=[], stats_as_struct=True)).created
    assert store.get(checkpoint_path(4)) == before
    store.put(checkpoint_path(4), before[:500])
    assert write_checkpoint(store, content(reader, 4)).created
    drop_commits(store, 4)
    assert state(FileTxnLogReader(tmp_path), 4) == expected


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.usefixtures("small_sidecars")
def test_a_stream_that_fails_leaves_nothing_in_the_log(
    tmp_path: Path, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_log(tmp_path / "t", v2=way["kind"] == "v2")
    reader = FileTxnLogReader(tmp_path / "t")
    before = [meta.path for meta in store.list("", recursive=True)]
    whole = content(reader, 4)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from whole.files
        raise RuntimeError("the database went away")

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with pytest.raises(RuntimeError):
        write(store, content(reader, 4, files=broken()), **way)
    assert [meta.path for meta in store.list("", recursive=True)] == before
    assert list((tmp_path / "scratch").iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match="TMPDIR"):
        write(store, content(reader, 4), **way)


def checkpoint_and_die(folder: str, kind: str, scratch: str) -> None:
    checkpoint_writer.GROUP_ROWS = 2
    checkpoint_writer.SIDECAR_ROWS = 6
    tempfile.tempdir = scratch
    write_checkpoint(open_store(folder), content(FileTxnLogReader(folder), 4), kind=kind)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_sidecars")
def test_a_v2_checkpoint_whose_answer_is_lost_keeps_its_sidecars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_log(tmp_path, v2=True)
    reader = FileTxnLogReader(tmp_path)
    expected, put = state(reader, 4), checkpoint_writer.put_v2

    def put_without_answer(*arguments: Any) -> Any:
        put(*arguments)
        raise StorageError("no answer")

    monkeypatch.setattr(checkpoint_writer, "put_v2", put_without_answer)
    with pytest.raises(StorageError, match="no answer"):
        write_checkpoint(store, content(reader, 4), kind="v2")
    drop_commits(store, 4)
    assert state(FileTxnLogReader(tmp_path), 4) == expected


@pytest.mark.parametrize("kind", ["classic", "v2"])
def test_a_writer_that_is_killed_leaves_readers_as_they_were(tmp_path: Path, kind: Any) -> None:
    points = ["checkpoint.before_put", "checkpoint.between_files", "checkpoint.after_put"]
    for number, point in enumerate(points):
        if kind == "classic" and point == "checkpoint.between_files":
            continue
        folder = tmp_path / str(number)
        store = make_log(folder, v2=kind == "v2")
        expected = state(FileTxnLogReader(folder), 4)
        Child(
            checkpoint_and_die, str(folder), kind, str(tmp_path), folder=tmp_path, points=f"{point}=kill"
        ).died()
        after = FileTxnLogReader(folder)
        assert state(after, 4) == expected
        assert (checkpoint_version(store) == 4) is (point == "checkpoint.after_put")
        if kind != "v2":  # the vector of the V2 log names no real file
            assert len(DeltaTable(folder).file_uris()) == 8
        assert write_checkpoint(store, content(after, 4), kind=kind).num_add_files == 8
        drop_commits(store, 4)
        assert state(FileTxnLogReader(folder), 4) == expected


# ---- stock readers ----


def rows(table: DeltaTable) -> list[dict[str, Any]]:
    from deltalake import QueryBuilder

    found = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute("select * from t"))
    return sorted(found.read_all().to_pylist(), key=str)


def stock(folder: Path) -> dict[str, Any]:
    """What deltalake says about a table, after opening it anew."""
    table = DeltaTable(folder)
    about = table.metadata()
    return {
        "version": table.version(),
        "files": sorted(table.file_uris()),
        "rows": str(rows(table)),  # as text, since NaN equals nothing
        "protocol": str(table.protocol()),
        "metadata": (about.id, about.name, about.partition_columns, about.configuration, about.created_time),
        "schema": json.loads(table.schema().to_json()),
        "txn": table.transaction_version("app"),
    }


def typed_table(folder: Path, **configuration: str) -> None:
    """A table of many types in partitions with null, unicode and odd values."""
    for number in range(3):
        data = pa.table(
            {
                "id": pa.array([number * 10, number * 10 + 1, None], pa.int64()),
                "small": pa.array([number, -1, None], pa.int8()),
                "price": pa.array(
                    [decimal.Decimal("1234567890123456.78"), decimal.Decimal(number), None]
                ).cast(pa.decimal128(20, 2)),
                "at": pa.array(
                    [datetime(2024, 1, number + 1, 12, 30, 0, 123456, tzinfo=UTC), None, None],
                    pa.timestamp("us", "UTC"),
                ),
                "on": pa.array([date(1900, 1, 1), date(2024, 2, 29), None]),
                "ratio": pa.array([1.5, float("nan") if number else 2.5, None]),
                "flag": pa.array([True, False, None]),
                "nested": pa.array([{"a": number, "b": "ü"}, {"a": None, "b": None}, None]),
                "list": pa.array([[1], None, []], pa.list_(pa.int64())),
                "p": pa.array(["ä b%/", None, "plain"]),
                "q": pa.array([date(2024, 1, 1), date(2024, 1, 2), None]),
            }
        )
        write_deltalake(
            folder,
            data,
            mode="append",
            partition_by=["p", "q"],
            name="typed",
            configuration=configuration,
            commit_properties=CommitProperties(app_transactions=[Transaction("app", number)]),
        )
    DeltaTable(folder).delete("id = 10")


@pytest.mark.parametrize(
    "way",
    [
        {"kind": "classic"},
        {"kind": "classic", "stats_as_struct": True},
        {"kind": "classic", "stats_as_json": False, "stats_as_struct": True},
    ],
    ids=str,
)
def test_stock_readers_read_our_checkpoint_as_they_read_the_commits(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    typed_table(tmp_path)
    expected, before = stock(tmp_path), len(rows(DeltaTable(tmp_path)))
    store, reader = open_store(tmp_path), FileTxnLogReader(tmp_path)
    written = write(store, content(reader, 3), **way)
    own = store.get(commit_path(3))
    drop_commits(store, 3)
    assert stock(tmp_path) == expected
    write_last_checkpoint(store, written)
    assert stock(tmp_path) == expected
    pruned = (
        DeltaTable(tmp_path).to_pyarrow_table(filters=[("id", ">", 20)])
        if "stats_as_json" not in way
        else None
    )
    assert pruned is None or pruned.column("id").to_pylist() == [21]
    state_before = state(FileTxnLogReader(tmp_path), 3)
    # writers of all kinds want the checkpoint's own commit
    store.put(commit_path(3), own)
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table().slice(0, 1), mode="append")
    assert len(rows(DeltaTable(tmp_path))) == before + 1
    assert state(FileTxnLogReader(tmp_path), 3) == state_before


def test_typed_statistics_say_what_the_texts_say(tmp_path: Path) -> None:
    typed_table(tmp_path)
    store, reader = open_store(tmp_path), FileTxnLogReader(tmp_path)
    write_checkpoint(store, content(reader, 3, stats_as_struct=True))
    found = [row["add"] for row in pq.read_table(store.open(checkpoint_path(3))).to_pylist() if row["add"]]
    first = next(a for a in found if '"id":0' in a["stats"] and a["partitionValues_parsed"]["p"] == "ä b%/")
    parsed = first["stats_parsed"]
    assert first["partitionValues_parsed"]["q"] == date(2024, 1, 1)
    assert parsed["numRecords"] == 1
    assert parsed["nullCount"]["id"] == 0
    # the text holds the double 1234567890123456.8, above the true minimum
    assert (
        parsed["minValues"]["price"] <= decimal.Decimal("1234567890123456.78") <= parsed["maxValues"]["price"]
    )
    assert parsed["minValues"]["on"] == date(1900, 1, 1)
    assert parsed["minValues"]["nested"] == {"a": 0, "b": "ü"}
    assert parsed["maxValues"]["at"].replace(microsecond=0) == datetime(2024, 1, 1, 12, 30, tzinfo=UTC)
    assert "flag" not in parsed["minValues"]
    assert next(a for a in found if dict(a["partitionValues"]) == {"p": None, "q": "2024-01-02"})


GOLDEN = [
    ("dv-partitioned-with-checkpoint", "classic"),
    ("dv-with-columnmapping", "classic"),
    ("v2-checkpoint-json", "v2"),
    ("basic-decimal-table", "classic"),
    ("data-reader-timestamp_ntz-id-mode", "classic"),
]


@pytest.mark.golden
@pytest.mark.usefixtures("small_sidecars")
@pytest.mark.parametrize(("name", "kind"), GOLDEN)
def test_golden_tables_read_the_same_from_our_checkpoint(tmp_path: Path, name: str, kind: str) -> None:
    if (root := golden_root()) is None:
        pytest.skip(missing_reason())
    source = next((root / "tables").glob(f"*/{name}"))
    folder = tmp_path / "t"
    shutil.copytree(source, folder)
    reader = FileTxnLogReader(folder)
    head = reader.latest_version()
    expected, before = state(reader, head), stock(folder)
    everything = content(reader, head)
    keep = store_without_log(folder)
    written = write(keep, everything, kind=kind, stats_as_struct=True)
    write_last_checkpoint(keep, written)
    assert state(FileTxnLogReader(folder), head) == expected
    assert stock(folder) == before


def store_without_log(folder: Path) -> Store:
    """The table with an empty log: what was asked of it before must have been read by then."""
    shutil.rmtree(folder / "_delta_log")
    return open_store(folder)
