"""The lines of the log, for modules that still import them from here: use `actions` and `json_text`."""

from deltalakedb.protocol.actions import decode_commit, encode_action, encode_commit
from deltalakedb.protocol.json_text import ExactFloat, decode_json, encode_json

__all__ = ["ExactFloat", "decode_commit", "decode_json", "encode_action", "encode_commit", "encode_json"]
