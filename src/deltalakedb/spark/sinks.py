"""Sinks of streams: which query a batch belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError
from deltalakedb.protocol.codec import decode_json
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping


def query_id(options: Mapping[str, str]) -> str:
    """The id of a query: the option ``appId``, else what Spark keeps in the query's checkpoint.

    A query that begins anew with another checkpoint has another id, so that its batches count again from 0.
    Names of options are in lower case, as Spark gives them.

    Raises:
        InvalidArgumentError: Neither can be had.
    """
    if named := options.get("appid"):
        return named
    place = options.get("checkpointlocation")
    if place is not None:
        try:
            found = decode_json(open_store(place.replace("s3a://", "s3://", 1)).get("metadata"))
            return str(found["id"])
        except (DeltaSqlError, KeyError, TypeError):
            pass
    raise InvalidArgumentError(
        "the query's id cannot be read from its checkpoint",
        suggestion="name the query for the table: .option('appId', 'a name that no other query has')",
    )
