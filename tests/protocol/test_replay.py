"""Snapshot replay: what is true after a checkpoint and the commits that follow."""

from __future__ import annotations

from typing import Any

import pytest

from deltalakedb.exceptions import ProtocolError
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    UnknownAction,
    decode_commit,
)
from deltalakedb.protocol.replay import Replay
from support.golden import GoldenTable, golden_params

PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
METADATA = Metadata(id="m", schema_string="{}")


def vector(name: str) -> DeletionVector:
    return DeletionVector(storage_type="i", path_or_inline_dv=name, size_in_bytes=1, cardinality=1)


def add(path: str, *, size: int = 1, dv: str | None = None) -> Add:
    return Add(
        path=path,
        size=size,
        modification_time=0,
        data_change=True,
        deletion_vector=None if dv is None else vector(dv),
    )


def remove(path: str, *, dv: str | None = None) -> Remove:
    return Remove(path=path, deletion_vector=None if dv is None else vector(dv))


def test_adds_and_removes_leave_files_and_tombstones() -> None:
    state = Replay().commit([PROTOCOL, METADATA, add("a"), add("b")]).commit([remove("a")])
    assert set(state.files) == {("b", "")}
    assert set(state.tombstones) == {("a", "")}
    assert state.require() == (PROTOCOL, METADATA)


@pytest.mark.parametrize("turned", [False, True])
def test_within_a_commit_removes_go_before_adds(turned: bool) -> None:
    actions: list[Action] = [add("a", size=2), remove("a")]
    state = Replay().commit([add("a")]).commit(actions[::-1] if turned else actions)
    assert [f.size for f in state.files.values()] == [2]
    assert not state.tombstones


def test_a_file_added_again_replaces_itself() -> None:
    state = Replay().commit([add("a")]).commit([add("a", size=9)])
    assert [f.size for f in state.files.values()] == [9]


def test_a_removed_file_may_come_back() -> None:
    state = Replay().commit([add("a")]).commit([remove("a")]).commit([add("a")])
    assert set(state.files) == {("a", "")}
    assert not state.tombstones


def test_a_new_deletion_vector_makes_another_logical_file() -> None:
    state = Replay().commit([add("a")]).commit([remove("a"), add("a", dv="x")])
    assert set(state.files) == {("a", "ix")}
    assert set(state.tombstones) == {("a", "")}


def test_a_file_is_the_same_however_its_path_is_spelled() -> None:
    state = Replay().commit([add("file:///t/a%20b")]).commit([remove("/t/a b")])
    assert not state.files
    assert add("file:/t/a b").key == ("/t/a b", "")


def test_the_last_of_everything_else_counts() -> None:
    newer = Protocol(min_reader_version=1, min_writer_version=3)
    renamed = Metadata(id="m", schema_string="{}", name="n")
    state = Replay()
    state.commit(
        [
            PROTOCOL,
            METADATA,
            Txn(app_id="a", version=1),
            DomainMetadata(domain="d"),
            DomainMetadata(domain="e"),
        ]
    )
    state.commit(
        [
            CommitInfo(extra={"operation": "X"}),
            newer,
            renamed,
            Txn(app_id="a", version=7),
            DomainMetadata(domain="d", removed=True),
            Cdc(path="c", size=1),
            UnknownAction(kind="new", value=1),
        ]
    )
    assert state.require() == (newer, renamed)
    assert {k: v.version for k, v in state.txns.items()} == {"a": 7}
    assert set(state.domains) == {"e"}
    assert state.commit_info == CommitInfo(extra={"operation": "X"})
    assert state.unknown == {"new"}
    assert not state.files


@pytest.mark.parametrize(("actions", "missing"), [([METADATA], "protocol"), ([PROTOCOL], "metaData")])
def test_a_log_without_protocol_or_metadata_is_no_table(actions: list[Action], missing: str) -> None:
    with pytest.raises(ProtocolError, match=f"no {missing} action") as caught:
        Replay().commit(actions).require()
    assert caught.value.suggestion


def readable_from_the_start() -> list[Any]:
    """The golden tables whose logs begin with readable commits."""

    def begins(table: GoldenTable | None) -> bool:
        if table is None:  # the one skipped case that says why there are none
            return True
        return table.truth["expect"] == "ok" and (table.path / "_delta_log" / f"{0:020}.json").exists()

    return [param for param in golden_params() if begins(param.values[0])]


@pytest.mark.parametrize("table", readable_from_the_start())
def test_real_commits_replay_to_the_truth(table: GoldenTable) -> None:
    truth: dict[str, Any] = table.truth.get("versions", {})
    log = table.path / "_delta_log"
    state = Replay()
    seen = 0
    for version in range(table.truth["latest"] + 1):
        file = log / f"{version:020}.json"
        if not file.exists():
            break
        state.commit(decode_commit(file.read_bytes(), source=file.name)).require()
        wanted = truth.get(str(version), {})
        if "files" not in wanted:
            continue
        seen += 1
        found = sorted((p, a.size, dict(a.partition_values), dv) for (p, dv), a in state.files.items())
        assert found == sorted((f[0], f[1], f[2], f[3] or "") for f in wanted["files"])
        assert {k: t.version for k, t in state.txns.items()} == wanted["txns"]
        assert {k: d.configuration for k, d in state.domains.items()} == wanted["domains"]
    assert seen
