"""Files and objects by location: the only room that touches a file system's log or an object store."""

from deltalakedb.storage.store import ObjectMeta, Store, open_store

__all__ = ["ObjectMeta", "Store", "open_store"]
