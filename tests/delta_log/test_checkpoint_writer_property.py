"""Random logs: a state from our checkpoint, or over our compacted files, is the state of the commits."""

from __future__ import annotations

import tempfile
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.delta_log import FileTxnLogReader, FileTxnLogWriter, checkpoint_writer
from deltalakedb.delta_log.checkpoint_writer import write_checkpoint
from deltalakedb.delta_log.names import commit_path
from deltalakedb.delta_log.optional_files import write_compaction
from deltalakedb.protocol.actions import Action, DeletionVector, DomainMetadata, Txn
from deltalakedb.storage import open_store
from support.actions import add, metadata, protocol, remove
from support.checkpoints import content, state

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=4)
PATHS = st.sampled_from(["a", "b%20c", "ü", "x=1/d", "e"])
VECTORS = st.none() | st.builds(
    DeletionVector,
    storage_type=st.just("u"),
    path_or_inline_dv=st.sampled_from(["ab", "cd"]),
    offset=st.none() | st.integers(0, 2**31 - 1),
    size_in_bytes=st.integers(1, 99),
    cardinality=st.integers(0, 2**62),
)
STATS = st.sampled_from(
    [
        None,
        "",
        '{"numRecords":3}',
        '{"numRecords":3,"minValues":{"id":-1},"maxValues":{"id":9223372036854775807},"nullCount":{"id":0}}',
        '{"numRecords":"many","minValues":{"id":"text"}}',
        "no json",
    ]
)
MAPS = st.dictionaries(TEXT, st.none() | TEXT, max_size=2)
ACTIONS = st.one_of(
    st.builds(
        add,
        PATHS,
        deletion_vector=VECTORS,
        size=st.integers(0, 2**62),
        stats=STATS,
        tags=st.none() | MAPS,
        partition_values=st.fixed_dictionaries({"day": st.none() | TEXT}),
        base_row_id=st.none() | st.integers(0, 2**62),
    ),
    st.builds(remove, PATHS, deletion_vector=VECTORS, partition_values=st.none() | MAPS),
    st.builds(Txn, app_id=TEXT, version=st.integers(0, 9), last_updated=st.none() | st.integers(0, 9)),
    st.builds(DomainMetadata, domain=st.sampled_from(["d", "e"]), configuration=TEXT, removed=st.booleans()),
    st.builds(
        metadata,
        name=st.none() | TEXT,
        configuration=st.dictionaries(TEXT, TEXT, max_size=2),
        created_time=st.none() | st.integers(0, 9),
    ),
)
FEATURES = ("v2Checkpoint", "deletionVectors", "domainMetadata")
V2 = protocol(
    min_reader_version=3, min_writer_version=7, reader_features=FEATURES[:2], writer_features=FEATURES
)


def one_of_a_kind(actions: list[Action]) -> list[Action]:
    """A commit that the protocol allows: one action of a kind for each path, app, domain."""
    found: dict[Any, Action] = {}
    for action in actions:
        name = next(
            (getattr(action, f) for f in ("path", "app_id", "domain") if hasattr(action, f)), "metadata"
        )
        found[type(action), name] = action
    return list(found.values())


LOGS = st.lists(st.lists(ACTIONS, min_size=1, max_size=5).map(one_of_a_kind), max_size=6)


@settings(max_examples=25)
@given(commits=LOGS, kind=st.sampled_from(["classic", "v2"]), struct=st.booleans(), data=st.data())
def test_replay_from_a_checkpoint_is_replay_from_the_commits(
    commits: list[list[Action]], kind: Any, struct: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = FileTxnLogWriter(store=(store := open_store(folder, durable=False)), location=folder)
        writer.commit(0, [V2 if kind == "v2" else protocol(), metadata()])
        for number, actions in enumerate(commits, start=1):
            writer.commit(number, actions)
        reader = FileTxnLogReader(folder)
        head = len(commits)
        expected = state(reader, head)
        at = data.draw(st.integers(0, head))
        rows = data.draw(st.integers(1, 4))
        with (
            patch.object(checkpoint_writer, "GROUP_ROWS", rows),
            patch.object(checkpoint_writer, "SIDECAR_ROWS", data.draw(st.integers(1, 4))),
        ):
            write_checkpoint(store, content(reader, at, stats_as_struct=struct), kind=kind)
        for version in range(at + 1):
            store.delete(commit_path(version))
        assert state(FileTxnLogReader(folder), head) == expected


@settings(max_examples=25)
@given(commits=LOGS.filter(len), data=st.data())
def test_replay_over_a_compacted_file_is_replay_of_its_commits(
    commits: list[list[Action]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = FileTxnLogWriter(store=(store := open_store(folder, durable=False)), location=folder)
        writer.commit(0, [protocol(), metadata()])
        for number, actions in enumerate(commits, start=1):
            writer.commit(number, actions)
        head = len(commits)
        expected = state(FileTxnLogReader(folder), head)
        start = data.draw(st.integers(0, head - 1))
        end = data.draw(st.integers(start + 1, head))
        assert write_compaction(store, start, end) is not None
        assert write_compaction(store, start, end) is None
        # our reader prefers commits: without all but the last it has to take the compacted file
        for version in range(start, end):
            store.delete(commit_path(version))
        assert state(FileTxnLogReader(folder), head) == expected
