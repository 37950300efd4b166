"""Checkpoints of every kind give the state that their commits give, or step aside when torn."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from deltalakedb.delta_log import FileTxnLogReader, FileTxnLogWriter, checkpoint, names, open_file_log
from deltalakedb.delta_log.listing import list_log
from deltalakedb.exceptions import LogCorruptError
from deltalakedb.protocol.actions import Action, Add, DomainMetadata, Txn, UnknownAction, action_to_dict
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.protocol.stats_columns import stats_json
from deltalakedb.storage import Store, open_store
from support.actions import add, info, metadata, protocol, remove
from support.checkpoints import checkpoint_version, part_path

if TYPE_CHECKING:
    from pathlib import Path

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"
HEAD = 4


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A table with five commits and no checkpoint."""
    writer = FileTxnLogWriter(tmp_path)
    odd = {"day": None}
    writer.commit(0, [info("CREATE TABLE"), protocol(), metadata(configuration={"k": "v"}, name="t")])
    writer.commit(
        1, [info("WRITE"), add("a%20b"), add("c", partition_values=odd, tags={"x": "y", "n": None})]
    )
    writer.commit(
        2, [info("WRITE"), Txn(app_id="app", version=3), DomainMetadata(domain="d", configuration="1")]
    )
    writer.commit(3, [info("DELETE"), remove("a%20b"), add("e", base_row_id=5)])
    writer.commit(HEAD, [info("WRITE"), add("f", stats=None)])
    return open_store(tmp_path)


def state(reader: FileTxnLogReader, version: int = HEAD) -> dict[str, Any]:
    """All that a version holds, without what only commits say (dataChange)."""
    return {
        "protocol": reader.snapshot(version).protocol,
        "metadata": reader.snapshot(version).metadata,
        "files": sorted(((a.to_dict() | {"dataChange": None}) for a in reader.files(version)), key=str),
        "dead": sorted(r.path for r in reader.tombstones(version)),
        "txns": reader.txns(version),
        "domains": reader.domains(version),
    }


def fresh(store: Store) -> FileTxnLogReader:
    return FileTxnLogReader(store.location)


ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", pa.map_(pa.string(), pa.string())),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("baseRowId", pa.int64()),
        ("stats", pa.string()),
        ("partitionValues_parsed", pa.struct([("day", pa.date32())])),
        ("columnOfTomorrow", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        ("add", ADD),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", pa.map_(pa.string(), pa.string())),
                    ("size", pa.int64()),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    (
                        "format",
                        pa.struct(
                            [("provider", pa.string()), ("options", pa.map_(pa.string(), pa.string()))]
                        ),
                    ),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("createdTime", pa.int64()),
                    ("configuration", pa.map_(pa.string(), pa.string())),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
        (
            "domainMetadata",
            pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
        ),
        (
            "sidecar",
            pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
        ),
        ("checkpointMetadata", pa.struct([("version", pa.int64())])),
    ]
)


def rows_of(store: Store, version: int) -> list[dict[str, Any]]:
    """The lines of a checkpoint, from the commits alone."""
    reader = fresh(store)
    snapshot = reader.snapshot(version)
    actions = [
        snapshot.protocol,
        snapshot.metadata,
        *reader.txns(version).values(),
        *reader.domains(version).values(),
        *reader.files(version),
        *reader.tombstones(version),
    ]
    return [action_to_dict(action) for action in actions]


def parquet(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, **options)
    return buffer.getvalue()


def write_classic(store: Store, version: int) -> None:
    store.put(names.checkpoint_path(version), parquet(rows_of(store, version), row_group_size=2))


def write_parts(store: Store, version: int) -> None:
    rows = rows_of(store, version)
    for part in (1, 2, 3):
        store.put(part_path(version, part, 3), parquet(rows[part - 1 :: 3]))


def write_v2(store: Store, version: int, kind: str, sidecar_name: str = "side one.parquet") -> None:
    rows = rows_of(store, version)
    side = [row for row in rows if "add" in row or "remove" in row]
    store.put("_delta_log/_sidecars/side one.parquet", parquet(side))
    sidecar = {"path": sidecar_name, "sizeInBytes": 1, "modificationTime": 1}
    top = [
        {"checkpointMetadata": {"version": version}},
        *(r for r in rows if r not in side),
        {"sidecar": sidecar},
    ]
    data = parquet(top) if kind == "parquet" else "".join(json.dumps(r) + "\n" for r in top).encode()
    store.put(names.v2_checkpoint_path(version, UUID).replace("parquet", kind), data)


