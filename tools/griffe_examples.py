"""A Griffe extension: the docstrings' ``Example:`` is what Griffe knows as ``Examples:``, a block of code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it in one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)^(\s*)Example:$", r"\1Examples:", obj.docstring.value)
