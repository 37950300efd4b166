"""Groups: which published versions of several tables belong to one transaction, told to readers outside."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.exceptions import DeltaSqlError
from deltalakedb.protocol.codec import encode_json
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

#: beside the data, in a folder that Delta's readers and vacuums leave alone
FOLDER = "_delta_transactions"


@dataclass(frozen=True, slots=True)
class Member:
    """A table's part in a transaction."""

    table: str
    location: str
    version: int


def write_manifest(
    txn_uuid: str,
    committed_at: int,
    members: Sequence[Member],
    options: Mapping[str, Mapping[str, str] | None],
) -> None:
    """Put a small file beside every table of a transaction that names the versions that belong together.

    It is written once all of them are published. Readers that want several tables at one moment look for it;
    losing it loses no data, so trouble is only noted.

    Args:
        txn_uuid: The transaction.
        committed_at: Its time, in epoch milliseconds.
        members: The tables and their versions.
        options: Storage options by location.
    """
    body = {
        "txnId": txn_uuid,
        "committedAt": committed_at,
        "tables": [{"name": m.table, "location": m.location, "version": m.version} for m in members],
    }
    data = (encode_json(body) + "\n").encode()
    for member in members:
        try:
            open_store(member.location, options.get(member.location)).put_new(
                f"{FOLDER}/{txn_uuid}.json", data, mtime_ms=committed_at
            )
        except DeltaSqlError as error:
            logger.warning(
                "the manifest of transaction %s is missing at %s: %s", txn_uuid, member.table, error.message
            )
