"""What every commit must keep, whoever makes it: versions, times, rules, constraints and row ids."""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, open_log, write_deltalake
from deltalakedb.catalog import commits, snapshots
from deltalakedb.catalog.engines.base import Session
from deltalakedb.commit.changes import NewTable, TableChange
from deltalakedb.commit.committer import commit
from deltalakedb.exceptions import (
    DeltaError,
    DeltaProtocolError,
    InvalidArgumentError,
    ProtocolError,
    TableExistsError,
    UnsupportedFeatureError,
)
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Txn
from deltalakedb.protocol.log import Committed
from deltalakedb.protocol.reads import NOTHING
from support.actions import info, metadata, protocol
from support.commits import Bench, file, gone
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.catalog.database import Database

READER = {"min_reader_version": 1, "min_writer_version": 7}


def features(*names: str) -> Any:
    return protocol(**READER, writer_features=names)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The database's clock: what is in the list is the time."""
    now = [1_800_000_000_000]
    # each engine may have a clock of its own
    importlib.import_module("deltalakedb.catalog.engines.postgres")
    for kind in (Session, *Session.__subclasses__()):
        monkeypatch.setattr(kind, "now_ms", lambda self: now[0])
    return now


# ---- versions and times --------------------------------------------------------------------------


def test_versions_count_by_one_and_times_rise_although_the_clock_goes_back(
    bench: Bench, clock: list[int]
) -> None:
    for n, moment in enumerate([5, 5, 4, -10_000_000, 6, 7]):
        clock[0] = 1_800_000_000_000 + moment
        outcome = bench.commit(info("WRITE"), file(f"x{n}"), reads=NOTHING)
        assert isinstance(outcome, Committed)
        assert outcome.version == n + 1
    history = commits.history(bench.database, bench.open().table)
    assert [c.version for c in history] == [6, 5, 4, 3, 2, 1, 0]
    times = [c.timestamp for c in reversed(history)]
    assert times == sorted(set(times))
    start = 1_800_000_000_005
    assert times[1:] == [start, start + 1, start + 2, start + 3, start + 4, start + 5]


def test_several_versions_of_one_commit_have_times_of_their_own(bench: Bench, clock: list[int]) -> None:
    then = [[info("B"), file("y")], [info("C"), file("z")]]
    outcome = bench.commit(info("A"), file("x"), reads=NOTHING, then=then)
    assert isinstance(outcome, Committed)
    assert outcome.version == 3
    rows = commits.history(bench.database, bench.open().table, limit=3)
    assert [c.timestamp for c in rows] == [clock[0] + 2, clock[0] + 1, clock[0]]
    assert len({c.txn_uuid for c in rows}) == 1


