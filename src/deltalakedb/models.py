"""What a catalog and its logs hold, as frozen values: typed, comparable, and plain data or JSON when asked.

Example:
    >>> [file.path for file in catalog.files("sales.orders", where="day = '2026-11-15'")]
    >>> Commit.from_json(catalog.commits("sales.orders")[0].to_json()).operation
    'WRITE'
"""

from deltalakedb.metastore.rows import File as File
from deltalakedb.metastore.rows import Head as Head
from deltalakedb.metastore.rows import Table as Table
from deltalakedb.protocol.actions import Action as Action
from deltalakedb.protocol.actions import Add as Add
from deltalakedb.protocol.actions import Cdc as Cdc
from deltalakedb.protocol.actions import CheckpointMetadata as CheckpointMetadata
from deltalakedb.protocol.actions import CommitInfo as CommitInfo
from deltalakedb.protocol.actions import DeletionVector as DeletionVector
from deltalakedb.protocol.actions import DomainMetadata as DomainMetadata
from deltalakedb.protocol.actions import Format as Format
from deltalakedb.protocol.actions import Metadata as Metadata
from deltalakedb.protocol.actions import Protocol as Protocol
from deltalakedb.protocol.actions import Remove as Remove
from deltalakedb.protocol.actions import Sidecar as Sidecar
from deltalakedb.protocol.actions import Txn as Txn
from deltalakedb.protocol.actions import UnknownAction as UnknownAction
from deltalakedb.protocol.actions import action_from_dict as action_from_dict
from deltalakedb.protocol.actions import action_to_dict as action_to_dict
from deltalakedb.protocol.txn_log import Commit as Commit
from deltalakedb.protocol.txn_log import Committed as Committed
from deltalakedb.protocol.txn_log import Conflict as Conflict
from deltalakedb.protocol.txn_log import Snapshot as Snapshot
