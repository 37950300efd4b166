"""Lines of the log: actions to JSON and back, exact in both directions."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import action_from_dict, action_to_dict
from deltalakedb.protocol.json_text import ExactFloat, decode_json, encode_json, json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltalakedb.protocol.actions import Action

__all__ = [
    "ExactFloat",
    "action_from_json_object",
    "decode_commit",
    "decode_json",
    "decode_line",
    "encode_action",
    "encode_commit",
    "encode_json",
]

logger = logging.getLogger(__name__)

#: what was warned of already: a commit may have many such lines, and is read often
_passed_over: dict[tuple[str, str], None] = {}
_MOST_NOTED: Final = 1000
_BOM: Final = b"\xef\xbb\xbf"
_TORN: Final = "restore the file from a copy or repair the log: a commit is either whole or not there"


def action_from_json_object(line: Any, warn: Callable[[str], None] | None = None) -> Action | None:
    """The action in a decoded log line, or None if the line holds none.

    Raises:
        ProtocolError: The line is not an object with one well-formed action.
    """
    if not isinstance(line, dict):
        raise ProtocolError(f"a line must be a JSON object, not {type(line).__name__}")
    return action_from_dict(line, warn)


def decode_line(line: str | bytes, *, source: str = "commit", number: int = 1) -> Action | None:
    """The action in one line of a log file, or None for a blank line or an empty object.

    Args:
        line: One JSON object.
        source: What the line comes from, for error messages.
        number: The line's number there, counted from 1.

    Raises:
        LogCorruptError: The line is broken; the message names source and number.
    """
    if isinstance(line, str):
        line = line.encode("utf-8", "surrogatepass")
    if not (line := line.strip()):
        return None
    try:
        return action_from_json_object(decode_json(line), partial(_pass_over, source))
    except (LogCorruptError, ProtocolError) as e:
        raise LogCorruptError(f"{source}, line {number}: {e.message}", suggestion=_TORN) from e


def _pass_over(source: str, keys: str) -> None:
    if (source, keys) not in _passed_over:
        _passed_over[source, keys] = None
        if len(_passed_over) > _MOST_NOTED:
            del _passed_over[next(iter(_passed_over))]
        logger.warning("%s: passed over unknown keys beside an action: %s", source, keys[:200])


def decode_commit(data: bytes, *, source: str = "commit") -> list[Action]:
    """The actions of a commit, in the order written.

    Args:
        data: The file's bytes: one JSON object a line. A byte order mark, CRLF, blank lines and empty
            objects are tolerated.
        source: The file's name, for error messages.

    Raises:
        LogCorruptError: A line is broken, or the file holds no action at all.
    """
    actions = [
        action
        for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), start=1)
        if line and (action := decode_line(line, source=source, number=number)) is not None
    ]
    if not actions:
        raise LogCorruptError(f"{source} holds no action", suggestion=_TORN)
    return actions


def encode_action(action: Action) -> bytes:
    """One action as a line of the log, without the line break."""
    return json_bytes(action_to_dict(action))


def encode_commit(actions: Iterable[Action]) -> bytes:
    """A commit's bytes: one action a line, every line ended by a line feed."""
    return b"".join(encode_action(action) + b"\n" for action in actions)
