"""Commits that are asked for twice, or whose answer was lost: one effect, one version, no file too many."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from deltalakedb import Catalog, CommitProperties, DeltaTable, Transaction, telemetry, write_deltalake
from deltalakedb.commit import committer
from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, NewTable, TableChange
from deltalakedb.exceptions import (
    CatalogError,
    CatalogUnavailableError,
    CommitError,
    CommitUnknownError,
    InvalidArgumentError,
    NothingWrittenWarning,
)
from deltalakedb.metastore.engines.postgres import DIALECT, PostgresEngine
from deltalakedb.protocol.actions import Txn
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.txn_log import Committed, Conflict
from support.actions import info, metadata, protocol
from support.commits import Bench, file, gone
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.table.transaction import TransactionResult


def data_files(table: DeltaTable) -> int:
    """How many data files lie under a table's root, live or not."""
    return sum(name.endswith(".parquet") for name in files_below(root_of(table)))


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the next commits happen and their answers vanish; what follows is told by further errors."""

    def lose(*then: Exception) -> None:
        real = committer._attempt
        failures: list[Exception] = [CommitUnknownError("the connection broke"), *then]

        def attempt(*args: Any, **options: Any) -> Any:
            if not failures:
                return real(*args, **options)
            failure = failures.pop(0)
            if isinstance(failure, CommitUnknownError):
                real(*args, **options)
            raise failure

        monkeypatch.setattr(committer, "_attempt", attempt)

    return lose


# ---- the commit's own id ---------------------------------------------------------------------------------


def test_the_same_id_commits_once(bench: Bench) -> None:
    mine, change = str(uuid.uuid4()), bench.change(info("WRITE"), file("x"), reads=NOTHING)
    first = commit(bench.database, CommitRequest([change], txn_id=mine))
    bench.commit(info("WRITE"), file("y"), reads=NOTHING)
    second = commit(bench.database, CommitRequest([change], txn_id=mine))
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert (first[0].version, first[0].replayed) == (1, False)
    assert second == [Committed(1, first[0].committed_at, replayed=True)]
    assert bench.open().snapshot.version == 2


def test_the_same_id_finds_its_success_although_it_would_conflict_now(bench: Bench) -> None:
    mine, change = str(uuid.uuid4()), bench.change(info("DELETE"), gone("a1"))
    first = commit(bench.database, CommitRequest([change], txn_id=mine))
    bench.commit(info("WRITE"), metadata(description="other"))
    second = commit(bench.database, CommitRequest([change], txn_id=mine))
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert second[0].version == first[0].version == 1


def test_the_same_id_finds_a_table_that_it_made(database: Database, tmp_path: Path) -> None:
    new = NewTable("t", str(tmp_path / "t"))
    change = TableChange(new, [[info("CREATE TABLE"), protocol(), metadata()]], reads=NOTHING)
    mine = str(uuid.uuid4())
    assert isinstance(commit(database, CommitRequest([change], txn_id=mine)), list)
    again = commit(database, CommitRequest([change], txn_id=mine))
    assert isinstance(again, list)
    assert (again[0].version, again[0].replayed) == (0, True)


def test_the_same_id_answers_for_every_table_and_the_last_of_several_versions(
    make_bench: Callable[..., Bench],
) -> None:
    tables = [make_bench(n) for n in ("t", "u", "v")]
    mine = str(uuid.uuid4())
    then = [[info("B"), file("y")], [info("C"), gone("x")]]
    changes = [
        tables[0].change(info("A"), file("x"), reads=NOTHING, then=then),
        tables[1].change(info("A"), file("x"), reads=NOTHING),
        tables[2].change(),
    ]
    first = commit(tables[0].database, CommitRequest(changes, txn_id=mine))
    second = commit(tables[0].database, CommitRequest(changes, txn_id=mine))
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert [c.version for c in first] == [c.version for c in second] == [3, 1, 0]
    assert all(c.replayed for c in second)
    assert [t.open().snapshot.version for t in tables] == [3, 1, 0]


def test_an_id_that_lost_a_conflict_may_be_used_again(bench: Bench) -> None:
    mine, change = str(uuid.uuid4()), bench.change(info("DELETE"), gone("a1"))
    bench.commit(info("WRITE"), file("w"), reads=NOTHING)
    assert isinstance(commit(bench.database, CommitRequest([change], txn_id=mine)), Conflict)
    fresh = bench.change(info("DELETE"), gone("a1"))
    outcome = commit(bench.database, CommitRequest([fresh], txn_id=mine))
    assert isinstance(outcome, list)
    assert (outcome[0].version, outcome[0].replayed) == (2, False)


def test_a_repeated_transaction_is_done_once_and_leaves_no_files(
    catalog: Catalog, table_uri: TableUri
) -> None:
    write_deltalake(table_uri("a"), ids(1))
    write_deltalake(table_uri("b"), ids(1))
    mine = str(uuid.uuid4())
    seen = []
    for _ in range(3):
        with catalog.transaction(txn_uuid=mine) as tx:
            tx.write("a", ids(2))
            tx.table("b").update(updates={"id": "id + 1"})
        seen.append({n: c.version for n, c in tx.commits.items()})
    assert seen == [{"a": 1, "b": 1}] * 3
    assert all(c.replayed for c in tx.commits.values())
    a, b = DeltaTable(table_uri("a")), DeltaTable(table_uri("b"))
    assert (ids_of(a), ids_of(b)) == ([1, 2], [2])
    assert (data_files(a), data_files(b)) == (2, 2)


def test_a_transaction_of_own_statements_alone_is_done_once(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx.execute("create table mine (id integer)")
    name = str(uuid.uuid4())
    for _ in range(2):
        with catalog.transaction(txn_uuid=name) as tx:
            tx.execute("insert into mine values (?)", (1,))
    assert tx.result is not None
    assert tx.result.replayed
    assert catalog.query("select id from mine").num_rows == 1


def test_the_id_of_a_transaction_is_the_one_in_its_commits(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("a"), ids(1))
    with catalog.transaction() as tx:
        tx.write("a", ids(2))
    assert DeltaTable(table_uri("a")).history(1)[0]["txnId"] == tx.uuid


# ---- lost answers ----------------------------------------------------------------------------------------


def test_a_lost_answer_is_found_again(bench: Bench, lose_answers: Callable[..., None]) -> None:
    lose_answers()
    outcome = bench.commit(info("WRITE"), file("x"), reads=NOTHING)
    assert isinstance(outcome, Committed)
    assert (outcome.version, outcome.replayed) == (1, False)
    assert bench.open().snapshot.version == 1


def test_the_files_of_a_commit_whose_answer_was_lost_stay(
    table_uri: TableUri, lose_answers: Callable[..., None]
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    lose_answers()
    write_deltalake(uri, ids(2), mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2]
    lose_answers()
    DeltaTable(uri).update(updates={"id": "id * 10"})
    assert ids_of(DeltaTable(uri)) == [10, 20]
    lose_answers()
    write_deltalake(uri, ids(7), mode="overwrite")
    assert ids_of(DeltaTable(uri)) == [7]
    assert DeltaTable(uri).version() == 3


def test_a_lost_answer_of_a_creation_is_found_again(
    table_uri: TableUri, lose_answers: Callable[..., None]
) -> None:
    lose_answers()
    write_deltalake(table_uri("t"), ids(1))
    assert ids_of(DeltaTable(table_uri("t"))) == [1]


def test_the_answer_of_a_transaction_is_found_again(
    catalog: Catalog, table_uri: TableUri, lose_answers: Callable[..., None]
) -> None:
    for name in ("a", "b"):
        write_deltalake(table_uri(name), ids(1))
    lose_answers()
    with catalog.transaction() as tx:
        tx.write("a", ids(2))
        tx.table("b").delete("id = 1")
        tx.write("c", ids(3), location=root_of(catalog.table("a")).parent / "c")
    assert {n: c.version for n, c in tx.commits.items()} == {"a": 1, "b": 1, "c": 0}
    assert [ids_of(catalog.table(n)) for n in ("a", "b", "c")] == [[1, 2], [], [3]]


def test_no_file_is_deleted_while_the_outcome_stays_unknown(
    table_uri: TableUri, lose_answers: Callable[..., None]
) -> None:
    """The first answer is lost, and then the server is away for good: it may have happened, and it did."""
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    lose_answers(*[CatalogUnavailableError("the server restarts")] * 10)
    with pytest.raises(CommitUnknownError):
        write_deltalake(uri, ids(2), mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2]


def test_an_unforeseen_error_after_a_lost_answer_deletes_no_file(
    table_uri: TableUri, lose_answers: Callable[..., None]
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    lose_answers(RuntimeError("out of luck"))
    with pytest.raises(CommitUnknownError):
        write_deltalake(uri, ids(2), mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2]


def test_a_server_that_comes_back_tells_what_happened(
    table_uri: TableUri, lose_answers: Callable[..., None]
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    lose_answers(CatalogUnavailableError("the server restarts"), CatalogUnavailableError("still"))
    write_deltalake(uri, ids(2), mode="append")
    assert ids_of(DeltaTable(uri)) == [1, 2]


@pytest.mark.parametrize("engine_name", ["postgres"])
def test_a_connection_that_breaks_after_commit_loses_nothing(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    real = PostgresEngine.write
    broken: list[bool] = []

    @contextmanager
    def cut(self: PostgresEngine) -> Iterator[Session]:
        with real(self) as session:
            yield session
        if not broken:
            broken.append(True)
            cast("Any", session).connection.close()
            raise CommitUnknownError("the connection broke")

    monkeypatch.setattr(PostgresEngine, "write", cut)
    # a fast append opens no transaction
    monkeypatch.setattr(PostgresEngine, "dialect", replace(DIALECT, fast_append=False))
    write_deltalake(uri, ids(2), mode="append")
    assert broken
    table = DeltaTable(uri)
    assert (table.version(), ids_of(table), data_files(table)) == (1, [1, 2], 2)


def test_an_interrupt_after_the_commit_leaves_its_files(
    table_uri: TableUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    real = committer._attempt

    def interrupted(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(committer, "_attempt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_deltalake(uri, ids(2), mode="append")
    monkeypatch.undo()
    assert ids_of(DeltaTable(uri)) == [1, 2]


# ---- applications ----------------------------------------------------------------------------------------


def app(version: int, name: str = "app") -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(name, version)])


@pytest.mark.parametrize("again", [7, 6, 0])
def test_an_application_version_that_is_recorded_is_not_done_again(table_uri: TableUri, again: int) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    write_deltalake(uri, ids(2), mode="append", commit_properties=app(7))
    seen: list[telemetry.Event] = []
    unsubscribe = telemetry.subscribe(seen.append)
    with pytest.warns(NothingWrittenWarning, match="nothing was written to t") as warned:
        write_deltalake(uri, ids(3), mode="append", commit_properties=app(again))
    unsubscribe()
    assert [w.filename for w in warned] == [__file__]
    assert [e.value for e in seen if e.name == "commit_replays_total"] == [1]
    assert [e.labels["outcome"] for e in seen if e.name == "commit_duration_seconds"] == ["replayed"]
    table = DeltaTable(uri)
    assert (table.version(), ids_of(table), data_files(table)) == (1, [1, 2], 2)
    assert table.transaction_version("app") == 7
    write_deltalake(uri, ids(4), mode="append", commit_properties=app(8))
    table = DeltaTable(uri)
    assert (table.version(), ids_of(table)) == (2, [1, 2, 4])
    assert table.transaction_version("app") == 8
    write_deltalake(uri, ids(5), mode="append", commit_properties=app(1, "other"))
    assert ids_of(DeltaTable(uri)) == [1, 2, 4, 5]


def test_every_way_to_write_keeps_an_application_version_from_being_done_twice(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1, 2), commit_properties=app(1))
    source = ids(9)

    def merge() -> None:
        merger = DeltaTable(uri).merge(
            source, "t.id = s.id", source_alias="s", target_alias="t", commit_properties=app(1)
        )
        merger.when_not_matched_insert_all().execute()

    ways: list[Callable[[], object]] = [
        lambda: write_deltalake(uri, ids(3), mode="append", commit_properties=app(1)),
        lambda: write_deltalake(uri, ids(3), mode="overwrite", commit_properties=app(1)),
        lambda: write_deltalake(uri, ids(2), mode="overwrite", predicate="id = 2", commit_properties=app(1)),
        lambda: DeltaTable(uri).delete("id = 1", commit_properties=app(1)),
        lambda: DeltaTable(uri).update({"id": "id + 1"}, commit_properties=app(1)),
        merge,
    ]
    for way in ways:
        with pytest.warns(NothingWrittenWarning) as warned:
            way()
        assert [w.filename for w in warned] == [__file__]
        table = DeltaTable(uri)
        assert (table.version(), ids_of(table), data_files(table)) == (0, [1, 2], 1)


def test_an_application_version_repeated_at_the_low_level_is_reported_as_such(bench: Bench) -> None:
    first = bench.commit(info("STREAM"), Txn(app_id="app", version=7), file("x"), reads=NOTHING)
    bench.commit(info("WRITE"), file("y"), reads=NOTHING)
    for version in (7, 3):
        again = bench.commit(info("STREAM"), Txn(app_id="app", version=version), file("z"), reads=NOTHING)
        assert isinstance(again, Committed)
        assert again.replayed
        assert again.version == first.version == 1
    assert bench.open().snapshot.version == 2
    higher = bench.commit(info("STREAM"), Txn(app_id="app", version=8), file("z"), reads=NOTHING)
    assert isinstance(higher, Committed)
    assert (higher.version, higher.replayed) == (3, False)


def test_an_application_inside_a_transaction_is_done_once(catalog: Catalog, table_uri: TableUri) -> None:
    for name in ("a", "b"):
        write_deltalake(table_uri(name), ids(1))

    def both() -> TransactionResult:
        with catalog.transaction() as tx:
            assert tx.result is None
            tx.write("a", ids(2), commit_properties=app(1))
            tx.write("b", ids(2), commit_properties=app(1))
        assert tx.result is not None
        assert tx.commits == tx.result.commits
        return tx.result

    first = both()
    assert (first.versions, first.replayed) == ({"a": 1, "b": 1}, False)
    with pytest.warns(NothingWrittenWarning, match="to a, b") as warned:
        again = both()
    assert [w.filename for w in warned] == [__file__]
    assert again.to_dict() == {"txn_uuid": again.txn_uuid, "versions": {"a": 1, "b": 1}, "replayed": True}
    assert again.txn_uuid != first.txn_uuid
    assert all(c.replayed for c in again.commits.values())
    tables = [DeltaTable(table_uri(n)) for n in ("a", "b")]
    assert [ids_of(t) for t in tables] == [[1, 2], [1, 2]]
    assert [data_files(t) for t in tables] == [2, 2]


def test_a_transaction_that_an_application_did_before_changes_no_name(
    catalog: Catalog, table_uri: TableUri
) -> None:
    write_deltalake(table_uri("a"), ids(1), commit_properties=app(1))
    with catalog.transaction() as tx:
        tx.write("a", ids(2), commit_properties=app(1))
        tx.rename_table("a", "z")
        tx.execute("create table mine (id integer)")
        with pytest.warns(NothingWrittenWarning, match="written to a:"):
            tx.commit()
    assert tx.result is not None
    assert (tx.result.versions, tx.result.replayed) == ({"a": 0}, True)
    assert [t.name for t in catalog.tables()] == ["a"]
    with pytest.raises(CatalogError):
        catalog.query("select * from mine")


def test_an_application_recorded_in_one_of_two_tables_is_not_half_done(
    catalog: Catalog, table_uri: TableUri
) -> None:
    for name in ("a", "b"):
        write_deltalake(table_uri(name), ids(1))
    write_deltalake(table_uri("a"), ids(2), mode="append", commit_properties=app(1))
    attempts = []

    def both(tx: Transaction, version: int = 1) -> None:
        attempts.append(version)
        tx.write("a", ids(3), commit_properties=app(version))
        tx.write("b", ids(3), commit_properties=app(version))

    with pytest.raises(CommitError, match="'app' is recorded in a and not in b") as caught:
        catalog.run(both)
    assert attempts == [1]  # another attempt would find the same
    assert "separate transaction" in str(caught.value)
    assert [ids_of(DeltaTable(table_uri(n))) for n in ("a", "b")] == [[1, 2], [1]]
    assert [data_files(DeltaTable(table_uri(n))) for n in ("a", "b")] == [2, 1]
    # both ways out
    write_deltalake(table_uri("b"), ids(2), mode="append", commit_properties=app(1))
    catalog.run(lambda tx: both(tx, 2))
    assert [ids_of(DeltaTable(table_uri(n))) for n in ("a", "b")] == [[1, 2, 3], [1, 2, 3]]


def test_applications_of_a_dropped_table_are_forgotten(catalog: Catalog, table_uri: TableUri) -> None:
    write_deltalake(table_uri("t"), ids(1), commit_properties=app(5))
    catalog.drop_table("t")
    with catalog.transaction() as tx:
        tx.write("t", pa.table({"id": [1]}), location=_elsewhere(table_uri), commit_properties=app(1))
    assert catalog.table("t").transaction_version("app") == 1


def _elsewhere(table_uri: TableUri) -> str:
    from deltalakedb.address import parse_address

    return str(parse_address(table_uri("elsewhere")).location)


def test_a_repeated_transaction_that_creates_a_table_is_done_once(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.set_root(tmp_path / "lake")
        for _ in range(2):
            with catalog.transaction(txn_uuid="made-once") as tx:
                tx.create_table("new", pa.schema([("id", pa.int64())]))
                tx.write("new", pa.table({"id": [1]}))
        assert catalog.table("new").version() == 0
        assert catalog.table("new").to_pyarrow_table().to_pydict() == {"id": [1]}
        assert tx.commits["new"].replayed


def test_a_repetition_answers_with_what_the_first_call_did(catalog_uri: str, tmp_path: Path) -> None:
    with Catalog(catalog_uri) as catalog:
        catalog.set_root(tmp_path / "lake")
        for name in ("a", "b"):
            catalog.write(name, pa.table({"id": [7, 8]}))
        told = []
        for _ in range(2):
            with catalog.transaction(txn_uuid="load-1") as tx:
                tx.table("a").delete("id = 7")
            assert tx.result is not None
            told.append((dict(tx.result.versions), tx.result.replayed))
        assert told == [({"a": 1}, False), ({"a": 1}, True)]
        # the id of another transaction: nothing is written, and that is said
        with pytest.warns(NothingWrittenWarning, match="b: the transaction load-1"):  # noqa: SIM117
            with catalog.transaction(txn_uuid="load-1") as tx:
                tx.write("b", pa.table({"id": [99]}), mode="append")
        assert tx.result is not None
        assert dict(tx.result.versions) == {"a": 1}
        assert catalog.describe("b").head.version == 0


@pytest.mark.parametrize("given", ["", "x" * 201, "a/b", "..", "a\nb", 5])
def test_an_id_that_could_not_be_kept_is_refused(tmp_path: Path, given: Any) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    with Catalog(uri) as catalog, pytest.raises(InvalidArgumentError, match="txn_uuid"):
        catalog.transaction(txn_uuid=given)
