"""The commitInfo and application transactions of commits that delta-rs does not write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.exceptions import InvalidArgumentError
from deltalakedb.protocol.actions import CommitInfo, Txn
from deltalakedb.protocol.codec import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import deltalake

    from deltalakedb.protocol.actions import Action

_GENERATED: Final = ("timestamp", "operation", "engineInfo")
_ISOLATION: Final = ("Serializable", "WriteSerializable", "SnapshotIsolation")


def commit_info(
    operation: str,
    parameters: Mapping[str, str],
    metrics: Mapping[str, Any],
    properties: deltalake.CommitProperties | None,
) -> list[Action]:
    """The commitInfo of an operation, with the keys that delta-rs gives it, and the user's own.

    Args:
        operation: Its name in the history.
        parameters: What it was asked for.
        metrics: What it came to.
        properties: Custom metadata and application transactions.
    """
    own = {} if properties is None else custom_metadata(properties)
    more = {
        k: v if isinstance(v, str) else encode_json(v) for k, v in own.pop("operationParameters", {}).items()
    }
    info: dict[str, Any] = {
        "operation": operation,
        "operationParameters": {**more, **parameters},
        **own,
        "operationMetrics": dict(metrics),
    }
    return [CommitInfo(extra=info), *app_transactions(properties)]


def app_transactions(properties: deltalake.CommitProperties | None) -> list[Txn]:
    """The application transactions of a commit."""
    given = () if properties is None else properties.app_transactions or ()
    return [Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated) for t in given]


def custom_metadata(properties: deltalake.CommitProperties) -> dict[str, Any]:
    """The user's own entries of a commitInfo.

    Raises:
        InvalidArgumentError: An entry is no JSON, or stands in the place of one that has a meaning.
    """
    given: Any = properties.custom_metadata
    if given is None:
        return {}
    if not hasattr(given, "items"):
        raise InvalidArgumentError("CommitProperties.custom_metadata must be a mapping")
    out: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise InvalidArgumentError(f"the keys of custom_metadata must be texts, not {key!r}")
        try:
            out[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"the value of custom_metadata[{key!r}] cannot be written as JSON: {error}"
            ) from error
        if (demand := _demand(key, out[key])) is not None:
            raise InvalidArgumentError(f"custom_metadata[{key!r}] {demand}")
    return out


def _demand(key: str, value: Any) -> str | None:
    """What a key with a meaning of its own demands of its value, where that is not fulfilled."""
    if key in _GENERATED:
        return "is made by the commit itself and cannot be set"
    if key == "operationParameters" and not isinstance(value, dict):
        return "must be an object"
    if key == "readVersion" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        return "must be a whole number from 0 on"
    if key in ("userId", "userName", "userMetadata") and not isinstance(value, str):
        return "must be a text"
    if key == "isolationLevel" and value not in _ISOLATION:
        return f"must be one of {', '.join(_ISOLATION)}"
    if key == "isBlindAppend" and not isinstance(value, bool):
        return "must be true or false"
    return None
