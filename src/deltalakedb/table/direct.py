"""Plain appends without a scratch table: Parquet by our own writer, committed with the same commitInfo."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from deltalake import Transaction

from deltalakedb.failpoints import failpoint
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import OURS
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.protocol.stats import parse_stats
from deltalakedb.table.eligibility import eligible
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.in_flight import in_flight
from deltalakedb.table.parquet import arrow_source, write_files
from deltalakedb.table.roots import undo
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalake import CommitProperties

    from deltalakedb.protocol.actions import Action, Add
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.sql_table import SqlDeltaTable


def append(
    table: SqlDeltaTable,
    data: Any,
    options: dict[str, Any],
    *,
    hooks: Hooks = DEFAULT,
    check: Callable[[], None] | None = None,
) -> Any | None:
    """Append directly where that is certain to give what delta-rs would.

    Args:
        table: The open table.
        data: Arrow data of any kind.
        options: The arguments of ``write_deltalake``.
        hooks: What is to follow the commit.
        check: Called while the files are written; if it raises, they are deleted and nothing is committed.

    Returns:
        None where it was done, else the data, unread, for delta-rs to write.
    """
    source = arrow_source(data)
    properties = options.get("commit_properties")
    if properties is not None and not _only_transactions(properties):
        return source
    snapshot = table._source.snapshot
    if eligible(snapshot, source.schema, options, also=OURS) is not None:
        return source
    root = table._root
    begun = time.monotonic()
    failpoint("data.before")
    with in_flight(root.location), ExitStack() as stack:
        checking = None if check is None else stack.enter_context(ThreadPoolExecutor(1)).submit(check)
        adds = write_files(
            source,
            root=root,
            snapshot=snapshot,
            target_file_size=options.get("target_file_size"),
            writer_properties=options.get("writer_properties"),
            fsync=table._database.engine.config.publish.fsync,
            also=OURS,
            flushes=table._sink.flushes,
        )
        failpoint("data.after")
        txns = [
            Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated)
            for t in (properties.app_transactions or () if properties is not None else ())
        ]
        actions: list[Action] = [_info(adds, snapshot.metadata.partition_columns, begun), *txns, *adds]
        files = root.placed(a.path for a in adds)
        if checking is not None and (failure := checking.exception()) is not None:
            undo(files)
            raise failure
        table._hand_on(
            Work(
                table._row,
                actions,
                snapshot,
                NOTHING,
                files,
                fresh=True,
                root=root,
                hooks=hooks,
            )
        )
    return None


def _only_transactions(properties: CommitProperties) -> bool:
    """Whether a commit is to hold nothing but application transactions; delta-rs judges the rest."""
    retries = properties.max_commit_retries
    return (
        not properties.custom_metadata
        and (retries is None or (isinstance(retries, int) and retries >= 0))
        and all(isinstance(t, Transaction) for t in properties.app_transactions or ())
    )


def _info(adds: Sequence[Add], partition_columns: Sequence[str], begun: float) -> CommitInfo:
    """The commitInfo of an append, with the keys that delta-rs gives it."""
    counts = [s.num_records or 0 for a in adds if (s := parse_stats(a.stats)) is not None]
    by = {"partitionBy": encode_json(list(partition_columns))} if partition_columns else {}
    return CommitInfo(
        extra={
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", **by},
            "operationMetrics": {
                "num_added_files": len(adds),
                "num_removed_files": 0,
                "num_partitions": 0,  # always, as delta-rs has it
                "num_added_rows": sum(counts),
                "execution_time_ms": int((time.monotonic() - begun) * 1000),
                "num_retries": 0,
            },
        }
    )
