"""Lines of the log: actions to JSON and back, exact in both directions."""

from __future__ import annotations

import logging
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import Action, action_from_dict, action_to_dict
from deltalakedb.protocol.json_text import ExactFloat, decode_json, encode_json, json_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = ["ExactFloat", "decode_commit", "decode_json", "decode_line", "encode_commit", "encode_json"]

logger = logging.getLogger(__name__)

BOM: Final = b"\xef\xbb\xbf"
_RESTORE: Final = "restore the file from a copy or repair the log: a commit is either whole or not there"


def decode_line(line: str | bytes, *, source: str = "commit", number: int = 1) -> Action | None:
    """The action in one line of a log file, or None for a blank line or an empty object.

    LogCorruptError if the line is broken; the message names its source and its number there, from 1.
    """
    if isinstance(line, str):
        line = line.encode("utf-8", "surrogatepass")
    if not (line := line.strip()):
        return None
    try:
        value = decode_json(line)
        if not isinstance(value, dict):
            raise ProtocolError(f"a line must be a JSON object, not {type(value).__name__}")
        return action_from_dict(value, partial(_warn_of_unknown_keys, source))
    except (LogCorruptError, ProtocolError) as e:
        raise LogCorruptError(f"{source}, line {number}: {e.message}", suggestion=_RESTORE) from e


@lru_cache(maxsize=1000)  # log once: a commit may have many such lines, and is read often
def _warn_of_unknown_keys(source: str, keys: str) -> None:
    logger.warning("%s: ignored unknown keys beside an action: %s", source, keys[:200])


def decode_commit(data: bytes, *, source: str = "commit") -> list[Action]:
    """The actions of a commit, in the order written; see `decode_lines`."""
    return list(decode_lines(data.removeprefix(BOM).split(b"\n"), source=source))


def decode_lines(lines: Iterable[bytes], *, source: str) -> Iterator[Action]:
    """The actions in the lines of a commit; CRLF, blank lines and empty objects are tolerated.

    LogCorruptError, which names ``source``, if a line is broken or there is no action at all.
    """
    nothing = True
    for number, line in enumerate(lines, start=1):
        if line and (action := decode_line(line, source=source, number=number)) is not None:
            nothing = False
            yield action
    if nothing:
        raise LogCorruptError(f"{source} holds no action", suggestion=_RESTORE)


def encode_action(action: Action) -> bytes:
    """One action as a line of the log, without the line break."""
    return json_bytes(action_to_dict(action))


def encode_commit(actions: Iterable[Action]) -> bytes:
    """A commit's bytes: one action a line, every line ended by a line feed."""
    return b"".join(encode_action(action) + b"\n" for action in actions)
