"""What a catalog and its logs hold, as frozen values: typed, comparable, and plain data or JSON when asked.

Example:
    >>> [file.path for file in catalog.files("sales.orders", where="day = '2026-11-15'")]
    >>> Commit.from_json(catalog.commits("sales.orders")[0].to_json()).operation
    'WRITE'
"""

from deltalakedb.metastore.rows import File, Head, Table
from deltalakedb.protocol.actions import (
    Action,
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
    UnknownAction,
    action_from_dict,
    action_to_dict,
)
from deltalakedb.protocol.txn_log import Commit, Committed, Conflict, Snapshot

__all__ = [
    "Action",
    "Add",
    "Cdc",
    "CheckpointMetadata",
    "Commit",
    "CommitInfo",
    "Committed",
    "Conflict",
    "DeletionVector",
    "DomainMetadata",
    "File",
    "Format",
    "Head",
    "Metadata",
    "Protocol",
    "Remove",
    "Sidecar",
    "Snapshot",
    "Table",
    "Txn",
    "UnknownAction",
    "action_from_dict",
    "action_to_dict",
]
