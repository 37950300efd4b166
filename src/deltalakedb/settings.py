"""Settings: from arguments, the environment, a TOML or YAML file, and defaults, in this order."""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import stat
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, reduce
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)

from deltalakedb.address import Address, parse_address
from deltalakedb.exceptions import AddressError, ArgumentTypeError, ConfigError
from deltalakedb.redaction import MASK, redact

# ---- sections ----


def _as_option(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _as_address(value: Any) -> Any:
    if isinstance(value, str):
        value = parse_address(value)
    if isinstance(value, Address) and value.is_table:
        raise ValueError("is a catalog's address: leave the table out")
    return value


def _as_secret(value: Any) -> Any:
    return value.to_uri(redact=False) if isinstance(value, Address) else value


def _key(default: Any, description: str, **limits: Any) -> Any:
    return Field(default=default, description=description, **limits)


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
OptionValue = Annotated[SecretStr, BeforeValidator(_as_option)]
CatalogAddress = Annotated[InstanceOf[Address], BeforeValidator(_as_address)]
CatalogName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=63)]


class Section(BaseModel):
    """The base of all sections: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class CatalogConfig(Section):
    """The default catalog, and defaults of new tables."""

    uri: CatalogAddress | None = _key(None, "default catalog address")
    create: bool = _key(True, "create the catalog's tables on first use")
    auto_migrate: bool = _key(True, "bring an older catalog up to date on first use")
    root: str | None = _key(None, "folder or URL of new tables without a location")
    in_commit_timestamps: Literal["off", "remote", "always"] = _key(
        "off", "new tables carry commit times in their commits: none, those on object stores, or all"
    )
    fence: bool = _key(False, "writers that bypass the catalog refuse new tables")
    clock_tolerance_s: Seconds = _key(
        300.0, "seconds by which the clocks of host, database and store may differ for deletions by age"
    )
    allow_outside_paths: bool = _key(
        False, "read and commit files outside of their table's root, as those of shallow clones"
    )


class PoolConfig(Section):
    """Connections of one process to one catalog."""

    min_size: Count = _key(0, "connections kept open even when idle")
    max_size: Positive = _key(8, "limit of connections")
    timeout_s: Seconds = _key(30.0, "seconds to wait for a free connection")
    health_check_s: Seconds = _key(30.0, "idle seconds after which it is checked before use")
    idle_s: Seconds = _key(300.0, "idle seconds after which it is closed")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_size > self.max_size:
            raise ValueError("min_size is greater than max_size")
        return self


class SQLiteConfig(Section):
    """SQLite as a catalog."""

    synchronous: Literal["EXTRA", "FULL", "NORMAL"] = _key(
        "FULL", "NORMAL is faster and may lose acknowledged commits when the power fails"
    )
    busy_timeout_s: Seconds = _key(30.0, "seconds to wait for another process's lock")


class DuckDBConfig(Section):
    """DuckDB as a catalog."""

    idle_release_s: Seconds = _key(1.0, "idle seconds until the file is released")
    wait_s: Seconds = _key(30.0, "seconds to wait for the file lock")
    memory_limit: str | None = _key(None, "DuckDB's memory_limit, such as 1GB")
    threads: Positive | None = _key(None, "DuckDB's threads")


class PostgresConfig(Section):
    """Postgres as a catalog."""

    connect_timeout_s: Positive = _key(10, "seconds to wait for a connection")
    statement_timeout_s: Seconds | None = _key(None, "seconds a statement may take")
    lock_timeout_s: Seconds = _key(30.0, "seconds to wait for a lock; a commit tries twice")
    hold_timeout_s: Seconds = _key(20.0, "seconds a writer may hold locks while it is idle; 0: any")
    network_timeout_s: Count = _key(
        20, "seconds until a dead network ends a connection; 0: the system's default"
    )


class PublishConfig(Section):
    """How ratified commits reach ``_delta_log``."""

    mode: Literal["sync", "background", "off"] = _key(
        "sync", "sync: before a write returns, background: soon after, off: by other processes"
    )
    fsync: bool = _key(True, "flush log file and folder to disk")
    help_predecessors: Count = _key(32, "earlier versions a writer publishes too")
    look_ahead: Literal["always", "local", "off"] = _key(
        "local", "look for foreign commits before a commit: on every store, on local disks, or never"
    )
    look_at_open: bool = _key(False, "look for foreign commits when a table is opened")
    checkpoints: bool = _key(True, "writers write the checkpoints that are due")
    keep_bytes: bool = _key(True, "keep the bytes of commits that a published checkpoint covers")
    checkpoint_tail_bytes: Count = _key(64 * 1024**2, "bytes of commits at which a checkpoint is due; 0: any")
    checkpoint_after_s: float = _key(0.0, "seconds without a checkpoint at which one is due; 0: any", ge=0)


class ImportConfig(Section):
    """Import of existing Delta tables."""

    batch_size: Positive = _key(49_152, "file rows written to the catalog at a time")
    history_limit: Count = _key(10_000, 'JSON commits up to which history="auto" imports every version')
    memory_mb: int = _key(512, "memory limit of an import or a verification, in MiB", ge=64)
    rate_limit: Count = _key(0, "limit of file actions loaded in a second; 0: none")
    parallel: Positive = _key(2, "tables that import-all imports at a time")


class RemoteConfig(Section):
    """Tables whose root is on an object store."""

    fetch_limit_bytes: Count = _key(4 * 1024**3, "bytes that one operation may fetch to this machine")
    folder: str | None = _key(None, "folder of fetched files")
    parallel: Positive = _key(8, "files fetched or sent at a time")


class CacheConfig(Section):
    """What a process keeps in memory."""

    snapshot_bytes: Count = _key(256 * 1024 * 1024, "memory for snapshots")


class SparkConfig(Section):
    """Spark."""

    jars: str | None = _key(None, "a folder with Delta's jars, instead of the cache")
    download: bool = _key(True, "fetch Delta's jars when they are missing")


class AsyncConfig(Section):
    """The asynchronous face, ``deltalakedb.aio``."""

    threads: Positive = _key(16, "calls that run at the same time in one process")


class ServiceConfig(Section):
    """The service that ratifies commits of other engines, and its callers."""

    host: str = _key("127.0.0.1", "the address that the service listens at")
    port: int = _key(8640, "its port; 0: any that is free", ge=0, le=65535)
    token: SecretStr | None = _key(None, "the token that callers must send")
    token_file: str | None = _key(None, "a file with the token")
    max_bytes: Positive = _key(256 * 1024**2, "bytes of the longest commit that it accepts")
    max_connections: Positive = _key(128, "connections to it at a time")
    allowed_hosts: str = _key("", "names, joined by commas, by which callers reach it through DNS or a proxy")


# ---- sources ----

_PREFIX: Final = "DELTASQL_"
#: sections that take any key; their variable has a JSON object
_MAPS: Final = {
    "catalogs": '{"prod": "deltasql://sqlite//srv/lake/meta.db"}',
    "storage": '{"s3://bucket/": {"region": "eu-west-1"}}',
}
#: the value of a setting that a source does not set
_UNSET: Final = object()

#: section -> its keys; None if it takes any key
_Sections = Mapping[str, frozenset[str] | None]
_Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """The values of one source, by section and key. The environment has no name: each variable has one."""

    values: Mapping[str, Any] = field(repr=False)
    name: str | None

    def value_at(self, path: _Keys) -> Any:
        """The value at a path, or the one above it that is not a section, or UNSET."""
        at: Any = self.values
        for key in path:
            if not isinstance(at, Mapping):
                return at
            at = at.get(key, _UNSET)
        return at

    @property
    def kind(self) -> str:
        return "environment" if self.name is None else "argument" if self.name == "argument" else "file"

    def origin(self, path: _Keys) -> str:
        """The file, the variable, or ``argument``: where a user changes the value."""
        if self.name is not None:
            return self.name
        if path == ("catalog", "uri") and not os.environ.get(_variable(path)):
            return _variable(path[:1])
        return _variable(path) + ("__*" if len(path) == 1 and path[0] not in _MAPS else "")


def _variable(path: _Keys) -> str:
    return _PREFIX + "__".join(part.upper() for part in (path[:1] if path[0] in _MAPS else path))


def _merge(old: Any, new: Any) -> Any:
    """The values of two sources; the new ones win."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}


