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
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from deltalakedb.exceptions import ArgumentTypeError, ConfigError
from deltalakedb.redaction import MASK, redact
from deltalakedb.settings.sections import (
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
from deltalakedb.settings.sources import (
    UNSET,
    Source,
    merge,
    nearest,
    read_arguments,
    read_environment,
    read_file,
    variable,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["AsyncConfig", "CacheConfig", "CatalogConfig", "Config", "DuckDBConfig", "ImportConfig"]
__all__ += ["PoolConfig", "PostgresConfig", "PublishConfig", "RemoteConfig", "SQLiteConfig", "ServiceConfig"]
__all__ += ["Setting", "SparkConfig", "as_config", "get_config", "set_config", "use_config"]

_SECRETS: Final = frozenset({("catalog",), ("catalog", "uri"), ("storage",)})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of ``describe()``: secrets are masked, ``origin`` is the file or variable that sets it."""

    name: str
    value: str
    origin: str
    variable: str
    help: str


class Config(BaseModel):
    """All settings, immutable. Arguments win over the environment, the environment over the default file.

    Example:
        >>> Config(pool={"max_size": 2}).pool.max_size
        2
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

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

    _sources: tuple[Source, ...] = PrivateAttr(default=())

    def __init__(self, file: str | os.PathLike[str] | None = None, /, **sections: Any) -> None:
        sources = (read_arguments(sections), read_environment(_known_keys()), read_file(file))
        try:
            super().__init__(**merge(sources))
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

    def storage_options_for(
        self, location: str, explicit: Mapping[str, str] | None = None
    ) -> dict[str, str] | None:
        """The storage options for a location: the explicit ones, else those of the longest prefix, else None.

        None leaves everything to the store, which looks into its environment.
        """
        if explicit is not None:
            return dict(explicit)
        prefixes = [prefix for prefix in self.storage if _is_prefix(prefix, location)]
        if not prefixes:
            return None
        return {key: value.get_secret_value() for key, value in self.storage[max(prefixes, key=len)].items()}

    def fingerprint(self) -> str:
        """A digest of all settings that connections depend on: equal settings may share a pool."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"catalog": {"uri"}, "storage": True})
        # publishing uses the settings of its database, so stores with other options need another database
        values["storage"] = {
            prefix: {key: value.get_secret_value() for key, value in options.items()}
            for prefix, options in self.storage.items()
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def describe(self) -> list[Setting]:
        """Every setting with its value, secrets masked, and where it comes from."""
        settings = []
        for field_name, info in type(self).model_fields.items():
            name, section = info.alias or field_name, getattr(self, field_name)
            if isinstance(section, Section):
                for key, field in type(section).model_fields.items():
                    settings.append(self._setting((name, key), getattr(section, key), field.description))
            else:
                settings += [
                    self._setting((name, prefix, key), MASK, info.description)
                    for prefix, options in section.items()
                    for key in options
                ]
        return settings

    def _setting(self, path: tuple[str, ...], value: object, description: str | None) -> Setting:
        source = _source_of(path, self._sources)
        origin = "default" if source is None else source.origin(path)
        shown = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
        return Setting(".".join(path), shown, origin, variable(path), description or "")


def _known_keys() -> dict[str, frozenset[str] | None]:
    """The keys of each section; None if any key is allowed."""
    known: dict[str, frozenset[str] | None] = {}
    for name, info in Config.model_fields.items():
        section = info.annotation
        is_section = isinstance(section, type) and issubclass(section, Section)
        known[info.alias or name] = frozenset(section.model_fields) if is_section else None  # type: ignore[union-attr]
    return known


def _is_prefix(prefix: str, location: str) -> bool:
    bare = prefix.rstrip("/")
    return location == bare or location.startswith(bare + "/")


def _source_of(path: tuple[str, ...], sources: tuple[Source, ...]) -> Source | None:
    return next((s for s in sources if s.values and s.value_at(path) is not UNSET), None)


def _explain(errors: list[Any], sources: tuple[Source, ...]) -> ConfigError:
    """One error for all that pydantic found: ``variable or file: key: reason``, without secret values."""
    faults, hints = [], []
    for error in errors:
        path = tuple(str(part) for part in error["loc"] if part != "[key]")
        source = _source_of(path, sources)
        if source is None:
            place = ".".join(path)
        else:
            place = source.origin(path) + (f": {'.'.join(path)}" if source.name is not None and path else "")
        if error["type"] == "extra_forbidden":
            faults.append(f"{place}: unknown setting")
            hints.append(nearest(path, _known_keys()))
            continue
        reason = str(error.get("ctx", {}).get("error", "")) or error["msg"]
        shown = ""
        if source is not None and len(path) > 1 and not _is_secret(path):
            shown = f", not {redact(repr(source.value_at(path)))[:80]}"
        faults.append(f"{place}: {reason[:1].lower()}{reason[1:]}{shown}")
    hint = "; ".join(dict.fromkeys(hints)) or "docs/reference/configuration.md lists all settings"
    return ConfigError("\n".join(faults), suggestion=hint)


def _is_secret(path: tuple[str, ...]) -> bool:
    """Whether the value of a setting may be a secret, whatever its type. Errors do not show it then."""
    pair = f"{path[-1]}=value"
    return path in _SECRETS or path[0] == "storage" or redact(pair) != pair


_lock = threading.Lock()
_global: Config | None = None
_context: ContextVar[Config | None] = ContextVar("deltasql_config", default=None)


def get_config() -> Config:
    """The current settings: those of ``use_config``, else of ``set_config``, else loaded once."""
    global _global
    here = _context.get()
    if here is not None:
        return here
    with _lock:
        if _global is None:
            _global = Config.load()
        return _global


def as_config(given: Config | Mapping[str, Any] | None) -> Config | None:
    """The settings that a caller passed, as an object or as a dict of sections.

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
