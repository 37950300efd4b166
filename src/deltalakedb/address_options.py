"""The driver options that an address may carry, by engine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deltalakedb.exceptions import AddressError

__all__ = ["OPTIONS", "Options", "check_option", "is_local", "with_verified_tls"]

_INTEGER: Final = re.compile(r"[0-9]{1,9}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_ANYTHING: Final = re.compile(r".+")
_SYNCHRONOUS: Final = re.compile(r"EXTRA|FULL|NORMAL")
_SIZE: Final = re.compile(r"[0-9]+(\.[0-9]+)? ?([KMGT]i?B|%)")
_SWITCH: Final = re.compile(r"0|1")
_SSLMODE: Final = re.compile(r"disable|allow|prefer|require|verify-ca|verify-full")

#: The driver options that an address may carry, by engine, and what a value has to look like.
OPTIONS: Final[Mapping[str, Mapping[str, re.Pattern[str]]]] = {
    "sqlite": {"busy_timeout": _SECONDS, "synchronous": _SYNCHRONOUS},
    "duckdb": {"idle_release": _SECONDS, "memory_limit": _SIZE, "threads": _INTEGER, "wait": _SECONDS},
    "postgres": {
        "application_name": _ANYTHING,
        "channel_binding": re.compile(r"disable|prefer|require"),
        "connect_timeout": _INTEGER,
        "gssencmode": re.compile(r"disable|prefer|require"),
        "keepalives": _SWITCH,
        "keepalives_count": _INTEGER,
        "keepalives_idle": _INTEGER,
        "keepalives_interval": _INTEGER,
        "load_balance_hosts": re.compile(r"disable|random"),
        "options": _ANYTHING,
        "passfile": _ANYTHING,
        "require_auth": _ANYTHING,
        "ssl_min_protocol_version": re.compile(r"TLSv1(\.[123])?"),
        "sslcert": _ANYTHING,
        "sslcrl": _ANYTHING,
        "sslkey": _ANYTHING,
        "sslmode": _SSLMODE,
        "sslnegotiation": re.compile(r"postgres|direct"),
        "sslrootcert": _ANYTHING,
        "target_session_attrs": re.compile(r"any|read-write|read-only|primary|standby|prefer-standby"),
        "tcp_user_timeout": _INTEGER,
    },
}
# Known elsewhere as query parameters; here they have a place of their own, and two of them are secrets.
_MISPLACED: Final[Mapping[str, str]] = {
    "dbname": "the database is a part of the path",
    "host": "the host stands before the database, as user@host:5432/",
    "password": "a password stands as user:password@host/, or user:${VARIABLE}@host/, or in PGPASSWORD",
    "port": "the port stands behind the host, as user@host:5432/",
    "schema": "the schema is a part of the path, behind the database",
    "sslpassword": "take an unencrypted key file with tight rights, since an address would show the secret",
    "user": "the user stands before the host, as user@host/",
}


class Options(Mapping[str, str]):
    """Driver options as an immutable mapping that can be hashed and pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._items = dict(sorted((items or {}).items()))

    def __getitem__(self, key: str) -> str:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return f"Options({self._items!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (dict(self._items),)


def check_option(engine: str, name: str, value: str) -> None:
    """Refuse an option that the engine does not have, or a value that it cannot have."""
    known = OPTIONS[engine]
    if name in _MISPLACED:
        raise AddressError(f"{name}= does not belong into the query", suggestion=_MISPLACED[name])
    if name not in known:
        listed = f"{engine} knows table, location, {', '.join(known)}"
        raise AddressError(f"{engine} has no option {name!r}", suggestion=listed)
    if not known[name].fullmatch(value):
        form = "must not be empty" if known[name] is _ANYTHING else f"must match {known[name].pattern}"
        raise AddressError(f"the value of the option {name} is wrong", suggestion=f"it {form}")


def is_local(host: str) -> bool:
    """True for a host, loopback address or socket that never leaves this machine; empty is libpq's socket."""
    if not host or host[0] in "/@" or host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def with_verified_tls(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The options with verified TLS wherever neither they nor libpq's environment choose something else."""
    effective = dict(options)
    mode = effective.get("sslmode") or environ.get("PGSSLMODE")
    if not mode:
        mode = effective["sslmode"] = "verify-full"
    own_root = "sslrootcert" in effective or environ.get("PGSSLROOTCERT")
    # libpq refuses the system's roots together with any weaker mode.
    if mode == "verify-full" and not own_root and not Path("~/.postgresql/root.crt").expanduser().exists():
        effective["sslrootcert"] = "system"
    return effective