def _read_arguments(sections: Mapping[str, Any]) -> _Source:
    """Dicts, section objects, of which only what was set counts, or the address of the default catalog."""
    values: dict[str, Any] = {}
    for name, section in sections.items():
        if isinstance(section, BaseModel):
            section = {key: getattr(section, key) for key in section.model_fields_set}
        values[name.rstrip("_")] = _expand_catalog(name, section)
    return _Source(values, "argument")


def _read_environment(known: _Sections) -> _Source:
    """The variables ``DELTASQL_SECTION__KEY``; an empty one counts as unset.

    Other ``DELTASQL_`` variables are ignored unless they look like a misspelt setting.
    """
    values: dict[str, Any] = {}
    for name, text in os.environ.items():
        if not name.startswith(_PREFIX) or not text:
            continue
        section, delimiter, key = name[len(_PREFIX) :].lower().partition("__")
        if section not in known:
            if delimiter:
                raise ConfigError(f"{name}: unknown section", suggestion=_nearest((section,), known))
            for head, keys in known.items():
                if (rest := section.removeprefix(f"{head}_")) in (keys or ()):
                    hint = f"did you mean {_variable((head, rest))}?"
                    raise ConfigError(f"{name}: unknown setting", suggestion=hint)
        elif known[section] is None:
            values[section] = _json_object(name, text, _MAPS[section])
        elif key:
            values.setdefault(section, {})[key] = text
        elif section == "catalog":
            values.setdefault(section, {}).setdefault("uri", text)
        else:
            raise ConfigError(f"{name} is a section", suggestion=f"set {name}__KEY")
    return _Source(values, None)


