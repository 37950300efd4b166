"""The sections of the settings: every key with its type, default and meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, SecretStr, model_validator

from deltalakedb.address import Address, parse_address


def _as_option(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _as_address(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    address = parse_address(value)
    if address.is_table:
        raise ValueError("is a catalog's address: leave the table out")
    return address


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OptionValue = Annotated[SecretStr, BeforeValidator(_as_option)]
CatalogAddress = Annotated[InstanceOf[Address], BeforeValidator(_as_address)]


class Section(BaseModel):
    """The base of all sections: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class CatalogConfig(Section):
    """The default catalog, and what new tables are like."""

    uri: CatalogAddress | None = Field(default=None, description="default catalog address")
    create: bool = Field(default=True, description="create the catalog's tables on first use")
    auto_migrate: bool = Field(default=True, description="bring an older catalog up to date on first use")
    root: str | None = Field(default=None, description="folder or URL of new tables without a location")
    in_commit_timestamps: Literal["off", "remote", "always"] = Field(
        default="off",
        description="new tables carry commit times in their commits: none, those on object stores, or all",
    )
    fence: bool = Field(default=False, description="writers that bypass the catalog refuse new tables")
    clock_tolerance_s: Seconds = Field(
        default=300.0,
        description="seconds by which the clocks of host, database and store may differ for deletions by age",
    )
    allow_outside_paths: bool = Field(
        default=False,
        description="read and commit files outside of their table's root, as those of shallow clones",
    )


class PoolConfig(Section):
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


class SQLiteConfig(Section):
    """SQLite as a catalog."""

    synchronous: Literal["EXTRA", "FULL", "NORMAL"] = Field(
        default="FULL", description="NORMAL is faster and may lose acknowledged commits when the power fails"
    )
    busy_timeout_s: Seconds = Field(default=30.0, description="seconds to wait for another process's lock")


class DuckDBConfig(Section):
    """DuckDB as a catalog."""

    idle_release_s: Seconds = Field(default=1.0, description="idle seconds until the file is released")
    wait_s: Seconds = Field(default=30.0, description="seconds to wait for the file lock")
    memory_limit: str | None = Field(default=None, description="DuckDB's memory_limit, such as 1GB")
    threads: int | None = Field(default=None, ge=1, description="DuckDB's threads")


class PostgresConfig(Section):
    """Postgres as a catalog."""

    connect_timeout_s: int = Field(default=10, ge=1, description="seconds to wait for a connection")
    statement_timeout_s: Seconds | None = Field(default=None, description="seconds a statement may take")
    lock_timeout_s: Seconds = Field(
        default=30.0, description="seconds to wait for a lock; a commit tries twice"
    )
    hold_timeout_s: Seconds = Field(
        default=20.0,
        description="seconds a writer may hold locks without a word to the server; 0: any",
    )
    network_timeout_s: int = Field(
        default=20,
        ge=0,
        description="seconds until a dead network ends a connection; 0: as the system has it",
    )


class PublishConfig(Section):
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


class ImportConfig(Section):
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


class RemoteConfig(Section):
    """Tables whose root is on an object store."""

    fetch_limit_bytes: int = Field(
        default=4 * 1024**3, ge=0, description="bytes that one operation may fetch to this machine"
    )
    folder: str | None = Field(default=None, description="folder of fetched files")
    parallel: int = Field(default=8, ge=1, description="files fetched or sent at a time")


class CacheConfig(Section):
    """What a process keeps in memory."""

    snapshot_bytes: int = Field(default=256 * 1024 * 1024, ge=0, description="memory for snapshots")


class SparkConfig(Section):
    """Spark."""

    jars: str | None = Field(default=None, description="a folder with Delta's jars, instead of the cache")
    download: bool = Field(default=True, description="fetch Delta's jars when they are missing")


class AsyncConfig(Section):
    """The asynchronous face, ``deltalakedb.aio``."""

    threads: int = Field(default=16, ge=1, description="calls that run at the same time in one process")


class ServiceConfig(Section):
    """The service that ratifies commits of other engines, and its callers."""

    host: str = Field(default="127.0.0.1", description="the address that the service listens at")
    port: int = Field(default=8640, ge=0, le=65535, description="its port; 0: any that is free")
    token: SecretStr | None = Field(default=None, description="the token that callers must send")
    token_file: str | None = Field(default=None, description="a file with the token")
    max_bytes: int = Field(default=256 * 1024**2, ge=1, description="bytes of the longest commit it takes")
    max_connections: int = Field(default=128, ge=1, description="connections to it at a time")
    allowed_hosts: str = Field(
        default="", description="names, joined by commas, by which callers reach it through DNS or a proxy"
    )
