"""Tables with a change data feed: the same work by stock and by us, and commits made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltalakedb import DeltaTable
from deltalakedb.address import parse_address
from deltalakedb.commit.committer import commit
from deltalakedb.commit.request import CommitRequest, TableChange
from deltalakedb.metastore.database import Database
from deltalakedb.protocol.txn_log import Committed
from deltalakedb.table.handle import require_handle
from deltalakedb.table.scratch import removes
from support.lake import root_of

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Action, DeletionVector, Protocol

FEED = {"delta.enableChangeDataFeed": "true"}


def changed_table(module: Any, uri: str) -> Any:
    """Inserts, an update, a delete, a merge, and an overwrite of one partition and of everything."""
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("b", pa.binary()), ("p", pa.string())])

    def rows(*ids: int, s: str = "x") -> pa.Table:
        made = [{"id": i, "s": s, "b": b"b", "p": "a" if i % 2 else "b"} for i in ids]
        return pa.Table.from_pylist(made, schema=schema)

    module.write_deltalake(uri, rows(1, 2, 3, 4), partition_by=["p"], configuration=FEED)
    table = module.DeltaTable(uri)
    table.update(updates={"s": "'y'"}, predicate="id = 2")
    table.delete("id = 1")
    table.merge(rows(3, 9, s="z"), "t.id = s.id", source_alias="s", target_alias="t").when_matched_update(
        {"s": "s.s"}
    ).when_not_matched_insert_all().execute()
    module.write_deltalake(uri, rows(10, s="w"), mode="overwrite", predicate="p = 'b'")
    module.write_deltalake(uri, rows(20), mode="append")
    module.write_deltalake(uri, rows(30), mode="overwrite")
    return module.DeltaTable(uri)


def changes(found: Any) -> list[str]:
    """The rows of a feed in one order, without the times."""
    table = pa.table(found)
    if "_commit_timestamp" in table.schema.names:
        table = table.drop_columns(["_commit_timestamp"])
    return sorted(str(row) for row in table.to_pylist())


def hide_log(table: Any) -> None:
    """Take the table's `_delta_log` away."""
    log = root_of(table) / "_delta_log"
    log.rename(log.with_name("_hidden_log"))


def commit_actions(uri: str, actions: list[Action]) -> int:
    """Commit actions as they are; the version they became."""
    table: Any = DeltaTable(uri)
    database = Database.open(parse_address(uri))
    handle = require_handle(table)
    done = commit(database, CommitRequest([TableChange(handle.row, [actions], handle.source.snapshot)]))
    assert isinstance(done, list)
    assert isinstance(done[0], Committed)
    return done[0].version


def put_vector(uri: str, vector: DeletionVector | None) -> int:
    """Give the table's only file another deletion vector."""
    table: Any = DeltaTable(uri)
    (add,) = require_handle(table).source.adds()
    new = replace(add, deletion_vector=vector, data_change=True)
    return commit_actions(uri, [*removes([add]), new])


def remove_all(uri: str) -> int:
    """Remove every file."""
    table: Any = DeltaTable(uri)
    return commit_actions(uri, removes(require_handle(table).source.adds()))


def switch_on_feed(uri: str) -> int:
    """Set the property of the change data feed, and the protocol that it needs."""
    table: Any = DeltaTable(uri)
    snapshot = require_handle(table).source.snapshot
    metadata = replace(snapshot.metadata, configuration={**snapshot.metadata.configuration, **FEED})
    protocol: Protocol = snapshot.protocol
    actions: list[Action] = [metadata]
    if protocol.writer_features is not None and "changeDataFeed" not in protocol.writer_features:
        actions.insert(0, replace(protocol, writer_features=(*protocol.writer_features, "changeDataFeed")))
    return commit_actions(uri, actions)
