"""Unpublished commits become log files: publishing, checkpoints, drift, repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deltalakedb.storage.store import Store, open_store

if TYPE_CHECKING:
    from deltalakedb.metastore.database import Database

#: options for a table's object store
Options = Mapping[str, str] | None


def store_at(
    database: Database, location: str, storage_options: Options = None, *, durable: bool = True
) -> Store:
    """The store at a location, with the given options, else those of the catalog's settings."""
    options = database.engine.config.storage_options_for(location, storage_options)
    return open_store(location, options, durable=durable)
