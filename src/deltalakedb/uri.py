"""``deltasql://`` addresses: parsed, validated, written back, and never shown with their password."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, cast
from urllib.parse import quote, unquote_to_bytes

from deltalakedb.address_checks import (
    BAD_CHARACTER,
    STORE_URL,
    WINDOWS_PATH,
    check_location,
    validate_table_name,
    wrong,
)
from deltalakedb.address_options import OPTIONS, Options, check_option, is_local, with_verified_tls
from deltalakedb.exceptions import AddressError
from deltalakedb.redaction import MASK, Secret, redact

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENGINES", "OPTIONS", "Address", "Engine", "Options", "Secret"]
__all__ += ["is_deltasql", "parse_uri", "redact", "validate_table_name"]

Engine = Literal["sqlite", "duckdb", "postgres"]

ENGINES: Final[tuple[Engine, ...]] = ("sqlite", "duckdb", "postgres")
MAX_ADDRESS: Final = 16_384
MAX_PG_IDENTIFIER: Final = 63

_REFERENCE: Final = re.compile(r"\$\{([^}]*)(\}?)")
_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_SLASHES: Final = re.compile("/{2,}")
_BRACKETED: Final = re.compile(r"\[([^\]]+)\](?:(:)(.*))?")
_HOSTNAME: Final = re.compile(r"[\w.-]{1,253}(,[\w.-]{1,253})*")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Address:
    """Where a catalog is and, with a ``table``, which of its tables is meant.

    Attributes:
        engine: ``sqlite``, ``duckdb`` or ``postgres``.
        path: The database file of SQLite or DuckDB, as written: a relative path stays relative.
        host: Host name, IP address or socket folder of Postgres; None leaves it to libpq's environment.
        database: The Postgres database.
        schema: The SQL schema in it that holds the catalog's tables.
        table: The table's name, perhaps dotted; None in a catalog's address.
        location: The table's root, needed only where the table is created.
        options: Driver options as written; ``driver_options()`` adds the defaults.
    """

    engine: Engine
    path: str | None = None
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: Secret | None = None
    database: str | None = None
    schema: str | None = None
    table: str | None = None
    location: str | None = None
    options: Options = field(default_factory=Options)

    @property
    def is_table(self) -> bool:
        """True where a table is named."""
        return self.table is not None

    @property
    def catalog(self) -> Address:
        """The address of the catalog alone."""
        return replace(self, table=None, location=None)

    def with_table(self, name: str, *, location: str | None = None) -> Address:
        """The address of a table in the same catalog."""
        where = None if location is None else check_location(location)
        return replace(self, table=validate_table_name(name), location=where)

    def absolute(self) -> Address:
        """The same address with absolute paths: it means the same in any working directory."""
        path, location = self.path, self.location
        if path is not None:
            path = os.path.abspath(path)  # noqa: PTH100 - links stay: they are what the user called it
        if location is not None and not location.startswith("file:") and not STORE_URL.match(location):
            location = os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111
        if (path, location) == (self.path, self.location):
            return self
        return replace(self, path=path, location=location)

    def resolved(self) -> Address:
        """The same address with an absolute path, free of symbolic links: what connections are kept by."""
        return self if self.path is None else replace(self, path=os.path.realpath(self.path))

    def is_remote(self, environ: Mapping[str, str] | None = None) -> bool:
        """True where a Postgres connection may leave this machine, libpq's environment considered."""
        if self.engine != "postgres":
            return False
        env = os.environ if environ is None else environ
        hosts = self.host or env.get("PGHOST") or ""
        if env.get("PGSERVICE"):
            return True  # a service's host goes before PGHOST, its hostaddr before both
        return any(not is_local(h) for h in (*hosts.split(","), *env.get("PGHOSTADDR", "").split(",")))

    def driver_options(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The options to connect with: those of the address, and verified TLS for a remote Postgres.

        What the address, ``PGSSLMODE`` or ``PGSSLROOTCERT`` say goes before the default, and so does a
        certificate at libpq's own place, ``~/.postgresql/root.crt``.
        """
        env = os.environ if environ is None else environ
        return with_verified_tls(self.options, env) if self.is_remote(env) else dict(self.options)

    def to_uri(self, *, redact: bool = True) -> str:
        """The address as text; only ``redact=False`` writes the password, and only that parses back equal."""
        query = dict(self.options)
        if self.engine == "postgres":
            parts = [self.database or "", self.schema or "", *([self.table] if self.table else [])]
            path = self._authority(redact=redact) + "/".join(quote(p, safe="") for p in parts)
        else:
            path = quote(self.path or "", safe="/")
            if self.table is not None:
                query = {"table": self.table, **query}
        if self.location is not None:
            query["location"] = self.location
        text = "&".join(f"{key}={quote(value, safe='/:@')}" for key, value in query.items())
        return f"deltasql://{self.engine}/{path}" + (f"?{text}" if text else "")

    def _authority(self, *, redact: bool) -> str:
        if self.host is None and self.port is None and self.user is None:
            return ""
        user = quote(self.user or "", safe="")
        if self.password is not None:
            user += ":" + (MASK if redact else quote(self.password.reveal(), safe=""))
        host = quote(self.host or "", safe=":" if ":" in (self.host or "") else "")
        host = f"[{host}]" if ":" in host else host
        return f"{user}@{host}" + (f":{self.port}" if self.port is not None else "") + "/"

    def __str__(self) -> str:
        return self.to_uri()

    def __repr__(self) -> str:
        return f"Address({self.to_uri()!r})"


def is_deltasql(text_or_path: object) -> bool:
    """True for what is meant as a ``deltasql:`` address, well-formed or not."""
    if isinstance(text_or_path, Address):
        return True
    if isinstance(
        text_or_path, os.PathLike
    ):  # Path("deltasql://…") has lost a slash, yet is no folder's name
        text_or_path = os.fspath(text_or_path)
    return isinstance(text_or_path, str) and text_or_path[:9].lower() == "deltasql:"


def parse_uri(text: str | os.PathLike[str] | Address) -> Address:
    """Read an address; messages name the fault and the right form, and quote nothing that may be secret.

    Example:
        >>> parse_uri("deltasql://postgres/ada:s3cret@db.example.com/lake/meta/sales.orders")
        Address('deltasql://postgres/ada:***@db.example.com/lake/meta/sales.orders')
    """
    if isinstance(text, Address):
        return text
    raw = os.fspath(text)
    if not isinstance(raw, str) or not raw:
        raise wrong("an address is a text that is not empty")
    if len(raw) > MAX_ADDRESS:
        raise wrong(f"the address has {len(raw)} characters, {MAX_ADDRESS} are allowed")
    if BAD_CHARACTER.search(raw):
        raise wrong("the address holds a control character, a line break or half a surrogate pair")
    if raw != raw.strip():
        raise wrong("the address begins or ends with a space")
    if raw[:11].lower() != "deltasql://":
        scheme, colon, _ = raw.partition(":")
        shown = f", not {scheme}:" if colon and _WORD.fullmatch(scheme) else ""
        if raw[:10].lower() == "deltasql:/":
            shown = ": it has lost a slash, as it does in a Path; give it as a text"
        raise wrong(f"the address does not begin with deltasql://{shown}")
    # a text with references to variables means something else when these change
    return _Parser(raw).address() if "$" in raw else _parsed(raw)


@lru_cache(maxsize=512)
def _parsed(raw: str) -> Address:
    return _Parser(raw).address()


class _Parser:
    """Splits first and decodes after, so that no decoded value and no variable can change the structure."""

    def __init__(self, raw: str) -> None:
        self.values: list[str] = []
        self.engine: Engine | None = None
        self.text = _REFERENCE.sub(self._look_up, raw[11:])

    def address(self) -> Address:
        if "#" in self.text:
            raise wrong("the address has a fragment (#); inside a part write %23")
        path, mark, query = self.text.partition("?")
        name, slash, rest = path.partition("/")
        engine = self._decode(name).lower()
        if engine not in ENGINES:
            shown = (
                f"{engine!r} is no engine"
                if _WORD.fullmatch(engine)
                else "the engine is missing or no engine"
            )
            raise wrong(f"{shown}; there are {', '.join(ENGINES)}")
        self.engine = engine
        if not slash:
            raise wrong(f"there is no slash behind {engine}", engine)
        # The path comes first: half a password behind a raw "?" must not be shown as an option's name.
        address = self._postgres(rest) if engine == "postgres" else self._file(rest)
        return self._with_query(address, query) if mark else address

    def _look_up(self, match: re.Match[str]) -> str:
        parts = _VARIABLE.fullmatch(match[1]) if match[2] else None
        if parts is None:
            raise wrong(
                "a ${…} reference is not closed or names no variable; write ${NAME} or ${NAME:-default}"
            )
        value = os.environ.get(parts[1])
        if parts[2] is not None:
            value = value or parts[2]
        if value is None:
            hint = f"set it, or give a default: ${{{parts[1]}:-default}}"
            raise AddressError(
                f"the address needs the variable {parts[1]}, which is not set", suggestion=hint
            )
        if BAD_CHARACTER.search(value):
            hint = "look for a line break at its end"
            raise AddressError(f"the variable {parts[1]} holds a control character", suggestion=hint)
        self.values.append(value)
        return f"\0{len(self.values) - 1}\0"  # NUL cannot come from outside, so it is a safe mark

    def _decode(self, part: str) -> str:
        pieces = part.split("\0")
        for i, piece in enumerate(pieces):
            pieces[i] = self.values[int(piece)] if i % 2 else self._unquote(piece)
        return "".join(pieces)

    def _unquote(self, piece: str) -> str:
        if _BAD_PERCENT.search(piece):
            raise wrong(
                "a % is not followed by two hexadecimal digits; write a plain one as %25", self.engine
            )
        try:
            text = unquote_to_bytes(piece).decode("utf-8")
        except UnicodeDecodeError:
            raise wrong("percent-encoded bytes are not UTF-8", self.engine) from None
        if BAD_CHARACTER.search(text):
            raise wrong("the address holds a percent-encoded control character", self.engine)
        return text

    def _file(self, rest: str) -> Address:
        path = _SLASHES.sub("/", self._decode(rest))
        if not path or path.endswith("/"):
            raise wrong("the path of the database file is missing or ends with a slash", self.engine)
        if "\\" in path or WINDOWS_PATH.match(path):
            raise wrong("Windows paths are not supported", self.engine)
        if path.strip("/") == ":memory:":
            raise wrong("a catalog in memory could not be shared or kept; name a file", self.engine)
        if path[0] == "~":
            raise wrong("~ is not expanded; write ${HOME}", self.engine)
        if any(part != part.strip() for part in path.split("/")):
            raise wrong("a part of the path begins or ends with a space", self.engine)
        return Address(engine=cast("Engine", self.engine), path=path)

    def _postgres(self, rest: str) -> Address:
        parts = rest.split("/")
        authority = parts.pop(0) if "@" in parts[0] or ":" in parts[0] else None
        if any("@" in part or ":" in part for part in parts):
            raise wrong("there is an @ or : behind the first part of the path", "postgres")
        if not 2 <= len(parts) <= 3:
            raise wrong(
                f"a database and a schema are needed, and {len(parts)} path parts are there", "postgres"
            )
        names = [self._decode(part) for part in parts]
        for what, name in zip(("database", "schema"), names, strict=False):
            if not name or name != name.strip():
                raise wrong(f"the {what} is empty or has outer spaces", "postgres")
            if len(name.encode()) > MAX_PG_IDENTIFIER:
                raise wrong(
                    f"the {what}'s name is longer than Postgres's {MAX_PG_IDENTIFIER} bytes", "postgres"
                )
        table = validate_table_name(names[2]) if len(names) == 3 else None
        address = Address(engine="postgres", database=names[0], schema=names[1], table=table)
        return address if authority is None else self._with_authority(address, authority)

    def _with_authority(self, address: Address, authority: str) -> Address:
        # Nothing here is quoted in a message: with a "/" or "@" left raw, any piece may be half a password.
        userinfo, _, hostport = authority.rpartition("@")
        if "@" in userinfo:
            raise wrong("there is more than one @ before the database", "postgres")
        raw_user, colon, raw_password = userinfo.partition(":")
        if raw_password == MASK:
            raise wrong(
                f"the password was redacted to {MASK}; take the address from where it was kept", "postgres"
            )
        user, password = self._decode(raw_user) or None, self._decode(raw_password) or None
        if (colon and password is None) or (password is not None and user is None):
            raise wrong("a user or password is empty", "postgres")
        host, port = self._host_and_port(hostport)
        if user is None and host is None and port is None:
            raise wrong("there is an @ or : before the database, but neither user nor host", "postgres")
        secret = None if password is None else Secret(password)
        return replace(address, user=user, password=secret, host=host, port=port)

    def _host_and_port(self, hostport: str) -> tuple[str | None, int | None]:
        bracketed = _BRACKETED.fullmatch(hostport)
        if bracketed:
            host, colon, digits = (
                self._decode(bracketed[1]),
                bracketed[2] or "",
                self._decode(bracketed[3] or ""),
            )
            try:
                ipaddress.IPv6Address(host)
            except ValueError:
                raise wrong("what stands in [ ] is no IPv6 address", "postgres") from None
        else:
            raw_host, colon, raw_port = hostport.partition(":")
            host, digits = self._decode(raw_host), self._decode(raw_port)
            if host and not host.startswith("/") and not _HOSTNAME.fullmatch(host):
                raise wrong("the host is no host name; a socket folder is written %2Ftmp%2Fpg", "postgres")
        if not colon:
            return host or None, None
        if not (digits.isascii() and digits.isdigit() and len(digits) < 6 and 0 < int(digits) < 65_536):
            raise wrong("the port is no number from 1 to 65535; an IPv6 address stands in [ ]", "postgres")
        return host or None, int(digits)

    def _with_query(self, address: Address, query: str) -> Address:
        if "?" in query:
            raise wrong(
                "there is more than one ?; join parameters by &, and write %3F inside one", self.engine
            )
        found: dict[str, str] = {}
        for number, pair in enumerate(query.split("&"), start=1):
            name, equals, raw = pair.partition("=")
            if not equals or not _WORD.fullmatch(name):
                raise wrong(f"query parameter {number} does not read name=value", self.engine)
            if name in found:
                raise wrong(f"{name}= is given twice", self.engine)
            found[name] = self._decode(raw)
        table, location = found.pop("table", None), found.pop("location", None)
        if table is not None:
            if address.table is not None and address.table != table:
                raise wrong("the path and table= name two different tables", self.engine)
            address = replace(address, table=validate_table_name(table))
        if location is not None:
            if address.table is None:
                raise wrong("location= is a table's, but the address names no table", self.engine)
            address = replace(address, location=check_location(location))
        for name, value in found.items():
            check_option(cast("str", self.engine), name, value)
        return replace(address, options=Options(found))
