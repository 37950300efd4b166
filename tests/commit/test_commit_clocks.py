"""Versions and times of commits: by one and upwards, whatever the clock does."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, DeltaTable, import_table, write_deltalake
from deltalakedb.metastore import commits
from deltalakedb.metastore.engines.base import Session
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.txn_log import Committed
from support.actions import features, info, metadata
from support.commits import Bench, file, first_action
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The database's clock: what is in the list is the time."""
    now = [1_800_000_000_000]
    # each engine may have a clock of its own
    importlib.import_module("deltalakedb.metastore.engines.postgres")
    for kind in (Session, *Session.__subclasses__()):
        monkeypatch.setattr(kind, "now_ms", lambda self: now[0])
    return now


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


ICT = {"delta.enableInCommitTimestamps": "true"}


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


def test_metadata_changed_again_in_the_same_transaction_keeps_it_too(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(protocol_=features("inCommitTimestamp"))
    more = metadata(configuration={**ICT, "delta.appendOnly": "true"})
    done = bench.commit(
        info("SET TBLPROPERTIES"), metadata(configuration=ICT), then=[[info("SET TBLPROPERTIES"), more]]
    )
    assert done.version == 2
    first, second = (bench.open(version).snapshot.metadata.configuration for version in (1, 2))
    assert first["delta.inCommitTimestampEnablementVersion"] == "1"
    assert second == {**first, "delta.appendOnly": "true"}


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
