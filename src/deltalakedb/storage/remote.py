"""Object stores through obstore: atomic creation, typed errors, no secrets in messages."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as obx
from obstore.store import from_url

from deltalakedb.exceptions import (
    ConfigError,
    InvalidArgumentError,
    StorageAccessError,
    StorageError,
    StorageMissingError,
    StorageUnavailableError,
)
from deltalakedb.storage.local import translated
from deltalakedb.storage.store import ObjectMeta, RangeFile, Store, checked_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_SCHEMES = "s3, s3a, gs, az, adl, azure, abfs, abfss, http or https"
_URL = re.compile(r"https?://[^\s\"')]+", re.ASCII)
_DEBUG = "Debug source:"
_READ_AHEAD = 1 << 20
#: S3 answers 409 when two creations race: the object may not exist, so try again
_CREATE_ATTEMPTS = 5
#: files up to this size are sent in one request, larger ones in parts
_ONE_REQUEST = 32 << 20
_CHUNK = 8 << 20
_UPLOADS = 4
#: maximum number of objects that one request deletes
_DELETES = 1000
_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_")
_WRITING = ("create", "write")
_STATUS = re.compile(r"status code: (\d{3})", re.ASCII)
_BACKOFF = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=15), "base": 2}
#: a store that does not respond raises an error within half a minute, unless options change that
_RETRY_DEFAULTS: dict[str, Any] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {**_BACKOFF, "max_backoff": timedelta(seconds=3)},
}
_ERRORS = (obx.BaseError, OSError, ValueError)


class RemoteStore(Store):
    """A prefix of an object store as a `Store`."""

    def __init__(
        self,
        store: Any,
        *,
        location: str,
        options: Mapping[str, str] | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._store = store
        self._url = location
        self._options = dict(options or {})
        self._secrets = secrets

    @classmethod
    def from_location(cls, location: str, options: Mapping[str, str]) -> Self:
        """The store at a URL.

        InvalidArgumentError if its scheme is unknown, ConfigError if a storage option is unknown or wrong.
        """
        # clients share connections and credentials; a changed environment needs a new client
        environment = ((k, v) for k, v in os.environ.items() if k.startswith(_PROVIDERS))
        store, secrets = _client(location, tuple(sorted(options.items())), tuple(sorted(environment)))
        return cls(store, location=location, options=options, secrets=secrets)

    def __repr__(self) -> str:
        return f"RemoteStore({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_location, (self._url, self._options)

    @property
    def location(self) -> str:
        return _public(self._url)

    def get(self, path: str) -> bytes:
        with self._translated("read", path):
            return bytes(obstore.get(self._store, checked_path(path)).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with self._translated("read", path):
            return bytes(obstore.get_range(self._store, checked_path(path), start=start, length=length))

    def open(self, path: str) -> BinaryIO:
        raw = RangeFile(self, path, self.head(path).size)
        return cast("BinaryIO", io.BufferedReader(raw, _READ_AHEAD))

    def head(self, path: str) -> ObjectMeta:
        with self._translated("access", path):
            return _meta(obstore.head(self._store, checked_path(path)))

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        prefix = prefix.strip("/")
        under = f"{checked_path(prefix)}/" if prefix else ""
        with self._translated("list", prefix or "/"):
            if not recursive and start_after is None:
                listed = obstore.list_with_delimiter(self._store, prefix or None)
                found = [_meta(item) for item in listed["objects"]]
            else:
                # only a flat listing can start after a path, which saves most pages of a long log
                chunks = obstore.list(self._store, prefix or None, offset=start_after, chunk_size=1000)
                found = [_meta(item) for chunk in chunks for item in chunk]
        wanted = [
            meta
            for meta in found
            if meta.path.startswith(under)
            and (recursive or "/" not in meta.path[len(under) :])
            and (start_after is None or meta.path > start_after)
        ]
        return iter(sorted(wanted, key=lambda meta: meta.path))

    def folders(self) -> Sequence[str]:
        with self._translated("list", "/"):
            listed = obstore.list_with_delimiter(self._store)
            return sorted({str(p).strip("/") for p in listed["common_prefixes"]})

    def put_new(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> bool:  # noqa: ARG002
        with self._translated("create", path):
            for _ in range(_CREATE_ATTEMPTS):
                try:
                    obstore.put(self._store, checked_path(path), data, mode="create", use_multipart=False)
                except (obx.AlreadyExistsError, obx.PreconditionError):
                    if self.exists(path):
                        return False
                else:
                    return True
        raise StorageUnavailableError(
            f"cannot create {path} in {self.location}: a conflict, but the object does not exist",
            suggestion="another writer may be creating it right now: try again",
        )

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:  # noqa: ARG002
        with self._translated("write", path):
            obstore.put(self._store, checked_path(path), data, use_multipart=False)

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        # A large file is sent in parts and becomes visible with the last one. Stores cannot make such an
        # upload conditional, so it replaces an object that another writer creates at the same time.
        with translated("read", source):
            small = source.stat().st_size <= _ONE_REQUEST
            content = source.open("rb")
        with content:
            if new and small:
                return self.put_new(path, content.read())
            if new and self.exists(path):
                return False
            parts: dict[str, Any] = {"chunk_size": _CHUNK, "max_concurrency": _UPLOADS}
            with self._translated("write", path):
                obstore.put(self._store, checked_path(path), content, use_multipart=not small, **parts)
        return True

    def begin(self, path: str) -> Upload:
        """Begin a new object; it becomes visible when it is finished."""
        sizes: dict[str, Any] = {"buffer_size": _CHUNK, "max_concurrency": _UPLOADS}
        with self._translated("create", path):
            return Upload(self, path, obstore.open_writer(self._store, checked_path(path), **sizes))

    def fetch(self, path: str, target: Path) -> int:
        with self._translated("read", path):
            chunks = obstore.get(self._store, checked_path(path)).stream(min_chunk_size=_READ_AHEAD)
        with translated("write", target), target.open("wb") as file:
            while True:
                with self._translated("read", path):
                    if (chunk := next(chunks, None)) is None:
                        return file.tell()
                file.write(chunk)

    def delete(self, path: str) -> None:
        self.delete_all([path])

    def now_ms(self) -> int:
        name = f"_deltasql-clock-{uuid.uuid4().hex}"
        self.put(name, b"")
        try:
            return self.head(name).modified_ms
        finally:
            self.delete(name)

    def delete_all(self, paths: Iterable[str]) -> None:
        names = [checked_path(path) for path in paths]
        for start in range(0, len(names), _DELETES):
            some = names[start : start + _DELETES]
            try:
                with self._translated("delete", some[0]):
                    obstore.delete(self._store, some)
            except StorageMissingError:
                # a store that deletes one by one (Google's) stops at the first object that does not exist
                for name in some:
                    with contextlib.suppress(StorageMissingError), self._translated("delete", name):
                        obstore.delete(self._store, [name])

    @contextlib.contextmanager
    def _translated(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except _ERRORS as e:
            text, clean = _redacted(e, self._secrets)
            # the store's message may quote a signed URL; then the cause must not be shown either
            message = f"cannot {doing} {path} in {self.location}: {text}"
            raise _typed(e, message, writing=doing in _WRITING) from (e if clean else None)


class Upload(io.RawIOBase):
    """An object being written: `finish` makes it visible, `discard` deletes it."""

    def __init__(self, store: RemoteStore, path: str, writer: Any) -> None:
        self._store, self._path, self._writer = store, path, writer
        self._sent = 0
        self._over = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sent

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if view.nbytes:
            with self._store._translated("write", self._path):  # noqa: SLF001
                self._writer.write(view)
            self._sent += view.nbytes
        return view.nbytes

    def finish(self) -> int:
        """Make the object visible; return its size."""
        if not self._over:
            with self._store._translated("write", self._path):  # noqa: SLF001
                self._writer.close()
            self._over = True
        return self._sent

    def discard(self) -> None:
        """Delete the parts that were sent, or the object if it is finished."""
        if not self._over:
            self._over = True
            with contextlib.suppress(Exception), self._writer:
                raise InterruptedError("upload aborted")
        self._store.delete(self._path)


@lru_cache(maxsize=64)
def _client(
    location: str, given: tuple[tuple[str, str], ...], _environment: tuple[Any, ...]
) -> tuple[Any, tuple[str, ...]]:
    """obstore's client for a location, cached by options and environment, and the secrets to redact."""
    options, url = split_options(dict(given)), urlsplit(location)
    secrets = (*options.secrets, *(text for text in (url.query, url.password) if text))
    settings: dict[str, Any] = {"config": options.config, "client_options": options.client}
    settings = {name: values for name, values in settings.items() if values}
    settings["retry_config"] = {**_RETRY_DEFAULTS, **options.retry}
    try:
        return from_url(location, **settings), secrets
    except obx.UnknownConfigurationKeyError as e:
        raise ConfigError(
            f"unknown storage option for {_public(location)}: {_redacted(e, secrets)[0]}",
            suggestion="check its spelling against deltalake's storage options for that store",
        ) from None
    except _ERRORS as e:
        raise InvalidArgumentError(
            f"cannot open {_public(location)}: {_redacted(e, secrets)[0]}",
            suggestion=f"pass a local path or a URL that begins with {_SCHEMES}, and its storage options",
        ) from None


