"""What every commit must keep, whoever makes it: the rules of one commit, and of append-only tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from deltalakedb import Catalog, CommitProperties, DeltaTable, Transaction, import_table, write_deltalake
from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, NewTable, TableChange
from deltalakedb.exceptions import (
    DeltaError,
    DeltaProtocolError,
    InvalidArgumentError,
    ProtocolError,
    TableExistsError,
    UnsupportedFeatureError,
)
from deltalakedb.metastore import commits, snapshots
from deltalakedb.metastore.files import scan_files
from deltalakedb.protocol.actions import Add, CommitInfo, Metadata, Txn
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.txn_log import Committed
from support.actions import features, info, metadata, protocol
from support.commits import Bench, file, first_action, gone
from support.lake import files_below, ids, ids_of, root_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import TableUri
    from deltalakedb.metastore.database import Database

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
    [file("x"), Txn(app_id="a", version=1), Txn(app_id="a", version=2)],
]


def test_a_commit_that_the_protocol_forbids_is_refused(bench: Bench) -> None:
    for actions in FORBIDDEN:
        with pytest.raises(ProtocolError) as caught:
            bench.commit(info("BAD"), *actions)
        assert isinstance(caught.value, DeltaProtocolError)
    assert bench.open().snapshot.version == 0
    assert bench.open().table.head.num_files == 5


def test_many_files_of_several_tables_and_versions_come_and_go_in_one_commit(
    make_bench: Callable[..., Bench], database: Database
) -> None:
    names = [f"f{n:03}" for n in range(70)]
    benches = [make_bench(name, adds=[file(n) for n in names]) for name in "tu"]
    changes = [
        bench.change(
            info("WRITE"),
            *(gone(n) for n in names),
            *(file(f"new-{n}") for n in names),
            then=[[info("DELETE"), *(gone(f"new-{n}") for n in names[:-1])]],
        )
        for bench in benches
    ]
    outcome = commit(database, CommitRequest(changes))
    assert isinstance(outcome, list), outcome
    assert [c.version for c in outcome] == [2, 2]
    for bench in benches:
        head = bench.open().table.head
        assert (head.num_files, head.num_records) == (1, 10)
        live = [scan_files(database, bench.open(v), ("path",))["path"].to_pylist() for v in (0, 1, 2)]
        assert sorted(live[0]) == names
        assert sorted(live[1]) == [f"new-{n}" for n in names]
        assert live[2] == ["new-f069"]


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
        commit(database, CommitRequest([TableChange(new, [[info("CREATE"), *actions]], reads=NOTHING)]))
    with pytest.raises(DeltaError):
        snapshots.open_table(database, "t")


def test_a_file_removed_and_added_in_one_commit_is_there_afterwards(bench: Bench) -> None:
    outcome = bench.commit(info("REWRITE"), file("a1"), gone("a1"))
    assert isinstance(outcome, Committed)
    assert bench.open().table.head.num_files == 5


def test_the_same_table_twice_in_one_commit_is_refused(bench: Bench) -> None:
    changes = [bench.change(info("A"), file("x"), reads=NOTHING), bench.change(info("B"), file("y"))]
    with pytest.raises(InvalidArgumentError):
        commit(bench.database, CommitRequest(changes))
    assert bench.open().snapshot.version == 0


def test_two_new_tables_of_one_name_or_place_are_refused(database: Database, tmp_path: Path) -> None:
    actions: list[Any] = [info("CREATE"), protocol(), metadata()]

    def new(name: str, place: str) -> TableChange:
        return TableChange(NewTable(name, str(tmp_path / place)), [actions], reads=NOTHING)

    for second in (new("t", "elsewhere"), new("u", "t")):
        with pytest.raises(TableExistsError):
            commit(database, CommitRequest([new("t", "t"), second]))
    with pytest.raises(DeltaError):
        snapshots.open_table(database, "t")


def test_nothing_to_commit_is_refused(database: Database) -> None:
    with pytest.raises(InvalidArgumentError):
        commit(database, CommitRequest([]))


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
    assert blind["clientVersion"].startswith("deltalakedb.")


def test_unknown_fields_of_actions_reach_the_log(bench: Bench) -> None:
    added = Add.from_dict({**file("x").to_dict(), "invented": {"a": [1]}})
    bench.commit(info("WRITE"), added, reads=NOTHING)
    lines = commits.commit_bytes(bench.database, bench.open().table, 1).splitlines()
    assert json.loads(lines[1])["add"]["invented"] == {"a": [1]}


def test_every_action_kind_is_what_the_log_reads_back(bench: Bench) -> None:
    bench.commit(info("ALL"), Txn(app_id="a", version=1), metadata(description="d"), file("x"), gone("a1"))
    found = open_log_actions(bench, 1)
    assert isinstance(found[0], CommitInfo)
    assert sum(isinstance(a, Metadata) for a in found) == 1
    assert {type(a).__name__ for a in found} == {"CommitInfo", "Txn", "Metadata", "Add", "Remove"}


def open_log_actions(bench: Bench, version: int) -> list[Any]:
    from deltalakedb.metastore.txn_log import SqlTxnLogReader

    return list(SqlTxnLogReader(bench.database, bench.name).actions(version))


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


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_table_may_be_replaced_by_an_append_only_one(table_uri: TableUri) -> None:
    uri, only = table_uri("t"), {"delta.appendOnly": "true"}
    write_deltalake(uri, ids(1))
    replaced = DeltaTable.create(uri, ids().schema, mode="overwrite", configuration=only)
    assert (replaced.version(), replaced.metadata().configuration) == (1, only)
    write_deltalake(uri, ids(2), mode="append")
    assert ids_of(DeltaTable(uri)) == ids_of(deltalake.DeltaTable(replaced.table_uri)) == [2]
    with pytest.raises(ProtocolError):
        DeltaTable.create(uri, ids().schema, mode="overwrite")


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_an_application_has_one_version_in_a_commit(table_uri: TableUri) -> None:
    uri = table_uri("t")
    write_deltalake(uri, ids(1))
    twice = CommitProperties(app_transactions=[Transaction("app", 5), Transaction("app", 6)])
    before = files_below(root_of(DeltaTable(uri)))
    for way in (
        lambda: write_deltalake(uri, ids(2), mode="append", commit_properties=twice),
        lambda: DeltaTable(uri).delete("id = 1", commit_properties=twice),
    ):
        with pytest.raises(ProtocolError, match="'app' appears twice"):
            way()
    assert files_below(root_of(DeltaTable(uri))) == before
    # what others have committed is taken as it is
    root = root_of(DeltaTable(uri)).with_name("plain")
    deltalake.write_deltalake(str(root), ids(1), commit_properties=twice)
    import_table(str(root), table_uri("plain"))
    assert DeltaTable(table_uri("plain")).transaction_version("app") == 6
