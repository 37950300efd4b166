"""The lines of the log, for modules that still import them from here: use `actions` and `json_text`."""

from __future__ import annotations

from deltalakedb.protocol.actions import (
    BOM,
    decode_commit,
    decode_line,
    decode_lines,
    encode_action,
    encode_commit,
)
from deltalakedb.protocol.json_text import ExactFloat, decode_json, encode_json

__all__ = [
    "BOM",
    "ExactFloat",
    "decode_commit",
    "decode_json",
    "decode_line",
    "decode_lines",
    "encode_action",
    "encode_commit",
    "encode_json",
]
