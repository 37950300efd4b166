"""``deltasql config``: every setting with its origin, a check of all of them, and a file to begin with."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from deltalakedb.cli.main import cli
from deltalakedb.settings import Config

if TYPE_CHECKING:
    import pytest

SECRET = "hunter2"


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["config", *words])
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result.output


def settings(*words: str) -> dict[str, dict[str, Any]]:
    return {s["name"]: s for s in json.loads(run("show", "--json", *words))["settings"]}


def test_each_value_has_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deltasql.toml").write_text(
        '[pool]\nmin_size = 1\n[catalogs]\nprod = "deltasql://sqlite//srv/p.db"\n'
    )
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "3")
    found = settings("--catalog", "deltasql://sqlite/x.db")
    origins = {name: (s["value"], s["origin"], s["source"]) for name, s in found.items()}
    assert origins["pool.min_size"] == ("1", "file", "deltasql.toml")
    assert origins["pool.max_size"] == ("3", "environment", "DELTASQL_POOL__MAX_SIZE")
    assert origins["pool.idle_s"] == ("300.0", "default", None)
    assert origins["catalog.uri"] == ("deltasql://sqlite/x.db", "option", "--catalog")
    assert origins["catalogs.prod"] == ("deltasql://sqlite//srv/p.db", "file", "deltasql.toml")
    assert set(settings("--changed")) == {"pool.min_size", "pool.max_size", "catalogs.prod"}
    assert set(settings("pool.idle_s", "catalogs")) == {"pool.idle_s", "catalogs.prod"}


def test_show_lists_lines_for_people_and_pipes() -> None:
    text = run("show", "pool")
    assert [line.split()[:3] for line in text.splitlines()[1:3]] == [
        ["pool.min_size", "0", "default"],
        ["pool.max_size", "8", "default"],
    ]
    assert "pool.max_size=8" in run("show", "pool", "--quiet").splitlines()
    assert "there is no setting 'nope'" in run("show", "nope", code=2)
    assert "Every setting is a default." in run("show", "--changed")


def test_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"deltasql://postgres/ada:{SECRET}@db.example.com/lake/meta"
    monkeypatch.setenv("DELTASQL_CATALOG", address)
    monkeypatch.setenv("DELTASQL_CATALOGS", json.dumps({"prod": address}))
    monkeypatch.setenv("DELTASQL_STORAGE", json.dumps({"s3://b/": {"aws_secret_access_key": SECRET}}))
    shown = "deltasql://postgres/ada:***@db.example.com/lake/meta"
    found = settings()
    assert {found["catalog.uri"]["value"], found["catalogs.prod"]["value"]} == {shown}
    assert found["catalogs.prod"]["source"] == "DELTASQL_CATALOGS"
    assert shown in run("validate")
    monkeypatch.setenv("DELTASQL_CATALOGS", json.dumps({"prod": f"deltasql://postgres/ada:{SECRET}@h/x"}))
    run("validate", code=2)
    run("show")


def test_validate_reports_all_catalogs_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    named = Path("named.toml")
    named.write_text(
        '[catalogs]\ngood = "deltasql://sqlite/a.db"\nunset = "deltasql://sqlite/${NOT_SET}"\n'
        'table = "deltasql://sqlite/a.db?table=t"\n'
    )
    text = run("validate", "--config", str(named), code=2)
    assert "catalogs.unset: the variable NOT_SET in the address is not set" in text
    assert "catalogs.table is the address of a table" in text
    named.write_text('catalog = "good"\n[catalogs]\ngood = "deltasql://sqlite/a.db"\n')
    document = json.loads(run("validate", "--config", str(named), "--json"))
    assert document == {
        "ok": True,
        "file": "named.toml",
        "catalog": "deltasql://sqlite/a.db",
        "catalogs": {"good": "deltasql://sqlite/a.db"},
        "changed_settings": 2,
    }
    named.write_text("[pool]\nmax_size = 0\n")
    assert "named.toml: pool.max_size" in run("validate", "--config", str(named), code=2)
    named.write_text('[catalogs]\n"a b" = "deltasql://sqlite/a.db"\n')
    assert "catalogs.a b" in run("validate", "--config", str(named), code=2)


def test_init_writes_a_file_that_lists_every_setting_and_changes_none() -> None:
    assert "Wrote deltasql.toml" in run("init")
    file = Path("deltasql.toml")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(s.kind == "default" for s in Config().describe())
    # every commented setting is valid as it stands, and names the default
    lines = [line for line in file.read_text().splitlines() if not line.startswith("# [")]
    live = [line.removeprefix("# ") if " = " in line else line for line in lines if line[-1:] != "="]
    values = tomllib.loads("\n".join(live))
    assert values.pop("catalogs")
    values["service"].pop("region", None)
    for s in Config().describe():
        section, key = s.name.split(".")
        if s.value:
            assert str(values[section][key]).lower() == s.value.lower(), s.name
    assert "deltasql.toml already exists" in run("init", code=2)


def test_init_takes_the_catalog_and_a_place(tmp_path: Path) -> None:
    address = f"deltasql://postgres/ada:{SECRET}@db.example.com/lake/meta"
    assert "ada:***@" in run("init", "--dry-run", "--catalog", address)
    assert not Path("deltasql.toml").exists()
    run("init", "--user", "--catalog", address)
    mine = tmp_path / ".config/deltasql/config.toml"
    assert Config().catalog.uri == Config.load(mine).catalog.uri
    assert Config().file == str(mine)
    assert SECRET in mine.read_text()
    variable = "deltasql://sqlite/${HOME}/x.db"
    assert "pass --user or FILE" in run("init", "--catalog", variable, code=2)
    run("init", "other.toml", "--catalog", variable)
    assert "not both" in run("init", "other.toml", "--user", code=2)
    assert ".toml" in run("init", "other.yaml", code=2)
    assert "a table's" in run("init", "--catalog", "deltasql://sqlite/x.db?table=t", code=2)
