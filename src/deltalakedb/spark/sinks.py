"""Sinks of streams: which query a batch belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.exceptions import DeltaSqlError, InvalidArgumentError
from deltalakedb.protocol.codec import decode_json
from deltalakedb.storage.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping


def query_id(options: Mapping[str, str]) -> tuple[str, str | None]:
    """Under which application id a query notes its batches, and the id that it shares with no other query.

    The first is the option ``appId``, else what Spark keeps in the query's checkpoint. The second comes from
    the checkpoint, so a query that begins anew with another checkpoint has another one; it is None if the
    checkpoint cannot be read from Python. Names of options are in lower case, as Spark gives them.

    Raises:
        InvalidArgumentError: Neither can be had.
    """
    named, own = options.get("appid"), _checkpoint_id(options.get("checkpointlocation"))
    if named:
        return named, None if own is None else f"{named}@{own}"
    if own is not None:
        return own, own
    raise InvalidArgumentError(
        "the query's id cannot be read from its checkpoint",
        suggestion="name the query for the table: .option('appId', 'a name that no other query has')",
    )


def _checkpoint_id(place: str | None) -> str | None:
    """The id that Spark keeps in a checkpoint; None if it cannot be read here, now or later."""
    if place is None:
        return None
    try:
        return str(decode_json(open_store(place.replace("s3a://", "s3://", 1)).get("metadata"))["id"])
    except DeltaSqlError as error:
        if error.transient:
            raise  # the batch is tried again, as the same query
        return None
    except (KeyError, TypeError):
        return None


def other_query(app_id: str, batch: int, recorded: int, *, table: str | None = None) -> InvalidArgumentError:
    """The error for a batch whose number is taken under its application id, by another query."""
    return InvalidArgumentError(
        f"another query has committed batch {recorded} as application {app_id!r}: batch {batch} of this one "
        "would be taken for a repetition, and its rows would be lost",
        table=table,
        suggestion="a query with a new checkpoint location needs a new application id (app_id of "
        "foreach_batch, the option appId of a sink); no two queries may share one",
    )
