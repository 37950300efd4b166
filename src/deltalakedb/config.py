"""Settings: from arguments, the environment, a TOML or YAML file, and defaults, in this order."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

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
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from deltalakedb.config_layers import Layer, arguments, environment, explain, file_layer, variable
from deltalakedb.exceptions import ArgumentTypeError
from deltalakedb.redaction import MASK
from deltalakedb.uri import Address, parse_uri

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = [
    "AsyncConfig",
    "CacheConfig",
    "CatalogConfig",
    "Config",
    "DuckDBConfig",
    "ImportConfig",
    "PoolConfig",
]
__all__ += ["PostgresConfig", "PublishConfig", "RemoteConfig", "SQLiteConfig", "ServiceConfig", "Setting"]
__all__ += ["SparkConfig", "as_config", "get_config", "set_config", "use_config"]


def _as_option(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _as_address(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    address = parse_uri(value)
    if address.is_table:
        raise ValueError("is a catalog's address: leave the table out")
    return address


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OptionValue = Annotated[SecretStr, BeforeValidator(_as_option)]
CatalogAddress = Annotated[InstanceOf[Address], BeforeValidator(_as_address)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class CatalogConfig(_Section):
    """The catalog that is meant where none is named, and what may happen to it."""

    uri: CatalogAddress | None = Field(default=None, description="the catalog that is meant by default")
    create: bool = Field(default=True, description="create the catalog's tables on first use")
    auto_migrate: bool = Field(default=True, description="bring an older catalog up to date on first use")
    root: str | None = Field(default=None, description="where new tables without a location lie")
    in_commit_timestamps: Literal["off", "remote", "always"] = Field(
        default="off",
        description="new tables carry commit times in their commits: none, those on object stores, or all",
    )
    fence: bool = Field(default=False, description="writers that bypass the catalog refuse new tables")


class PoolConfig(_Section):
    """Connections of one process to one catalog."""

    min_size: int = Field(default=0, ge=0, description="connections kept open even when idle")
    max_size: int = Field(default=8, ge=1, description="connections at most")
    timeout_s: Seconds = Field(default=30.0, description="seconds to wait for a free connection")
    health_check_s: Seconds = Field(
        default=30.0, description="idle seconds after which it is checked before use"
    )
    idle_s: Seconds = Field(default=300.0, description="idle seconds after which it is closed")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_size > self.max_size:
            raise ValueError("min_size is greater than max_size")
        return self


class SQLiteConfig(_Section):
    """SQLite as a catalog."""

    synchronous: Literal["EXTRA", "FULL", "NORMAL"] = Field(
        default="FULL", description="NORMAL is faster and may lose acknowledged commits when the power fails"
    )
    busy_timeout_s: Seconds = Field(default=30.0, description="seconds to wait for another process's lock")


class DuckDBConfig(_Section):
    """DuckDB as a catalog."""

    idle_release_s: Seconds = Field(default=1.0, description="idle seconds until the file is released")
    wait_s: Seconds = Field(default=30.0, description="seconds to wait for who holds the file")
    memory_limit: str | None = Field(default=None, description="DuckDB's memory_limit, such as 1GB")
    threads: int | None = Field(default=None, ge=1, description="DuckDB's threads")


class PostgresConfig(_Section):
    """Postgres as a catalog."""

    connect_timeout_s: int = Field(default=10, ge=1, description="seconds to wait for a connection")
    statement_timeout_s: Seconds | None = Field(default=None, description="seconds a statement may take")
    lock_timeout_s: Seconds = Field(
        default=30.0, description="seconds to wait for a lock; a commit tries twice"
    )


class PublishConfig(_Section):
    """How ratified commits reach ``_delta_log``."""

    mode: Literal["sync", "background", "off"] = Field(
        default="sync",
        description="sync: before a write returns, background: soon after, off: by others",
    )
    fsync: bool = Field(default=True, description="flush log file and folder to disk")
    help_predecessors: int = Field(default=32, ge=0, description="earlier versions a writer publishes too")
    look_ahead: Literal["always", "local", "off"] = Field(
        default="local",
        description="look for commits of others before a commit: on every store, on local disks, or never",
    )
    look_at_open: bool = Field(default=False, description="look for commits of others when a table is opened")
    checkpoints: bool = Field(default=True, description="writers write the checkpoints that are due")
    keep_bytes: bool = Field(
        default=True, description="keep the bytes of commits that a published checkpoint covers"
    )
    checkpoint_tail_bytes: int = Field(
        default=64 * 1024**2,
        ge=0,
        description="bytes of commits at which a checkpoint is due; 0: any",
    )
    checkpoint_after_s: float = Field(
        default=0.0, ge=0, description="seconds without a checkpoint at which one is due; 0: any"
    )


class ImportConfig(_Section):
    """Import of existing Delta tables."""

    batch_size: int = Field(default=50_000, ge=1, description="file rows written to the catalog at a time")
    history_limit: int = Field(
        default=10_000, ge=0, description='JSON commits up to which history="auto" imports every version'
    )
    memory_mb: int = Field(
        default=512, ge=64, description="memory that an import or a verification keeps to, in MiB"
    )
    rate_limit: int = Field(
        default=0, ge=0, description="file actions loaded in a second at most; 0: no limit"
    )
    parallel: int = Field(default=2, ge=1, description="tables that import-all imports at a time")


class RemoteConfig(_Section):
    """Tables whose root is on an object store."""

    fetch_limit_bytes: int = Field(
        default=4 * 1024**3, ge=0, description="bytes that one operation may fetch to this machine"
    )
    folder: str | None = Field(default=None, description="where fetched files lie for the time being")
    parallel: int = Field(default=8, ge=1, description="files fetched or sent at a time")


class CacheConfig(_Section):
    """What a process keeps in memory."""

    snapshot_bytes: int = Field(default=256 * 1024 * 1024, ge=0, description="memory for snapshots")


class SparkConfig(_Section):
    """Spark, where it is used."""

    jars: str | None = Field(default=None, description="a folder with Delta's jars, instead of the cache")
    download: bool = Field(default=True, description="fetch Delta's jars when they are missing")


class AsyncConfig(_Section):
    """The asynchronous face, ``deltalakedb.aio``."""

    threads: int = Field(default=16, ge=1, description="calls that run at the same time in one process")


class ServiceConfig(_Section):
    """The service that ratifies commits of other engines, and its callers."""

    host: str = Field(default="127.0.0.1", description="the address that the service listens at")
    port: int = Field(default=8640, ge=0, le=65535, description="its port; 0: any that is free")
    token: SecretStr | None = Field(default=None, description="the token that callers have to know")
    token_file: str | None = Field(default=None, description="a file with the token")
    max_bytes: int = Field(default=256 * 1024**2, ge=1, description="bytes of the longest commit it takes")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as ``describe()`` shows it; secrets are masked, ``origin`` says who set it."""

    name: str
    value: str
    origin: str
    variable: str
    help: str


