"""A bucket on moto's S3 server, and places that are a folder or a bucket."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from support.places import Place, S3Server, with_endpoint
from support.s3 import SECRET, Proxy, proxy_before

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def bucket(s3_server: S3Server) -> Place:
    """An empty bucket."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    s3_server.client.create_bucket(Bucket=name)
    # in the cases that users write: all of them are one option
    options = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "aws_access_key_id": "testing-id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "Aws_Region": "us-east-1",
        "allow_http": "true",
    }
    return Place(f"s3://{name}", options, s3_server.client)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder and a bucket in turn."""
    if request.param == "bucket":
        found: Place = request.getfixturevalue("bucket")
        return found
    return Place(str(tmp_path / "place"))


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with proxy_before(s3_server.endpoint) as found:
        yield found


@pytest.fixture
def watched(bucket: Place, proxy: Proxy) -> Place:
    """The bucket behind the proxy; what is listed or copied goes past it."""
    assert bucket.options is not None
    options = {**with_endpoint(bucket.options, proxy.endpoint), "max_retries": "0"}
    return Place(bucket.base, options, bucket.client)
