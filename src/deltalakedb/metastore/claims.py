"""Batches that several processes may try to load at the same time: the first to claim one has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import CatalogBusyError
from deltalakedb.metastore.imports import write_receipt
from deltalakedb.metastore.leases import still_held

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.engines.base import Session
    from deltalakedb.metastore.imports import Receipt
    from deltalakedb.metastore.leases import Lease


def claim(database: Database, session: Session, import_id: str, batch: int) -> bool:
    """Claim a batch inside the transaction that loads it; False where it is loaded already.

    A twin that has claimed it and not ended yet is waited for: of a task that runs twice one has an effect.
    """
    return session.run(database.sql("imports", "claim receipt"), (import_id, batch)) == 1


def fulfil(database: Database, session: Session, import_id: str, receipt: Receipt) -> None:
    """Put the receipt in the place of the claim, at the end of the same transaction."""
    session.run(database.sql("imports", "unclaim receipt"), (import_id, receipt.batch))
    write_receipt(session, import_id, receipt)


def check_lease(database: Database, session: Session, lease: Lease) -> None:
    """See that a lease is still held, without holding it for longer: many may look at the same time."""
    if not still_held(database, session, lease):
        raise CatalogBusyError(
            f"the lease {lease.name} ran out or was taken over",
            suggestion="look whether another import of the table is at work, then resume",
        )