#: connections do not survive a fork
os.register_at_fork(after_in_child=_client.cache_clear)


def _typed(error: BaseException, text: str, *, writing: bool) -> StorageError:
    # if obstore has no class for the response, only its text contains the status
    status = match[1] if (match := _STATUS.search(str(error))) else ""
    missing = isinstance(error, FileNotFoundError | obx.NotFoundError)
    if missing or status == "404":
        # a list or a write can only fail with 404 if the bucket does not exist
        place = "the bucket or container does not exist: check the location, the endpoint and the region"
        bucket = writing or not missing
        return StorageMissingError(text, suggestion=place if bucket else "check the path: no object has it")
    denied = isinstance(error, PermissionError | obx.PermissionDeniedError | obx.UnauthenticatedError)
    if denied or status in ("401", "403"):
        hint = "check the credentials and their permissions on this path: they come from storage_options, "
        hint += 'from [storage."URL"] in the settings, or from the environment'
        return StorageAccessError(text, suggestion=hint)
    if isinstance(error, obx.InvalidPathError | obx.NotSupportedError | ValueError):
        hint = "the store cannot do this: check the path and the store's settings"
        return StorageError(text, suggestion=hint)
    hint = "check the network, the endpoint and the credentials, then try again"
    return StorageUnavailableError(text, suggestion=hint)


