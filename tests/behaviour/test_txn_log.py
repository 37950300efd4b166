"""What every transaction log does, whoever keeps it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.exceptions import (
    DeltaSqlError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionMissingError,
)
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    DeletionVector,
    DomainMetadata,
    Remove,
    Txn,
    UnknownAction,
    encode_commit,
)
from deltalakedb.protocol.txn_log import Committed, Conflict, TxnLogReader, TxnLogWriter
from support.actions import SCHEMA, add, info, metadata, protocol, remove

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import LogBackend


class Log:
    """A log under test: commits that must succeed, and readers that are always fresh."""

    def __init__(self, backend: LogBackend) -> None:
        self.open, self.writer = backend.create()
        self.version = -1

    def commit(self, *actions: Action) -> int:
        outcome = self.writer.commit(self.version + 1, actions)
        assert isinstance(outcome, Committed), outcome
        assert not outcome.replayed
        self.version += 1
        assert outcome.version == self.version
        return self.version

    def start(self, *more: Action, **table: Any) -> Log:
        self.commit(info("CREATE TABLE"), protocol(), metadata(**table), *more)
        return self

    @property
    def reader(self) -> TxnLogReader:
        return self.open()

    def paths(self, version: int | None = None) -> list[str]:
        return sorted(file.path for file in self.reader.files(version))

    def dead(self, version: int | None = None) -> list[str]:
        return sorted(file.path for file in self.reader.tombstones(version))


@pytest.fixture
def log(log_backend: LogBackend) -> Log:
    return Log(log_backend)


#: a UUID as a deletion vector's path encodes it
UUID = "0" * 20


def dv(name: str) -> DeletionVector:
    return DeletionVector(
        storage_type="u", path_or_inline_dv=name + UUID, offset=1, size_in_bytes=34, cardinality=2
    )


def test_readers_and_writers_keep_the_seam(log: Log) -> None:
    log.start()
    assert isinstance(log.reader, TxnLogReader)
    assert isinstance(log.writer, TxnLogWriter)


def test_a_log_without_a_commit_is_no_table(log: Log) -> None:
    for ask in (
        lambda r: r.latest_version(),
        lambda r: r.snapshot(),
        lambda r: r.versions(),
        lambda r: r.history(),
        lambda r: list(r.files()),
    ):
        with pytest.raises(TableNotFoundError):
            ask(log.reader)


def test_version_0_brings_protocol_and_metadata(log: Log) -> None:
    log.start(name="sales", description="all of them", configuration={"delta.appendOnly": "false"})
    snapshot = log.reader.snapshot()
    assert snapshot.version == 0
    assert snapshot.protocol == protocol()
    assert snapshot.metadata == metadata(
        name="sales", description="all of them", configuration={"delta.appendOnly": "false"}
    )
    assert list(log.reader.versions()) == [0]
    assert log.paths() == []
    assert log.dead() == []


def test_appended_files_are_there_from_their_version_on(log: Log) -> None:
    log.start(add("a"))
    log.commit(info("WRITE"), add("b"), add("c"))
    assert [log.paths(0), log.paths(1)] == [["a"], ["a", "b", "c"]]
    assert log.paths() == ["a", "b", "c"]
    assert list(log.reader.versions()) == [0, 1]
    assert log.reader.latest_version() == 1


def test_a_file_comes_back_with_all_it_was_given(log: Log) -> None:
    file = add(
        "day=2024-01-01/a%20b.parquet",
        partition_values={"day": None},
        tags={"ZCUBE": "x", "none": None},
        deletion_vector=dv("ab"),
        base_row_id=40,
        default_row_commit_version=0,
        clustering_provider="liquid",
        stats='{"numRecords":1,"minValues":{"id":12345678901234567890123456789012345678}}',
    )
    log.start(file)
    assert list(log.reader.files()) == [file]


def test_a_removed_file_is_a_tombstone_and_still_there_before(log: Log) -> None:
    log.start(add("a"), add("b"))
    log.commit(info("DELETE"), remove("a"))
    assert [log.paths(0), log.paths(1)] == [["a", "b"], ["b"]]
    assert [log.dead(0), log.dead(1)] == [[], ["a"]]
    assert list(log.reader.tombstones()) == [remove("a")]


def test_a_file_that_is_added_again_is_no_tombstone(log: Log) -> None:
    log.start(add("a"))
    log.commit(info("DELETE"), remove("a"))
    log.commit(info("RESTORE"), add("a", size=5))
    assert [log.paths(v) for v in (0, 1, 2)] == [["a"], [], ["a"]]
    assert [log.dead(v) for v in (0, 1, 2)] == [[], ["a"], []]
    assert [file.size for file in log.reader.files()] == [5]


def test_adding_a_live_file_again_replaces_what_is_known_of_it(log: Log) -> None:
    log.start(add("a", stats=None))
    log.commit(info("COMPUTE STATS"), add("a", data_change=False))
    assert [file.stats is None for file in log.reader.files(0)] == [True]
    assert [file.stats is None for file in log.reader.files(1)] == [False]


def test_a_file_is_its_path_and_its_deletion_vector(log: Log) -> None:
    log.start(add("a"))
    log.commit(info("DELETE"), remove("a"), add("a", deletion_vector=dv("v1")))
    log.commit(info("DELETE"), add("a", deletion_vector=dv("v2")), remove("a", deletion_vector=dv("v1")))
    assert [[f.dv_id for f in log.reader.files(v)] for v in (0, 1, 2)] == [
        [""],
        [f"uv1{UUID}@1"],
        [f"uv2{UUID}@1"],
    ]
    assert sorted(f.dv_id for f in log.reader.tombstones()) == ["", f"uv1{UUID}@1"]


def test_removing_what_was_never_added_leaves_the_files_alone(log: Log) -> None:
    log.start(add("a"))
    log.commit(info("DELETE"), remove("elsewhere"))
    assert log.paths() == ["a"]


def test_metadata_changes_from_its_version_on(log: Log) -> None:
    log.start(add("a"))
    wider = SCHEMA.replace("long", "double")
    log.commit(info("CHANGE COLUMN"), metadata(schema_string=wider, configuration={"x": "1"}))
    log.commit(info("WRITE"), add("b"))
    assert log.reader.snapshot(0).metadata.schema_string == SCHEMA
    for version in (1, 2, None):
        assert log.reader.snapshot(version).metadata.schema_string == wider
        assert dict(log.reader.snapshot(version).metadata.configuration) == {"x": "1"}
    assert log.paths() == ["a", "b"]


def test_the_protocol_changes_from_its_version_on(log: Log) -> None:
    log.start()
    upgraded = protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=("deletionVectors",),
        writer_features=("deletionVectors", "appendOnly"),
    )
    log.commit(info("UPGRADE PROTOCOL"), upgraded)
    assert log.reader.snapshot(0).protocol == protocol()
    assert log.reader.snapshot(1).protocol == upgraded


def test_application_transactions_keep_the_last_version(log: Log) -> None:
    log.start(Txn(app_id="stream", version=7))
    log.commit(info("STREAMING UPDATE"), Txn(app_id="stream", version=9, last_updated=123))
    log.commit(info("WRITE"), Txn(app_id="other", version=0))
    assert {app: txn.version for app, txn in log.reader.txns(0).items()} == {"stream": 7}
    assert dict(log.reader.txns()) == {
        "stream": Txn(app_id="stream", version=9, last_updated=123),
        "other": Txn(app_id="other", version=0),
    }


def test_domains_come_change_and_go(log: Log) -> None:
    log.start(
        DomainMetadata(domain="a", configuration='{"n":1}'), DomainMetadata(domain="b", configuration="x")
    )
    log.commit(info("WRITE"), DomainMetadata(domain="a", configuration='{"n":2}'))
    log.commit(info("WRITE"), DomainMetadata(domain="a", configuration='{"n":2}', removed=True))
    log.commit(info("WRITE"), DomainMetadata(domain="a", configuration="new"))
    domains = [{k: d.configuration for k, d in log.reader.domains(v).items()} for v in range(4)]
    assert domains == [
        {"a": '{"n":1}', "b": "x"},
        {"a": '{"n":2}', "b": "x"},
        {"b": "x"},
        {"a": "new", "b": "x"},
    ]


def test_fields_and_actions_that_nobody_knows_survive(log: Log) -> None:
    odd = {"futureField": {"deep": [1, None, "x"]}, "big": 10**30}
    actions = [
        info("WRITE", custom={"a": [1, 2]}),
        add("a", extra=odd),
        remove("b", extra=odd),
        Txn(app_id="app", version=1, extra=odd),
        DomainMetadata(domain="d", configuration="c", extra=odd),
        Cdc(path="_change_data/c", size=1, extra=odd),
        UnknownAction(kind="futureAction", value={"x": 1}),
    ]
    log.start()
    log.commit(*actions)
    assert list(log.reader.actions(1)) == actions
    assert [file.extra for file in log.reader.files()] == [odd]
    assert [file.extra for file in log.reader.tombstones()] == [odd]
    assert log.reader.txns()["app"].extra == odd
    assert log.reader.domains()["d"].extra == odd
    log.commit(info("SET"), metadata(extra=odd))
    assert log.reader.snapshot().metadata.extra == odd


def test_a_commit_comes_back_byte_for_byte(log: Log) -> None:
    first = [info("CREATE TABLE"), protocol(), metadata()]
    second = [add("ä %20.parquet", stats='{"numRecords":1.0}'), info("WRITE", ratio=0.1, text="Zoë\u2028")]
    log.commit(*first)
    log.commit(*second)
    assert log.reader.commit_bytes(0) == encode_commit(first)
    assert log.reader.commit_bytes(1) == encode_commit(second)
    assert list(log.reader.actions(1)) == second


def test_history_is_newest_first_with_what_writers_said(log: Log) -> None:
    log.start()
    log.commit(info("WRITE", userName="ann"), add("a"))
    log.commit(add("b"))
    history = log.reader.history()
    assert [(c.version, c.operation) for c in history] == [(2, None), (1, "WRITE"), (0, "CREATE TABLE")]
    assert history[1].info == info("WRITE", userName="ann")
    assert [c.version for c in log.reader.history(2)] == [2, 1]
    assert list(log.reader.history(0)) == []
    assert [c.version for c in log.reader.history(99)] == [2, 1, 0]


def test_times_increase_strictly_and_lead_back_to_their_versions(log: Log) -> None:
    log.start()
    for number in range(3):
        log.commit(info("WRITE", timestamp=1_700_000_000_000), add(f"f{number}"))
    times = [commit.committed_at for commit in reversed(log.reader.history())]
    assert times == sorted(set(times))
    for version, time in enumerate(times):
        assert log.reader.version_at(time) == version
        assert log.reader.snapshot(version).timestamp == time
        if version:
            assert log.reader.version_at(time - 1) == version - 1
    assert log.reader.version_at(times[-1] + 10**9) == 3
    with pytest.raises(VersionMissingError) as caught:
        log.reader.version_at(times[0] - 1)
    assert caught.value.suggestion


@pytest.mark.parametrize("version", [-1, 2, 10**12])
@pytest.mark.parametrize(
    "ask",
    [
        lambda r, v: r.snapshot(v),
        lambda r, v: list(r.files(v)),
        lambda r, v: list(r.tombstones(v)),
        lambda r, v: r.txns(v),
        lambda r, v: r.domains(v),
        lambda r, v: r.commit_bytes(v),
        lambda r, v: r.actions(v),
    ],
    ids=["snapshot", "files", "tombstones", "txns", "domains", "commit_bytes", "actions"],
)
def test_a_version_that_does_not_exist_is_a_typed_error(
    log: Log, ask: Callable[[TxnLogReader, int], object], version: int
) -> None:
    log.start()
    log.commit(info("WRITE"), add("a"))
    with pytest.raises(VersionMissingError) as caught:
        ask(log.reader, version)
    assert caught.value.version == version


def test_a_taken_version_is_a_conflict_that_names_the_winner(log: Log) -> None:
    log.start()
    log.commit(info("MERGE"), add("winner"))
    outcome = log.writer.commit(1, [info("WRITE"), add("loser")])
    assert isinstance(outcome, Conflict)
    assert (outcome.kind, outcome.version, outcome.operation) == ("version_taken", 1, "MERGE")
    assert log.paths() == ["winner"]
    assert log.reader.latest_version() == 1


def test_an_older_version_is_taken_too(log: Log) -> None:
    log.start()
    log.commit(info("WRITE"), add("a"))
    outcome = log.writer.commit(0, [info("CREATE TABLE"), protocol(), metadata(id="another")])
    assert isinstance(outcome, Conflict)
    assert log.reader.snapshot(0).metadata == metadata()


def test_committing_the_same_again_finds_the_earlier_success(log: Log) -> None:
    log.start()
    actions = [info("WRITE"), add("a")]
    first = log.writer.commit(1, actions)
    again = log.writer.commit(1, actions)
    assert isinstance(first, Committed)
    assert again == Committed(1, first.committed_at, replayed=True)
    assert log.paths() == ["a"]
    assert log.reader.latest_version() == 1


def test_a_version_cannot_be_skipped(log: Log) -> None:
    with pytest.raises(DeltaSqlError):
        log.writer.commit(1, [info("CREATE TABLE"), protocol(), metadata()])
    log.start()
    with pytest.raises(DeltaSqlError):
        log.writer.commit(2, [info("WRITE"), add("a")])
    with pytest.raises(DeltaSqlError):
        log.writer.commit(-1, [info("WRITE"), add("a")])
    assert list(log.reader.versions()) == [0]


def test_one_of_many_racing_writers_wins_each_version(log: Log) -> None:
    log.start()
    writers = 6
    for version in (1, 2, 3):
        barrier = threading.Barrier(writers)

        def race(
            number: int, version: int = version, barrier: threading.Barrier = barrier
        ) -> Committed | Conflict:
            barrier.wait()
            return log.writer.commit(version, [info("WRITE"), add(f"{version}-{number}")])

        with ThreadPoolExecutor(writers) as pool:
            outcomes = list(pool.map(race, range(writers)))
        won = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(won) == 1
        assert f"{version}-{won[0]}" in log.paths()
    assert len(log.paths()) == 3


def test_an_open_reader_sees_later_commits(log: Log) -> None:
    log.start()
    reader = log.reader
    assert reader.latest_version() == 0
    log.commit(info("WRITE"), add("a"))
    assert reader.latest_version() == 1
    log.commit(info("WRITE"), add("b"))
    assert sorted(file.path for file in reader.files(2)) == ["a", "b"]
    assert reader.snapshot().version == 2
    assert [file.path for file in reader.files(1)] == ["a"]


def test_an_iterator_is_not_disturbed_by_later_questions(log: Log) -> None:
    log.start(*(add(f"f{number}") for number in range(10)))
    log.commit(info("DELETE"), *(remove(f"f{number}") for number in range(10)))
    reader = log.reader
    files = reader.files(0)
    first = next(files)
    assert list(reader.files(1)) == []
    assert len([first, *files]) == 10


def test_a_table_that_needs_an_unknown_reader_feature_is_refused(log: Log) -> None:
    odd = protocol(
        min_reader_version=3, min_writer_version=7, reader_features=("odd",), writer_features=("odd",)
    )
    try:
        log.commit(info("CREATE TABLE"), odd, metadata())
    except UnsupportedFeatureError:
        return  # a log that keeps such a table out altogether is as good
    with pytest.raises(UnsupportedFeatureError):
        log.reader.snapshot()
    with pytest.raises(UnsupportedFeatureError):
        list(log.reader.files())


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from("abcd"), st.sampled_from(["", "v1"]), st.sampled_from(["add", "remove"])
            ),
            min_size=1,
            max_size=4,
            # a commit adds a path once, under one deletion vector
            unique_by=(
                lambda step: (step[0], step[1]),
                lambda step: (step[0], None if step[2] == "add" else step[1]),
            ),
        ),
        max_size=6,
    )
)
def test_every_version_is_what_its_commits_made_of_it(
    log_backend: LogBackend, commits: list[list[tuple[str, str, str]]]
) -> None:
    log = Log(log_backend).start()
    live: set[tuple[str, str]] = set()
    dead: set[tuple[str, str]] = set()
    expected = [(set(live), set(dead))]
    for steps in commits:
        actions: list[Add | Remove] = []
        for path, vector, verb in steps:
            deletion_vector = dv(vector) if vector else None
            key = (path, "" if deletion_vector is None else deletion_vector.unique_id)
            if verb == "add":
                actions.append(add(path, deletion_vector=deletion_vector))
                live.add(key)
                dead.discard(key)
            else:
                actions.append(remove(path, deletion_vector=deletion_vector))
                live.discard(key)
                dead.add(key)
        log.commit(info("WRITE"), *actions)
        expected.append((set(live), set(dead)))
    reader = log.reader
    for version in [*range(len(expected)), *reversed(range(len(expected)))]:
        assert {file.key for file in reader.files(version)} == expected[version][0]
        assert {file.key for file in reader.tombstones(version)} == expected[version][1]
