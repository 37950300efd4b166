"""Secrets that do not show themselves, and texts cleared of them."""

from __future__ import annotations

import re
from typing import Any, Final

MASK: Final = "***"

# Requests and messages from other machines pass through these patterns, so each is linear: quantifiers are
# possessive, and no attempt to match can begin inside what an earlier attempt has read.
_RUN: Final = re.compile(r"\S++")
_USER: Final = re.compile(r"[/@][^/:@]*+:")
_PAIR: Final = re.compile(
    r"""(?<![\w.-])(
      (?=[\w.-]*?(?:pass(?:word|wd|phrase)|pwd|secret|token|signature|credential|authorization
                    |(?:access|account|api|private)[_.-]?key)
        |sig(?![\w.-]))
      [\w.-]++[\\"']{0,9}+\s*+[=:]\s*+)
    (?:(?:bearer|basic|digest|negotiate)\s++)?+
    (?:[bru]{0,2}(?:"(?:[^"\\]|\\.|"")*+"?+|'(?:[^'\\]|\\.|'')*+'?+)
      |(\\{1,9}+)(["'])(?:(?!(?<!\\)\2\3).)*+(?:\2\3)?+
      |[^\s&,;}\])]++)""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_BEARER: Final = re.compile(r"(?<!\w)(bearer\s++)[\w.~+/=-]{8,}+", re.IGNORECASE)


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
    """The text without what looks like a password, key or token, in time linear to its length."""
    without_users = _RUN.sub(_without_password, text) if "@" in text else text
    return _BEARER.sub(rf"\g<1>{MASK}", _PAIR.sub(rf"\g<1>{MASK}", without_users))


def _without_password(run: re.Match[str]) -> str:
    """A run of characters without spaces, with ``user:password@`` masked up to its last ``@``."""
    text = run[0]
    end = text.rfind("@")
    user = _USER.search(text, 0, end) if end > 0 else None
    return text if user is None or user.end() == end else f"{text[: user.end()]}{MASK}{text[end:]}"