def _redacted(error: BaseException, secrets: tuple[str, ...]) -> tuple[str, bool]:
    """The error's text without secrets, and whether it is unchanged."""
    full = str(error)
    text = _URL.sub(lambda url: url[0].partition("?")[0], full)
    for secret in secrets:
        text = text.replace(secret, "***")
    shown = takewhile(lambda line: not line.lstrip().startswith(_DEBUG), text.split("\n"))
    return "\n".join(shown).strip(), text == full


def _public(location: str) -> str:
    """A URL without credentials."""
    parts = urlsplit(location)
    # abfss://container@account keeps its user part: it names the container
    host = parts.netloc if ":" not in parts.netloc.rpartition("@")[0] else parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _meta(item: Any) -> ObjectMeta:
    return ObjectMeta(item["path"], item["size"], round(item["last_modified"].timestamp() * 1000))


# ---- storage options as `deltalake` spells them ----

_PROVIDER = re.compile(r"^(aws|azure|google|gcp|gcs)_")
_SECRET = re.compile(
    r"secret|key|token|sas|password|credential|service_account|authorization|header", re.ASCII
)
#: settings of delta-rs that do not concern the store
_IGNORED = re.compile(
    r"(aws_s3_)?allow_unsafe_rename$|mount_allow_unsafe_rename$|aws_s3_locking_provider$|delta_dynamo|dynamo"
    r"|.*_dynamodb$|object_store_concurrency_limit$|aws_s3_pool_idle_timeout|aws_s3_get_internal_server"
    r"|aws_sts_pool|aws_force_credential_load$|conditional_put_with_lock"
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_FLAGS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off", ""), False),
}


