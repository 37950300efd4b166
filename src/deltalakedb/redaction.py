"""Secrets that do not show themselves, and texts cleared of them."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["MASK", "Secret", "redact"]

MASK: Final = "***"

_SECRET_IN_URL: Final = re.compile(r"([/@][^/:@\s]*:)\S+(?=@)")
_SECRET_IN_PAIR: Final = re.compile(
    r"(?i)\b(\w*(?:password|passwd|pwd|secret|token|signature|credential|access_key|account_key)\w*"
    r"[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;}\])]+)"
)


class Secret:
    """A text that shows itself only on ``reveal()``. A pickle carries it: keep that as you keep secrets."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, to hand to a driver."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret('{MASK}')"

    def __str__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._text,)


def redact(text: str) -> str:
    """The text without what looks like a password, key or token: for messages of drivers and stores."""
    return _SECRET_IN_PAIR.sub(rf"\g<1>{MASK}", _SECRET_IN_URL.sub(rf"\g<1>{MASK}", text))