def checkpointed(store: Store) -> list[Action]:
    """All actions of the checkpoint of version 3."""
    found = list_log(store).checkpoints[3][0]
    return [action for batch in checkpoint.iter_checkpoint(store, found) for action in batch]


def drop_commits(store: Store, upto: int) -> None:
    for version in range(upto + 1):
        store.delete(names.commit_path(version))


WRITERS = {
    "classic": write_classic,
    "parts": write_parts,
    "v2 parquet": lambda s, v: write_v2(s, v, "parquet", "side%20one.parquet"),
    "v2 json": lambda s, v: write_v2(s, v, "json", "side%20one.parquet"),
    "v2 moved": lambda s, v: write_v2(s, v, "json", "s3://old/t/_delta_log/_sidecars/side%20one.parquet"),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("batch", [1, 4096])
def test_a_checkpoint_alone_gives_what_the_commits_gave(
    store: Store, kind: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BATCH_ROWS", batch)
    wanted = state(fresh(store), 3), state(fresh(store))
    WRITERS[kind](store, 3)
    drop_commits(store, 3)
    reader = fresh(store)
    assert list(reader.versions()) == [3, HEAD]
    assert checkpoint_version(store) == 3
    assert (state(reader, 3), state(reader)) == wanted
    given = checkpointed(store)
    assert {a.path for a in given if isinstance(a, Add)} == {"c", "e"}


def test_tombstones_that_a_checkpoint_dropped_do_not_come_back(store: Store) -> None:
    rows = [row for row in rows_of(store, 3) if "remove" not in row]
    writer = FileTxnLogWriter(store.location)
    writer.commit(HEAD + 1, [info("DELETE"), remove("c")])
    store.put(names.checkpoint_path(HEAD), parquet([*rows, {"add": add("f").to_dict()}]))
    reader = fresh(store)
    assert [r.path for r in reader.tombstones(3)] == ["a%20b"]
    for version, dead in ((HEAD, []), (HEAD + 1, ["c"])):
        assert [r.path for r in reader.tombstones(version)] == dead


def test_a_checkpoint_comes_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "BATCH_ROWS", 2)
    write_classic(store, 3)
    found = list_log(store).checkpoints[3][0]
    sizes = [len(batch) for batch in checkpoint.iter_checkpoint(store, found)]
    assert max(sizes) <= 2
    assert sum(sizes) == len(rows_of(store, 3))


def test_only_the_kinds_asked_for_are_read(store: Store) -> None:
    write_v2(store, 3, "json")
    store.delete("_delta_log/_sidecars/side one.parquet")
    found = list_log(store).checkpoints[3][0]
    batches = checkpoint.iter_checkpoint(store, found, kinds=frozenset({"protocol"}))
    assert [action for batch in batches for action in batch] == [protocol()]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_torn_checkpoint_steps_aside_for_the_commits(store: Store, tmp_path: Path, kind: str) -> None:
    wanted = state(fresh(store))
    WRITERS[kind](store, 3)
    for file in [*store.list("_delta_log"), *store.list("_delta_log/_sidecars")]:
        if "checkpoint" in file.path or "side" in file.path:
            (tmp_path / file.path).write_bytes(store.get(file.path)[: file.size // 2])
    reader = fresh(store)
    assert state(reader) == wanted
    assert checkpoint_version(store) is None
    with pytest.raises(LogCorruptError):
        checkpointed(store)


def test_a_torn_checkpoint_steps_aside_for_an_older_one(store: Store) -> None:
    wanted = state(fresh(store))
    write_classic(store, 1)
    write_classic(store, 3)
    drop_commits(store, 1)
    store.put(names.checkpoint_path(3), b"PAR1 no more PAR1")
    reader = fresh(store)
    assert checkpoint_version(store) == 1
    assert state(reader) == wanted


def test_a_damaged_page_behind_a_whole_footer_is_found_when_files_are_read(store: Store) -> None:
    wanted = state(fresh(store))
    rows = [*rows_of(store, 3), *({"add": add(f"{n:030}").to_dict()} for n in range(500))]
    data = bytearray(parquet(rows, compression="zstd"))
    data[4:400] = b"\xff" * 396
    store.put(names.checkpoint_path(3), bytes(data))
    assert state(fresh(store)) == wanted


def test_a_missing_sidecar_without_the_commits_is_a_typed_error(store: Store) -> None:
    write_v2(store, 3, "parquet")
    drop_commits(store, 3)
    store.delete("_delta_log/_sidecars/side one.parquet")
    reader = fresh(store)
    assert reader.snapshot().version == HEAD  # which needs no files
    with pytest.raises(LogCorruptError) as caught:
        list(reader.files())
    assert caught.value.version == HEAD
    assert caught.value.suggestion
    assert not checkpoint.is_complete(store, list_log(store).checkpoints[3][0])


def test_a_whole_checkpoint_beside_a_torn_one_is_taken(store: Store) -> None:
    wanted = state(fresh(store))
    write_v2(store, 3, "json")
    store.put(names.checkpoint_path(3), b"")
    drop_commits(store, 3)
    assert state(fresh(store)) == wanted


def test_maps_of_sliced_columns_belong_to_their_rows() -> None:
    maps = [{"a": "0"}, None, {}, {"b": "1", "c": None}, {"d": "2"}]
    column = pa.array(
        [None if m is None else list(m.items()) for m in maps], pa.map_(pa.string(), pa.string())
    )
    assert list(checkpoint._maps(column)) == maps
    assert list(checkpoint._maps(column[1:4])) == maps[1:4]
    assert list(checkpoint._maps(column.take(pa.array([4, 1, 0])))) == [maps[4], maps[1], maps[0]]


def test_kinds_and_fields_of_tomorrow_are_kept(store: Store) -> None:
    schema = SCHEMA.append(pa.field("kindOfTomorrow", pa.struct([("x", pa.int64())])))
    rows = [*rows_of(store, 3), {"kindOfTomorrow": {"x": 1}}]
    for row in rows:
        if "add" in row:
            row["add"]["columnOfTomorrow"] = "kept"
    store.put(names.checkpoint_path(3), parquet(rows, schema))
    given = checkpointed(store)
    assert UnknownAction(kind="kindOfTomorrow", value={"x": 1}) in given
    assert {a.extra["columnOfTomorrow"] for a in given if isinstance(a, Add)} == {"kept"}
    assert len(list(fresh(store).files(3))) == 2


def test_an_action_of_nulls_is_no_action(store: Store) -> None:
    rows = [*rows_of(store, 3), {"add": {"path": None, "size": None, "partitionValues": {}}}]
    store.put(names.checkpoint_path(3), parquet(rows))
    assert len(list(fresh(store).files(3))) == 2


STATS = pa.struct(
    [
        ("numRecords", pa.int64()),
        (
            "minValues",
            pa.struct(
                [
                    ("i", pa.int64()),
                    ("d", pa.date32()),
                    ("t", pa.timestamp("us", "UTC")),
                    ("n", pa.timestamp("us")),
                    ("m", pa.decimal128(38, 2)),
                    ("f", pa.float64()),
                    ("s", pa.string()),
                    ("b", pa.binary()),
                    ("x", pa.struct([("y", pa.int32())])),
                ]
            ),
        ),
        ("nullCount", pa.struct([("i", pa.int64())])),
        ("tightBounds", pa.bool_()),
    ]
)
PARSED = {
    "numRecords": 3,
    "minValues": {
        "i": 2**60,
        "d": date(2024, 2, 29),
        "t": datetime(2024, 1, 1, 12, tzinfo=UTC),
        "n": datetime(2024, 1, 1, 12, 0, 0, 1),
        "m": Decimal("123456789012345678901234567890.12"),
        "f": 0.1,
        "s": 'q"ü',
        "b": b"\x00",
        "x": {"y": 7},
    },
    "nullCount": {"i": 0},
    "tightBounds": True,
}
SPELLED = (
    '{"numRecords":3,"minValues":{"i":1152921504606846976,"d":"2024-02-29","t":"2024-01-01T12:00:00.000Z",'
    '"n":"2024-01-01T12:00:00.000001","m":123456789012345678901234567890.12,"f":0.1,"s":"q\\"ü","x":{"y":7}},'
    '"nullCount":{"i":0},"tightBounds":true}'
)


def test_struct_statistics_are_spelled_as_json() -> None:
    column = pa.array([PARSED, None, {"numRecords": 0}], STATS)
    assert stats_json(column) == [SPELLED, None, '{"numRecords":0}']


def test_struct_statistics_leave_out_what_json_cannot_say() -> None:
    values = pa.struct([("f", pa.float64()), ("t", pa.timestamp("us", "UTC")), ("d", pa.date32())])
    column = pa.array(
        [{"f": float("nan")}, {"f": float("-inf")}, {"t": 2**62}, {"d": 2**30}, {"f": 1.5}],
        values,
    )
    assert stats_json(column) == [None, None, None, None, '{"f":1.5}']


def test_old_timestamps_without_a_zone_are_instants() -> None:
    values = pa.struct([("minValues", pa.struct([("t", pa.timestamp("us"))]))])
    column = pa.array([{"minValues": {"t": datetime(2024, 1, 1)}}], values)
    assert stats_json(column, utc={"minValues.t"}) == ['{"minValues":{"t":"2024-01-01T00:00:00.000Z"}}']
    assert stats_json(column) == ['{"minValues":{"t":"2024-01-01T00:00:00.000"}}']


@pytest.mark.parametrize("both", [True, False])
def test_struct_statistics_stand_in_where_json_is_missing(store: Store, both: bool) -> None:
    fields = [f for f in ADD if both or f.name != "stats"]
    schema = SCHEMA.set(1, pa.field("add", pa.struct([*fields, ("stats_parsed", STATS)])))
    rows = rows_of(store, 3)
    for number, row in enumerate(r for r in rows if "add" in r):
        row["add"]["stats_parsed"] = PARSED
        if number == 0:
            row["add"].pop("stats", None)
    store.put(names.checkpoint_path(3), parquet(rows, schema))
    drop_commits(store, 3)
    texts = sorted(a.stats or "" for a in fresh(store).files(3))
    assert SPELLED in texts
    assert texts.count(SPELLED) == (1 if both else 2)


def test_int96_statistics_are_recognised(store: Store) -> None:
    stats = pa.struct([("numRecords", pa.int64()), ("maxValues", pa.struct([("t", pa.timestamp("ns"))]))])
    fields = [f for f in ADD if f.name != "stats"]
    schema = SCHEMA.set(1, pa.field("add", pa.struct([*fields, ("stats_parsed", stats)])))
    rows = rows_of(store, 3)
    for row in rows:
        if "add" in row:
            row["add"]["stats_parsed"] = {"numRecords": 1, "maxValues": {"t": datetime(2024, 1, 1)}}
    store.put(names.checkpoint_path(3), parquet(rows, schema, use_deprecated_int96_timestamps=True))
    drop_commits(store, 3)
    for file in fresh(store).files(3):
        assert file.stats == '{"numRecords":1,"maxValues":{"t":"2024-01-01T00:00:00.000Z"}}'


def test_json_statistics_win_and_struct_ones_are_not_even_read(store: Store) -> None:
    schema = SCHEMA.set(1, pa.field("add", pa.struct([*ADD, ("stats_parsed", STATS)])))
    rows = [{"add": add(f"f{n}").to_dict() | {"stats_parsed": PARSED}} for n in range(4)]
    file = pq.ParquetFile(io.BytesIO(parquet(rows, schema)))
    columns = checkpoint._columns_for(file, None)
    assert "add.stats" in columns
    assert "add.stats_parsed" not in columns
    assert "add.partitionValues_parsed" not in columns


def test_a_checkpoint_of_delta_rs_is_read(tmp_path: Path) -> None:
    table = pa.table({"day": ["a", "b", None], "v": [1, 2, 3]})
    for _ in range(3):
        write_deltalake(tmp_path, table, mode="append", partition_by=["day"])
    before = {
        a.path: (a.size, dict(a.partition_values), parse_stats(a.stats))
        for a in open_file_log(tmp_path).files()
    }
    DeltaTable(tmp_path).create_checkpoint()
    drop_commits(open_store(tmp_path), 1)
    reader = open_file_log(tmp_path)
    assert checkpoint_version(reader.store) == 2
    assert {
        a.path: (a.size, dict(a.partition_values), parse_stats(a.stats)) for a in reader.files()
    } == before
    assert len(before) == 9