def _duration(text: str) -> timedelta:
    if (match := _DURATION.fullmatch(text.strip().lower())) is None:
        raise ValueError
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


_FLAG = ("client", lambda text: _FLAGS[text.strip().lower()], "true or false")
_TEXT = ("client", str, "text")
_WAIT = "a duration, such as 30s, 500ms or 2m"
#: options that are not the provider's: their group, how they are parsed, and the expected form
_PARSERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    **dict.fromkeys(("allow_http", "allow_invalid_certificates", "randomize_addresses"), _FLAG),
    **dict.fromkeys(
        ("connect_timeout", "read_timeout", "timeout", "user_agent", "default_content_type"), _TEXT
    ),
    **dict.fromkeys(("pool_idle_timeout", "pool_max_idle_per_host", "root_certificate"), _TEXT),
    **dict.fromkeys(("proxy_url", "proxy_ca_certificate", "proxy_excludes"), _TEXT),
    "max_retries": ("retry", lambda text: int(float(text)), "a number, such as 5"),
    "retry_timeout": ("retry", _duration, _WAIT),
    "backoff_config.init_backoff": ("backoff", _duration, _WAIT),
    "backoff_config.max_backoff": ("backoff", _duration, _WAIT),
    "backoff_config.base": ("backoff", float, "a number, such as 2"),
}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of one store: the provider's, the HTTP client's and those for retries."""

    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, Any] = field(repr=False)
    retry: Mapping[str, Any]
    secrets: tuple[str, ...] = field(repr=False)


def split_options(options: Mapping[str, str]) -> StoreOptions:
    """Split storage options into those of the provider, the HTTP client and the retries.

    ConfigError if a value is invalid; the message names the option, not the value.
    """
    config: dict[str, str] = {}
    groups: dict[str, dict[str, Any]] = {"client": {}, "retry": {}, "backoff": {}}
    secrets: set[str] = set()
    for name, value in options.items():
        key, text = name.lower(), str(value)
        bare = _PROVIDER.sub("", key)
        if text and _SECRET.search(key):
            secrets |= {text, *_private_keys(text)}
        if bare in _PARSERS:
            group, parse, form = _PARSERS[bare]
            try:
                groups[group][bare.removeprefix("backoff_config.")] = parse(text)
            except (ValueError, KeyError, OverflowError):
                what = f"storage option {name} has an invalid value"
                raise ConfigError(what, suggestion=f"set it to {form}") from None
        elif bare == "s3_addressing_style":
            config["virtual_hosted_style_request"] = "true" if text.lower() == "virtual" else "false"
        elif not _IGNORED.match(key):
            config[key] = text
    if groups["backoff"]:
        groups["retry"]["backoff"] = {**_BACKOFF, **groups["backoff"]}
    # the longest first: one secret may contain another
    hidden = tuple(sorted(secrets, key=len, reverse=True))
    return StoreOptions(config, groups["client"], groups["retry"], hidden)


def _private_keys(text: str) -> list[str]:
    """The private key of a service account, which is JSON."""
    with contextlib.suppress(ValueError, AttributeError):
        key = json.loads(text).get("private_key")
        return [key] if isinstance(key, str) and key else []
    return []
