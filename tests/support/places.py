"""Places where tables lie, so that one test runs on local disk and in a bucket."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any

import boto3

from deltalakedb.storage import open_store
from support.s3 import SECRET

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ends when its input does, however the test run ends
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server:
    """moto's S3 in a process of its own: delta-rs may wait for it while it holds this one's lock."""

    def __init__(self) -> None:
        self._process = Popen([sys.executable, "-c", _SERVER], stdin=PIPE, stdout=PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        keys = {"aws_access_key_id": "testing-id", "aws_secret_access_key": SECRET}
        self.client: Any = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **keys)

    def stop(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


@dataclass(frozen=True)
class Place:
    """A folder or a bucket that tables lie in.

    Attributes:
        base: Its path or URL.
        options: Storage options, as a user passes them; None on local disk.
        client: boto3's client, for a look past everything else; None where it is not S3.
    """

    base: str
    options: dict[str, str] | None = None
    client: Any = field(default=None, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether it is a bucket."""
        return self.options is not None

    def at(self, name: str) -> str:
        """A location here."""
        return f"{self.base}/{name}"

    def files(self, name: str = "") -> set[str]:
        """Every file of a table, or of all, by its path below it."""
        if self.options is None:
            root = Path(self.base) / name
            return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        if self.client is None:
            return {meta.path for meta in open_store(self.at(name), self.options).list(recursive=True)}
        bucket = self.base.removeprefix("s3://")
        prefix = f"{name}/" if name else ""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {item["Key"][len(prefix) :] for page in pages for item in page.get("Contents", [])}

    def uploads(self) -> list[str]:
        """Uploads in parts that were neither finished nor given up."""
        if self.client is None:
            return []
        found = self.client.list_multipart_uploads(Bucket=self.base.removeprefix("s3://"))
        return [upload["Key"] for upload in found.get("Uploads", [])]

    def copy(self, folder: Path, name: str) -> None:
        """Copy a folder of this machine here."""
        store = open_store(self.at(name), self.options)
        for path in folder.rglob("*"):
            if path.is_file():
                store.put(path.relative_to(folder).as_posix(), path.read_bytes())


def with_endpoint(options: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """The same options with another endpoint, whatever its key is called."""
    return {k: endpoint if k.lower().endswith("endpoint_url") else v for k, v in options.items()}
