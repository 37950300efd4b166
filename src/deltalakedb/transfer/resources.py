"""What a transfer takes: the lease of a location, and memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb.metastore import imports, leases
from deltalakedb.settings import get_config

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from deltalakedb.metastore.database import Database
    from deltalakedb.metastore.leases import Lease

_STATUS = Path("/proc/self/status")


def location_lease(database: Database, location: str) -> AbstractContextManager[Lease]:
    """Hold the right to import, undo or export the table at a location.

    Raises:
        CatalogBusyError: Another process holds it.
    """
    work = f"the import, export or rollback of {location}"
    return leases.leased(database, imports.lease_name(location), work=work, ttl_ms=imports.LEASE_MS)


def is_leased(database: Database, location: str) -> bool:
    """Whether a live process imports, undoes or exports the table at a location."""
    holding = leases.holding(database, imports.lease_name(location))
    return holding is not None and not holding.is_abandoned


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    if _STATUS.exists():  # getrusage counts what the parent held before it became this program
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bound() -> int:
    """The memory that a verification may use, beyond what the process holds anyway."""
    return get_config().import_.memory_mb * 1024 * 1024 // 2
