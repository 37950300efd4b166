"""JSON of the log, exact in both directions: numbers keep their digits, text stays UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec

from deltalakedb.exceptions import LogCorruptError, ProtocolError
from deltalakedb.protocol.actions import Action, action_from_dict, action_to_dict

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

_BOM: Final = b"\xef\xbb\xbf"
_TORN: Final = "restore the file from a copy or repair the log: a commit is either whole or not there"


class ExactFloat(float):
    """A JSON number that a float would respell: computes as a float, and is written as it was read.

    Example:
        >>> encode_json(decode_json("[1.10, 1e400]"))
        '[1.10,1e400]'
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """Keep ``text``, a number as JSON spells it."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[ExactFloat], tuple[str]]:
        return ExactFloat, (self.text,)


def _read_float(text: str) -> float:
    value = float(text)
    # the encoder spells numbers with an exponent in its own way
    return value if repr(value) == text and "e" not in text else ExactFloat(text)


def _write_other(value: Any) -> Any:
    if isinstance(value, ExactFloat):
        return msgspec.Raw(value.text.encode())
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


_decoder: Final = msgspec.json.Decoder(float_hook=_read_float)
_encoder: Final = msgspec.json.Encoder(enc_hook=_write_other, decimal_format="number")


def decode_json(text: str | bytes) -> Any:
    """The value of one JSON document, with exact numbers: long integers are ints, odd floats `ExactFloat`.

    Raises:
        LogCorruptError: The text is not JSON, not UTF-8, or nested beyond reason.
    """
    try:
        return _decoder.decode(text)
    except RecursionError as e:
        raise LogCorruptError("the JSON is nested too deeply") from e
    except (msgspec.MsgspecError, ValueError) as e:
        raise LogCorruptError(f"not valid JSON: {e}") from e


def encode_json(value: Any) -> str:
    """The compact JSON text of a value; what `decode_json` read is spelled as it was.

    Raises:
        ProtocolError: The value has no JSON form.
    """
    return _encode(value).decode()


def action_from_json_object(line: Any) -> Action | None:
    """The action in a decoded log line, or None where the line holds none.

    Raises:
        ProtocolError: The line is not an object with one well-formed action.
    """
    if not isinstance(line, dict):
        raise ProtocolError(f"a line must be a JSON object, not {type(line).__name__}")
    return action_from_dict(line)


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
        return action_from_json_object(decode_json(line))
    except (LogCorruptError, ProtocolError) as e:
        raise LogCorruptError(f"{source}, line {number}: {e.message}", suggestion=_TORN) from e


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
    return _encode(action_to_dict(action))


def encode_commit(actions: Iterable[Action]) -> bytes:
    """A commit's bytes: one action a line, every line ended by a line feed."""
    return b"".join(encode_action(action) + b"\n" for action in actions)


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except RecursionError as e:
        raise ProtocolError("the value is nested too deeply to be written as JSON") from e
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as e:
        raise ProtocolError(f"the value cannot be written as JSON: {e}") from e
