"""Importing, following, verifying, exporting and rolling back: tables between plain Delta and the catalog."""

from typing import Literal, TypeAlias

#: how thoroughly a log and the catalog are compared
Level: TypeAlias = Literal["commits", "counts", "digest", "full", "data"]
LEVELS: tuple[Level, ...] = ("commits", "counts", "digest", "full", "data")
#: those that compare files, which is the least before a table becomes visible or is released
FILE_LEVELS = LEVELS[1:]
