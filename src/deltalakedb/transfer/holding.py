"""Holding the lease of an import: one at a time for each location, and none for the dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.metastore import imports, leases

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.leases import Lease


def held(database: Database, location: str) -> AbstractContextManager[Lease]:
    """Hold the right to import, undo or export what lies at a location, for as long as that takes.

    Raises:
        CatalogBusyError: Somebody else is at work there.
    """
    work = f"the import, export or rollback of {location}"
    return leases.leased(database, imports.lease_name(location), work=work, ttl_ms=imports.LEASE_MS)


def is_held(database: Database, location: str) -> bool:
    """Whether somebody is at work on what lies at a location."""
    holding = leases.holding(database, imports.lease_name(location))
    return holding is not None and not holding.is_abandoned
