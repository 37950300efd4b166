"""Table properties as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import ProtocolError

if TYPE_CHECKING:
    from deltalakedb.protocol.actions import Metadata


def whole_number(metadata: Metadata, name: str, default: int) -> int:
    """A property that counts something; ProtocolError where it is no whole number above zero."""
    text = metadata.configuration.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) < 1:
        raise ProtocolError(
            f"the table property {name} is {text!r}, not a whole number above zero",
            suggestion="set it to a number such as 100",
        )
    return int(text)
