"""The clock that files are deleted by: the database's, once the host's and the store's agree with it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.exceptions import ClockSkewError, StorageError, StorageMissingError
from deltalakedb.storage.local import LocalStore

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database
    from deltalakedb.storage.store import Store


#: stores give times in whole seconds, and disks a little late
_NOISE_MS = 2_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The time by which files are deleted: the database's, and how far the store's clock is ahead of it."""

    now: int
    ahead: int = 0

    def on_store(self, moment: int) -> int:
        """A moment by the store's clock, to compare with the times of files."""
        return moment + self.ahead


def database_now(database: Database) -> int:
    """The database's time, in epoch milliseconds; an embedded database has the host's."""
    with database.read() as session:
        return session.now_ms()


def checked_clock(database: Database, table: str, store: Store, *, dry_run: bool = False) -> Clock:
    """The database's time, if the clocks of this host and of the store agree with it.

    Commits carry the database's time, files the store's, and the names of work folders a host's. If one of
    these clocks is wrong, files that were removed a moment ago look old. A dry run writes nothing, so it does
    not query an object store, or a folder that cannot be written to.

    Raises:
        ClockSkewError: Two of the clocks differ by more than ``catalog.clock_tolerance_s``.
    """
    tolerance = int(database.engine.config.catalog.clock_tolerance_s * 1000) + _NOISE_MS
    began = time.monotonic_ns()
    host, now = time.time_ns() // 1_000_000, database_now(database)
    apart = host - now
    if not -tolerance - _since(began) <= apart <= tolerance:
        raise _skewed(table, "this host's clock", apart)
    stamp = _stamp(store, dry_run=dry_run)
    if stamp is None:
        return Clock(now)
    late, ahead = _since(began), stamp - now
    if not -tolerance <= ahead <= tolerance + late:
        raise _skewed(table, "the clock of the table's store", ahead)
    # time that passed while the clocks were read makes no file older
    return Clock(now, ahead - late if abs(ahead) > _NOISE_MS + late else 0)


def _stamp(store: Store, *, dry_run: bool) -> int | None:
    """The store's time; None if there is no such folder, or a dry run cannot read it."""
    if dry_run and not isinstance(store, LocalStore):
        return None
    try:
        return store.now_ms()
    except StorageError as error:
        if dry_run or isinstance(error, StorageMissingError):
            return None
        raise


def _skewed(table: str, clock: str, ahead: int) -> ClockSkewError:
    by = f"{abs(ahead) / 1000:.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return ClockSkewError(
        f"refused to delete files by their age: {clock} is {by} the database's",
        table=table,
        suggestion="correct the clocks (NTP), then try again; the setting catalog.clock_tolerance_s "
        "(DELTASQL_CATALOG__CLOCK_TOLERANCE_S) allows a larger difference",
    )


def _since(began: int) -> int:
    return (time.monotonic_ns() - began) // 1_000_000
