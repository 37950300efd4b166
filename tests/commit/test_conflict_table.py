"""Every row of the conflict table, on every engine: what a winner did, what I did, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest
from deltalakedb.metastore import snapshots
from deltalakedb.protocol.actions import DeletionVector, DomainMetadata, Txn
from deltalakedb.protocol.read_set import EVERYTHING, NOTHING, ReadSet
from deltalakedb.protocol.txn_log import Committed, Conflict
from support.actions import info, metadata, protocol
from support.commits import Bench, file, files, gone, where

if TYPE_CHECKING:
    from collections.abc import Callable

DAY1, DAY2, DAY3 = "2024-01-01", "2024-01-02", "2024-01-03"
MINE = file("mine", DAY3, 100, 109)
WRITE_SERIALIZABLE = {"isolation": "WriteSerializable"}


def assert_conflict(outcome: Committed | Conflict, kind: str, *names: str, version: int = 1) -> None:
    """The conflict says what, who and where."""
    assert isinstance(outcome, Conflict), outcome
    assert outcome.kind == kind
    assert outcome.version == version
    assert outcome.operation == "WINNER"
    assert outcome.table == "t"
    assert set(outcome.files) == set(names)
    assert outcome.detail


# ---- adds ----------------------------------------------------------------------------------------------


def test_blind_appends_pass_each_other(bench: Bench) -> None:
    outcome = bench.race([file("w")], [MINE], NOTHING)
    assert outcome == Committed(2, outcome.committed_at)  # type: ignore[union-attr]


def test_a_blind_append_passes_any_number_of_winners(bench: Bench) -> None:
    for n in range(5):
        bench.commit(info("WRITE"), file(f"w{n}"), reads=NOTHING)
    bench.commit(info("DELETE"), gone("a1"))
    outcome = bench.commit(info("WRITE"), MINE, at=0, reads=NOTHING)
    assert isinstance(outcome, Committed)
    assert outcome.version == 7


#: what a winner adds, what I read, and whether the two meet
MEETINGS: list[tuple[Any, str, bool]] = [
    # by partition
    (file("w", DAY2, 0, 9), f"day = '{DAY1}'", False),
    (file("w", DAY1, 0, 9), f"day = '{DAY1}'", True),
    (file("w", None, 0, 9), f"day = '{DAY1}'", False),
    (file("w", None, 0, 9), "day IS NULL", True),
    (file("w", DAY1, 0, 9), "day IS NULL", False),
    (file("w", DAY3, 0, 9), f"day IN ('{DAY1}', '{DAY2}')", False),
    (file("w", DAY2, 0, 9), f"day IN ('{DAY1}', '{DAY2}')", True),
    (file("w", DAY2, 0, 9), f"day <> '{DAY2}'", False),
    (file("w", DAY3, 0, 9), f"day > '{DAY2}'", True),
    # by statistics
    (file("w", DAY1, 50, 59), "id = 5", False),
    (file("w", DAY1, 0, 59), "id = 5", True),
    (file("w", DAY1, 6, 59), "id <= 5", False),
    (file("w", DAY1, 5, 59), "id <= 5", True),
    (file("w", DAY1, 5, 59), "id < 5", False),
    (file("w", DAY1, 0, 9), "id > 9", False),
    (file("w", DAY1, 0, 9), "id >= 9", True),
    (file("w", DAY1, 0, 9), "id IS NULL", False),
    (file("w", DAY1, 0, 9), "id BETWEEN 10 AND 20", False),
    (file("w", DAY1, 0, 9), "id NOT BETWEEN 0 AND 9", False),
    (file("w", DAY1, 0, 9), "id BETWEEN 9 AND 20", True),
    # by both
    (file("w", DAY1, 50, 59), f"day = '{DAY1}' AND id < 10", False),
    (file("w", DAY2, 0, 9), f"day = '{DAY1}' AND id < 10", False),
    (file("w", DAY1, 0, 9), f"day = '{DAY1}' AND id < 10", True),
    (file("w", DAY2, 50, 59), f"day = '{DAY1}' OR id < 10", False),
    (file("w", DAY2, 0, 59), f"day = '{DAY1}' OR id < 10", True),
    # what cannot be known must be feared
    (file("w", DAY1, stats=None), "id = 5", True),
    (file("w", DAY2, stats=None), f"day = '{DAY1}' AND id = 5", False),
    (file("w", DAY1, stats='{"numRecords":3}'), "id = 5", True),
    (file("w", DAY1, 50, 59), "abs(id) = 5", True),
]


def test_an_add_conflicts_where_my_predicate_could_match_it(bench: Bench) -> None:
    for number, (added, predicate, meets) in enumerate(MEETINGS):
        read = bench.open().snapshot.version
        winner = bench.commit(info("WINNER"), replace(added, path=f"w{number}"), reads=NOTHING)
        assert isinstance(winner, Committed)
        mine = replace(MINE, path=f"mine{number}")
        outcome = bench.commit(info("MINE"), mine, at=read, reads=where(predicate))
        if meets:
            assert isinstance(outcome, Conflict), predicate
            assert_conflict(outcome, "concurrent_append", f"w{number}", version=winner.version)
        else:
            assert isinstance(outcome, Committed), predicate


def test_one_of_several_predicates_is_enough(bench: Bench) -> None:
    reads = where("id = 500") | where(f"day = '{DAY2}'")
    assert_conflict(bench.race([file("w", DAY2)], [MINE], reads), "concurrent_append", "w")


def test_any_add_conflicts_with_a_read_of_the_whole_table(bench: Bench) -> None:
    assert_conflict(bench.race([file("w")], [MINE], EVERYTHING), "concurrent_append", "w")


def test_an_add_that_was_removed_again_counts_still(bench: Bench) -> None:
    bench.commit(info("WINNER"), file("w", DAY1), reads=NOTHING)
    bench.commit(info("DELETE"), gone("w"))
    outcome = bench.commit(info("MINE"), MINE, at=0, reads=where(f"day = '{DAY1}'"))
    # at least it must not pass for a read that saw what the head shows: no row of the day changed in the end
    assert isinstance(outcome, Committed) or outcome.kind in ("concurrent_append", "concurrent_delete_read")


def test_the_first_winner_is_named_although_others_follow(bench: Bench) -> None:
    bench.commit(info("OTHER"), file("x", DAY2), reads=NOTHING)
    bench.commit(info("WINNER"), file("w", DAY1), file("w2", DAY1), reads=NOTHING)
    bench.commit(info("LATER"), file("z", DAY1), reads=NOTHING)
    outcome = bench.commit(info("MINE"), MINE, at=0, reads=where(f"day = '{DAY1}'"))
    assert_conflict(outcome, "concurrent_append", "w", "w2", version=2)


# ---- WriteSerializable ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [EVERYTHING, where(f"day = '{DAY1}'"), where("id < 10")])
def test_write_serializable_lets_blind_appends_of_others_pass(bench: Bench, reads: ReadSet) -> None:
    outcome = bench.race([file("w", DAY1, 0, 9)], [MINE], reads, **WRITE_SERIALIZABLE)
    assert isinstance(outcome, Committed), outcome


def test_write_serializable_stops_for_blind_appends_where_metadata_changes(bench: Bench) -> None:
    mine = metadata(configuration={"delta.constraints.small": "id < 5"})
    outcome = bench.race([file("x")], [mine], EVERYTHING, **WRITE_SERIALIZABLE)
    assert_conflict(outcome, "concurrent_append", "x")


def test_a_compaction_beside_new_metadata_does_not_lower_the_guard(bench: Bench) -> None:
    compacted = [gone("a1", data_change=False), file("c1", data_change=False)]
    mine = metadata(configuration={"delta.constraints.small": "id < 5"})
    outcome = bench.race([file("x")], [mine, *compacted], EVERYTHING)
    assert_conflict(outcome, "concurrent_append", "x")


def test_write_serializable_stops_for_adds_that_were_not_blind(bench: Bench) -> None:
    outcome = bench.race(
        [gone("b1", DAY2), file("w", DAY1)], [MINE], where(f"day = '{DAY1}'"), **WRITE_SERIALIZABLE
    )
    assert_conflict(outcome, "concurrent_append", "w")


def test_write_serializable_stops_for_removed_files(bench: Bench) -> None:
    outcome = bench.race([gone("a1")], [MINE], files("a1"), **WRITE_SERIALIZABLE)
    assert_conflict(outcome, "concurrent_delete_read", "a1")


@pytest.mark.parametrize(
    ("level", "passes"),
    [("WriteSerializable", True), ("writeserializable", True), ("Serializable", False), (None, False)],
)
def test_the_table_property_sets_the_level(
    make_bench: Callable[..., Bench], level: str | None, passes: bool
) -> None:
    configuration = {} if level is None else {"delta.isolationLevel": level}
    bench = make_bench(metadata_=metadata(configuration=configuration))
    outcome = bench.race([file("w")], [MINE], EVERYTHING)
    assert isinstance(outcome, Committed) is passes


def test_the_caller_may_ask_for_more_than_the_table_property(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(metadata_=metadata(configuration={"delta.isolationLevel": "WriteSerializable"}))
    outcome = bench.race([file("w")], [MINE], EVERYTHING, isolation="Serializable")
    assert_conflict(outcome, "concurrent_append", "w")


# ---- removes -------------------------------------------------------------------------------------------


def test_a_removed_file_conflicts_with_having_read_it(bench: Bench) -> None:
    assert_conflict(bench.race([gone("a1")], [MINE], files("a1")), "concurrent_delete_read", "a1")


def test_a_removed_file_that_i_did_not_read_is_no_conflict(bench: Bench) -> None:
    assert isinstance(bench.race([gone("a1")], [MINE], files("a2", "b1")), Committed)


def test_a_removed_file_conflicts_with_having_read_the_whole_table(bench: Bench) -> None:
    assert_conflict(bench.race([gone("b2", DAY2)], [MINE], EVERYTHING), "concurrent_delete_read", "b2")


def test_a_removal_without_data_change_conflicts_with_reads_too(bench: Bench) -> None:
    compaction: list[Any] = [
        gone("a1", data_change=False),
        gone("a2", data_change=False),
        file("a3", DAY1, 0, 19, data_change=False),
    ]
    outcome = bench.race(compaction, [MINE], files("a2"))
    assert_conflict(outcome, "concurrent_delete_read", "a2")


def test_two_who_remove_the_same_file_conflict(bench: Bench) -> None:
    outcome = bench.race([gone("a1")], [gone("a1")], files("a1"))
    assert_conflict(outcome, "concurrent_delete_delete", "a1")


def test_two_who_remove_different_files_pass(bench: Bench) -> None:
    assert isinstance(bench.race([gone("a1")], [gone("a2")], files("a2")), Committed)


def test_many_files_are_all_looked_at(make_bench: Callable[..., Bench]) -> None:
    names = [f"f{n:04}" for n in range(1201)]
    bench = make_bench(adds=[file(n) for n in names])
    outcome = bench.race([gone(names[-1])], [gone(n) for n in names], files(*names))
    assert_conflict(outcome, "concurrent_delete_delete", names[-1])


def test_the_spelling_of_a_path_does_not_hide_a_removed_file(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(adds=[file("day=a%20b/x.parquet")])
    outcome = bench.race([gone("day=a%20b/x.parquet")], [gone("day=a b/x.parquet")], NOTHING)
    assert_conflict(outcome, "concurrent_delete_delete", "day=a%20b/x.parquet")


@pytest.mark.parametrize(
    "path", ["day=a%20b/x.parquet", "day=a%2520b/x.parquet", "day=%25/x.parquet", "a%FF"]
)
def test_a_removed_file_with_an_encoded_path_conflicts_with_having_read_it(
    make_bench: Callable[..., Bench], path: str
) -> None:
    bench = make_bench(adds=[file(path)])
    assert_conflict(bench.race([gone(path)], [MINE], files(path)), "concurrent_delete_read", path)


def test_paths_are_decoded_once(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(adds=[file("day=a%2520b/x.parquet"), file("day=a%20b/x.parquet")])
    outcome = bench.race([gone("day=a%20b/x.parquet")], [MINE], files("day=a%2520b/x.parquet"))
    assert isinstance(outcome, Committed)


def test_removes_do_not_stop_a_blind_append(bench: Bench) -> None:
    assert isinstance(bench.race([gone("a1"), gone("a2")], [MINE], NOTHING), Committed)


def test_a_deletion_vector_on_a_file_conflicts_with_having_read_it(bench: Bench) -> None:
    vector = replace(file("a1"), deletion_vector=_vector())
    outcome = bench.race([gone("a1"), vector], [gone("a1")], files("a1"))
    assert_conflict(outcome, "concurrent_delete_delete", "a1")


def _vector() -> Any:
    inline = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    return DeletionVector(storage_type="i", path_or_inline_dv=inline, size_in_bytes=40, cardinality=6)


# ---- commits without data change -----------------------------------------------------------------------


def _compaction() -> list[Any]:
    return [
        gone("a1", data_change=False),
        gone("a2", data_change=False),
        file("a3", DAY1, 0, 19, data_change=False),
    ]


@pytest.mark.parametrize(
    "winner", [[file("w", DAY1)], [gone("b1", DAY2)], [gone("b1", DAY2), file("w", DAY1)]]
)
def test_a_compaction_passes_all_that_leaves_its_files_alone(bench: Bench, winner: list[Any]) -> None:
    assert isinstance(bench.race(winner, _compaction(), EVERYTHING), Committed)


def test_a_compaction_stops_where_one_of_its_files_is_gone(bench: Bench) -> None:
    outcome = bench.race([gone("a2")], _compaction(), EVERYTHING)
    assert_conflict(outcome, "concurrent_delete_delete", "a2")


def test_a_compaction_that_won_stops_a_delete_of_its_files(bench: Bench) -> None:
    outcome = bench.race(_compaction(), [gone("a1"), file("m", DAY1)], files("a1"))
    assert_conflict(outcome, "concurrent_delete_delete", "a1")


def test_statistics_written_anew_do_not_bring_a_removed_file_back(bench: Bench) -> None:
    again = file("a1", DAY1, 0, 9, data_change=False)
    outcome = bench.race([gone("a1")], [again], files("a1"))
    assert isinstance(outcome, Conflict), "the deleted rows are back"
    assert outcome.kind in ("concurrent_delete_delete", "concurrent_delete_read")
    assert outcome.files == ("a1",)


def test_statistics_written_anew_pass_a_blind_append(bench: Bench) -> None:
    again = file("a1", DAY1, 0, 9, data_change=False)
    assert isinstance(bench.race([file("w")], [again], files("a1")), Committed)


def test_a_file_that_was_added_again_is_removed_by_a_later_delete(bench: Bench) -> None:
    bench.commit(info("COMPUTE STATS"), file("a1", DAY1, 0, 8, data_change=False))
    outcome = bench.commit(info("DELETE"), gone("a1"))
    assert isinstance(outcome, Committed)
    assert bench.open().table.head.num_files == 4


def test_a_removed_file_and_new_statistics_for_it_leave_no_doubt(bench: Bench) -> None:
    """Winner writes statistics anew, I remove the file: either I am stopped, or it is gone for good."""
    outcome = bench.race([file("a1", DAY1, 0, 8, data_change=False)], [gone("a1")], files("a1"))
    live = bench.open().table.head.num_files
    assert live == (5 if isinstance(outcome, Conflict) else 4)


# ---- metadata and protocol -----------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [NOTHING, EVERYTHING, files("a1")])
def test_changed_metadata_stops_everybody(bench: Bench, reads: ReadSet) -> None:
    outcome = bench.race([metadata(description="new")], [MINE], reads)
    assert_conflict(outcome, "metadata_changed")


def test_changed_metadata_stops_a_change_of_metadata(bench: Bench) -> None:
    outcome = bench.race([metadata(description="new")], [metadata(description="mine")], EVERYTHING)
    assert_conflict(outcome, "metadata_changed")


def test_changed_metadata_stops_a_compaction(bench: Bench) -> None:
    outcome = bench.race([metadata(description="new")], _compaction(), EVERYTHING)
    assert_conflict(outcome, "metadata_changed")


def test_my_metadata_passes_a_winner_who_only_appended_if_i_read_nothing(bench: Bench) -> None:
    outcome = bench.race([file("w")], [metadata(description="mine")], NOTHING)
    assert isinstance(outcome, Committed)


FEATURES = {"min_reader_version": 3, "min_writer_version": 7, "reader_features": ("deletionVectors",)}


def _features(*names: str) -> Any:
    return protocol(**FEATURES, writer_features=("deletionVectors", *names))


def test_an_added_feature_does_not_stop_others(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(protocol_=_features("appendOnly"))
    outcome = bench.race([_features("appendOnly", "changeDataFeed")], [MINE], NOTHING)
    assert isinstance(outcome, Committed), outcome


def test_an_upgrade_from_versions_to_features_does_not_stop_others(bench: Bench) -> None:
    outcome = bench.race([_features("appendOnly", "invariants")], [MINE], NOTHING)
    assert isinstance(outcome, Committed), outcome


def test_a_dropped_feature_stops_everybody(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(protocol_=_features("appendOnly", "changeDataFeed"))
    assert_conflict(bench.race([_features("appendOnly")], [MINE], NOTHING), "protocol_changed")


def test_two_changes_of_the_protocol_conflict(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(protocol_=_features("appendOnly"))
    outcome = bench.race(
        [_features("appendOnly", "changeDataFeed")], [_features("appendOnly", "checkConstraints")], EVERYTHING
    )
    assert_conflict(outcome, "protocol_changed")


def test_a_feature_that_the_winner_added_must_be_known_to_my_commit(bench: Bench) -> None:
    """A blind append on top of a protocol that we cannot write is refused, not committed."""
    bench.commit(info("WINNER"), _features("appendOnly", "invariants"))
    outcome = bench.commit(info("MINE"), MINE, at=0, reads=NOTHING)
    assert isinstance(outcome, Committed)


# ---- names ---------------------------------------------------------------------------------------------


def test_the_same_application_conflicts(bench: Bench) -> None:
    outcome = bench.race([Txn(app_id="app", version=1)], [Txn(app_id="app", version=2), MINE], NOTHING)
    assert_conflict(outcome, "concurrent_transaction")


def test_another_application_does_not_conflict(bench: Bench) -> None:
    outcome = bench.race([Txn(app_id="app", version=1)], [Txn(app_id="App", version=1), MINE], NOTHING)
    assert isinstance(outcome, Committed)
    txns = snapshots.txns(bench.database, bench.open().table, 2)
    assert {a: t.version for a, t in txns.items()} == {"app": 1, "App": 1}


def _domain(name: str, value: str = "{}", *, removed: bool = False) -> DomainMetadata:
    return DomainMetadata(domain=name, configuration=value, removed=removed)


def _domains(bench: Bench) -> None:
    bench.commit(info("UPGRADE"), _features("appendOnly", "domainMetadata"))


def test_the_same_domain_conflicts(bench: Bench) -> None:
    _domains(bench)
    outcome = bench.race([_domain("x", "1")], [_domain("x", "2")], NOTHING)
    assert_conflict(outcome, "concurrent_domain", version=2)


def test_a_removed_domain_conflicts_with_a_new_value(bench: Bench) -> None:
    _domains(bench)
    bench.commit(info("SET"), _domain("x", "0"))
    outcome = bench.race([_domain("x", removed=True)], [_domain("x", "2")], NOTHING)
    assert_conflict(outcome, "concurrent_domain", version=3)


def test_another_domain_does_not_conflict(bench: Bench) -> None:
    _domains(bench)
    assert isinstance(bench.race([_domain("x", "1")], [_domain("y", "2")], NOTHING), Committed)
    found = snapshots.domains(bench.database, bench.open().table, 3)
    assert {d: v.configuration for d, v in found.items()} == {"x": "1", "y": "2"}


# ---- several versions and several tables in one commit -------------------------------------------------


def test_a_later_version_of_a_change_is_checked_like_its_first(bench: Bench) -> None:
    """What a second step removes, names or changes is at stake as much."""
    steps: list[tuple[list[Any], list[Any], str]] = [
        ([gone("a1")], [gone("a1")], "concurrent_delete_delete"),
        ([Txn(app_id="app", version=1)], [Txn(app_id="app", version=2)], "concurrent_transaction"),
        ([_features("appendOnly", "invariants")], [_features("appendOnly", "invariants", "changeDataFeed")],
         "protocol_changed"),
    ]  # fmt: skip
    for winner, second, kind in steps:
        read = bench.open().snapshot.version
        bench.commit(info("WINNER"), *winner)
        outcome = bench.commit(info("MINE"), MINE, at=read, reads=NOTHING, then=[[info("MINE"), *second]])
        assert isinstance(outcome, Conflict), kind
        assert outcome.kind == kind


def test_a_compaction_before_a_delete_does_not_lower_the_guard(bench: Bench) -> None:
    """Snapshot isolation is for commits that change no data in any of their versions."""
    read = bench.open().snapshot.version
    bench.commit(info("WINNER"), file("w", DAY2), reads=NOTHING)
    outcome = bench.commit(
        info("OPTIMIZE"),
        *_compaction(),
        at=read,
        reads=where(f"day = '{DAY2}'"),
        then=[[info("DELETE"), gone("b1", DAY2)]],
    )
    assert_conflict(outcome, "concurrent_append", "w")


def test_a_table_that_was_only_read_takes_part_in_the_check(make_bench: Callable[..., Bench]) -> None:
    first, second = make_bench("t"), make_bench("u")
    mine = [first.change(reads=where(f"day = '{DAY1}'")), second.change(info("MINE"), MINE, reads=NOTHING)]
    first.commit(info("WINNER"), file("w", DAY1), reads=NOTHING)
    outcome = commit(first.database, CommitRequest(mine))
    assert isinstance(outcome, Conflict)
    assert (outcome.kind, outcome.table) == ("concurrent_append", "t")
    assert second.open().snapshot.version == 0


def test_a_table_that_was_only_read_gets_no_version(make_bench: Callable[..., Bench]) -> None:
    first, second = make_bench("t"), make_bench("u")
    mine = [first.change(), second.change(info("MINE"), MINE, reads=NOTHING)]
    outcome = commit(first.database, CommitRequest(mine))
    assert isinstance(outcome, list)
    assert [c.version for c in outcome] == [0, 1]
    assert first.open().snapshot.version == 0


def test_one_conflict_stops_all_tables(make_bench: Callable[..., Bench]) -> None:
    tables = [make_bench(name) for name in ("t", "u", "v")]
    mine = [t.change(info("MINE"), MINE, gone("a1"), reads=files("a1")) for t in tables]
    tables[2].commit(info("WINNER"), gone("a1"))
    outcome = commit(tables[0].database, CommitRequest(mine))
    assert isinstance(outcome, Conflict)
    assert outcome.table == "v"
    assert [t.open().snapshot.version for t in tables] == [0, 0, 1]
    assert all(t.open().table.head.num_files == n for t, n in zip(tables, (5, 5, 4), strict=True))
