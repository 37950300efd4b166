"""Object stores through obstore: creation decided by the store, errors typed, secrets kept out of them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import uuid
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
from deltalakedb.storage.durable import storage_error
from deltalakedb.storage.options import split_options
from deltalakedb.storage.store import ObjectMeta, RangeFile, checked_path
from deltalakedb.storage.upload import Upload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_SCHEMES = "s3, s3a, gs, az, adl, azure, abfs, abfss, http or https"
_URL = re.compile(r"https?://[^\s\"')]+", re.ASCII)
_DEBUG = "Debug source:"
_READ_AHEAD = 1 << 20
#: S3 answers 409 when two creations race: neither "there" nor "not there", so ask again
_CREATE_ATTEMPTS = 5
#: files up to this size go up in one request, larger ones in parts
_ONE_REQUEST = 32 << 20
_CHUNK = 8 << 20
_UPLOADS = 4
#: objects that one request deletes
_DELETES = 1000
_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_")
_WRITING = ("create", "write")
_STATUS = re.compile(r"status code: (\d{3})", re.ASCII)
#: a store that does not answer is an error within half a minute, unless the options say otherwise
_RETRY_DEFAULTS: dict[str, Any] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
_ERRORS = (obx.BaseError, OSError, ValueError)


class RemoteStore:
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

        Raises:
            InvalidArgumentError: No store is known for the URL's scheme.
            ConfigError: A storage option is unknown or wrong.
        """
        secrets = (*split_options(options).secrets, *_url_secrets(location))
        # connections and credentials that were fetched are kept; a changed environment asks for new ones
        around = ((k, v) for k, v in os.environ.items() if k.startswith(_PROVIDERS))
        store = _client(location, tuple(sorted(options.items())), tuple(sorted(around)))
        return cls(store, location=location, options=options, secrets=secrets)

    def __repr__(self) -> str:
        return f"RemoteStore({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_location, (self._url, self._options)

    @property
    def location(self) -> str:
        """The URL without credentials."""
        return _public(self._url)

    def get(self, path: str) -> bytes:
        """The whole content."""
        with self._translated("read", path):
            return bytes(obstore.get(self._store, checked_path(path)).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on."""
        if length <= 0:
            return b""
        with self._translated("read", path):
            return bytes(obstore.get_range(self._store, checked_path(path), start=start, length=length))

    def open(self, path: str) -> BinaryIO:
        """A seekable reader that fetches a megabyte at a time."""
        raw = RangeFile(self, path, self.head(path).size)
        return cast("BinaryIO", io.BufferedReader(raw, _READ_AHEAD))

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        try:
            self.head(path)
        except StorageMissingError:
            return False
        return True

    def head(self, path: str) -> ObjectMeta:
        """Size and time of one object."""
        with self._translated("look at", path):
            return _meta(obstore.head(self._store, checked_path(path)))

    def list(
        self, prefix: str = "", *, recursive: bool = False, start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The objects under a prefix, sorted by path; nothing where there are none."""
        prefix = prefix.strip("/")
        under = f"{checked_path(prefix)}/" if prefix else ""
        found = []
        with self._translated("list", prefix or "/"):
            if not recursive and start_after is None:
                listed = obstore.list_with_delimiter(self._store, prefix or None)
                found = [_meta(item) for item in listed["objects"]]
            else:
                # only the flat listing can begin in the middle, which saves most of a long log's pages
                chunks = obstore.list(self._store, prefix or None, offset=start_after, chunk_size=1000)
                for chunk in chunks:
                    found += [_meta(item) for item in chunk]
        found = [
            meta
            for meta in found
            if meta.path.startswith(under)
            and (recursive or "/" not in meta.path[len(under) :])
            and (start_after is None or meta.path > start_after)
        ]
        found.sort(key=lambda meta: meta.path)
        return iter(found)

    def folders(self) -> Sequence[str]:
        """The first parts of the paths of all objects that have more of them, sorted."""
        with self._translated("list", "/"):
            listed = obstore.list_with_delimiter(self._store)
            return sorted({str(p).strip("/") for p in listed["common_prefixes"]})

    def unfinished(self, prefix: str = "") -> Iterator[ObjectMeta]:  # noqa: ARG002
        """None: an object is there when it is whole."""
        return iter(())

    def put_new(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> bool:  # noqa: ARG002
        """Create an object; False where there is one already. The store sets the time itself."""
        return self._create(path, data)

    def put(self, path: str, data: bytes, *, mtime_ms: int | None = None) -> None:  # noqa: ARG002
        """Create or replace an object; its time is the store's."""
        with self._translated("write", path):
            obstore.put(self._store, checked_path(path), data, use_multipart=False)

    def put_file(self, path: str, source: Path, *, new: bool = True) -> bool:
        """Upload a local file; False where an object is there already and must stay.

        A large file goes up in parts and appears when the last one is there. Stores cannot make such an
        upload conditional, so a writer that is faster in that moment is replaced.
        """
        try:
            small = source.stat().st_size <= _ONE_REQUEST
            content = source.open("rb")
        except OSError as e:
            raise storage_error(e, "read", source) from e
        with content:
            if new and small:
                return self._create(path, content.read())
            if new and self.exists(path):
                return False
            with self._translated("write", path):
                obstore.put(
                    self._store,
                    checked_path(path),
                    content,
                    use_multipart=not small,
                    chunk_size=_CHUNK,
                    max_concurrency=_UPLOADS,
                )
        return True

    def begin(self, path: str) -> Upload:
        """A new object to write to as it goes; it appears, whole, when it is finished."""
        name = checked_path(path)
        with self._translated("create", name):
            writer = obstore.open_writer(self._store, name, buffer_size=_CHUNK, max_concurrency=_UPLOADS)
        return Upload(writer, typed=lambda: self._translated("write", name), delete=lambda: self.delete(name))

    def fetch(self, path: str, target: Path) -> int:
        """Copy an object to a local path; its size."""
        with self._translated("read", path):
            chunks = obstore.get(self._store, checked_path(path)).stream(min_chunk_size=_READ_AHEAD)
        try:
            file = target.open("wb")
        except OSError as e:
            raise storage_error(e, "write", target) from e
        with file:
            while True:
                with self._translated("read", path):
                    chunk = next(chunks, None)
                if chunk is None:
                    return file.tell()
                try:
                    file.write(chunk)
                except OSError as e:
                    raise storage_error(e, "write", target) from e

    def delete(self, path: str) -> None:
        """Delete an object; it may be gone already."""
        self.delete_all([path])

    def now_ms(self) -> int:
        """The time that the store gives to an object, which is written for this and deleted again."""
        name = f"_deltasql-clock-{uuid.uuid4().hex}"
        self.put(name, b"")
        try:
            return self.head(name).modified_ms
        finally:
            self.delete(name)

    def delete_all(self, paths: Iterable[str]) -> None:
        """Delete many objects, as many at a time as the store takes; some may be gone already."""
        names = [checked_path(path) for path in paths]
        for start in range(0, len(names), _DELETES):
            some = names[start : start + _DELETES]
            try:
                self._delete(some)
            except StorageMissingError:
                # a store that deletes one by one (Google's) gives up the others at the first one that is gone
                for name in some:
                    with contextlib.suppress(StorageMissingError):
                        self._delete([name])

    def _delete(self, names: Sequence[str]) -> None:
        with self._translated("delete", names[0]):
            obstore.delete(self._store, [*names])

    def _create(self, path: str, data: bytes) -> bool:
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

    @contextlib.contextmanager
    def _translated(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except _ERRORS as e:
            text, clean = _cleaned(e, self._secrets)
            # what the store said may quote a signed URL; then the cause must not be shown either
            said = f"cannot {doing} {path} in {self.location}: {text}"
            raise _typed(e, said, writing=doing in _WRITING) from (e if clean else None)


@lru_cache(maxsize=64)
def _client(location: str, given: tuple[tuple[str, str], ...], _environment: tuple[Any, ...]) -> Any:
    """obstore's client for a location, the same for the same options and environment."""
    options = split_options(dict(given))
    secrets = (*options.secrets, *_url_secrets(location))
    settings: dict[str, Any] = {}
    if options.config:
        settings["config"] = dict(options.config)
    if options.client:
        settings["client_options"] = dict(options.client)
    settings["retry_config"] = {**_RETRY_DEFAULTS, **options.retry}
    try:
        return from_url(location, **settings)
    except obx.UnknownConfigurationKeyError as e:
        text, _ = _cleaned(e, secrets)
        raise ConfigError(
            f"a storage option is unknown to {_public(location)}: {text}",
            suggestion="check its spelling against deltalake's storage options for that store",
        ) from None
    except _ERRORS as e:
        text, _ = _cleaned(e, secrets)
        raise InvalidArgumentError(
            f"cannot open {_public(location)}: {text}",
            suggestion=f"give a local path or a URL that begins with {_SCHEMES}, and its storage options",
        ) from None


#: connections do not survive a fork
os.register_at_fork(after_in_child=_client.cache_clear)


def _typed(error: BaseException, text: str, *, writing: bool = False) -> StorageError:
    # where obstore has no class for what the server said, only its text holds the status
    status = match[1] if (match := _STATUS.search(str(error))) else ""
    if isinstance(error, FileNotFoundError | obx.NotFoundError) or status == "404":
        # a store needs nothing to exist for a list or a write except the bucket
        place = "the bucket or container is not there: check the location, the endpoint and the region"
        bucket = writing or (status == "404" and not isinstance(error, FileNotFoundError | obx.NotFoundError))
        return StorageMissingError(text, suggestion=place if bucket else "check the path: nothing is there")
    denied = isinstance(error, PermissionError | obx.PermissionDeniedError | obx.UnauthenticatedError)
    if denied or status in ("401", "403"):
        return StorageAccessError(
            text,
            suggestion="check the credentials and the rights they give on this path: they come from "
            'storage_options, from [storage."URL"] in the settings, or from the environment',
        )
    if isinstance(error, obx.InvalidPathError | obx.NotSupportedError | ValueError):
        return StorageError(
            text, suggestion="the store cannot do this: check the path and the store's settings"
        )
    return StorageUnavailableError(
        text, suggestion="check the network, the endpoint and the credentials, then try again"
    )


def _cleaned(error: BaseException, secrets: tuple[str, ...]) -> tuple[str, bool]:
    """The error's text without secrets, and whether it had none."""
    full = str(error)
    text = _URL.sub(lambda url: url[0].partition("?")[0], full)
    for secret in secrets:
        text = text.replace(secret, "***")
    shown = takewhile(lambda line: not line.lstrip().startswith(_DEBUG), text.split("\n"))
    return "\n".join(shown).strip(), text == full


def _public(location: str) -> str:
    parts = urlsplit(location)
    # abfss://container@account keeps its user part: it names the container
    host = parts.netloc if ":" not in parts.netloc.rpartition("@")[0] else parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _url_secrets(location: str) -> tuple[str, ...]:
    parts = urlsplit(location)
    return tuple(text for text in (parts.query, parts.password) if text)


def _meta(item: Any) -> ObjectMeta:
    return ObjectMeta(item["path"], item["size"], round(item["last_modified"].timestamp() * 1000))
