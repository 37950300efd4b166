"""The audit: one row for every change, written in the same transaction as the change."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache
from typing import TYPE_CHECKING, Any

from deltalakedb.protocol.json_text import encode_json

if TYPE_CHECKING:
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.imports import ImportRow
    from deltalakedb.metastore.rows import Table

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
    about: Table | ImportRow | None = None,
    *,
    version: int | None = None,
    txn: str | None = None,
    at: int | None = None,
    **details: Any,
) -> None:
    """Write one audit row, about a table or an import of one."""
    when = session.now_ms() if at is None else at
    table_id, name = (None, None) if about is None else (about.table_id, about.name)
    row = (when, actor(), action, table_id, name, version, txn, encode_json(details))
    session.insert("dl_audit", _COLUMNS, [row])
