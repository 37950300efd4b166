"""``deltasql://`` addresses: parsed, validated, written back, and never shown with their password."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, get_args
from urllib.parse import quote, unquote_to_bytes

from deltalakedb.exceptions import AddressError, InvalidArgumentError
from deltalakedb.redaction import MASK, Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine = Literal["sqlite", "duckdb", "postgres"]

ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
#: other names of engines, as drivers and SQLAlchemy use them
_ALIASES: Final[Mapping[str, Engine]] = {"postgresql": "postgres", "pg": "postgres"}
MAX_NAME: Final = 255

#: control characters, line separators and halves of surrogate pairs
BAD_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_WINDOWS_PATH: Final = re.compile(r"/?[A-Za-z]:([/\\]|$)")
_STORE_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/]*)")
_OURS: Final = re.compile(r"deltasql(?:\+[A-Za-z][A-Za-z0-9.-]*)?:", re.IGNORECASE)
#: the address of a database itself, perhaps with SQLAlchemy's driver
_PLAIN_DSN: Final = re.compile(r"(postgres|postgresql|sqlite|duckdb)(?:\+[A-Za-z0-9_.-]+)?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Address:
    """The address of a catalog or, if it has a ``table``, of a table in it.

    Attributes:
        engine: ``sqlite``, ``duckdb`` or ``postgres``.
        path: The database file of SQLite or DuckDB, as written: a relative path stays relative.
        host: Host name, IP address or socket folder of Postgres; None leaves it to libpq's environment.
        database: The Postgres database.
        schema: The SQL schema in it that has the catalog's tables.
        table: The table's name, perhaps dotted; None in a catalog's address.
        location: The table's root, needed only to create the table.
        options: Driver options as written, sorted; ``driver_options()`` adds the defaults.
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
    options: tuple[tuple[str, str], ...] = ()

    @property
    def is_table(self) -> bool:
        """Whether it is a table's address."""
        return self.table is not None

    @property
    def catalog(self) -> Address:
        """The address of the catalog alone."""
        return replace(self, table=None, location=None)

    def require_table(self) -> str:
        """The table's name; AddressError if the address is that of a catalog."""
        if self.table is None:
            raise AddressError(
                f"Expected the address of a table, got that of a catalog: {self.to_uri()}",
                suggestion="add /NAME" if self.engine == "postgres" else "add ?table=NAME",
            )
        return self.table

    def require_catalog(self) -> Address:
        """The address itself; InvalidArgumentError if it is that of a table."""
        if self.is_table:
            raise InvalidArgumentError(
                f"{self.to_uri()} is a table's address, not a catalog's",
                suggestion=f"use {self.catalog.to_uri()}, or open the table with DeltaTable(…)",
                command=f"use {self.catalog.to_uri()}",
            )
        return self

    def with_table(self, name: str, *, location: str | None = None) -> Address:
        """The address of a table in the same catalog."""
        root = None if location is None else _check_location(location)
        return replace(self, table=validate_table_name(name), location=root)

    def absolute(self) -> Address:
        """The same address with absolute paths: it means the same in any working directory."""
        location, path = self.location, self._clear_path()
        if path is not None:
            path = os.path.abspath(path)  # noqa: PTH100 - keeps links, which are the user's names
        if location is not None and not location.startswith("file:") and not _STORE_URL.match(location):
            location = os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111
        return replace(self, path=path, location=location)

    def resolved(self) -> Address:
        """The same address with an absolute path without symbolic links, as a key of connections."""
        path = self._clear_path()
        return self if path is None else replace(self, path=os.path.realpath(path))

    def _clear_path(self) -> str | None:
        """The path; AddressError for a relative one if the absolute path with the same names exists."""
        path = self.path
        if path is None or path[0] in "/." or not os.path.exists(f"/{path}"):  # noqa: PTH110 - no need of Path
            return path
        if os.path.realpath(path) == os.path.realpath(f"/{path}"):
            return path
        absolute, relative = (replace(self, path=p).to_uri() for p in (f"/{path}", f"./{path}"))
        raise AddressError(
            f"the path {path} is relative to the current folder, but /{path} exists",
            suggestion=f"write {absolute} for /{path}, or {relative} for the relative path",
        )

    def is_remote(self, environ: Mapping[str, str] | None = None) -> bool:
        """Whether a Postgres connection may leave this machine, also by libpq's environment."""
        if self.engine != "postgres":
            return False
        env = os.environ if environ is None else environ
        if env.get("PGSERVICE"):
            return True  # a service's host has priority over PGHOST, its hostaddr over both
        hosts = self.host or env.get("PGHOST") or ""
        return any(not is_local(h) for h in (*hosts.split(","), *env.get("PGHOSTADDR", "").split(",")))

    def driver_options(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The options to connect with: those of the address, and verified TLS for a remote Postgres.

        The address, ``PGSSLMODE`` and ``PGSSLROOTCERT`` have priority over the default, and so does a
        certificate in libpq's own place, ``~/.postgresql/root.crt``.
        """
        env = os.environ if environ is None else environ
        options = dict(self.options)
        if not self.is_remote(env):
            return options
        mode = options.get("sslmode") or env.get("PGSSLMODE")
        if not mode:
            mode = options["sslmode"] = "verify-full"
        own_root: object = "sslrootcert" in options or env.get("PGSSLROOTCERT")
        own_root = own_root or Path("~/.postgresql/root.crt").expanduser().exists()
        if mode == "verify-full" and not own_root:  # libpq refuses the system's roots with any weaker mode
            options["sslrootcert"] = "system"
        return options

    def to_uri(self, *, redact: bool = True) -> str:
        """The address as text; only ``redact=False`` writes the password, and only that parses back equal."""
        table = self.table
        if self.engine == "postgres":
            parts = [self.database or "", self.schema or "", *([table] if table else [])]
            path, table = self._authority(redact=redact) + "/".join(quote(p, safe="") for p in parts), None
        else:
            path = quote(self.path or "", safe="/")
        query = {"table": table, **dict(self.options), "location": self.location}
        return _with_query(f"deltasql://{self.engine}/{path}", query)

    def to_url(self) -> str:
        """The address as a ``deltasql+ENGINE://`` URL, without its password."""
        query = {"table": self.table, "location": self.location, **dict(self.options)}
        if self.engine == "postgres":
            query = {"schema": self.schema, **query}
            authority = self._authority(redact=True) or "/"
            start = f"postgresql://{authority.removeprefix('@')}{quote(self.database or '', safe='')}"
        else:
            start = f"{self.engine}:///{quote(self.path or '', safe='/')}"
        return _with_query(f"deltasql+{start}", query)

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


def _with_query(url: str, query: Mapping[str, str | None]) -> str:
    text = "&".join(f"{key}={quote(value, safe='/:@')}" for key, value in query.items() if value is not None)
    return url + (f"?{text}" if text else "")


class TableUri(str):
    """A table's root, which also knows its address.

    Libraries open a table again by its ``table_uri``, in other processes too. If that opened the plain table,
    they would commit past the catalog, so it opens the SQL-backed one; ``str(uri)`` is the root alone.
    """

    address: Address

    @classmethod
    def of(cls, root: str, address: Address) -> Self:
        """The root of the table at an address."""
        made = cls(root)
        made.address = address
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (str(self), self.address)


def _received(root: str, address: Address) -> TableUri:
    """A `TableUri` from another process: its address must be understood here, too."""
    import_module("deltalakedb.registration").register()
    return TableUri.of(root, address)


def is_deltasql(text_or_path: object) -> bool:
    """Whether something is meant as an address, well-formed or not; the URL of a database itself is not."""
    if isinstance(text_or_path, Address | TableUri):
        return True
    if isinstance(text_or_path, os.PathLike):  # Path("deltasql://…") has lost a slash, yet is not a folder
        text_or_path = os.fspath(text_or_path)
    if not isinstance(text_or_path, str):
        return False
    return _OURS.match(text_or_path) is not None or _PLAIN_DSN.match(text_or_path) is not None


def _check_location(location: str) -> str:
    if not location or location != location.strip() or BAD_CHARACTER.search(location):
        fault = "is empty, starts or ends with a space, or contains a control character"
    elif "\\" in location or _WINDOWS_PATH.match(location):
        fault = "is a Windows path"
    elif (url := _STORE_URL.match(location)) and (
        "?" in location or "#" in location or ":" in url[1].rpartition("@")[0]
    ):
        fault = "contains credentials or a query; pass these as storage options"
    else:
        return location
    raise AddressError(
        f"the location {fault}",
        suggestion="write a path or a URL: location=/data/orders, location=s3://bucket/orders",
    )


def validate_table_name(name: str) -> str:
    """Return the name if a table may have it: parts joined by dots, without slashes."""
    if not isinstance(name, str) or not name:
        fault = "is missing"
    elif BAD_CHARACTER.search(name):
        fault = "contains a control character or half a surrogate pair"
    elif len(name) > MAX_NAME:
        fault = f"has {len(name)} characters; {MAX_NAME} are allowed"
    elif "/" in name or "\\" in name:
        fault = f"contains a path separator: {name!r}"
    elif any(not part or part != part.strip() for part in name.split(".")):
        fault = f"has an empty part, or one that starts or ends with a space: {name!r}"
    else:
        return name
    raise AddressError(
        f"the table name {fault}",
        suggestion="use letters, digits and underscores, with a dot after each namespace: sales.orders",
    )


# ---- parsing ----

_MAX_ADDRESS: Final = 16_384

#: the forms of addresses, and of addresses as URLs, by engine
_FORMS: Final = {
    "sqlite": "deltasql://sqlite//absolute/path/meta.db?table=NAME",
    "duckdb": "deltasql://duckdb//absolute/path/catalog.duckdb?table=NAME",
    "postgres": "deltasql://postgres/user:password@host:5432/database/schema/NAME",
}
_URL_FORMS: Final = {
    "sqlite": "deltasql+sqlite:////absolute/path/meta.db?table=NAME",
    "duckdb": "deltasql+duckdb:////absolute/path/catalog.duckdb?table=NAME",
    "postgres": "deltasql+postgresql://user:password@host:5432/database?schema=SCHEMA&table=NAME",
}
_FILE_HINT: Final = "one slash fewer for a relative path; without ?table= it is the catalog's address"
_POSTGRES_HINT: Final = (
    "omit user:password@host:5432{slash} to use libpq's environment, and {table} for the catalog's address; "
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


def _address_error(message: str, engine: str | None = None, *, is_url: bool = False) -> AddressError:
    if engine is None:
        forms = (*_FORMS.values(), _URL_FORMS["postgres"])
        return AddressError(message, suggestion="write one of\n    " + "\n    ".join(forms))
    hint = _FILE_HINT
    if engine == "postgres":
        hint = _POSTGRES_HINT.format(slash="" if is_url else "/", table="&table=NAME" if is_url else "/NAME")
    return AddressError(message, suggestion=f"write {(_URL_FORMS if is_url else _FORMS)[engine]} ({hint})")


def parse_address(text: str | os.PathLike[str] | Address) -> Address:
    """Parse an address. Errors name what is wrong and the right form, and quote nothing that may be secret.

    Example:
        >>> parse_address("deltasql://postgres/ada:s3cret@db.example.com/lake/meta/sales.orders")
        Address('deltasql://postgres/ada:***@db.example.com/lake/meta/sales.orders')
    """
    if isinstance(text, Address | TableUri):
        return text if isinstance(text, Address) else text.address
    raw = os.fspath(text)
    if not isinstance(raw, str) or not raw:
        fault = "the address is empty or not text"
    elif len(raw) > _MAX_ADDRESS:
        fault = f"the address has {len(raw)} characters; {_MAX_ADDRESS} are allowed"
    elif BAD_CHARACTER.search(raw):
        fault = "the address contains a control character or half a surrogate pair"
    elif raw != raw.strip():
        fault = "the address starts or ends with a space"
    elif (dsn := _PLAIN_DSN.match(raw)) is not None:
        raise _plain_dsn(raw, dsn)
    elif (ours := _OURS.match(raw)) is not None and raw[ours.end() : ours.end() + 2] != "//":
        fault = (
            "Expected an address that starts with deltasql://; this one lost a slash as a Path: pass a str"
        )
    elif ours is None:
        scheme, colon, _ = raw.partition(":")
        shown = f", got '{scheme}:…'" if colon and _WORD.fullmatch(scheme) else ""
        fault = f"Expected an address that starts with deltasql://{shown}"
    else:
        # an address with references to variables changes when these do
        return _Parser(raw).address() if "$" in raw else _parse_cached(raw)
    raise _address_error(fault)


@lru_cache(maxsize=512)
def _parse_cached(raw: str) -> Address:
    return _Parser(raw).address()


def _plain_dsn(raw: str, dsn: re.Match[str]) -> AddressError:
    """The error for a database's own URL, with the address that it becomes if that can be worked out."""
    message = f"{dsn[1].lower()}:// is the URL of a database itself, not the address of a catalog or table"
    engine = "postgresql" if dsn[1].lower() == "postgres" else dsn[1].lower()
    try:
        address = _Parser(f"deltasql+{engine}://{raw[dsn.end() :]}", schema="public").address()
    except AddressError:
        # what was wrong is not told: any piece may be half a password
        return _address_error(message, _ALIASES.get(engine, engine), is_url=True)
    secret = "" if address.password is None else f", with the password in place of {MASK}"
    more = "" if address.is_table else "; a table's address has table=NAME, too"
    return AddressError(message, suggestion=f"write {address.to_url()}{secret}{more}")


class _Parser:
    """Splits first and decodes after, so that no decoded value and no variable can change the structure.

    ``deltasql+ENGINE://…`` is read as SQLAlchemy reads ``ENGINE://…``. ``schema`` is the one to take if it
    names none.
    """

    def __init__(self, raw: str, schema: str | None = None) -> None:
        self.values: list[str] = []
        self.engine: Engine | None = None
        self.schema = schema
        scheme, _, rest = raw.partition("://")
        self.url_engine = scheme.partition("+")[2].lower()
        self.text = _REFERENCE.sub(self._expand_variable, rest)

    def address(self) -> Address:
        if "#" in self.text:
            raise _address_error("the address has a fragment (#); inside a part write %23")
        path, mark, query = self.text.partition("?")
        name, slash, rest = path.partition("/")
        engine = self.url_engine or self._decode(name).lower()
        engine = _ALIASES.get(engine, engine)
        if engine not in ENGINES:
            shown = f", not {engine!r}" if _WORD.fullmatch(engine) else ""
            raise _address_error(f"the engine must be {', '.join(ENGINES[:-1])} or {ENGINES[-1]}{shown}")
        self.engine = engine
        if not slash:
            raise self._error(f"there is no slash after {'the host' if self.url_engine else engine}")
        # The path comes first: half a password after a raw "?" must not be shown as an option's name.
        if engine != "postgres":
            if self.url_engine and name:
                raise self._error("a relative path needs three slashes before it, an absolute one four")
            address = self._file(rest)
        else:
            address = self._postgres_url(name, rest) if self.url_engine else self._postgres(rest)
        address = self._with_query(address, query) if mark else address
        if engine == "postgres" and address.schema is None:
            if self.schema is None:
                raise self._error("the schema is missing; add ?schema=NAME, for example ?schema=public")
            address = replace(address, schema=self.schema)
        return address

    def _error(self, message: str) -> AddressError:
        return _address_error(message, self.engine, is_url=bool(self.url_engine))

    def _expand_variable(self, match: re.Match[str]) -> str:
        parts = _VARIABLE.fullmatch(match[1]) if match[2] else None
        if parts is None:
            raise _address_error(
                "a ${…} reference is not closed or has no variable name; write ${NAME} or ${NAME:-default}"
            )
        value = os.environ.get(parts[1])
        if parts[2] is not None:
            value = value or parts[2]
        if value is None:
            hint = f"set it, or write a default: ${{{parts[1]}:-default}}"
            raise AddressError(f"the variable {parts[1]} in the address is not set", suggestion=hint)
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
            fault = "the path of the database file is missing or ends with a slash"
        elif "\\" in path or _WINDOWS_PATH.match(path):
            fault = "Windows paths are not supported"
        elif path.strip("/") == ":memory:":
            fault = "a catalog in memory cannot be shared or kept; use a file"
        elif path[0] == "~":
            fault = "~ is not expanded; write ${HOME}"
        elif any(part != part.strip() for part in path.split("/")):
            fault = "a part of the path starts or ends with a space"
        else:
            return Address(engine=cast("Engine", self.engine), path=path)
        raise self._error(fault)

    def _postgres(self, rest: str) -> Address:
        parts = rest.split("/")
        authority = parts.pop(0) if "@" in parts[0] or ":" in parts[0] else None
        if any("@" in part or ":" in part for part in parts):
            raise self._error("percent-encode '@' and ':' in the password, database, schema and table name")
        if not 2 <= len(parts) <= 3:
            raise self._error(f"Expected DATABASE/SCHEMA or DATABASE/SCHEMA/TABLE, got {len(parts)} parts")
        names = [self._decode(part) for part in parts]
        database, schema = self._sql_name("database", names[0]), self._sql_name("schema", names[1])
        table = validate_table_name(names[2]) if len(names) == 3 else None
        address = Address(engine="postgres", database=database, schema=schema, table=table)
        return address if authority is None else self._with_authority(address, authority)

    def _postgres_url(self, authority: str, database: str) -> Address:
        if "@" in database or ":" in database or "/" in database:
            raise self._error("percent-encode '/', '@' and ':' in the password and the database")
        address = Address(engine="postgres", database=self._sql_name("database", self._decode(database)))
        return self._with_authority(address, authority) if authority else address

    def _sql_name(self, what: str, name: str) -> str:
        if not name or name != name.strip() or len(name.encode()) > 63:  # Postgres's limit
            raise self._error(f"the {what} is empty, starts or ends with a space, or exceeds 63 bytes")
        return name

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
        if self.url_engine and self.engine == "postgres" and "schema" in found:
            address = replace(address, schema=self._sql_name("schema", found.pop("schema")))
        if table is not None:
            if address.table not in (None, table):
                raise self._error("the path and table= name two different tables")
            address = replace(address, table=validate_table_name(table))
        if location is not None:
            if address.table is None:
                raise self._error("location= needs a table, and the address names no table")
            address = replace(address, location=_check_location(location))
        for name, value in found.items():
            _check_option(cast("str", self.engine), name, value)
        return replace(address, options=tuple(sorted(found.items())))


# ---- driver options ----

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_TEXT: Final = re.compile(r".+")
_LEVEL: Final = re.compile(r"disable|prefer|require")
_SIZE: Final = re.compile(r"[0-9]+(\.[0-9]+)? ?([KMGT]i?B|%)")
_TEXTS: Final = ("application_name", "options", "passfile", "require_auth")
_FILES: Final = ("sslcert", "sslcrl", "sslkey", "sslrootcert")
_NUMBERS: Final = ("connect_timeout", "keepalives_count", "keepalives_idle", "keepalives_interval")

#: The driver options that an address may have, by engine, and the pattern of each value.
OPTIONS: Final[Mapping[str, Mapping[str, re.Pattern[str]]]] = {
    "sqlite": {"busy_timeout": _SECONDS, "synchronous": re.compile(r"EXTRA|FULL|NORMAL")},
    "duckdb": {"idle_release": _SECONDS, "memory_limit": _SIZE, "threads": _NUMBER, "wait": _SECONDS},
    "postgres": {
        **dict.fromkeys((*_TEXTS, *_FILES), _TEXT),
        **dict.fromkeys((*_NUMBERS, "tcp_user_timeout"), _NUMBER),
        **dict.fromkeys(("channel_binding", "gssencmode"), _LEVEL),
        "keepalives": re.compile(r"0|1"),
        "load_balance_hosts": re.compile(r"disable|random"),
        "ssl_min_protocol_version": re.compile(r"TLSv1(\.[123])?"),
        "sslmode": re.compile(r"disable|allow|prefer|require|verify-ca|verify-full"),
        "sslnegotiation": re.compile(r"postgres|direct"),
        "target_session_attrs": re.compile(r"any|read-write|read-only|primary|standby|prefer-standby"),
    },
}
# Query parameters elsewhere, other parts of the address here; two of them are secrets.
_NOT_QUERY_OPTIONS: Final[Mapping[str, str]] = {
    "dbname": "the database is part of the path",
    "host": "write the host before the database: user@host:5432/",
    "password": "write user:password@host/ or user:${VARIABLE}@host/, or set PGPASSWORD",
    "port": "write the port after the host: user@host:5432/",
    "schema": "the schema is part of the path, after the database",
    "sslpassword": "use an unencrypted key file that only you can read: an address would show the secret",
    "user": "write the user before the host: user@host/",
}


def _check_option(engine: str, name: str, value: str) -> None:
    known = OPTIONS[engine]
    if name in _NOT_QUERY_OPTIONS:
        raise AddressError(f"{name}= is not a query option", suggestion=_NOT_QUERY_OPTIONS[name])
    if name not in known:
        listed = f"the options are table, location, {', '.join(sorted(known))}"
        raise AddressError(f"{engine} has no option {name!r}", suggestion=listed)
    if not known[name].fullmatch(value):
        form = "must not be empty" if known[name] is _TEXT else f"must match {known[name].pattern}"
        raise AddressError(f"invalid value of the option {name}", suggestion=f"it {form}")


def is_local(host: str) -> bool:
    """Whether a host is this machine: localhost, a loopback address or a socket; empty is libpq's socket."""
    if not host or host[0] in "/@" or host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
