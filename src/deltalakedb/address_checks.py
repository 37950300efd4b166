"""What the parts of an address may be, and the error that shows the right form."""

from __future__ import annotations

import re
from typing import Final

from deltalakedb.exceptions import AddressError

MAX_NAME: Final = 255

_FORMS: Final = {
    "sqlite": "deltasql://sqlite//absolute/path/meta.db?table=NAME",
    "duckdb": "deltasql://duckdb//absolute/path/catalog.duckdb?table=NAME",
    "postgres": "deltasql://postgres/user:password@host:5432/database/schema/NAME",
}
_FILE_HINT: Final = "one slash fewer for a relative path; without ?table= it is the catalog's address"
_POSTGRES_HINT: Final = (
    "leave user:password@host:5432/ out to use libpq's environment, and /NAME for the catalog's address; "
    "percent-encode / as %2F, @ as %40, : as %3A, ? as %3F and # as %23 inside a part"
)

BAD_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
WINDOWS_PATH: Final = re.compile(r"/?[A-Za-z]:([/\\]|$)")
STORE_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/]*)")


def wrong(message: str, engine: str | None = None) -> AddressError:
    """The error for an address that cannot be read: the fault, and the right form."""
    if engine is None:
        return AddressError(message, suggestion="write one of\n    " + "\n    ".join(_FORMS.values()))
    hint = _POSTGRES_HINT if engine == "postgres" else _FILE_HINT
    return AddressError(message, suggestion=f"write {_FORMS[engine]} ({hint})")


def check_location(location: str) -> str:
    """The location itself, if a table may lie there."""
    hint = "write a path or a URL: location=/data/orders, location=s3://bucket/orders"
    if not location or location != location.strip() or BAD_CHARACTER.search(location):
        raise AddressError("the location is empty, has outer spaces or a control character", suggestion=hint)
    if "\\" in location or WINDOWS_PATH.match(location):
        raise AddressError("the location is a Windows path", suggestion=hint)
    url = STORE_URL.match(location)
    if url and ("?" in location or "#" in location or ":" in url[1].rpartition("@")[0]):
        raise AddressError(
            "the location carries credentials or a query; give these as storage options", suggestion=hint
        )
    return location


def validate_table_name(name: str) -> str:
    """The name itself, if a table may be called so: parts joined by dots, without separators."""
    hint = "take letters, digits and underscores, with a dot behind each namespace: sales.orders"
    if not isinstance(name, str) or not name:
        raise AddressError("a table's name is missing", suggestion=hint)
    if BAD_CHARACTER.search(name):
        raise AddressError(
            "a table's name holds a control character or half a surrogate pair", suggestion=hint
        )
    if len(name) > MAX_NAME:
        raise AddressError(
            f"a table's name has {len(name)} characters, {MAX_NAME} are allowed", suggestion=hint
        )
    if "/" in name or "\\" in name:
        raise AddressError(f"the table's name {name!r} holds a path separator", suggestion=hint)
    for part in name.split("."):
        if not part or part != part.strip():
            fault = "a part that begins or ends with a space" if part else "an empty part"
            raise AddressError(f"the table's name {name!r} has {fault}", suggestion=hint)
    return name
