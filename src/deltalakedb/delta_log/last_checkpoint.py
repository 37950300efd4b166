"""``_last_checkpoint``: the hint where a reader begins, with its checksum, never moved backwards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deltalakedb.delta_log.names import LAST_CHECKPOINT
from deltalakedb.exceptions import LogCorruptError, ProtocolError, StorageMissingError
from deltalakedb.protocol.actions import Int64, LogStruct
from deltalakedb.protocol.codec import ExactFloat, decode_json, encode_json

if TYPE_CHECKING:
    from deltalakedb.storage import Store

_CHECKSUM = "checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpoint(LogStruct):
    """What ``_last_checkpoint`` says; fields that nobody here knows are in ``extra``."""

    version: Int64
    size: Int64 = 0
    parts: Int64 | None = None
    size_in_bytes: Int64 | None = None
    num_of_add_files: Int64 | None = None
    checksum: str | None = None


def read_last_checkpoint(store: Store) -> LastCheckpoint | None:
    """The hint; None where there is none, where it is garbage, or where its checksum belies it."""
    try:
        data = decode_json(store.get(LAST_CHECKPOINT))
        hint = LastCheckpoint.from_dict(data) if isinstance(data, dict) else None
    except (StorageMissingError, LogCorruptError, ProtocolError):
        return None
    if hint is None or hint.version < 0:
        return None
    return hint if hint.checksum is None or hint.checksum == json_checksum(data) else None


def write_last_checkpoint(store: Store, hint: LastCheckpoint, *, force: bool = False) -> bool:
    """Point readers to a checkpoint, after its files are there; False where the hint names a newer one.

    Args:
        store: The table's root.
        hint: What to say; its checksum is worked out here.
        force: Move backwards too, for a log that was repaired.
    """
    if not force and (now := read_last_checkpoint(store)) is not None and now.version > hint.version:
        return False
    fields = {key: value for key, value in hint.to_dict().items() if key != _CHECKSUM}
    store.put(LAST_CHECKPOINT, encode_json({**fields, _CHECKSUM: json_checksum(fields)}).encode())
    return True


def json_checksum(value: Mapping[str, Any]) -> str:
    """The MD5 of a JSON object's canonical form; its own field ``checksum`` does not count.

    Example:
        >>> canonical_json({"b": [True, "x y"], "a": 1})
        '"a"=1,"b"+0=true,"b"+1="x%20y"'
    """
    return hashlib.md5(canonical_json(value).encode(), usedforsecurity=False).hexdigest()


def canonical_json(value: Mapping[str, Any]) -> str:
    """A JSON object as sorted pairs of path and value, spelled the one way that the protocol allows."""
    pairs = _leaves({key: item for key, item in value.items() if key != _CHECKSUM}, "")
    return ",".join(f"{path}={text}" for path, text in sorted(pairs, key=lambda pair: pair[0].encode()))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        items = [(_quoted(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(number), item) for number, item in enumerate(value)]
    else:
        yield path, _scalar(value)
        return
    for name, item in items:
        yield from _leaves(item, f"{path}+{name}" if path else name)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return value.text if isinstance(value, ExactFloat) else encode_json(value)


def _quoted(text: str) -> str:
    # quote() leaves exactly the unreserved characters, and spells the rest in upper case
    return f'"{quote(text, safe="")}"'