def _json_object(name: str, text: str, form: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is not a JSON object", suggestion=f"write it like {form}")
    return value


def _read_file(path: str | os.PathLike[str] | None) -> _Source:
    """A file: the given one, else that of ``DELTASQL_CONFIG``, else the first of the default ones.

    A file that was found in the current folder may come from another user: it must belong to this user, and
    cannot refer to environment variables, which it could send to a server of its choice.
    """
    label = "" if path is not None else f"{_PREFIX}CONFIG: "
    named = path if path is not None else os.environ.get(f"{_PREFIX}CONFIG") or None
    chosen = _default_file() if named is None else named
    if chosen is None:
        return _Source({}, "")
    file = Path(chosen).expanduser()
    found_here = named is None and not file.is_absolute()
    try:
        with file.open(encoding="utf-8") as stream:
            if found_here:
                _check_owner(file, os.fstat(stream.fileno()))
            text = stream.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{label}{file} is not UTF-8 text", suggestion="save it as UTF-8") from None
    except OSError as error:
        fault = f"{label}{file} cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError(fault, suggestion="check the path and its permissions") from error
    values = _parse(file, text)
    if not isinstance(values, dict):
        raise ConfigError(f"{file} has no sections", suggestion="write [pool], and below it max_size = 8")
    sections = {str(name): _expand_catalog(str(name), section) for name, section in values.items()}
    found = _Source(sections, str(file))
    for keys in (("catalog", "uri"), ("catalogs",)) if found_here else ():
        if "${" in str(found.value_at(keys)):
            raise ConfigError(
                f"{file}: {'.'.join(keys)} refers to an environment variable; a file that was found in the "
                "current folder may not do that",
                suggestion=f"name the file: `--config {file}` or {_PREFIX}CONFIG={file}; or put the address "
                f"into {_PREFIX}CATALOG or ~/.config/deltasql/config.toml",
            )
    return found


def user_folder() -> Path:
    """The folder of the user's own configuration file."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "deltasql"


def _default_file() -> Path | None:
    names = (Path("deltasql"), user_folder() / "config")
    files = [name.with_suffix(suffix) for name in names for suffix in (".toml", ".yaml", ".yml")]
    return next((file for file in files if file.is_file()), None)


def _check_owner(file: Path, status: os.stat_result) -> None:
    """Refuse a file in the current folder that another user may have put there or changed."""
    trusted = (0, os.geteuid())
    link, folder = file.lstat(), Path.cwd().stat()
    if status.st_uid not in trusted or link.st_uid not in trusted:
        fault = "belongs to another user"
    elif status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_private_group(status.st_gid)):
        fault = "can be changed by other users"
    elif folder.st_uid not in trusted or (folder.st_mode & 0o002 and not folder.st_mode & stat.S_ISVTX):
        fault = "is in a folder of another user, or one that every user can change"
    else:
        return
    raise ConfigError(
        f"{file.absolute()} {fault}, so it is not read",
        suggestion=f"if you trust it: chown it to yourself and `chmod go-w {file}`, or name it: "
        f"`--config {file}` or {_PREFIX}CONFIG={file}; else delete it or work in another folder",
    )


def _is_private_group(gid: int) -> bool:
    """Whether the user is the only member of a group, as is usual with the umask 002."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(other.pw_name for other in pwd.getpwall() if other.pw_gid == gid)}
    return members == {user.pw_name}


def _parse(file: Path, text: str) -> Any:
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{file} is neither TOML nor YAML", suggestion="name it .toml, .yaml or .yml")
    try:
        if file.suffix == ".toml":
            return tomllib.loads(text)
        return {} if (values := yaml.safe_load(text)) is None else values
    except tomllib.TOMLDecodeError as error:
        fault = f"TOML: {error}"
    except yaml.MarkedYAMLError as error:
        fault = f"YAML: {error.problem}"
        if (mark := error.problem_mark) is not None:
            fault += f" (at line {mark.line + 1}, column {mark.column + 1})"
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        fault = f"YAML: {type(error).__name__}"
    # Raised outside of the handlers: the parsers' errors contain the text, which may contain a secret.
    raise ConfigError(f"{file} is not {fault}", suggestion="correct the syntax there")


def _expand_catalog(name: str, section: Any) -> Any:
    """``catalog = "deltasql://…"`` is short for its ``uri``."""
    is_address = name == "catalog" and section is not None and not isinstance(section, Mapping)
    return {"uri": section} if is_address else section


def _nearest(path: _Keys, known: _Sections) -> str:
    """A hint for an unknown section or key: the most similar name, else all names."""
    keys = known.get(path[0]) if len(path) > 1 else None
    choices = sorted(known if keys is None else keys)
    close = get_close_matches(path[-1], choices, n=1, cutoff=0.5)
    where = "the sections are" if keys is None else f"[{path[0]}] has"
    return f"did you mean {close[0]}?" if close else f"{where} {', '.join(choices)}"


# ---- the settings ----

_SECRETS: Final = frozenset({("catalog",), ("catalog", "uri")})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of ``describe()``, with secrets masked.

    Attributes:
        kind: What sets it: ``default``, ``file``, ``environment`` or ``argument``.
        origin: The file or variable that sets it, else the same as ``kind``.
    """

    name: str
    value: str
    kind: str
    origin: str
    variable: str
    help: str


class Config(Section):
    """All settings, immutable. Arguments win over the environment, the environment over the default file.

    Example:
        >>> Config(pool={"max_size": 2}).pool.max_size
        2
    """

    catalog: CatalogConfig = CatalogConfig()
    catalogs: dict[CatalogName, Annotated[SecretStr, BeforeValidator(_as_secret)]] = Field(
        default_factory=dict, description="catalogs by name, for prod:sales.orders and --catalog prod"
    )
    pool: PoolConfig = PoolConfig()
    sqlite: SQLiteConfig = SQLiteConfig()
    duckdb: DuckDBConfig = DuckDBConfig()
    postgres: PostgresConfig = PostgresConfig()
    publish: PublishConfig = PublishConfig()
    storage: dict[str, dict[str, OptionValue]] = Field(
        default_factory=dict, description="storage options by URL prefix; the longest prefix is taken"
    )
    remote: RemoteConfig = RemoteConfig()
    import_: ImportConfig = Field(ImportConfig(), alias="import")
    cache: CacheConfig = CacheConfig()
    aio: AsyncConfig = AsyncConfig()
    spark: SparkConfig = SparkConfig()
    service: ServiceConfig = ServiceConfig()

    _sources: tuple[_Source, ...] = PrivateAttr(default=())

    def __init__(self, file: str | os.PathLike[str] | None = None, /, **sections: Any) -> None:
        sources = (_read_arguments(sections), _read_environment(_known_keys()), _read_file(file))
        merged = reduce(_merge, [source.values for source in reversed(sources)])
        try:
            super().__init__(**_with_named_default(merged))
        except ValidationError as error:
            # pydantic's error contains the input, and with it secrets: it must not be the context of ours
            failure = _explain(error.errors(include_url=False), sources)
        else:
            self._sources = sources
            return
        raise failure

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Config:
        """Read a file; the environment and the given sections win over it.

        Args:
            path: A ``.toml``, ``.yaml`` or ``.yml`` file; by default that of ``DELTASQL_CONFIG``, else
                ``deltasql.toml`` or ``.yaml`` in the current folder, ``~/.config/deltasql/config.toml``. One
                that is found in the current folder must belong to the user, and cannot refer to variables.
            **overrides: Sections as dicts or section objects: ``pool={"max_size": 2}``.

        Raises:
            ConfigError: A value is wrong or a key unknown; the message names the variable or file and key.
        """
        return cls(path, **overrides)

    @property
    def file(self) -> str | None:
        """The configuration file that was read."""
        return next((source.name for source in self._sources if source.kind == "file" and source.name), None)

    def catalog_address(self, name: str) -> Address:
        """The address of a catalog by its name in ``catalogs``; it is only parsed here.

        So an address with a variable that is not set is an error when it is used, and not before.
        """
        if (text := self.catalogs.get(name)) is None:
            known = (
                f"the catalogs are {', '.join(sorted(self.catalogs))}" if self.catalogs else "there is none"
            )
            raise ConfigError(
                f"no catalog is named {name!r} in the configuration: {known}",
                suggestion=f'write {name} = "deltasql://…" below [catalogs], or give an address',
            )
        try:
            address = parse_address(text.get_secret_value())
        except AddressError as error:
            raise ConfigError(f"catalogs.{name}: {error.message}", suggestion=error.suggestion) from error
        if address.is_table:
            raise ConfigError(
                f"catalogs.{name} is the address of a table", suggestion="leave the table out of the address"
            )
        return address

    def storage_options_for(
        self, location: str, explicit: Mapping[str, str] | None = None
    ) -> dict[str, str] | None:
        """The storage options for a location: the explicit ones, else those of the longest prefix, else None.

        With None the store uses its environment.
        """
        if explicit is not None:
            return dict(explicit)
        prefixes = [p for p in self.storage if f"{location}/".startswith(p.rstrip("/") + "/")]
        return _revealed(self.storage[max(prefixes, key=len)]) if prefixes else None

    def fingerprint(self) -> str:
        """A digest of all settings that connections depend on: equal settings may share a pool."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"catalog": {"uri"}, "catalogs": True, "storage": True})
        # publishing uses the settings of its database, so stores with other options need another database
        values["storage"] = {prefix: _revealed(options) for prefix, options in self.storage.items()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def describe(self) -> list[Setting]:
        """Every setting with its value, secrets masked, and where it comes from."""
        settings = []
        for field_name, info in type(self).model_fields.items():
            name, section = info.alias or field_name, getattr(self, field_name)
            if isinstance(section, Section):
                for key, field in type(section).model_fields.items():
                    settings.append(self._setting((name, key), getattr(section, key), field.description))
                continue
            shown: dict[_Keys, str]
            if name == "catalogs":
                shown = {(name, key): self._shown_catalog(key) for key in section}
            else:
                shown = {(name, prefix, key): MASK for prefix, found in section.items() for key in found}
            settings += [self._setting(path, value, info.description) for path, value in shown.items()]
        return settings

    def _shown_catalog(self, name: str) -> str:
        try:
            return self.catalog_address(name).to_uri()
        except ConfigError:
            return MASK  # where its password is cannot be known

    def _setting(self, path: tuple[str, ...], value: object, description: str | None) -> Setting:
        source = _source_of(path, self._sources)
        origin = "default" if source is None else source.origin(path)
        kind = "default" if source is None else source.kind
        shown = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
        return Setting(".".join(path), shown, kind, origin, _variable(path), description or "")


def _with_named_default(values: Any) -> Any:
    """``catalog.uri`` may be a name of ``catalogs``."""
    catalog, named = values.get("catalog"), values.get("catalogs")
    uri = catalog.get("uri") if isinstance(catalog, Mapping) else None
    if isinstance(uri, str) and isinstance(named, Mapping) and uri in named:
        return {**values, "catalog": {**catalog, "uri": named[uri]}}
    return values


def _known_keys() -> _Sections:
    fields = {info.alias or name: info.annotation for name, info in Config.model_fields.items()}
    return {name: frozenset(getattr(kind, "model_fields", ())) or None for name, kind in fields.items()}


def _revealed(options: Mapping[str, OptionValue]) -> dict[str, str]:
    return {key: value.get_secret_value() for key, value in options.items()}


def _source_of(path: tuple[str, ...], sources: tuple[_Source, ...]) -> _Source | None:
    return next((s for s in sources if s.values and s.value_at(path) is not _UNSET), None)


def _explain(errors: list[Any], sources: tuple[_Source, ...]) -> ConfigError:
    """One error for all that pydantic found: ``variable or file: key: reason``, without secret values."""
    faults, hints = [], []
    for error in errors:
        path = tuple(str(part) for part in error["loc"] if part != "[key]")
        source = _source_of(path, sources)
        place = ".".join(path)
        if source is not None:
            place = source.origin(path) + (f": {place}" if source.name is not None and path else "")
        if error["type"] == "extra_forbidden":
            faults.append(f"{place}: unknown setting")
            hints.append(_nearest(path, _known_keys()))
            continue
        reason = str(error.get("ctx", {}).get("error", "")) or error["msg"]
        shown = ""
        if source is not None and len(path) > 1 and not _is_secret(path):
            shown = f", not {redact(repr(source.value_at(path)))[:80]}"
        faults.append(f"{place}: {reason[:1].lower()}{reason[1:]}{shown}")
    hint = "; ".join(dict.fromkeys(hints)) or "docs/reference/configuration.md lists all settings"
    return ConfigError("\n".join(faults), suggestion=hint)


def _is_secret(path: tuple[str, ...]) -> bool:
    """Whether a setting's value may be a secret, which errors must not show."""
    pair = f"{path[-1]}=value"
    return path in _SECRETS or path[0] in _MAPS or redact(pair) != pair


_lock = threading.Lock()
_global: Config | None = None
_context: ContextVar[Config | None] = ContextVar("deltasql_config", default=None)


def get_config() -> Config:
    """The current settings: those of ``use_config``, else of ``set_config``, else loaded once."""
    global _global
    if (here := _context.get()) is not None:
        return here
    with _lock:
        if _global is None:
            _global = Config.load()
        return _global


def as_config(given: Config | Mapping[str, Any] | None) -> Config | None:
    """The settings that a caller passed as an object or a dict of sections; else ArgumentTypeError."""
    if given is None or isinstance(given, Config):
        return given
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"config must be a Config or a dict of its sections, not {type(given).__name__}",
            suggestion="such as Config(pool={'max_size': 2})",
        )
    return Config(**given)


def set_config(config: Config | None) -> None:
    """Replace the settings of the process; None makes the next ``get_config`` load them again."""
    global _global
    with _lock:
        _global = config


@contextmanager
def use_config(config: Config) -> Iterator[Config]:
    """Use other settings inside a block, for this thread or asynchronous task only."""
    token = _context.set(config)
    try:
        yield config
    finally:
        _context.reset(token)
