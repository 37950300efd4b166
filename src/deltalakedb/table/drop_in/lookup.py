"""A table by its address or itself: the two helpers of ``deltalake.writer._utils``, with our tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake

from deltalakedb.exceptions import InvalidArgumentError, TableNotFoundError
from deltalakedb.table.drop_in.delta_table import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Mapping


def try_get_table_and_table_uri(
    table_or_uri: str | Path | deltalake.DeltaTable, storage_options: dict[str, str] | None = None
) -> tuple[deltalake.DeltaTable | None, str]:
    """The table, or None if there is none yet, and its address.

    Args:
        table_or_uri: An address or an open table.
        storage_options: Options for the object store.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(table_or_uri, deltalake.DeltaTable):
        return table_or_uri, table_or_uri.table_uri
    if not isinstance(table_or_uri, str | Path):
        raise InvalidArgumentError(
            f"table_or_uri must be a str, Path or DeltaTable, not {type(table_or_uri).__name__}"
        )
    return try_get_deltatable(table_or_uri, storage_options), str(table_or_uri)


def try_get_deltatable(
    table_uri: str | Path, storage_options: Mapping[str, str] | None
) -> deltalake.DeltaTable | None:
    """The table at an address, or None."""
    options = None if storage_options is None else dict(storage_options)
    try:
        return DeltaTable(table_uri, storage_options=options)
    except TableNotFoundError:
        return None