class Config(BaseSettings):
    """All settings, immutable. ``Config()`` reads the environment and the usual file below its arguments.

    Example:
        >>> Config(pool={"max_size": 2}).pool.max_size
        2
    """

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True
    )

    catalog: CatalogConfig = Field(default_factory=CatalogConfig)
    pool: PoolConfig = Field(default_factory=PoolConfig)
    sqlite: SQLiteConfig = Field(default_factory=SQLiteConfig)
    duckdb: DuckDBConfig = Field(default_factory=DuckDBConfig)
    postgres: PostgresConfig = Field(default_factory=PostgresConfig)
    publish: PublishConfig = Field(default_factory=PublishConfig)
    storage: dict[str, dict[str, OptionValue]] = Field(
        default_factory=dict, description="storage options by URL prefix; the longest prefix is taken"
    )
    remote: RemoteConfig = Field(default_factory=RemoteConfig)
    import_: ImportConfig = Field(default_factory=ImportConfig, alias="import")
    cache: CacheConfig = Field(default_factory=CacheConfig)
    aio: AsyncConfig = Field(default_factory=AsyncConfig)
    spark: SparkConfig = Field(default_factory=SparkConfig)
    service: ServiceConfig = Field(default_factory=ServiceConfig)

    _layers: tuple[Layer, ...] = PrivateAttr(default=())

    def __init__(self, file: str | os.PathLike[str] | None = None, /, **sections: Any) -> None:
        layers = (arguments(sections), environment(_known_keys()), file_layer(file))
        try:
            super().__init__(_layers=layers)
        except ValidationError as error:
            # The stock error keeps the input, and with it secrets: it must not hang on ours as its context.
            failure = explain(error.errors(include_url=False), layers, _known_keys())
        else:
            self._layers = tuple(layer for layer in layers if layer.values)
            return
        raise failure

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # ours names the variable in its errors
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the layers in their order; the deeper merge is pydantic-settings' own."""
        layers = init_settings.init_kwargs["_layers"]  # type: ignore[attr-defined]
        return tuple(InitSettingsSource(settings_cls, init_kwargs=dict(layer.values)) for layer in layers)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Config:
        """Read a file, or the first of the usual ones, below the environment and the given sections.

        Args:
            path: A ``.toml``, ``.yaml`` or ``.yml`` file; by default that of ``DELTASQL_CONFIG``, else
                ``deltasql.toml`` or ``.yaml`` in the current folder, ``~/.config/deltasql/config.toml``.
            **overrides: Sections as dicts or section objects: ``pool={"max_size": 2}``.

        Raises:
            ConfigError: A value is wrong or a key unknown; the message names the variable or file and key.
        """
        return cls(path, **overrides)

    def storage_options_for(
        self, location: str, explicit: Mapping[str, str] | None = None
    ) -> dict[str, str] | None:
        """The storage options for a location: the explicit ones, else those of the longest prefix, else None.

        None leaves everything to the store, which looks into its environment.
        """
        if explicit is not None:
            return dict(explicit)
        fitting = [prefix for prefix in self.storage if _covers(prefix, location)]
        if not fitting:
            return None
        return {key: value.get_secret_value() for key, value in self.storage[max(fitting, key=len)].items()}

    def fingerprint(self) -> str:
        """A digest of what connections are made and kept by: equal settings may share a pool."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"catalog": {"uri"}, "storage": True})
        # publishing goes by a database's settings, so stores with other options need a database of their own
        values["storage"] = {p: {k: _revealed(v) for k, v in o.items()} for p, o in self.storage.items()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def describe(self) -> list[Setting]:
        """Every setting with its value, secrets masked, and where it comes from."""
        settings = []
        for section, info in type(self).model_fields.items():
            name = info.alias or section
            value = getattr(self, section)
            if isinstance(value, _Section):
                for key, field in type(value).model_fields.items():
                    shown = getattr(value, key)
                    settings.append(self._setting((name, key), shown, field.description))
            for prefix, options in value.items() if isinstance(value, dict) else ():
                settings.extend(self._setting((name, prefix, key), MASK, info.description) for key in options)
        return settings

    def _setting(self, path: tuple[str, ...], value: object, description: str | None) -> Setting:
        origin = next((layer.origin_of(path) for layer in self._layers if layer.has(path)), "default")
        shown = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
        return Setting(".".join(path), shown, origin, variable(path), description or "")


def _revealed(value: Any) -> str:
    return str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)


def _known_keys() -> dict[str, frozenset[str] | None]:
    """The keys of each section; None where any key goes."""
    known: dict[str, frozenset[str] | None] = {}
    for name, info in Config.model_fields.items():
        section = info.annotation
        is_section = isinstance(section, type) and issubclass(section, _Section)
        known[info.alias or name] = frozenset(section.model_fields) if is_section else None  # type: ignore[union-attr]
    return known


def _covers(prefix: str, location: str) -> bool:
    bare = prefix.rstrip("/")
    return location == bare or location.startswith(bare + "/")


_lock = threading.Lock()
_of_process: Config | None = None
_of_context: ContextVar[Config | None] = ContextVar("deltasql_config", default=None)


def get_config() -> Config:
    """The settings that hold here: those of ``use_config``, else of ``set_config``, else loaded once."""
    global _of_process
    here = _of_context.get()
    if here is not None:
        return here
    with _lock:
        if _of_process is None:
            _of_process = Config.load()
        return _of_process


def as_config(given: Config | Mapping[str, Any] | None) -> Config | None:
    """Settings that a caller gave, as an object or as a dict of its sections.

    Raises:
        ConfigError: A value of the dict is wrong or a key unknown.
        ArgumentTypeError: It is neither.
    """
    if given is None or isinstance(given, Config):
        return given
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"config must be a Config or a dict of its sections, not {type(given).__name__}",
            suggestion="such as Config(pool={'max_size': 2})",
        )
    return Config(**given)


def set_config(config: Config | None) -> None:
    """Set the settings of the whole process; None makes the next ``get_config`` load them anew."""
    global _of_process
    with _lock:
        _of_process = config


@contextmanager
def use_config(config: Config) -> Iterator[Config]:
    """Let other settings hold inside a block, for this thread or asynchronous task only."""
    token = _of_context.set(config)
    try:
        yield config
    finally:
        _of_context.reset(token)
