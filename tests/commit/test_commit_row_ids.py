"""Row ids of commits to tables with row tracking: rising, never twice, kept by rewritten files."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import DeltaTable, import_table, open_log, write_deltalake
from deltalakedb.exceptions import (
    ProtocolError,
    UnsupportedFeatureError,
)
from deltalakedb.metastore import commits, snapshots
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.txn_log import Committed
from support.actions import features, info, metadata, schema_with
from support.commits import Bench, file
from support.lake import ids, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.protocol.actions import Add


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
    from deltalakedb.metastore.txn_log import SqlTxnLogReader

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


def test_ids_that_files_bring_are_below_the_mark_ever_after(make_bench: Callable[..., Bench]) -> None:
    bench = _tracked(make_bench)
    brought = replace(file("b", low=0, high=9), base_row_id=100, default_row_commit_version=0)
    bench.commit(info("WRITE"), brought, file("n", low=0, high=4))
    by_path = {a.path: a for a in _live(bench)}
    assert (by_path["b"].base_row_id, by_path["n"].base_row_id) == (100, 110)
    assert _mark(bench) == 114


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
        schema_string=schema_with({}), partition_columns=(), configuration={"delta.enableRowTracking": "true"}
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
