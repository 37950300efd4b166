"""A handle that others have overtaken goes on answering for its own version."""

from __future__ import annotations

import pyarrow as pa

from deltalakedb import DeltaTable, write_deltalake


def test_a_stale_handle_keeps_the_files_that_a_later_overwrite_removed(table_uri):
    uri = table_uri("t")
    write_deltalake(uri, pa.table({"id": [1, 2, 3]}))
    stale = DeltaTable(uri)
    write_deltalake(uri, pa.table({"id": [9]}), mode="overwrite")

    assert stale.version() == 0
    assert len(stale.file_uris()) == 1
    assert stale.file_uris(file_pruning_predicate="id = 2") == stale.file_uris()
    assert stale.to_pyarrow_table().column("id").to_pylist() == [1, 2, 3]
    assert pa.table(stale.scan().read_all()).column("id").to_pylist() == [1, 2, 3]


def test_a_stale_handle_does_not_see_later_appends(table_uri):
    uri = table_uri("t")
    write_deltalake(uri, pa.table({"id": [1]}))
    stale = DeltaTable(uri)
    write_deltalake(uri, pa.table({"id": [2]}), mode="append")

    assert stale.to_pyarrow_table().column("id").to_pylist() == [1]
    stale.update_incremental()
    assert sorted(stale.to_pyarrow_table().column("id").to_pylist()) == [1, 2]
