"""Storage options as `deltalake` spells them, split into the groups that obstore takes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deltalakedb.exceptions import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROVIDER = re.compile(r"^(aws|azure|google|gcp|gcs)_")
_SECRET = re.compile(
    r"secret|key|token|sas|password|credential|service_account|authorization|header", re.ASCII
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", re.ASCII)
_BACKOFF = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=15), "base": 2}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}

#: delta-rs's own settings, which are not for a store
_IGNORED = re.compile(
    r"(aws_s3_)?allow_unsafe_rename$|mount_allow_unsafe_rename$|aws_s3_locking_provider$|delta_dynamo|dynamo"
    r"|.*_dynamodb$|object_store_concurrency_limit$|aws_s3_pool_idle_timeout|aws_s3_get_internal_server"
    r"|aws_sts_pool|aws_force_credential_load$|conditional_put_with_lock"
)


def _flag(name: str, text: str) -> bool:
    if (low := text.strip().lower()) in {"true", "1", "yes", "on"}:
        return True
    if low in {"false", "0", "no", "off", ""}:
        return False
    raise ConfigError(f"storage option {name} must be true or false", suggestion=f"set {name}=true")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"storage option {name} must be a number", suggestion=f"for example {name}=5"
        ) from None


def _duration(name: str, text: str) -> timedelta:
    if (match := _DURATION.fullmatch(text.strip().lower())) is None:
        raise ConfigError(
            f"storage option {name} must be a duration", suggestion=f"for example {name}=30s, 500ms or 2m"
        )
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def _text(_name: str, text: str) -> str:
    return text


#: options that are not the provider's own: for what they are, and how they are read
_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(("allow_http", "allow_invalid_certificates", "randomize_addresses"), ("client", _flag)),
    **dict.fromkeys(
        (
            "connect_timeout",
            "default_content_type",
            "pool_idle_timeout",
            "pool_max_idle_per_host",
            "proxy_url",
            "proxy_ca_certificate",
            "proxy_excludes",
            "read_timeout",
            "root_certificate",
            "timeout",
            "user_agent",
        ),
        ("client", _text),
    ),
    "max_retries": ("retry", lambda name, text: int(_number(name, text))),
    "retry_timeout": ("retry", _duration),
    "backoff_config.init_backoff": ("backoff", _duration),
    "backoff_config.max_backoff": ("backoff", _duration),
    "backoff_config.base": ("backoff", _number),
}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of one store: the provider's, the HTTP client's and those for retries."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    retry: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)


def split_options(options: Mapping[str, str]) -> StoreOptions:
    """Split storage options into those of the provider, the HTTP client and the retries.

    Raises:
        ConfigError: A value cannot be understood; the message names the option, not the value.
    """
    config: dict[str, str] = {}
    groups: dict[str, dict[str, Any]] = {"client": {}, "retry": {}, "backoff": {}}
    secrets: list[str] = []
    for name, value in options.items():
        key, text = name.lower(), str(value)
        bare = _PROVIDER.sub("", key)
        if text and _SECRET.search(key):
            secrets += [text, *_inner_secrets(text)]
        if bare in _READERS:
            group, read = _READERS[bare]
            groups[group][bare.removeprefix("backoff_config.")] = read(name, text)
        elif bare == "s3_addressing_style":
            config["virtual_hosted_style_request"] = "true" if text.lower() == "virtual" else "false"
        elif not _IGNORED.match(key):
            config[key] = text
    if groups["backoff"]:
        groups["retry"]["backoff"] = {**_BACKOFF, **groups["backoff"]}
    # the longest first: one secret may hold another
    hidden = tuple(sorted(set(secrets), key=len, reverse=True))
    return StoreOptions(config, groups["client"], groups["retry"], hidden)


def _inner_secrets(text: str) -> list[str]:
    """What must stay hidden inside a service account's key, which is JSON."""
    if not text.lstrip().startswith("{"):
        return []
    try:
        account = json.loads(text)
    except ValueError:
        return []
    return [
        value for key, value in account.items() if key == "private_key" and isinstance(value, str) and value
    ]
