"""Options of Delta's writer that say what an argument of `write` says: they are taken as the argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deltalakedb.exceptions import ArgumentTypeError, InvalidArgumentError

#: what replaces rows in a way that a catalog cannot follow
_REFUSED: Final = {"replaceon": "replaceOn", "replaceusing": "replaceUsing"}
_SCHEMA: Final = {"mergeschema": "merge", "overwriteschema": "overwrite"}
#: delta-spark's name of each argument, for messages
_NAMES: Final = {
    "replace_where": "replaceWhere",
    "dynamic": "partitionOverwriteMode",
    "schema_mode": "mergeSchema or overwriteSchema",
    "app_id": "txnAppId",
    "version": "txnVersion",
}


def fold_options(
    options: Mapping[str, Any] | None, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a write's arguments are with its options, and the options that are left.

    Spark reads the names of options in any case of letters, and so does this.

    Args:
        options: Options of Delta's writer.
        arguments: ``replace_where``, ``dynamic``, ``schema_mode``, ``app_id`` and ``version`` as given.

    Raises:
        InvalidArgumentError: Options contradict each other or the arguments, or cannot be had.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentTypeError(f"options are names with values, not {options!r}")
    left: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for name, value in (options or {}).items():
        if not isinstance(name, str):
            raise ArgumentTypeError(f"an option's name is a text, not {name!r}")
        if name.lower() in _REFUSED:
            raise InvalidArgumentError(
                f"the option {_REFUSED[name.lower()]} is not supported",
                suggestion="use replace_where=, dynamic=True, or deltalakedb.spark.merge",
            )
        found = None if value is None else _argument(name.lower(), value)
        if found is None:
            if name.lower() in _SCHEMA and arguments["schema_mode"] == _SCHEMA[name.lower()]:
                raise _contradiction("schema_mode", arguments["schema_mode"])
            left[name] = value
            continue
        argument, meant = found
        if said.setdefault(argument, meant) != meant:
            raise InvalidArgumentError(
                f"options contradict each other: {_NAMES[argument]}", suggestion="leave one out"
            )
    merged = dict(arguments)
    for argument, meant in said.items():
        given = merged[argument]
        if given not in (None, meant) and not (argument == "dynamic" and given is False):
            raise _contradiction(argument, given)
        merged[argument] = meant
    return merged, left


def _contradiction(argument: str, given: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{argument}={given!r} and the option {_NAMES[argument]} contradict each other",
        suggestion="leave one out",
    )


def _argument(name: str, value: Any) -> tuple[str, Any] | None:
    """The argument that an option means, and its value; None for an option that is no argument."""
    text = str(value)
    if name == "replacewhere":
        return "replace_where", text
    if name == "partitionoverwritemode":
        if text.lower() not in ("static", "dynamic"):
            raise InvalidArgumentError(f"partitionOverwriteMode is static or dynamic, not {text!r}")
        return "dynamic", text.lower() == "dynamic"
    if name in _SCHEMA:
        if text.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"{name} is true or false, not {text!r}")
        # a plain no is left to Spark, whose session may say otherwise
        return ("schema_mode", _SCHEMA[name]) if text.lower() == "true" else None
    if name == "txnappid":
        return "app_id", text
    if name == "txnversion":
        if not text.isdecimal():
            raise InvalidArgumentError(f"txnVersion is a whole number, not {text!r}")
        return "version", int(text)
    return None
