"""``Address``: where a catalog is and which of its tables is meant, and what its parts may be."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from deltalakedb.address.options import default_tls_options, is_local
from deltalakedb.exceptions import AddressError
from deltalakedb.redaction import MASK, Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine = Literal["sqlite", "duckdb", "postgres"]

ENGINES: Final[tuple[Engine, ...]] = ("sqlite", "duckdb", "postgres")
MAX_NAME: Final = 255

#: control characters, line separators and halves of surrogate pairs
BAD_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
WINDOWS_PATH: Final = re.compile(r"/?[A-Za-z]:([/\\]|$)")
_STORE_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/]*)")


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
        """Whether the address names a table."""
        return self.table is not None

    @property
    def catalog(self) -> Address:
        """The address of the catalog alone."""
        return replace(self, table=None, location=None)

    def require_table(self) -> str:
        """The table's name.

        Raises:
            AddressError: The address is that of a catalog.
        """
        if self.table is None:
            raise AddressError(
                f"Expected the address of a table, got that of a catalog: {self.to_uri()}",
                suggestion="add /NAME" if self.engine == "postgres" else "add ?table=NAME",
            )
        return self.table

    def with_table(self, name: str, *, location: str | None = None) -> Address:
        """The address of a table in the same catalog."""
        root = None if location is None else check_location(location)
        return replace(self, table=validate_table_name(name), location=root)

    def absolute(self) -> Address:
        """The same address with absolute paths: it means the same in any working directory."""
        path, location = self.path, self.location
        if path is not None:
            path = os.path.abspath(path)  # noqa: PTH100 - links stay: they are what the user called it
        if location is not None and not location.startswith("file:") and not _STORE_URL.match(location):
            location = os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111
        if (path, location) == (self.path, self.location):
            return self
        return replace(self, path=path, location=location)

    def resolved(self) -> Address:
        """The same address with an absolute path without symbolic links, as a key of connections."""
        return self if self.path is None else replace(self, path=os.path.realpath(self.path))

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
        return default_tls_options(options, env) if self.is_remote(env) else options

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
    """Whether something is meant as a ``deltasql:`` address, well-formed or not."""
    if isinstance(text_or_path, Address):
        return True
    if isinstance(text_or_path, os.PathLike):  # Path("deltasql://…") has lost a slash, yet is not a folder
        text_or_path = os.fspath(text_or_path)
    return isinstance(text_or_path, str) and text_or_path[:9].lower() == "deltasql:"


def check_location(location: str) -> str:
    """Return the location if a table may be there."""
    if not location or location != location.strip() or BAD_CHARACTER.search(location):
        fault = "is empty, starts or ends with a space, or contains a control character"
    elif "\\" in location or WINDOWS_PATH.match(location):
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
