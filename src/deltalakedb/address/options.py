"""The driver options of an address, and TLS by default."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalakedb.exceptions import AddressError

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTEGER: Final = re.compile(r"[0-9]{1,9}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_ANYTHING: Final = re.compile(r".+")
_SYNCHRONOUS: Final = re.compile(r"EXTRA|FULL|NORMAL")
_SIZE: Final = re.compile(r"[0-9]+(\.[0-9]+)? ?([KMGT]i?B|%)")
_SWITCH: Final = re.compile(r"0|1")
_SSLMODE: Final = re.compile(r"disable|allow|prefer|require|verify-ca|verify-full")

#: The driver options that an address may have, by engine, and the pattern of each value.
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
# Query parameters elsewhere, other parts of the address here; two of them are secrets.
NOT_QUERY_OPTIONS: Final[Mapping[str, str]] = {
    "dbname": "the database is part of the path",
    "host": "write the host before the database: user@host:5432/",
    "password": "write user:password@host/ or user:${VARIABLE}@host/, or set PGPASSWORD",
    "port": "write the port after the host: user@host:5432/",
    "schema": "the schema is part of the path, after the database",
    "sslpassword": "use an unencrypted key file that only you can read: an address would show the secret",
    "user": "write the user before the host: user@host/",
}


def check_option(engine: str, name: str, value: str) -> None:
    """Refuse an unknown option, or a value that does not fit its pattern."""
    known = OPTIONS[engine]
    if name in NOT_QUERY_OPTIONS:
        raise AddressError(f"{name}= is not a query option", suggestion=NOT_QUERY_OPTIONS[name])
    if name not in known:
        listed = f"the options are table, location, {', '.join(known)}"
        raise AddressError(f"{engine} has no option {name!r}", suggestion=listed)
    if not known[name].fullmatch(value):
        form = "must not be empty" if known[name] is _ANYTHING else f"must match {known[name].pattern}"
        raise AddressError(f"invalid value of the option {name}", suggestion=f"it {form}")


def is_local(host: str) -> bool:
    """Whether a host is this machine: localhost, a loopback address or a socket; empty is libpq's socket."""
    if not host or host[0] in "/@" or host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_tls_options(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The options, with verified TLS unless they or libpq's environment choose something else."""
    effective = dict(options)
    mode = effective.get("sslmode") or environ.get("PGSSLMODE")
    if not mode:
        mode = effective["sslmode"] = "verify-full"
    own_root = "sslrootcert" in effective or environ.get("PGSSLROOTCERT")
    # libpq refuses the system's roots together with any weaker mode.
    if mode == "verify-full" and not own_root and not Path("~/.postgresql/root.crt").expanduser().exists():
        effective["sslrootcert"] = "system"
    return effective
