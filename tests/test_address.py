"""Addresses: what parses, what is refused, what is shown."""

from __future__ import annotations

import pickle
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb import Catalog, DeltaTable
from deltalakedb.address import (
    ENGINES,
    OPTIONS,
    Address,
    Engine,
    is_deltasql,
    parse_address,
    validate_table_name,
)
from deltalakedb.exceptions import AddressError, DeltaError, InvalidArgumentError
from deltalakedb.redaction import Secret, redact

PG = "deltasql://postgres/"
LITE = "deltasql://sqlite/"
URL = "deltasql+postgresql://"


def shown(error: BaseException | None) -> str:
    """Everything that a log or a terminal could show of an error."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), repr(error.args), repr(getattr(error, "context", ""))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


# --- files


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_two_slashes_make_an_absolute_path_and_one_a_relative(engine: Engine) -> None:
    assert parse_address(f"deltasql://{engine}//srv/lake/meta.db") == Address(
        engine=engine, path="/srv/lake/meta.db"
    )
    assert parse_address(f"deltasql://{engine}/lake/meta.db").path == "lake/meta.db"


def test_a_relative_path_stays_relative_until_it_is_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse_address(LITE + "lake/meta.db?table=t")
    monkeypatch.chdir(tmp_path)
    assert address.path == "lake/meta.db"
    assert address.resolved().path == str(tmp_path.resolve() / "lake/meta.db")
    assert address.resolved().table == "t"


def test_two_ways_to_one_file_resolve_to_one_address(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    through_link = parse_address(f"{LITE}{tmp_path}/link/../link/meta.db").resolved()
    assert through_link == parse_address(f"{LITE}{tmp_path}/real/meta.db").resolved()


def test_a_file_address_names_its_table_in_the_query() -> None:
    address = parse_address(LITE + "/meta.db?table=sales.orders&location=s3://bucket/orders&busy_timeout=2.5")
    assert (address.table, address.location) == ("sales.orders", "s3://bucket/orders")
    assert address.options == (("busy_timeout", "2.5"),)
    assert address.is_table
    assert address.catalog == parse_address(LITE + "/meta.db?busy_timeout=2.5")
    assert not address.catalog.is_table


def test_spaces_and_percent_signs_inside_a_path_are_data() -> None:
    assert parse_address(LITE + "/my lake/100%25/meta.db").path == "/my lake/100%/meta.db"
    assert parse_address(LITE + "/a%3Fb%23c/meta.db").path == "/a?b#c/meta.db"


def test_a_plus_is_a_plus() -> None:
    assert parse_address(LITE + "/a+b.db?table=c+d").path == "/a+b.db"
    assert parse_address(LITE + "/a+b.db?table=c+d").table == "c+d"


def test_scheme_and_engine_may_be_written_in_capitals() -> None:
    assert parse_address("DeltaSQL://SQLite//x.db") == parse_address(LITE + "/x.db")


# --- postgres


@pytest.mark.parametrize(
    ("authority", "user", "password", "host", "port"),
    [
        ("", None, None, None, None),
        ("ada:pw@db.example.com:5432/", "ada", "pw", "db.example.com", 5432),
        ("ada@db/", "ada", None, "db", None),
        ("ada@/", "ada", None, None, None),
        ("@db/", None, None, "db", None),
        ("db:5433/", None, None, "db", 5433),
        (":5433/", None, None, None, 5433),
        ("[::1]:5432/", None, None, "::1", 5432),
        ("ada@[fe80::1%25eth0]/", "ada", None, "fe80::1%eth0", None),
        ("@%2Ftmp%2Fpg/", None, None, "/tmp/pg", None),
        ("@%2Ftmp%2Fpg:5433/", None, None, "/tmp/pg", 5433),
        ("a%40b:p%2F%40%3A%3F%23@db/", "a@b", "p/@:?#", "db", None),
        ("@one,two:5432/", None, None, "one,two", 5432),
    ],
)
def test_an_authority_has_an_at_sign_or_a_colon(
    authority: str, user: str | None, password: str | None, host: str | None, port: int | None
) -> None:
    address = parse_address(f"{PG}{authority}lake/meta/sales.orders")
    assert (address.database, address.schema, address.table) == ("lake", "meta", "sales.orders")
    assert (address.user, address.host, address.port) == (user, host, port)
    assert (address.password.reveal() if address.password else None) == password
    assert parse_address(address.to_uri(redact=False)) == address


def test_a_postgres_table_may_stand_in_the_query() -> None:
    assert parse_address(PG + "lake/meta?table=t") == parse_address(PG + "lake/meta/t")
    assert parse_address(PG + "lake/meta/t?table=t") == parse_address(PG + "lake/meta/t")
    with pytest.raises(AddressError, match="two different tables"):
        parse_address(PG + "lake/meta/t?table=u")


def test_a_table_and_a_catalog_are_not_taken_for_each_other() -> None:
    table = parse_address(PG + "u:s3cret@h/lake/meta/t")
    assert table.require_table() == "t"
    assert table.catalog.require_catalog() == table.catalog
    with pytest.raises(AddressError, match="Expected the address of a table, got that of a catalog"):
        table.catalog.require_table()
    with pytest.raises(InvalidArgumentError, match="is a table's address, not a catalog's") as caught:
        table.require_catalog()
    assert caught.value.suggestion == f"use {table.catalog.to_uri()}, or open the table with DeltaTable(…)"
    assert caught.value.command == f"use {table.catalog.to_uri()}"
    assert "s3cret" not in str(caught.value)


def test_a_remote_postgres_is_reached_by_verified_tls_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def tls(text: str, **environ: str) -> dict[str, str]:
        return parse_address(text).driver_options(environ)

    verified = {"sslmode": "verify-full", "sslrootcert": "system"}
    assert tls(PG + "u@db.example.com/lake/meta") == verified
    assert tls(PG + "u@10.0.0.7/lake/meta?connect_timeout=3") == {**verified, "connect_timeout": "3"}
    assert tls(PG + "@localhost,db.example.com/lake/meta") == verified
    assert tls(PG + "@db/lake/meta?sslmode=require") == {"sslmode": "require"}
    assert tls(PG + "@db/lake/meta?sslrootcert=/ca.pem") == {
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
    }
    assert tls(PG + "@db/lake/meta", PGSSLMODE="disable") == {}
    assert tls(PG + "@db/lake/meta", PGSSLROOTCERT="/ca.pem") == {"sslmode": "verify-full"}
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql/root.crt").touch()
    assert tls(PG + "@db/lake/meta") == {"sslmode": "verify-full"}


def test_libpq_environment_decides_what_is_remote_where_the_address_is_silent() -> None:
    silent = parse_address(PG + "lake/meta")
    assert not silent.is_remote({})
    assert not silent.is_remote({"PGHOST": "/var/run/postgresql"})
    assert silent.is_remote({"PGHOST": "db.example.com"})
    assert silent.is_remote({"PGSERVICE": "prod"})
    assert parse_address(PG + "@localhost/lake/meta").is_remote({"PGHOSTADDR": "10.0.0.7"})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::1]", "%2Ftmp"])
def test_a_local_postgres_needs_no_tls(host: str) -> None:
    assert parse_address(f"{PG}@{host}/lake/meta").driver_options({}) == {}


def test_libpq_knows_every_postgres_option() -> None:
    pq = pytest.importorskip("psycopg.pq", reason="the extra postgres is not installed")
    assert set(OPTIONS["postgres"]) <= {default.keyword.decode() for default in pq.Conninfo.get_defaults()}


def test_files_have_no_tls() -> None:
    assert parse_address(LITE + "/x.db?synchronous=FULL").driver_options({}) == {"synchronous": "FULL"}


# --- URLs as SQLAlchemy reads them


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_url_has_three_slashes_before_a_relative_path_and_four_before_an_absolute(engine: Engine) -> None:
    for slashes, path in (("///", "lake/meta.db"), ("////", "/lake/meta.db")):
        address = parse_address(f"deltasql+{engine}:{slashes}lake/meta.db?table=t")
        assert address == Address(engine=engine, path=path, table="t")
        assert parse_address(address.to_url()) == address


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("ada:pw@db.org:5432/lake?schema=meta&table=a.b", "ada:pw@db.org:5432/lake/meta/a.b"),
        ("ada@db/lake?schema=meta", "ada@db/lake/meta"),
        ("db/lake?schema=meta", "@db/lake/meta"),
        ("/lake?schema=meta&connect_timeout=3", "lake/meta?connect_timeout=3"),
        ("[::1]:5432/lake?schema=meta", "[::1]:5432/lake/meta"),
        ("@%2Ftmp%2Fpg/lake?schema=meta", "@%2Ftmp%2Fpg/lake/meta"),
        ("ada:p%2F%40@db/lake?schema=m%2Fn&table=t&location=/d", "ada:p%2F%40@db/lake/m%2Fn/t?location=/d"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["postgresql", "postgres", "pg", "PG"])
def test_a_postgres_url_has_the_schema_in_its_query(url: str, same: str, engine: str) -> None:
    address = parse_address(PG + same)
    assert parse_address(f"deltasql+{engine}://{url}") == address
    assert parse_address(f"deltasql://{engine}/{same}") == address
    if address.password is None:
        assert parse_address(address.to_url()) == address
    else:
        assert "ada:***@db" in address.to_url()


def test_a_url_may_refer_to_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p@ss/w:rd?x=%41#&")
    address = parse_address(URL + "ada:${PW}@db/lake?schema=meta")
    assert address.password == Secret("p@ss/w:rd?x=%41#&")
    assert (address.host, address.database) == ("db", "lake")


@pytest.mark.parametrize(
    ("plain", "translated"),
    [
        ("postgresql://ada:hunter2@db:54/lake", "deltasql+postgresql://ada:***@db:54/lake?schema=public, "),
        ("postgres://db/lake?sslmode=require", "deltasql+postgresql://db/lake?schema=public&sslmode=require;"),
        ("postgresql+psycopg2:///lake?schema=meta&table=t", "deltasql+postgresql:///lake?schema=meta&table=t"),
        ("sqlite:///lake/meta.db", "deltasql+sqlite:///lake/meta.db;"),
        ("SQLite:////lake/meta.db", "deltasql+sqlite:////lake/meta.db;"),
        ("duckdb:///x.duckdb", "deltasql+duckdb:///x.duckdb;"),
        ("postgresql://ada:hunter2@db/lake?nope=1", "deltasql+postgresql://user:password@host"),
    ],
)  # fmt: skip
def test_the_url_of_a_database_is_refused_with_the_address_it_becomes(plain: str, translated: str) -> None:
    for use in (parse_address, DeltaTable, Catalog):
        with pytest.raises(AddressError) as caught:
            use(plain)  # type: ignore[operator]
        assert f"write {translated}" in (caught.value.suggestion or "")
        assert "hunter2" not in shown(caught.value)
    assert "hunter2" not in redact(f"failed: deltasql+{plain} and more")


def test_a_relative_path_whose_absolute_twin_exists_is_refused_with_both_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "meta.db"
    Catalog(f"{LITE}{there}", create=True).close()
    relative = str(there)[1:]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for text in (LITE + relative, f"deltasql+sqlite:///{relative}"):
        with pytest.raises(AddressError, match=f"but {there} exists") as caught:
            Catalog(text)
        assert f"{LITE}{there}" in (caught.value.suggestion or "")
        assert f"{LITE}./{relative}" in (caught.value.suggestion or "")
    Catalog(f"{LITE}./{relative}", create=True).close()
    assert (tmp_path / "here" / relative).exists()
    monkeypatch.chdir("/")
    assert Catalog(LITE + relative).tables() == []


# --- environment references


def test_a_reference_expands_to_exactly_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "p@ss/w:rd?x=%41#&${HOME}")
    address = parse_address(PG + "ada:${PW}@db/lake/meta")
    assert address.password == Secret("p@ss/w:rd?x=%41#&${HOME}")
    assert (address.host, address.database) == ("db", "lake")
    assert parse_address(address.to_uri(redact=False)) == address


def test_a_reference_may_make_a_path_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "/srv/lake")
    assert parse_address(LITE + "${LAKE}/meta.db").path == "/srv/lake/meta.db"
    assert parse_address(LITE + "/${LAKE}/meta.db").path == "/srv/lake/meta.db"


def test_a_reference_may_have_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DB_HOST", raising=False)
    text = PG + "ada@${DB_HOST:-db.example.com}:${DB_PORT:-5432}/lake/meta"
    assert parse_address(text).host == "db.example.com"
    assert parse_address(text).port == 5432
    monkeypatch.setenv("DB_HOST", "other")
    assert parse_address(text).host == "other"
    monkeypatch.setenv("DB_HOST", "")
    assert parse_address(text).host == "db.example.com"


def test_an_unset_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    with pytest.raises(AddressError, match="NOT_SET_HERE"):
        parse_address(LITE + "${NOT_SET_HERE}/meta.db")


def test_a_variable_with_a_line_break_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hunter2\n")
    with pytest.raises(AddressError, match="PW") as caught:
        parse_address(PG + "ada:${PW}@db/lake/meta")
    assert "hunter2" not in shown(caught.value)


@pytest.mark.parametrize("reference", ["${", "${}", "${A", "${1A}", "${A-b}", "${A B}"])
def test_a_broken_reference_is_refused(reference: str) -> None:
    with pytest.raises(AddressError, match="reference"):
        parse_address(f"{LITE}/{reference}/meta.db")


# --- refusals


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("/data/table", "starts with deltasql://"),
        ("s3://bucket/table", "got 's3:…'"),
        ("postgresql://u:hunter2@h/db", "postgresql:// is the URL of a database itself"),
        ("postgres://u:5/hunter2@h/db", "postgres:// is the URL of a database itself"),
        ("mysql://u:hunter2@h/db", "got 'mysql:…'"),
        ("deltasql+mysql://u:hunter2@h/db", "engine must be .*, not 'mysql'"),
        ("deltasql+sqlite:/x.db", "pass a str"),
        ("deltasql+sqlite://x.db", "no slash"),
        ("deltasql+sqlite://lake/x.db", "needs three slashes"),
        ("deltasql+sqlite:///", "missing or ends"),
        ("deltasql+sqlite:///:memory:", "memory"),
        ("deltasql+sqlite:////x.db?schema=s", "schema= is not a query option"),
        (URL, "no slash"),
        (URL + "h", "no slash"),
        (URL + "h/", "database is empty"),
        (URL + "u:hunter2@h/db", "schema is missing"),
        (URL + "u:hunter2@h/db?schema=", "schema is empty"),
        (URL + "u:hunter2@h/db/meta", "percent-encode"),
        (URL + "u:5/hunter2@h/db?schema=s", "percent-encode"),
        (URL + "u:hunter2/x@h/db?schema=s", "percent-encode"),
        (URL + "u:hunter2@x@h/db?schema=s", "more than one @"),
        (URL + "u:hunter2?x@h/db?schema=s", "no slash"),
        (URL + "u:***@h/db?schema=s", "redacted"),
        (URL + "h/db?schema=s&password=hunter2", "password= is not a query option"),
        ("deltasql:/sqlite/x.db", "pass a str"),
        ("deltasql://", "engine must be"),
        ("deltasql:///x.db", "engine must be"),
        ("deltasql://mysql/x", "engine must be .*, not 'mysql'"),
        ("deltasql://u:hunter2@h/db/s", "engine must be"),
        ("deltasql://sqlite", "no slash"),
        ("deltasql://sqlite?table=x", "no slash"),
        (LITE, "missing or ends"),
        (LITE + "?table=t", "missing or ends"),
        (LITE + "/lake/", "ends with a slash"),
        (LITE + "C:/lake/meta.db", "Windows"),
        (LITE + "/C:/lake/meta.db", "Windows"),
        (LITE + "C:\\lake\\meta.db", "Windows"),
        (LITE + "lake\\meta.db", "Windows"),
        (LITE + ":memory:", "memory"),
        (LITE + "~/meta.db", "HOME"),
        (LITE + "/lake/ meta.db", "space"),
        (" " + LITE + "/x.db", "starts or ends with a space"),
        (LITE + "/x.db ", "starts or ends with a space"),
        (LITE + "/x.db#top", "fragment"),
        (LITE + "/x%zz.db", "hexadecimal"),
        (LITE + "/x%", "hexadecimal"),
        (LITE + "/x%ff.db", "UTF-8"),
        (LITE + "/x%00.db", "control"),
        (LITE + "/x%0a.db", "control"),
        (LITE + "/x%ED%A0%80.db", "UTF-8"),
        (LITE + "/x\0.db", "control"),
        (LITE + "/x\n.db", "control"),
        (LITE + "/x\u2028.db", "control"),
        (LITE + "/x\ud800.db", "surrogate"),
        (LITE + "/" + "x" * 20_000, "characters"),
        (LITE + "/x.db?", "parameter 1"),
        (LITE + "/x.db?table", "parameter 1"),
        (LITE + "/x.db?=t", "parameter 1"),
        (LITE + "/x.db?table=t&", "parameter 2"),
        (LITE + "/x.db?table=", "name is missing"),
        (LITE + "/x.db?table=a&table=b", "parameter 2 is given twice"),
        (LITE + "/x.db?table=a&table=a", "parameter 2 is given twice"),
        (LITE + "/x.db?table=a?location=/x", "more than one \\?"),
        (LITE + "/x.db?table=a/b", "path separator"),
        (LITE + "/x.db?table=..", "empty part"),
        (LITE + "/x.db?table=a..b", "empty part"),
        (LITE + "/x.db?table=%20a", "space"),
        (LITE + "/x.db?table=" + "n" * 256, "256 characters"),
        (LITE + "/x.db?location=/data", "names no table"),
        (LITE + "/x.db?table=t&location=", "location is empty"),
        (LITE + "/x.db?table=t&location=C:\\data", "Windows"),
        (LITE + "/x.db?table=t&location=s3://key:hunter2@bucket/t", "credentials"),
        (LITE + "/x.db?table=t&location=https://h/t%3Fsig=hunter2", "credentials"),
        (LITE + "/x.db?sslmode=require", "no option 'sslmode'"),
        (LITE + "/x.db?synchronous=OFF", "synchronous"),
        (LITE + "/x.db?busy_timeout=soon", "busy_timeout"),
        (PG, "got 1 parts"),
        (PG + "lake", "got 1 parts"),
        (PG + "lake/", "schema is empty"),
        (PG + "/meta", "database is empty"),
        (PG + "lake/meta/", "name is missing"),
        (PG + "lake/meta/t/u", "got 4 parts"),
        (PG + "u:hunter2@db/lake", "got 1 parts"),
        (PG + "@/lake/meta", "host is empty"),
        (PG + ":/lake/meta", "port"),
        (PG + "u:@db/lake/meta", "empty"),
        (PG + ":hunter2@db/lake/meta", "empty"),
        (PG + "u:***@db/lake/meta", "redacted"),
        (PG + "u:hunter2@x@db/lake/meta", "more than one @"),
        (PG + "u:hunter2/x@db/lake/meta", "percent-encode '@'"),
        (PG + "u:1/hunter2@db/lake/t", "percent-encode '@'"),
        (PG + "u:hunter2?x@db/lake/meta", "got 0 parts"),
        (PG + "u:hunter2#x@db/lake/meta", "fragment"),
        (PG + "u:hunter2%@db/lake/meta", "hexadecimal"),
        (PG + "db:hunter2/lake/meta", "port"),
        (PG + "db:0/lake/meta", "port"),
        (PG + "db:65536/lake/meta", "port"),
        (PG + "db:\u0665/lake/meta", "port"),
        (PG + "::1/lake/meta", "IPv6"),
        (PG + "[::zz]/lake/meta", "IPv6"),
        (PG + "@d b/lake/meta", "host name"),
        (PG + "l" * 64 + "/meta", "63 bytes"),
        (PG + "lake/" + "é" * 32, "63 bytes"),
        (PG + "lake/meta?password=hunter2", "password= is not a query option"),
        (PG + "lake/meta?sslpassword=hunter2", "is not a query option"),
        (PG + "lake/meta?host=db", "is not a query option"),
        (PG + "lake/meta?sslmodes=require", "no option 'sslmodes'"),
        (PG + "lake/meta?sslmode=hunter2", "invalid value of the option sslmode"),
    ],
)
def test_a_wrong_address_gives_a_typed_error_that_shows_the_right_form(text: str, fault: str) -> None:
    with pytest.raises(AddressError, match=fault) as caught:
        parse_address(text)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DeltaError)
    assert caught.value.suggestion
    assert "hunter2" not in shown(caught.value)


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AddressError) as caught:
        parse_address("deltasql://duckdb//x.duckdb?memory=1GB")
    assert all(name in str(caught.value) for name in OPTIONS["duckdb"])


def test_a_path_object_that_lost_a_slash_is_still_ours_and_refused() -> None:
    path = Path(LITE + "/srv/x.db")
    assert is_deltasql(path)
    with pytest.raises(AddressError, match="starts with deltasql://"):
        parse_address(path)


@pytest.mark.parametrize(
    "other", ["/data/t", "s3://b/t", "", "deltasql", Path("t"), None, 7, b"deltasql://x"]
)
def test_other_paths_are_not_ours(other: object) -> None:
    assert not is_deltasql(other)


# --- what is shown, kept and compared


def test_a_password_is_shown_nowhere() -> None:
    address = parse_address(PG + "ada:hunter2@db/lake/meta/t?location=/data/t")
    loaded = pickle.loads(pickle.dumps(address))
    for text in (
        repr(address),
        str(address),
        f"{address}",
        address.to_uri(),
        repr(loaded),
        repr(vars_of(address)),
    ):
        assert "hunter2" not in text
    assert "ada:***@db" in repr(address)
    assert loaded == address
    assert loaded.password is not None
    assert loaded.password.reveal() == "hunter2"


def vars_of(address: Address) -> dict[str, object]:
    return {name: getattr(address, name) for name in Address.__slots__}


def test_only_the_unredacted_text_parses_back() -> None:
    address = parse_address(PG + "ada:hunter2@db/lake/meta")
    assert parse_address(address.to_uri(redact=False)) == address
    with pytest.raises(AddressError, match="redacted"):
        parse_address(address.to_uri())


def test_a_password_of_three_stars_can_be_written() -> None:
    address = parse_address(PG + "ada:%2A%2A%2A@db/lake/meta")
    assert parse_address(address.to_uri(redact=False)) == address


def test_addresses_differ_by_their_password() -> None:
    first, second = (parse_address(f"{PG}ada:{word}@db/lake/meta") for word in ("one", "two"))
    assert first != second
    assert len({first, second, parse_address(PG + "ada:one@db/lake/meta")}) == 2


def test_an_address_is_a_fixed_point_of_parsing() -> None:
    address = parse_address(LITE + "/x.db")
    assert parse_address(address) is address
    assert is_deltasql(address)


def test_with_table_checks_the_name() -> None:
    catalog = parse_address(PG + "lake/meta?connect_timeout=3")
    assert catalog.with_table("sales.orders").catalog == catalog
    assert catalog.with_table("t", location="/data/t").location == "/data/t"
    with pytest.raises(AddressError):
        catalog.with_table("../etc")
    with pytest.raises(AddressError):
        catalog.with_table("t", location="https://u:pw@h/t")


def test_the_order_of_options_does_not_matter() -> None:
    one, two = (
        parse_address(f"{LITE}/x.db?{query}")
        for query in ("synchronous=FULL&busy_timeout=1", "busy_timeout=1&synchronous=FULL")
    )
    assert one.options == (("busy_timeout", "1"), ("synchronous", "FULL"))
    assert (one, hash(one)) == (two, hash(two))


def test_a_table_is_required_by_name() -> None:
    assert parse_address(PG + "lake/meta/t").require_table() == "t"
    for text, hint in ((LITE + "/x.db", "[?]table=NAME"), (PG + "u:hunter2@db/lake/meta", "/NAME")):
        with pytest.raises(AddressError, match=f"got that of a catalog: (.|\n)*{hint}") as caught:
            parse_address(text).require_table()
        assert "hunter2" not in shown(caught.value)


@pytest.mark.parametrize(
    "name", ["t", "sales.orders", "a.b.c", "x'; DROP TABLE dl_tables; --", "größe 1", "n" * 255]
)
def test_odd_names_are_data(name: str) -> None:
    assert validate_table_name(name) == name
    for catalog in (parse_address(LITE + "/x.db"), parse_address(PG + "lake/meta")):
        assert parse_address(catalog.with_table(name).to_uri()) == catalog.with_table(name)


@pytest.mark.parametrize(
    "text",
    [
        'connection to "deltasql://postgres/ada:hunter2@db/lake" failed',
        "postgresql://ada:hunt/er2@db:5432/lake",
        "postgresql://ada:hunt@er2@db:5432/lake",
        "host=db password=hunter2 dbname=lake",
        "password='hunter2 er2' host=db",
        '{"aws_secret_access_key": "hunter2", "region": "x"}',
        "https://h/x?sv=1&sas_token=hunter2&x=1",
    ],
)
def test_redact_clears_foreign_messages(text: str) -> None:
    assert "er2" not in redact(text)
    assert "***" in redact(text)


def test_redact_leaves_harmless_messages_alone() -> None:
    text = "connection to server at db.example.com:5432 refused: no route (user ada@db)"
    assert redact(text) == text


# --- properties

texts = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda s: s == s.strip()
)
names = st.lists(texts.filter(lambda s: not set(s) & set("./\\")), min_size=1, max_size=3).map(".".join)
identifiers = texts.filter(lambda s: len(s.encode()) <= 63)
hosts = st.sampled_from(["db", "db.example.com", "10.0.0.7", "::1", "fe80::1%eth0", "/tmp/pg 1", None])
paths = st.lists(texts.filter(lambda s: not set(s) & set("/\\:~")), min_size=1, max_size=4).map("/".join)


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    engine = draw(st.sampled_from(ENGINES))
    table = draw(st.none() | names)
    location = (
        draw(st.sampled_from([None, "s3://b/t 1", "/data/ä&=?", "abfss://c@a.dfs/t"])) if table else None
    )
    if engine != "postgres":
        options = draw(st.sampled_from([{}, {"busy_timeout": "3"}])) if engine == "sqlite" else {}
        path = draw(st.sampled_from(["", "/"])) + draw(paths)
        return Address(
            engine=engine, path=path, table=table, location=location, options=tuple(options.items())
        )
    user = draw(st.none() | texts)
    return Address(
        engine=engine,
        host=draw(hosts),
        port=draw(st.none() | st.integers(1, 65_535)),
        user=user,
        password=draw(st.none() | st.builds(Secret, texts)) if user else None,
        database=draw(identifiers),
        schema=draw(identifiers),
        table=table,
        location=location,
        options=draw(st.sampled_from([(), (("options", "-c a=b&c"), ("sslmode", "require"))])),
    )


@given(addresses())
@settings(max_examples=150, deadline=None)
def test_every_address_survives_text_and_pickle(address: Address) -> None:
    assert parse_address(address.to_uri(redact=False)) == address
    assert pickle.loads(pickle.dumps(address)) == address


@given(
    st.text(alphabet=string.printable + "\0\ud800é", max_size=60),
    st.sampled_from(["", LITE, PG, "deltasql://"]),
)
@settings(max_examples=200, deadline=None)
def test_any_text_parses_or_gives_a_typed_error(text: str, prefix: str) -> None:
    try:
        address = parse_address(prefix + text)
    except AddressError:
        return
    assert parse_address(address.to_uri(redact=False)) == address
