"""From text to ``Address``."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote_to_bytes

from deltalakedb.address.address import (
    BAD_CHARACTER,
    ENGINES,
    WINDOWS_PATH,
    Address,
    check_location,
    validate_table_name,
)
from deltalakedb.address.options import check_option
from deltalakedb.exceptions import AddressError
from deltalakedb.redaction import MASK, Secret

if TYPE_CHECKING:
    from deltalakedb.address.address import Engine

MAX_ADDRESS: Final = 16_384
MAX_PG_IDENTIFIER: Final = 63

_FORMS: Final = {
    "sqlite": "deltasql://sqlite//absolute/path/meta.db?table=NAME",
    "duckdb": "deltasql://duckdb//absolute/path/catalog.duckdb?table=NAME",
    "postgres": "deltasql://postgres/user:password@host:5432/database/schema/NAME",
}
_FILE_HINT: Final = "one slash fewer for a relative path; without ?table= it is the catalog's address"
_POSTGRES_HINT: Final = (
    "omit user:password@host:5432/ to use libpq's environment, and /NAME for the catalog's address; "
    "percent-encode / as %2F, @ as %40, : as %3A, ? as %3F and # as %23 inside a part"
)

_REFERENCE: Final = re.compile(r"\$\{([^}]*)(\}?)")
_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_SLASHES: Final = re.compile("/{2,}")
_BRACKETED: Final = re.compile(r"\[([^\]]+)\](?:(:)(.*))?")
_HOSTNAME: Final = re.compile(r"[\w.-]{1,253}(,[\w.-]{1,253})*")
_PORT: Final = re.compile("[0-9]{1,5}")


def address_error(message: str, engine: str | None = None) -> AddressError:
    """The error for an address that cannot be parsed: what is wrong, and the right form."""
    if engine is None:
        return AddressError(message, suggestion="write one of\n    " + "\n    ".join(_FORMS.values()))
    hint = _POSTGRES_HINT if engine == "postgres" else _FILE_HINT
    return AddressError(message, suggestion=f"write {_FORMS[engine]} ({hint})")


def parse_address(text: str | os.PathLike[str] | Address) -> Address:
    """Parse an address. Errors name what is wrong and the right form, and quote nothing that may be secret.

    Example:
        >>> parse_address("deltasql://postgres/ada:s3cret@db.example.com/lake/meta/sales.orders")
        Address('deltasql://postgres/ada:***@db.example.com/lake/meta/sales.orders')
    """
    if isinstance(text, Address):
        return text
    raw = os.fspath(text)
    if not isinstance(raw, str) or not raw:
        raise address_error("the address is empty or not text")
    if len(raw) > MAX_ADDRESS:
        raise address_error(f"the address has {len(raw)} characters; {MAX_ADDRESS} are allowed")
    if BAD_CHARACTER.search(raw):
        raise address_error("the address contains a control character or half a surrogate pair")
    if raw != raw.strip():
        raise address_error("the address starts or ends with a space")
    if raw[:11].lower() != "deltasql://":
        scheme, colon, _ = raw.partition(":")
        shown = f", got '{scheme}:…'" if colon and _WORD.fullmatch(scheme) else ""
        if raw[:10].lower() == "deltasql:/":
            shown = "; this one has lost a slash, as in a Path: pass a str"
        raise address_error(f"Expected an address that starts with deltasql://{shown}")
    # an address with references to variables changes when these do
    return _Parser(raw).address() if "$" in raw else _parse_cached(raw)


@lru_cache(maxsize=512)
def _parse_cached(raw: str) -> Address:
    return _Parser(raw).address()


class _Parser:
    """Splits first and decodes after, so that no decoded value and no variable can change the structure."""

    def __init__(self, raw: str) -> None:
        self.values: list[str] = []
        self.engine: Engine | None = None
        self.text = _REFERENCE.sub(self._expand_variable, raw[11:])

    def address(self) -> Address:
        if "#" in self.text:
            raise address_error("the address has a fragment (#); inside a part write %23")
        path, mark, query = self.text.partition("?")
        name, slash, rest = path.partition("/")
        engine = self._decode(name).lower()
        if engine not in ENGINES:
            shown = f", not {engine!r}" if _WORD.fullmatch(engine) else ""
            raise address_error(f"the engine must be {', '.join(ENGINES[:-1])} or {ENGINES[-1]}{shown}")
        self.engine = engine
        if not slash:
            raise self._error(f"there is no slash after {engine}")
        # The path comes first: half a password after a raw "?" must not be shown as an option's name.
        address = self._postgres(rest) if engine == "postgres" else self._file(rest)
        return self._with_query(address, query) if mark else address

    def _error(self, message: str) -> AddressError:
        return address_error(message, self.engine)

    def _expand_variable(self, match: re.Match[str]) -> str:
        parts = _VARIABLE.fullmatch(match[1]) if match[2] else None
        if parts is None:
            raise address_error(
                "a ${…} reference is not closed or has no variable name; write ${NAME} or ${NAME:-default}"
            )
        value = os.environ.get(parts[1])
        if parts[2] is not None:
            value = value or parts[2]
        if value is None:
            hint = f"set it, or write a default: ${{{parts[1]}:-default}}"
            raise AddressError(
                f"the address needs the variable {parts[1]}, which is not set", suggestion=hint
            )
        if BAD_CHARACTER.search(value):
            hint = "look for a line break at its end"
            raise AddressError(f"the variable {parts[1]} contains a control character", suggestion=hint)
        self.values.append(value)
        return f"\0{len(self.values) - 1}\0"  # NUL cannot come from outside, so it is a safe mark

    def _decode(self, part: str) -> str:
        pieces = part.split("\0")
        for i, piece in enumerate(pieces):
            pieces[i] = self.values[int(piece)] if i % 2 else self._unquote(piece)
        return "".join(pieces)

    def _unquote(self, piece: str) -> str:
        if _BAD_PERCENT.search(piece):
            raise self._error("a % is not followed by two hexadecimal digits; write a plain one as %25")
        try:
            text = unquote_to_bytes(piece).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("percent-encoded bytes are not UTF-8") from None
        if BAD_CHARACTER.search(text):
            raise self._error("the address contains a percent-encoded control character")
        return text

    def _file(self, rest: str) -> Address:
        path = _SLASHES.sub("/", self._decode(rest))
        if not path or path.endswith("/"):
            raise self._error("the path of the database file is missing or ends with a slash")
        if "\\" in path or WINDOWS_PATH.match(path):
            raise self._error("Windows paths are not supported")
        if path.strip("/") == ":memory:":
            raise self._error("a catalog in memory cannot be shared or kept; use a file")
        if path[0] == "~":
            raise self._error("~ is not expanded; write ${HOME}")
        if any(part != part.strip() for part in path.split("/")):
            raise self._error("a part of the path starts or ends with a space")
        return Address(engine=cast("Engine", self.engine), path=path)

    def _postgres(self, rest: str) -> Address:
        parts = rest.split("/")
        authority = parts.pop(0) if "@" in parts[0] or ":" in parts[0] else None
        if any("@" in part or ":" in part for part in parts):
            raise self._error("percent-encode '@' and ':' in the password, database, schema and table name")
        if not 2 <= len(parts) <= 3:
            raise self._error(f"Expected DATABASE/SCHEMA or DATABASE/SCHEMA/TABLE, got {len(parts)} parts")
        names = [self._decode(part) for part in parts]
        for what, name in zip(("database", "schema"), names, strict=False):
            if not name or name != name.strip() or len(name.encode()) > MAX_PG_IDENTIFIER:
                raise self._error(
                    f"the {what} is empty, starts or ends with a space, or is longer than "
                    f"{MAX_PG_IDENTIFIER} bytes"
                )
        table = validate_table_name(names[2]) if len(names) == 3 else None
        address = Address(engine="postgres", database=names[0], schema=names[1], table=table)
        return address if authority is None else self._with_authority(address, authority)

    def _with_authority(self, address: Address, authority: str) -> Address:
        # Nothing here is quoted in a message: with a raw "/" or "@", any piece may be half a password.
        userinfo, _, hostport = authority.rpartition("@")
        if "@" in userinfo:
            raise self._error("there is more than one @ before the database")
        raw_user, colon, raw_password = userinfo.partition(":")
        if raw_password == MASK:
            raise self._error(f"the password is redacted ({MASK}); use the original address")
        user, password = self._decode(raw_user) or None, self._decode(raw_password) or None
        host, port = self._host_and_port(hostport)
        if (colon and password is None) or (password and not user) or (user, host, port) == (None,) * 3:
            raise self._error("the user, password or host is empty")
        secret = None if password is None else Secret(password)
        return replace(address, user=user, password=secret, host=host, port=port)

    def _host_and_port(self, hostport: str) -> tuple[str | None, int | None]:
        if bracketed := _BRACKETED.fullmatch(hostport):
            host, colon, digits = self._decode(bracketed[1]), bracketed[2], self._decode(bracketed[3] or "")
            try:
                ipaddress.IPv6Address(host)
            except ValueError:
                raise self._error("invalid IPv6 address") from None
        else:
            raw_host, colon, raw_port = hostport.partition(":")
            host, digits = self._decode(raw_host), self._decode(raw_port)
            if host and not host.startswith("/") and not _HOSTNAME.fullmatch(host):
                raise self._error("invalid host name; write a socket folder as %2Ftmp%2Fpg")
        if not colon:
            return host or None, None
        if not _PORT.fullmatch(digits) or not 0 < int(digits) < 65_536:
            raise self._error("the port is not a number from 1 to 65535; an IPv6 address needs [ ]")
        return host or None, int(digits)

    def _with_query(self, address: Address, query: str) -> Address:
        if "?" in query:
            raise self._error("there is more than one ?; join parameters by &, and write %3F inside one")
        found: dict[str, str] = {}
        for number, pair in enumerate(query.split("&"), start=1):
            name, equals, raw = pair.partition("=")
            if not equals or not _WORD.fullmatch(name) or name in found:
                fault = "is given twice" if name in found else "is not name=value"
                raise self._error(f"query parameter {number} {fault}")
            found[name] = self._decode(raw)
        table, location = found.pop("table", None), found.pop("location", None)
        if table is not None:
            if address.table not in (None, table):
                raise self._error("the path and table= name two different tables")
            address = replace(address, table=validate_table_name(table))
        if location is not None:
            if address.table is None:
                raise self._error("location= needs a table, and the address names no table")
            address = replace(address, location=check_location(location))
        for name, value in found.items():
            check_option(cast("str", self.engine), name, value)
        return replace(address, options=tuple(sorted(found.items())))
