"""The audit: one row for every change, written in the same transaction as the change."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.codec import encode_json

if TYPE_CHECKING:
    from deltalakedb.metastore.engines.base import Session

_COLUMNS = ("recorded_at", "actor", "action", "table_id", "table_name", "version", "txn_uuid", "details")


@cache
def actor() -> str:
    """Who acts: ``DELTASQL_ACTOR`` if it is set, else user and host."""
    if named := os.environ.get("DELTASQL_ACTOR"):
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def record(
    session: Session,
    action: str,
    *,
    table_id: int | None = None,
    table: str | None = None,
    version: int | None = None,
    txn: str | None = None,
    at: int | None = None,
    **details: Any,
) -> None:
    """Write one audit row."""
    when = session.now_ms() if at is None else at
    row = (when, actor(), action, table_id, table, version, txn, encode_json(details))
    session.insert("dl_audit", _COLUMNS, [row])
