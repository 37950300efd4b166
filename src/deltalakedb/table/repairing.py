"""Repairing a table: live files that are not there any more are taken out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.mirror.outside import ADOPT, POLICY, refuse_strangers
from deltalakedb.protocol.codec import encode_json
from deltalakedb.protocol.features import OURS, check_writable
from deltalakedb.protocol.read_set import NOTHING
from deltalakedb.table.commit_notes import notes
from deltalakedb.table.hooks import DEFAULT
from deltalakedb.table.operations import removes
from deltalakedb.table.overlay import unread
from deltalakedb.table.presence import missing
from deltalakedb.table.work import Work

if TYPE_CHECKING:
    import deltalake

    from deltalakedb.protocol.actions import Action
    from deltalakedb.table.hooks import Hooks
    from deltalakedb.table.sql_table import SqlDeltaTable


def repair(
    table: SqlDeltaTable,
    *,
    dry_run: bool,
    commit_properties: deltalake.CommitProperties | None = None,
    hooks: Hooks = DEFAULT,
) -> dict[str, Any]:
    """Find live files that are missing, and remove them from the table.

    A dry run refuses what the real run refuses.

    Args:
        table: The open table.
        dry_run: Only find them.
        commit_properties: Custom metadata and application transactions.
        hooks: What is to follow the commit.

    Returns:
        The metrics, under the names and in the forms that delta-rs gives them.

    Raises:
        TableFrozenError: Files are missing, and the table is frozen, or its log is ahead of the catalog.
    """
    snapshot = table._source.snapshot
    if not dry_run:
        check_writable(snapshot.protocol, table=table.name, also=OURS)
    # whoever adds or removes files meanwhile does not stand in the way: only the missing ones are touched
    with unread(table._source):
        paths = table._source.scan(("path",)).column("path").to_pylist()
        gone = missing(table._root, paths)
        lost = [a for a in table._source.adds() if a.path in set(gone)] if gone and not dry_run else []
    if gone and table._row.settings.get(POLICY) != ADOPT:
        danger = "the missing files may no longer be part of the table"
        refuse_strangers(table._database, table._row, table._root.options, danger=danger)
    metrics = {"dry_run": dry_run, "files_removed": encode_json(gone)}
    if lost:
        actions: list[Action] = [*notes("FSCK", {}, metrics, commit_properties), *removes(lost)]
        table._hand_on(Work(table._row, actions, snapshot, NOTHING, root=table._root, hooks=hooks))
    return metrics
