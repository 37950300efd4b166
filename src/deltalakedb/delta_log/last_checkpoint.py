"""``_last_checkpoint``: the hint where a reader begins, never moved backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.delta_log.names import LAST_CHECKPOINT
from deltalakedb.exceptions import LogCorruptError, StorageMissingError
from deltalakedb.protocol.codec import decode_json, encode_json

if TYPE_CHECKING:
    from deltalakedb.storage import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpoint:
    """What ``_last_checkpoint`` says of a checkpoint: its version, actions, bytes and adds."""

    version: int
    size: int
    size_in_bytes: int
    num_of_add_files: int


def last_checkpoint(store: Store) -> int | None:
    """The version that ``_last_checkpoint`` names: a hint that may be stale, wrong, garbage or missing."""
    try:
        hint = decode_json(store.get(LAST_CHECKPOINT))
    except (StorageMissingError, LogCorruptError):
        return None
    version = hint.get("version") if isinstance(hint, dict) else None
    return version if type(version) is int and version >= 0 else None


def write_last_checkpoint(store: Store, hint: LastCheckpoint) -> bool:
    """Point readers to a checkpoint, after its files are there; False if the hint names a newer one.

    It has no checksum, which the protocol leaves to writers.
    """
    if (last_checkpoint(store) or 0) > hint.version:
        return False
    fields = {
        "version": hint.version,
        "size": hint.size,
        "sizeInBytes": hint.size_in_bytes,
        "numOfAddFiles": hint.num_of_add_files,
    }
    store.put(LAST_CHECKPOINT, encode_json(fields).encode())
    return True
