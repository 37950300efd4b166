"""Object stores that the tests start on demand: S3 by moto, Azure by Azurite, Google's by a small fake."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pytest

from support import azure, gcs, s3

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["s3", "azure", "gcs"]
KINDS: tuple[Kind, ...] = ("s3", "azure", "gcs")
_SCHEMES = {"s3": "s3", "azure": "az", "gcs": "gs"}
_SECRETS = {"s3": s3.SECRET, "azure": azure.KEY, "gcs": gcs.SECRET}


@dataclass(frozen=True)
class Bucket:
    """An empty bucket, or container, that no other test uses."""

    kind: Kind
    name: str
    endpoint: str

    @property
    def url(self) -> str:
        """The bucket's root."""
        return f"{_SCHEMES[self.kind]}://{self.name}"

    @property
    def secret(self) -> str:
        """What no error may show."""
        return _SECRETS[self.kind]

    def options(self, endpoint: str | None = None, **options: str) -> dict[str, str]:
        """Storage options for the bucket's own server, or for a proxy before it."""
        make = {"s3": s3.s3_options, "azure": azure.azure_options, "gcs": gcs.gcs_options}[self.kind]
        return make(endpoint or self.endpoint, **options)


class StoreServers:
    """The servers of one test run; each starts when its first bucket is wanted."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._moto: str | None = None
        self._azurite: str | None = None
        self._gcs: gcs.FakeGcs | None = None

    def bucket(self, kind: Kind) -> Bucket:
        """A new bucket; skips the test where its server cannot be had."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        return Bucket(kind, name, getattr(self, f"_in_{kind}")(name))

    def close(self) -> None:
        """Stop what was started."""
        self._stack.close()

    def _in_s3(self, name: str) -> str:
        if self._moto is None:
            self._moto = self._stack.enter_context(_moto())
        import boto3  # half of the time that collecting takes, for few tests

        keys = {"aws_access_key_id": "testing-id", "aws_secret_access_key": s3.SECRET}
        client = boto3.client("s3", endpoint_url=self._moto, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=name)
        return self._moto

    def _in_azure(self, name: str) -> str:
        if self._azurite is None:
            if (program := azure.program()) is None:
                pytest.skip("Azurite is not installed: make azurite (needs npm)")
            self._azurite = self._stack.enter_context(azure.azurite(program))
        azure.create_container(self._azurite, name)
        return self._azurite

    def _in_gcs(self, name: str) -> str:
        if self._gcs is None:
            self._gcs = self._stack.enter_context(gcs.fake_gcs())
        self._gcs.create_bucket(name)
        return self._gcs.endpoint


@contextmanager
def _moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
