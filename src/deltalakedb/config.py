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
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from deltalakedb.config_layers import Layer, arguments, environment, explain, file_layer, variable
from deltalakedb.config_sections import (
    AsyncConfig,
    CacheConfig,
    CatalogConfig,
    DuckDBConfig,
    ImportConfig,
    OptionValue,
    PoolConfig,
    PostgresConfig,
    PublishConfig,
    RemoteConfig,
    Section,
    ServiceConfig,
    SparkConfig,
    SQLiteConfig,
)
from deltalakedb.exceptions import ArgumentTypeError
from deltalakedb.redaction import MASK

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
                ``deltasql.toml`` or ``.yaml`` in the current folder, ``~/.config/deltasql/config.toml``. One
                that is found in the current folder must belong to the user, and cannot refer to variables.
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
            if isinstance(value, Section):
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
        is_section = isinstance(section, type) and issubclass(section, Section)
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
