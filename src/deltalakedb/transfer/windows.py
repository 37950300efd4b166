"""Windows of a checkpoint as rows of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.catalog.file_rows import FileRows
from deltalakedb.catalog.ratify import Counts
from deltalakedb.log.checkpoint_scan import Piece
from deltalakedb.protocol.actions import Add, Remove

if TYPE_CHECKING:
    from deltalakedb.catalog.engines.base import Session
    from deltalakedb.log.checkpoint_scan import Window
    from deltalakedb.protocol.slots import SlotEncoder


def write_window(
    session: Session, table_id: int, version: int, window: Window, encoder: SlotEncoder
) -> tuple[Counts, int]:
    """Write a window's files; what they count to, and how many file actions there were."""
    counts, actions = Counts(), 0
    rows = FileRows(session, table_id, window.begin, encoder)
    for part in window.parts:
        for action in part.actions() if isinstance(part, Piece) else part:
            if isinstance(action, Add):
                _, records = rows.add(action, version)
                counts.change(1, action.size, records)
                actions += 1
            elif isinstance(action, Remove):
                rows.bury(action, version)
                actions += 1
    rows.flush()
    return counts, actions
