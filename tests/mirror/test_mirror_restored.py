"""A catalog restored from an older backup: its log is ahead, and nothing of it may be lost or doubled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deltalakedb import (
    Catalog,
    CommitProperties,
    Transaction,
    export_table,
    follow_table,
    rollback_import,
)
from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, TableChange
from deltalakedb.exceptions import (
    CommitError,
    NothingWrittenWarning,
    TableFrozenError,
    UnsupportedOperationError,
    VerificationError,
)
from deltalakedb.protocol.actions import Add
from deltalakedb.protocol.read_set import NOTHING
from support.lake import files_below, ids, ids_of
from support.mirrors import append, append_outside, back_up, commit_file, logged, outside_ids, same_everywhere
from support.processes import Child, arm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalakedb.table.transaction import TransactionResult

TOKEN = "order-4711"


def write(catalog: Catalog, *names: str, token: str = TOKEN) -> TransactionResult:
    """What a client does, and does again when it did not get an answer."""
    with catalog.transaction(txn_uuid=token) as tx:
        for name in names:
            tx.write(name, ids(1))
    assert tx.result is not None
    return tx.result


@pytest.mark.parametrize("by", ["recover", "adopt"])
def test_a_repeated_transaction_is_known_again_after_its_commit_was_taken_from_the_log(
    catalog: Catalog, root: Path, tmp_path: Path, by: str
) -> None:
    restore = back_up(catalog, tmp_path / "backup")
    write(catalog, "t")
    append(catalog, 2)
    restore()
    if by == "recover":
        assert catalog.mirror.recover("t").versions == (1, 2)
    else:
        catalog.mirror.set_policy("t", "adopt")
        append(catalog, 3)
    again = write(catalog, "t")
    assert (again.replayed, again.versions) == (True, {"t": 1})
    assert ids_of(catalog.table("t")).count(1) == 1
    assert write(catalog, "t", token="another").replayed is False
    same_everywhere(catalog, root)


def test_every_version_of_a_transaction_is_known_again(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    restore = back_up(catalog, tmp_path / "backup")
    same = {"partition_values": {}, "size": 1, "modification_time": 1, "data_change": True}
    adds = [Add(path=f"{n}.parquet", **same) for n in "ab"]
    log = catalog.log("t")
    change = TableChange(catalog.describe("t"), [adds[:1], adds[1:]], log.snapshot(), NOTHING)
    commit(log.database, CommitRequest([change], txn_id=TOKEN))
    catalog.mirror.run()
    restore()
    assert catalog.mirror.recover("t").versions == (1, 2)
    (again,) = commit(log.database, CommitRequest([change], txn_id=TOKEN))  # type: ignore[misc]
    assert (again.version, again.replayed) == (2, True)


def test_an_applications_version_is_known_again(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    restore = back_up(catalog, tmp_path / "backup")
    once = CommitProperties(app_transactions=[Transaction("stream", 7)])
    catalog.write("t", ids(1), mode="append", commit_properties=once)
    restore()
    catalog.mirror.recover("t")
    with pytest.warns(NothingWrittenWarning):
        catalog.write("t", ids(1), mode="append", commit_properties=once)
    assert ids_of(catalog.table("t")) == [0, 1]


def test_ids_of_other_engines_and_ids_that_no_client_can_have_are_not_taken(
    catalog: Catalog, root: Path
) -> None:
    ours = "deltalakedb:0.1"
    told = [
        ("Apache-Spark/4.0", TOKEN),
        (None, TOKEN),
        (ours, "\0"),
        (ours, "x" * 2000),
        (ours, 7),
    ]
    for version, (engine, txn) in enumerate(told, start=1):
        info = {"operation": "WRITE", "engineInfo": engine, "txnId": txn}
        commit_file(root, version).write_text(json.dumps({"commitInfo": info}) + "\n")
    assert len(catalog.mirror.recover("t").versions) == len(told)
    assert write(catalog, "t").replayed is False
    assert ids_of(catalog.table("t")) == [0, 1]


def test_a_transaction_over_two_tables_is_done_only_when_both_are_recovered(
    catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    catalog.write("u", ids(0), location=tmp_path / "lake" / "u")
    restore = back_up(catalog, tmp_path / "backup")
    write(catalog, "t", "u")
    restore()
    assert catalog.mirror.recover("t").versions == (1,)
    with pytest.raises(CommitError, match="u does not have it") as caught:
        write(catalog, "t", "u")
    assert "mirror recover" in (caught.value.suggestion or "")
    assert catalog.mirror.recover("u").versions == (1,)
    again = write(catalog, "t", "u")
    assert (again.replayed, again.versions) == (True, {"t": 1, "u": 1})
    assert (ids_of(catalog.table("t")), ids_of(catalog.table("u"))) == ([0, 1], [0, 1])


def test_a_transaction_whose_other_half_was_never_published_is_not_answered_as_done(
    catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    catalog.write("u", ids(0), location=tmp_path / "lake" / "u")
    catalog.mirror.pause("u")
    restore = back_up(catalog, tmp_path / "backup")
    write(catalog, "t", "u")
    restore()
    for name in ("t", "u"):
        catalog.mirror.recover(name)
    with pytest.raises(CommitError, match="u does not have it"):
        write(catalog, "t", "u")
    assert (ids_of(catalog.table("t")), ids_of(catalog.table("u"))) == ([0, 1], [0])


def test_transactions_of_a_followed_table_are_its_owners(
    catalog: Catalog, root: Path, tmp_path: Path
) -> None:
    uri = f"deltasql://sqlite/{tmp_path / 'follower.db'}"
    follow_table(str(root), f"{uri}?table=copy", once=True)
    write(catalog, "t")
    assert follow_table(str(root), f"{uri}?table=copy", once=True).action == "caught up"
    with Catalog(uri) as follower:
        follower.write("t", ids(0), location=tmp_path / "summary")
        assert write(follower, "t").replayed is False, "the same id in another catalog is another transaction"
        assert ids_of(follower.table("t")) == [0, 1]


def recover_in_child(uri: str, points: str) -> None:
    catalog = Catalog(uri)
    arm(points)
    catalog.mirror.recover("t")


@pytest.mark.parametrize("point", ["commit.before_commit", "commit.after"])
def test_a_recovery_that_is_killed_goes_on_and_notes_what_is_published(
    catalog: Catalog, root: Path, tmp_path: Path, point: str
) -> None:
    restore = back_up(catalog, tmp_path / "backup")
    write(catalog, "t")
    append(catalog, 2)
    restore()
    Child(recover_in_child, catalog.uri, f"{point}=kill@1", folder=tmp_path).died()
    status = catalog.mirror.status("t")[0]
    stands = 1 if point == "commit.after" else 0
    assert (status.version, status.published_version) == (stands, stands)
    assert catalog.mirror.recover("t").versions == tuple(range(stands + 1, 3))
    assert write(catalog, "t").replayed
    same_everywhere(catalog, root)


# ---- commands while the log is ahead ---------------------------------------------------------------------


@pytest.fixture
def ahead(catalog: Catalog, root: Path, tmp_path: Path) -> Catalog:
    """The catalog knows version 2; its log has a checkpoint of version 6 and may be cleaned up before it."""
    properties = {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "3"}
    catalog.table("t").alter.set_table_properties(properties)
    append(catalog, 1)
    restore = back_up(catalog, tmp_path / "backup")
    append(catalog, 2, 3, 4, 5)
    catalog.mirror.checkpoint("t")
    restore()
    assert catalog.describe("t").head.version == 2
    return catalog


def test_the_log_is_not_cleaned_up_while_it_is_ahead_of_the_catalog(ahead: Catalog, root: Path) -> None:
    before = files_below(root)
    for clean in (
        lambda: ahead.mirror.clean("t"),
        lambda: ahead.mirror.clean("t", dry_run=True),
        lambda: ahead.table("t").cleanup_metadata(),
    ):
        with pytest.raises(TableFrozenError, match="has version 6, which the catalog did not make"):
            clean()
    assert files_below(root) == before
    assert ahead.mirror.recover("t").versions == (3, 4, 5, 6)
    assert ids_of(ahead.table("t")) == [0, 1, 2, 3, 4, 5]
    ahead.mirror.clean("t")
    assert logged(root) == [6]


COMMANDS: dict[str, Callable[[Catalog, Path], object]] = {
    "checkpoint": lambda catalog, _: catalog.mirror.checkpoint("t"),
    "run": lambda catalog, _: catalog.mirror.run(),
    "publish": lambda catalog, _: catalog.mirror.publish("t"),
    "compact": lambda catalog, _: catalog.mirror.compact_log("t", 0, 2),
    "prune": lambda catalog, _: catalog.mirror.prune("t"),
    "repair": lambda catalog, _: catalog.mirror.repair("t"),
    "rebuild": lambda catalog, place: catalog.mirror.rebuild("t", place / "elsewhere"),
    "gc": lambda catalog, _: catalog.gc("t", older_than_hours=0),
    "vacuum": lambda catalog, _: catalog.table("t").vacuum(
        0, dry_run=False, enforce_retention_duration=False, full=True
    ),
    "optimize": lambda catalog, _: catalog.table("t").optimize.compact(),
    "fence": lambda catalog, _: catalog.mirror.fence("t"),
    "export": lambda catalog, _: export_table(f"{catalog.uri}?table=t"),
    "rollback": lambda catalog, _: rollback_import(f"{catalog.uri}?table=t"),
}


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_deletes_what_only_the_log_has(
    ahead: Catalog, root: Path, tmp_path: Path, command: str
) -> None:
    before = files_below(root)
    try:
        COMMANDS[command](ahead, tmp_path)
    except (TableFrozenError, UnsupportedOperationError, VerificationError):
        assert command in ("gc", "vacuum", "optimize", "fence", "export", "rollback")
    assert set(files_below(root)) >= set(before)
    assert ahead.mirror.recover("t").versions == (3, 4, 5, 6)
    assert ids_of(ahead.table("t")) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_dropping_the_table_leaves_the_whole_log(ahead: Catalog, root: Path) -> None:
    before = files_below(root)
    ahead.drop_table("t")
    assert files_below(root) == before
    assert outside_ids(root) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_due_checkpoint_cleans_up_nothing_while_the_log_is_ahead(ahead: Catalog, root: Path) -> None:
    ahead.mirror.recover("t")
    ahead.table("t").alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})
    append_outside(root, 77)
    before = logged(root)
    with ahead._database.write() as session:
        session.run("UPDATE dl_mirror SET checkpoint_version = -1")
    ahead.mirror.run()
    assert logged(root) == before
    assert ahead.mirror.recover("t").versions == (8,)