def test_times_in_the_published_log_rise_with_the_clock_going_back(
    table_uri: TableUri, clock: list[int]
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    for n in (2, 3):
        clock[0] -= 60_000
        write_deltalake(uri, ids(n), mode="append")
    table = DeltaTable(uri)
    times = [h["timestamp"] for h in table.history()]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 3
    stock = deltalake.DeltaTable(table.table_uri)
    for version, moment in enumerate(reversed(times)):
        stock.load_as_version(_iso(moment))
        assert stock.version() == version


def _iso(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


# ---- in-commit timestamps --------------------------------------------------------------------------

ICT = {"delta.enableInCommitTimestamps": "true"}


def first_action(bench: Bench, version: int) -> Any:
    data = commits.commit_bytes(bench.database, bench.open().table, version)
    return json.loads(data.splitlines()[0])


def test_in_commit_timestamps_from_the_beginning(make_bench: Callable[..., Bench], clock: list[int]) -> None:
    bench = make_bench(protocol_=features("inCommitTimestamp"), metadata_=metadata(configuration=ICT))
    clock[0] -= 1000
    bench.commit(file("x"), info("WRITE", inCommitTimestamp=1, timestamp=2), reads=NOTHING)
    for version in (0, 1):
        found = first_action(bench, version)["commitInfo"]
        row = commits.one(bench.database, bench.open().table, version)
        assert row is not None
        assert found["inCommitTimestamp"] == row.timestamp
    assert first_action(bench, 1)["commitInfo"]["inCommitTimestamp"] == clock[0] + 1001
    configuration = bench.open().snapshot.metadata.configuration
    assert "delta.inCommitTimestampEnablementVersion" not in configuration


def test_in_commit_timestamps_switched_on_later_say_since_when(
    make_bench: Callable[..., Bench], clock: list[int]
) -> None:
    bench = make_bench(protocol_=features("inCommitTimestamp"))
    assert "inCommitTimestamp" not in first_action(bench, 0)["commitInfo"]
    bench.commit(info("WRITE"), file("x"), reads=NOTHING)
    bench.commit(info("SET TBLPROPERTIES"), metadata(configuration=ICT))
    bench.commit(info("WRITE"), file("y"), reads=NOTHING)
    configuration = bench.open().snapshot.metadata.configuration
    stamp = first_action(bench, 2)["commitInfo"]["inCommitTimestamp"]
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "2"
    assert configuration["delta.inCommitTimestampEnablementTimestamp"] == str(stamp)
    assert first_action(bench, 3)["commitInfo"]["inCommitTimestamp"] == stamp + 1
    assert "inCommitTimestamp" not in first_action(bench, 1)["commitInfo"]


def test_metadata_changed_later_keeps_the_time_of_enablement(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(protocol_=features("inCommitTimestamp"))
    bench.commit(info("SET TBLPROPERTIES"), metadata(configuration=ICT))
    noted = bench.open().snapshot.metadata
    bench.commit(info("SET TBLPROPERTIES"), replace(noted, description="new"))
    assert bench.open().snapshot.metadata.configuration == noted.configuration


def test_stock_reads_and_travels_a_table_with_in_commit_timestamps(
    catalog: Catalog, table_uri: TableUri, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    _plain_table(plain, features("inCommitTimestamp"), configuration=ICT)
    uri = table_uri("t", location=str(plain))
    import_table(str(plain), uri)
    write_deltalake(uri, ids(2), mode="append")
    DeltaTable(uri).delete("id = 1")
    table = DeltaTable(uri)
    assert ids_of(table) == [2]
    first = json.loads((plain / "_delta_log" / f"{2:020}.json").read_text().splitlines()[0])
    assert first["commitInfo"]["inCommitTimestamp"] == table.history(1)[0]["timestamp"]
    assert ids_of(deltalake.DeltaTable(str(plain))) == [2]
    assert ids_of(deltalake.DeltaTable(str(plain), version=1)) == [1, 2]


def _plain_table(folder: Path, protocol_: Any, *, configuration: dict[str, str]) -> None:
    """A plain table of one row whose protocol and properties delta-rs would not write itself."""
    deltalake.write_deltalake(str(folder), ids(1), partition_by=None)
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol_.to_dict()
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
        if "commitInfo" in action:
            action["commitInfo"]["inCommitTimestamp"] = action["commitInfo"]["timestamp"]
    actions.sort(key=lambda a: "commitInfo" not in a)
    log.write_text("\n".join(json.dumps(a) for a in actions))


# ---- rules on one commit --------------------------------------------------------------------------


FORBIDDEN: list[list[Any]] = [
    [metadata(), metadata(description="2")],
    [protocol(), protocol(min_writer_version=3)],
    [file("x"), file("x")],
    [file("x%20y"), file("x y")],
    [gone("a1"), gone("a1")],
    [file("../x")],
    [file("%2E%2E/x")],
    [file("day=1/../../x")],
    [file("")],
    [protocol(min_reader_version=4)],
    [protocol(min_writer_version=8)],
    [protocol(min_reader_version=3, min_writer_version=7, writer_features=("x",), reader_features=("x",))],
    [features("clustering")],
    [features("identityColumns"), file("x")],
    [protocol(min_writer_version=6), file("x")],
]


def test_a_commit_that_the_protocol_forbids_is_refused(bench: Bench) -> None:
    for actions in FORBIDDEN:
        with pytest.raises(ProtocolError) as caught:
            bench.commit(info("BAD"), *actions)
        assert isinstance(caught.value, DeltaProtocolError)
    assert bench.open().snapshot.version == 0
    assert bench.open().table.head.num_files == 5


def test_a_feature_for_other_engines_can_be_named_and_then_ends_writing_here(bench: Bench) -> None:
    assert isinstance(bench.commit(info("ADD FEATURE"), features("identityColumns")), Committed)
    with pytest.raises(UnsupportedFeatureError, match="identityColumns"):
        bench.commit(info("WRITE"), file("x"))


@pytest.mark.parametrize("actions", [[metadata()], [protocol()], [file("x")], []])
def test_version_0_carries_protocol_and_metadata(
    database: Database, tmp_path: Path, actions: list[Any]
) -> None:
    new = NewTable("t", str(tmp_path / "t"))
    with pytest.raises(ProtocolError):
        commit(database, [TableChange(new, [info("CREATE"), *actions], reads=NOTHING)])
    with pytest.raises(DeltaError):
        snapshots.open_table(database, "t")


def test_a_file_removed_and_added_in_one_commit_is_there_afterwards(bench: Bench) -> None:
    outcome = bench.commit(info("REWRITE"), file("a1"), gone("a1"))
    assert isinstance(outcome, Committed)
    assert bench.open().table.head.num_files == 5


def test_the_same_table_twice_in_one_commit_is_refused(bench: Bench) -> None:
    changes = [bench.change(info("A"), file("x"), reads=NOTHING), bench.change(info("B"), file("y"))]
    with pytest.raises(InvalidArgumentError):
        commit(bench.database, changes)
    assert bench.open().snapshot.version == 0


def test_two_new_tables_of_one_name_or_place_are_refused(database: Database, tmp_path: Path) -> None:
    actions: list[Any] = [info("CREATE"), protocol(), metadata()]

    def new(name: str, place: str) -> TableChange:
        return TableChange(NewTable(name, str(tmp_path / place)), actions, reads=NOTHING)

    for second in (new("t", "elsewhere"), new("u", "t")):
        with pytest.raises(TableExistsError):
            commit(database, [new("t", "t"), second])
    with pytest.raises(DeltaError):
        snapshots.open_table(database, "t")


def test_nothing_to_commit_is_refused(database: Database) -> None:
    with pytest.raises(InvalidArgumentError):
        commit(database, [])


def test_the_commit_info_tells_what_the_commit_knows(bench: Bench) -> None:
    bench.commit(info("WRITE", custom="kept", isBlindAppend=False), file("x"), reads=NOTHING)
    bench.commit(info("DELETE"), gone("x"))
    blind, other = (first_action(bench, v)["commitInfo"] for v in (1, 2))
    assert blind["isBlindAppend"] is True
    assert other["isBlindAppend"] is False
    assert (blind["readVersion"], other["readVersion"]) == (0, 1)
    assert blind["isolationLevel"] == other["isolationLevel"] == "Serializable"
    assert blind["custom"] == "kept"
    assert blind["txnId"] != other["txnId"]
    assert blind["engineInfo"].startswith("deltalakedb:")


def test_unknown_fields_of_actions_reach_the_log(bench: Bench) -> None:
    added = Add.from_dict({**file("x").to_dict(), "invented": {"a": [1]}})
    bench.commit(info("WRITE"), added, reads=NOTHING)
    lines = commits.commit_bytes(bench.database, bench.open().table, 1).splitlines()
    assert json.loads(lines[1])["add"]["invented"] == {"a": [1]}


# ---- append-only --------------------------------------------------------------------------


def test_an_append_only_table_loses_no_row(catalog: Catalog, table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1, 2), configuration={"delta.appendOnly": "true"})

    def merge() -> None:
        merger = DeltaTable(uri).merge(ids(1), "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_delete().execute()

    def inside() -> None:
        with catalog.transaction() as tx:
            tx.write("t", ids(5))
            tx.write("t", ids(6), mode="overwrite")

    before = files_below(root_of(DeltaTable(uri)))
    for way in (
        lambda: DeltaTable(uri).delete("id = 1"),
        lambda: DeltaTable(uri).delete(),
        lambda: DeltaTable(uri).update({"id": "9"}),
        lambda: write_deltalake(uri, ids(3), mode="overwrite"),
        lambda: write_deltalake(uri, ids(1), mode="overwrite", predicate="id = 1"),
        lambda: catalog.table("t").delete("id < 5"),
        merge,
        inside,
    ):
        with pytest.raises(DeltaError):
            way()
        assert DeltaTable(uri).version() == 0
        assert files_below(root_of(DeltaTable(uri))) == before
    write_deltalake(uri, ids(3), mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2, 3]


def test_an_append_only_table_may_be_compacted(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(metadata_=metadata(configuration={"delta.appendOnly": "true"}))
    with pytest.raises(ProtocolError):
        bench.commit(info("DELETE"), gone("a1"))
    outcome = bench.commit(info("OPTIMIZE"), gone("a1", data_change=False), file("a3", data_change=False))
    assert isinstance(outcome, Committed)


def test_switching_append_only_off_does_not_delete_in_the_same_breath(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(metadata_=metadata(configuration={"delta.appendOnly": "true"}))
    with pytest.raises(ProtocolError):
        bench.commit(info("SNEAK"), metadata(configuration={}), gone("a1"))


# ---- constraints --------------------------------------------------------------------------


def _schema(field: dict[str, Any], **extra: Any) -> str:
    other = {"name": "part", "type": "string", "nullable": True, "metadata": {}}
    first = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [{**first, **field}, other], **extra})


CONSTRAINED: list[Any] = [
    pytest.param(
        protocol(min_writer_version=3),
        {"delta.constraints.positive": "id > 0"},
        {},
        ids(-1),
        id="check",
    ),
    pytest.param(
        protocol(min_writer_version=2),
        {},
        {"nullable": False},
        pa.table({"id": pa.array([None], pa.int64()), "part": ["a"]}),
        id="not null",
    ),
    pytest.param(
        protocol(min_writer_version=2),
        {},
        {"metadata": {"delta.invariants": '{"expression":{"expression":"id > 0"}}'}},
        ids(-1),
        id="invariant",
    ),
]


@pytest.mark.parametrize(("protocol_", "configuration", "field", "bad"), CONSTRAINED)
def test_no_way_of_writing_slips_past_a_constraint(
    catalog: Catalog,
    table_uri: TableUri,
    tmp_path: Path,
    protocol_: Any,
    configuration: dict[str, str],
    field: dict[str, Any],
    bad: pa.Table,
) -> None:
    uri = _constrained(table_uri, tmp_path, protocol_, configuration, field)
    write_deltalake(uri, ids(1, 2), mode="append")
    before = files_below(root_of(DeltaTable(uri)))
    value = "CAST(NULL AS BIGINT)" if bad["id"][0].as_py() is None else "-5"

    def merge(*, update: bool) -> None:
        source = pa.table({"key": pa.array([1 if update else 77], pa.int64()), "bad": bad["id"]})
        merger = DeltaTable(uri).merge(source, "t.id = s.key", source_alias="s", target_alias="t")
        if update:
            merger.when_matched_update({"id": "s.bad"}).execute()
        else:
            merger.when_not_matched_insert({"id": "s.bad", "part": "'a'"}).execute()

    def inside() -> None:
        with catalog.transaction() as tx:
            tx.write("t", ids(5))
            tx.write("t", bad)

    for way in (
        lambda: write_deltalake(uri, bad, mode="append"),
        lambda: write_deltalake(uri, bad, mode="overwrite"),
        lambda: write_deltalake(uri, bad, mode="overwrite", predicate="id = 1"),
        lambda: deltalake.write_deltalake(DeltaTable(uri), bad, mode="append"),
        lambda: DeltaTable(uri).update({"id": value}),
        lambda: merge(update=True),
        lambda: merge(update=False),
        inside,
    ):
        with pytest.raises(Exception):  # noqa: B017 - delta-rs has many classes for this
            way()
        assert ids_of(DeltaTable(uri)) == [1, 2]
        assert files_below(root_of(DeltaTable(uri))) == before


def _constrained(
    table_uri: TableUri,
    tmp_path: Path,
    protocol_: Any,
    configuration: dict[str, str],
    field: dict[str, Any],
) -> str:
    """An empty plain table with a constraint, taken over into the catalog."""
    plain = tmp_path / "plain"
    log = plain / "_delta_log"
    log.mkdir(parents=True)
    meta = metadata(schema_string=_schema(field), partition_columns=(), configuration=configuration)
    lines = [{"protocol": protocol_.to_dict()}, {"metaData": meta.to_dict()}]
    (log / f"{0:020}.json").write_text("\n".join(json.dumps(line) for line in lines))
    uri = table_uri("t", location=str(plain))
    import_table(str(plain), uri)
    return uri


def test_generated_columns_are_computed_and_a_wrong_value_is_refused(
    table_uri: TableUri, tmp_path: Path
) -> None:
    uri = _generated(table_uri, tmp_path)
    good = pa.table({"id": pa.array([1, 2], pa.int64()), "double": pa.array([2, 4], pa.int64())})
    write_deltalake(uri, good, mode="append")
    wrong = pa.table({"id": pa.array([3], pa.int64()), "double": pa.array([7], pa.int64())})
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception):  # noqa: B017
            write_deltalake(uri, wrong, mode=mode)
    missing = pa.table({"id": pa.array([5], pa.int64())})
    with contextlib.suppress(Exception):  # refused is right too, wrong rows are not
        write_deltalake(uri, missing, mode="append")
    rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert all(r["double"] == 2 * r["id"] for r in rows), rows


def _generated(table_uri: TableUri, tmp_path: Path) -> str:
    plain = tmp_path / "plain"
    (plain / "_delta_log").mkdir(parents=True)
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "double",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.generationExpression": "id * 2"},
        },
    ]
    meta = metadata(schema_string=json.dumps({"type": "struct", "fields": fields}), partition_columns=())
    lines = [{"protocol": protocol(min_writer_version=4).to_dict()}, {"metaData": meta.to_dict()}]
    (plain / "_delta_log" / f"{0:020}.json").write_text("\n".join(json.dumps(line) for line in lines))
    uri = table_uri("t", location=str(plain))
    import_table(str(plain), uri)
    return uri


@pytest.mark.parametrize("named", [True, False])
def test_tables_with_identity_columns_are_not_written(
    catalog: Catalog, table_uri: TableUri, tmp_path: Path, named: bool
) -> None:
    identity = {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.identity.allowExplicitInsert": False,
    }
    kind = features("identityColumns") if named else protocol(min_writer_version=6)
    uri = _constrained(table_uri, tmp_path, kind, {}, {"metadata": identity})

    def inside() -> None:
        with catalog.transaction() as tx:
            tx.write("t", ids(1))

    for way in (
        lambda: write_deltalake(uri, ids(1), mode="append"),
        lambda: write_deltalake(uri, ids(1), mode="overwrite"),
        lambda: DeltaTable(uri).delete(),
        inside,
    ):
        with pytest.raises(UnsupportedFeatureError):
            way()
    assert DeltaTable(uri).version() == 0
    assert {n.split("/")[0] for n in files_below(root_of(DeltaTable(uri)))} == {"_delta_log"}


# ---- row tracking --------------------------------------------------------------------------


def _tracked(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(
        protocol_=features("rowTracking", "domainMetadata"),
        metadata_=metadata(configuration={"delta.enableRowTracking": "true"}),
    )


def _intervals(bench: Bench) -> list[tuple[int, int]]:
    """The row ids of every live file, as (first, count)."""
    found = []
    for add in _live(bench):
        assert add.base_row_id is not None
        found.append((add.base_row_id, json.loads(add.stats or "{}")["numRecords"]))
    return sorted(found)


def _live(bench: Bench) -> list[Add]:
    from deltalakedb.catalog.txn_log import SqlTxnLogReader

    return list(SqlTxnLogReader(bench.database, bench.name).files())


def _mark(bench: Bench) -> int:
    opened = bench.open()
    domain = snapshots.domains(bench.database, opened.table, opened.snapshot.version)["delta.rowTracking"]
    return int(json.loads(domain.configuration or "{}")["rowIdHighWaterMark"])


def test_row_ids_rise_above_the_winners_mark(make_bench: Callable[..., Bench]) -> None:
    bench = _tracked(make_bench)
    assert _mark(bench) == 49
    outcome = bench.race(
        [file("w", low=0, high=99)], [file("m", low=0, high=4), file("n", low=0, high=0)], NOTHING
    )
    assert isinstance(outcome, Committed)
    by_path = {a.path: a for a in _live(bench)}
    assert by_path["w"].base_row_id == 50
    assert by_path["m"].base_row_id == 150
    assert by_path["n"].base_row_id == 155
    assert _mark(bench) == 155
    assert [by_path[p].default_row_commit_version for p in ("a1", "w", "m")] == [0, 1, 2]
    lines = commits.commit_bytes(bench.database, bench.open().table, 2).splitlines()
    assert any("domainMetadata" in json.loads(line) for line in lines)


def test_row_ids_never_overlap_under_many_writers(make_bench: Callable[..., Bench]) -> None:
    bench = _tracked(make_bench)
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for n in range(6):
                # all of them read version 0: every commit but the first is rebased
                outcome = bench.commit(
                    info("WRITE"), file(f"w{writer}-{n}", low=0, high=n), at=0, reads=NOTHING
                )
                assert isinstance(outcome, Committed), outcome
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert bench.open().snapshot.version == 24
    expected = 0
    for first, count in _intervals(bench):
        assert first == expected
        expected += count
    assert _mark(bench) == expected - 1


def test_a_rewritten_file_keeps_the_row_ids_that_it_brings(make_bench: Callable[..., Bench]) -> None:
    bench = _tracked(make_bench)
    old = next(a for a in _live(bench) if a.path == "a1")
    bench.commit(info("COMPUTE STATS"), replace(old, data_change=False))
    again = next(a for a in _live(bench) if a.path == "a1")
    assert (again.base_row_id, again.default_row_commit_version) == (old.base_row_id, 0)
    assert _mark(bench) == 49


def test_a_file_that_does_not_tell_its_rows_is_refused_by_row_tracking(
    make_bench: Callable[..., Bench],
) -> None:
    bench = _tracked(make_bench)
    with pytest.raises(ProtocolError):
        bench.commit(info("WRITE"), file("x", stats=None), reads=NOTHING)
    assert bench.open().snapshot.version == 0


def test_rows_of_a_tracked_table_are_appended_and_never_rewritten(
    table_uri: TableUri, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    (plain / "_delta_log").mkdir(parents=True)
    meta = metadata(
        schema_string=_schema({}), partition_columns=(), configuration={"delta.enableRowTracking": "true"}
    )
    lines = [
        {"protocol": features("rowTracking", "domainMetadata").to_dict()},
        {"metaData": meta.to_dict()},
    ]
    (plain / "_delta_log" / f"{0:020}.json").write_text("\n".join(json.dumps(line) for line in lines))
    uri = table_uri("t", location=str(plain))
    import_table(str(plain), uri)
    write_deltalake(uri, ids(1, 2), mode="append")
    write_deltalake(uri, ids(3), mode="append")
    assert sorted(a.base_row_id or 0 for a in open_log(uri).files()) == [0, 2]
    ways: list[Callable[[], Any]] = [
        lambda: DeltaTable(uri).delete("id = 1"),
        lambda: DeltaTable(uri).update({"id": "1"}),
    ]
    for way in ways:
        with pytest.raises(UnsupportedFeatureError):
            way()
    assert ids_of(deltalake.DeltaTable(str(plain))) == [1, 2, 3]


def test_every_action_kind_is_what_the_log_reads_back(bench: Bench) -> None:
    bench.commit(info("ALL"), Txn(app_id="a", version=1), metadata(description="d"), file("x"), gone("a1"))
    found = open_log_actions(bench, 1)
    assert isinstance(found[0], CommitInfo)
    assert sum(isinstance(a, Metadata) for a in found) == 1
    assert {type(a).__name__ for a in found} == {"CommitInfo", "Txn", "Metadata", "Add", "Remove"}


def open_log_actions(bench: Bench, version: int) -> list[Any]:
    from deltalakedb.catalog.txn_log import SqlTxnLogReader

    return list(SqlTxnLogReader(bench.database, bench.name).actions(version))
