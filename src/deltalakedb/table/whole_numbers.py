"""Whole numbers as callers write them: Python's own, and those of numpy and others like it."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """A whole number as an int; None for everything else, truth values among it."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
