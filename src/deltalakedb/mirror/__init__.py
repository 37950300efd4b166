"""Unpublished commits become log files: publishing, checkpoints, drift, repair."""

from collections.abc import Mapping

#: options for a table's object store
Options = Mapping[str, str] | None
