"""Verified TLS is decided by where libpq really connects: environment and service files included."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from deltalakedb.address import parse_address
from deltalakedb.metastore.engines.postgres import PostgresEngine
from deltalakedb.settings import Config

if TYPE_CHECKING:
    from pathlib import Path

REMOTE = "10.255.255.1"


@pytest.fixture
def libpq(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Set libpq's variables, and the lines of a service file."""
    for name in [n for n in os.environ if n.startswith("PG")]:
        monkeypatch.delenv(name)

    def sets(*service: str, **variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if service:
            path = tmp_path / "services.conf"
            path.write_text("\n".join(["[prod]", *service, ""]))
            monkeypatch.setenv("PGSERVICEFILE", str(path))
            monkeypatch.setenv("PGSERVICE", "prod")

    return sets


def settings(uri: str) -> dict[str, Any]:
    return PostgresEngine(parse_address(uri), Config()).connection_settings()


LOCAL = "deltasql://postgres/u@localhost/db/s"
SILENT = "deltasql://postgres/db/s"


@pytest.mark.parametrize("uri", [SILENT, LOCAL, "deltasql://postgres/u@%2Fvar%2Frun/db/s"])
def test_a_service_with_a_remote_address_is_verified_whatever_the_host_is(uri: str, libpq: Any) -> None:
    libpq(f"hostaddr={REMOTE}", PGHOST="localhost")
    assert settings(uri)["sslmode"] == "verify-full"


def test_a_services_host_goes_before_the_environment(libpq: Any) -> None:
    libpq("host=db.example.com", PGHOST="localhost")
    assert settings(SILENT)["sslmode"] == "verify-full"


def test_an_explicit_local_host_goes_before_a_services(libpq: Any) -> None:
    libpq("host=db.example.com")
    assert "sslmode" not in settings(LOCAL)


@pytest.mark.parametrize("variables", [{"PGHOSTADDR": REMOTE}, {"PGHOST": "localhost,db.example.com"}])
def test_every_host_of_the_environment_counts(variables: dict[str, str], libpq: Any) -> None:
    libpq(**variables)
    assert settings(SILENT)["sslmode"] == "verify-full"


def test_one_remote_host_of_several_is_enough(libpq: Any) -> None:
    libpq()
    assert settings("deltasql://postgres/u@localhost%2Cdb.example.com/db/s")["sslmode"] == "verify-full"


def test_a_local_service_needs_no_tls(libpq: Any) -> None:
    libpq("host=/var/run/postgresql")
    assert "sslmode" not in settings(SILENT)


def test_what_the_user_chose_stays(libpq: Any) -> None:
    libpq("host=db.example.com", "sslmode=require")
    assert "sslmode" not in settings(SILENT)  # libpq takes it from the service
    libpq(PGSSLMODE="disable", PGSERVICE="prod")
    assert settings(f"{SILENT}?sslmode=verify-ca")["sslmode"] == "verify-ca"
